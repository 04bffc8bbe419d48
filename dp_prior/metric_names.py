"""What every metric of a run is called and what it means: the one list, for readers, pages and loggers.

A name may hold `<placeholders>` for what a configuration chooses. `docs/metrics.md` is generated from this list by
`python -m dp_prior.run.reference`; a name that a run logs and that is not here fails a test.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

PLACEHOLDERS = {
    "name": ("[^/]+", "the `name` of an evaluator, by default its first word in the list"),
    "model": ("[^/]+", "`online` for the trained weights, or the name of an average in `train.ema`"),
    "average": ("[^/]+", "the name of an average in `train.ema`"),
    "quarter": ("[0-3]", "quarter of the timestep range, 0 least noisy"),
    "steps": ("[0-9]+", "sampling steps"),
    "base": ("text|mean_image", "`text` or `mean_image`"),
    "end": ("low|high", "`low` or `high`"),
    "k": ("[0-9]+", "a rank"),
}


@dataclass(frozen=True)
class Metric:
    """A metric, or all metrics whose names differ in placeholders only.

    Attributes:
        unit: `1` for a pure number.
        better: which way an improvement goes; None where there is no such thing.
        meaning: what is measured, over what, in one or two sentences.
    """

    name: str
    unit: str
    better: Literal["lower", "higher"] | None
    meaning: str

    def matches(self, name: str) -> bool:
        """Whether a logged name is one of this metric's."""
        return _pattern(self.name).fullmatch(name) is not None


