"""`dp-prior checkpoints likelihood`: bits per dimension of a trained model on its data, beside simple baselines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.clock import Progress
from dp_prior.config import ConfigError
from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.evaluation.samples import pick_samples
from dp_prior.job.ranks import Ranks
from dp_prior.run.stored import check_classes, check_origin
from dp_prior_lab.gaussian import gaussian_bits, uniform_bits
from dp_prior_lab.trained_model import load_model, watched
from dp_prior_robot.stored_task import read_stored

MODEL_NAME = "model"


def measure_likelihood(
    reference: str,
    ranks: Ranks,
    report: Callable[[str], None],
    *,
    weights: str | None,
    guidance_scale: float | None,
    overrides: tuple[str, ...],
    **settings: Any,
) -> dict[str, float]:
    """Bits per dimension by name: those of the model, of its two parts, and of the baselines. A collective.

    The model's are those of the `likelihood` evaluator. `gaussian_bits` are of one Gaussian for each element of x,
    fitted to the training set; `uniform_bits`, for 8-bit data, of all values being equally likely.

    Args:
        reference, weights, guidance_scale: see `load_model`; the checkpoint must name its data.
        report: prints a line.
        overrides: changes of `data`, for example its path.
        settings: of the evaluator.

    Raises:
        ConfigError: the model has no likelihood, or its data are not known, or have other classes.
    """
    record = LikelihoodConfig(models=(MODEL_NAME,), **settings)
    directory, model = load_model(reference, ranks, weights=weights, guidance_scale=guidance_scale)
    stored = read_stored(directory, overrides)
    faults = list(record.task_faults(stored.task))
    if faults:
        raise ConfigError(str(directory), faults)
    check_origin(reference, {"data": stored.data}, overrides)
    data = stored.open(report, ranks.check_before_training)
    check_classes(model.spec, data.spec)
    samples = pick_samples(data, record.split, "likelihood")
    with tempfile.TemporaryDirectory(prefix="dp_prior_likelihood_") as place, watched(ranks, Path(place)):
        measured = record.create(data).run({MODEL_NAME: model}, ranks, Progress()).metrics
        gaussian = gaussian_bits(model, data.train, samples, record.max_samples, record.batch_size, ranks)
        ranks.meet()
    bits = {name.rpartition("/")[2]: value for name, value in measured.items()} | {"gaussian_bits": gaussian}
    data_step = model.process.config.data_step
    return bits if data_step is None else bits | {"uniform_bits": uniform_bits(data_step)}
