"""The metrics that the trainer logs, over the samples since the row before."""

from dp_prior.tracking.metric_names import Metric

METRICS = (
    Metric("train/loss", "1", "lower", "The training objective, weighted as configured; mean over valid elements."),
    Metric("train/loss_q<quarter>", "1", "lower", "The same over one quarter of the timesteps; absent if empty."),
    Metric("train/simple", "1", "lower", "Where the variance is learned: the part of the loss for the mean."),
    Metric("train/simple_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
    Metric("train/vb", "bits/dim", "lower", "With learned variance: the bound's terms, mean over timesteps."),
    Metric("train/vb_q<quarter>", "bits/dim", "lower", "The same over one quarter of the timesteps."),
    Metric("train/grad_norm", "1", None, "L2 norm of the gradient before clipping; mean over steps with a finite one."),
    Metric("train/skipped_steps", "steps", "lower", "Steps since the start whose gradient was not finite."),
    Metric("train/lr", "1", None, "Learning rate of the last step."),
    Metric(
        "train/loss_scale", "1", None, "With fp16: the factor of the loss that keeps small gradients from vanishing."
    ),
    Metric("train/<average>_decay", "1", None, "Weight that the average kept at the last step."),
    Metric("train/epoch", "epochs", None, "Samples seen over the length of the training set."),
    Metric(
        "train/data_share",
        "1",
        "lower",
        "Share of the time, without that of evaluations, that the first rank spent waiting for batches.",
    ),
    Metric("train/samples_per_second", "samples/s", "higher", "Over all ranks, without the time of evaluations."),
    Metric("train/evaluation_seconds", "s", "lower", "Time that the evaluations after this step took, all together."),
)