GROUPS: dict[str, tuple[Metric, ...]] = {
    "Training, over the samples since the row before": (
        Metric("train/loss", "1", "lower", "The training objective, weighted as configured; mean over valid elements."),
        Metric("train/loss_q<quarter>", "1", "lower", "The same over one quarter of the timesteps; absent if empty."),
        Metric("train/simple", "1", "lower", "Where the variance is learned: the part of the loss for the mean."),
        Metric("train/simple_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
        Metric("train/vb", "bits/dim", "lower", "Where the variance is learned: the variational bound."),
        Metric("train/vb_q<quarter>", "bits/dim", "lower", "The same over one quarter of the timesteps."),
        Metric(
            "train/grad_norm", "1", None, "L2 norm of the gradient before clipping; mean over steps with a finite one."
        ),
        Metric("train/skipped_steps", "steps", "lower", "Steps since the start whose gradient was not finite."),
        Metric("train/lr", "1", None, "Learning rate of the last step."),
        Metric("train/<average>_decay", "1", None, "Weight that the average kept at the last step."),
        Metric("train/epoch", "epochs", None, "Samples seen over the length of the training set."),
        Metric("train/samples_per_second", "samples/s", "higher", "Over all ranks, without the time of evaluations."),
    ),
    "Evaluator `loss`": (
        Metric("<name>/<model>/loss", "1", "lower", "The training objective on held-out samples with fixed noise."),
        Metric("<name>/<model>/loss_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
        Metric("<name>/<model>/simple", "1", "lower", "Where the variance is learned: the part for the mean."),
        Metric("<name>/<model>/simple_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
        Metric("<name>/<model>/vb", "bits/dim", "lower", "Where the variance is learned: the variational bound."),
        Metric("<name>/<model>/vb_q<quarter>", "bits/dim", "lower", "The same over one quarter of the timesteps."),
    ),
    "Evaluator `likelihood`, of normalised values": (
        Metric("<name>/<model>/bits_per_dim", "bits/dim", "lower", "Upper bound on the negative log likelihood."),
        Metric("<name>/<model>/prior_bits", "bits/dim", None, "Its part at the noisiest timestep, without network."),
        Metric("<name>/<model>/step_bits", "bits/dim", "lower", "Its other part: all reverse steps."),
    ),
    "Evaluator `action_error`": tuple(
        Metric(f"<name>/<model>/{kind}[steps=<steps>]", unit, "lower", f"{error} of {part}, sampled in so many steps.")
        for kind, unit, error, part in (
            ("mse", "(action unit)²", "Mean squared error", "the executed actions"),
            ("mae", "action unit", "Mean absolute error", "the executed actions"),
            ("mse_chunk", "(action unit)²", "Mean squared error", "all actions of a chunk"),
            ("mae_chunk", "action unit", "Mean absolute error", "all actions of a chunk"),
        )
    ),
    "Evaluator `similarity`, of embeddings": (
        Metric("<name>/baseline_similarity", "cosine", None, "Of each text embedding with the image of its row."),
        Metric("<name>/mean_image_similarity", "cosine", None, "Of the mean training image with each image."),
        Metric("<name>/baseline_recall_at_<k>", "share", None, "Texts whose image is among the k nearest to them."),
        Metric("<name>/<model>/similarity_with_text[steps=<steps>]", "cosine", None, "Of drawn images with the texts."),
        Metric(
            "<name>/<model>/similarity_with_original_image[steps=<steps>]",
            "cosine",
            "higher",
            "Of drawn images with the images of their rows.",
        ),
        Metric(
            "<name>/<model>/similarity_with_unrelated_caption[steps=<steps>]",
            "cosine",
            "lower",
            "Of drawn images with the texts of other rows.",
        ),
        Metric(
            "<name>/<model>/difference_from_baseline_similarity[steps=<steps>]",
            "cosine",
            None,
            "Similarity with the text less the baseline similarity.",
        ),
        Metric(
            "<name>/<model>/margin_over_<base>[steps=<steps>]",
            "cosine",
            "higher",
            "Similarity with the original image less that of a baseline.",
        ),
        Metric(
            "<name>/<model>/margin_over_<base>_ci_<end>[steps=<steps>]",
            "cosine",
            "higher",
            "Ends of its 95 % interval over distinct images (Student's t).",
        ),
        Metric(
            "<name>/<model>/recall_at_<k>[steps=<steps>]",
            "share",
            "higher",
            "Drawn images whose image is among the k nearest to them.",
        ),
    ),
    "Evaluator `rollout`": (
        Metric("<name>/score", "score", "higher", "Mean score over the episodes, as the environment defines it."),
        Metric("<name>/score_std", "score", None, "Standard deviation of the score over episodes."),
        Metric("<name>/score_ci_low", "score", "higher", "Lower end of the 95 % interval of the mean (Student's t)."),
        Metric("<name>/score_ci_high", "score", "higher", "Upper end of that interval."),
        Metric("<name>/success_rate", "share", "higher", "Share of episodes solved; no number if nothing tells."),
        Metric("<name>/success_ci_low", "share", "higher", "Lower end of the 95 % interval of the share (Wilson)."),
        Metric("<name>/success_ci_high", "share", "higher", "Upper end of that interval."),
        Metric("<name>/episodes", "episodes", None, "Episodes run."),
        Metric("<name>/episode_steps", "steps", "lower", "Mean length of an episode until solved or over."),
    ),
}


def find_metric(name: str) -> Metric | None:
    """The metric that a logged name belongs to; None if it is not documented."""
    return next((metric for group in GROUPS.values() for metric in group if metric.matches(name)), None)


def page() -> str:
    """`docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated from `dp_prior/metric_names.py` by `python -m dp_prior.run.reference`; do not edit. Every number "
        "that a run logs is here. A row also has `step` (optimizer steps) and `samples_seen` (samples over all ranks), "
        "the two clocks of a run. A value that is not finite is null in `metrics.jsonl` and named under `nonfinite`.",
        "",
        "In names, " + "; ".join(f"`<{key}>` is {meaning}" for key, (_, meaning) in PLACEHOLDERS.items()) + ".",
    ]
    for title, metrics in GROUPS.items():
        lines += ["", f"## {title}", "", "| Metric | Unit | Better | Meaning |", "|---|---|---|---|"]
        lines += [f"| `{one.name}` | {one.unit} | {one.better or ''} | {one.meaning} |" for one in metrics]
    return "\n".join(lines) + "\n"


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"<(\w+)>", name)
    return re.compile(
        "".join(f"(?:{PLACEHOLDERS[part][0]})" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    )
