"""`dp-prior likelihood`: bits per dimension of a trained model over a part of its data, beside those of baselines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from dp_prior.clock import Progress
from dp_prior.commands.stored import TIMEOUT_S, check_classes, load_model, read_stored, watched
from dp_prior.config import ConfigError
from dp_prior.evaluation.gaussian import gaussian_bits, uniform_bits
from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.evaluation.samples import Part, pick_samples
from dp_prior.job.ranks import Ranks
from dp_prior.job.watch.judge import PATIENCE
from dp_prior.places.reference import resolve

MODEL = "model"


def measure_likelihood(
    reference: str,
    ranks: Ranks,
    report: Callable[[str], None],
    *,
    split: Part,
    max_samples: int | None,
    batch_size: int,
    seed: int,
    weights: str | None,
    guidance_scale: float | None,
    overrides: tuple[str, ...],
) -> dict[str, float]:
    """Bits per dimension by name: those of the model, of its two parts, and of the baselines. A collective.

    The model's are those of the `likelihood` evaluator. `gaussian_bits` are of one Gaussian for each element of x,
    fitted to the training set; `uniform_bits`, for 8-bit data, of all values being equally likely.

    Args:
        reference: of a checkpoint, run or export that names its data.
        report: prints a line.
        max_samples: at most this many, evenly spread over the split; None for all.
        overrides: changes of `data`, for example its path.

    Raises:
        ConfigError: the model has no likelihood, or its data are not known, or have other classes.
    """
    directory = ranks.decide(lambda: resolve(reference, whole=weights is not None), PATIENCE * TIMEOUT_S)
    model = load_model(directory, ranks, weights=weights, guidance_scale=guidance_scale)
    stored = read_stored(directory, overrides)
    settings = {"models": (MODEL,), "split": split, "max_samples": max_samples, "batch_size": batch_size, "seed": seed}
    record = LikelihoodConfig(**settings)
    if faults := list(record.task_faults(stored.task)):
        raise ConfigError(str(directory), faults)
    data = stored.open(report, ranks.check_before_training)
    check_classes(model.spec, data.spec)
    samples = pick_samples(data, split, "likelihood")
    with tempfile.TemporaryDirectory(prefix="dp_prior_likelihood_") as place, watched(ranks, Path(place)):
        measured = record.create(data).run({MODEL: model}, ranks, Progress()).metrics
        gaussian = gaussian_bits(model, data.train, samples, max_samples, batch_size, ranks)
        ranks.meet()
    found = {name.rpartition("/")[2]: value for name, value in measured.items()} | {"gaussian_bits": gaussian}
    data_step = model.process.config.data_step
    return found if data_step is None else found | {"uniform_bits": uniform_bits(data_step)}
