"""Averages of any width after training, from the snapshots of a run that kept power-function averages.

Every stored average is a weighted sum over the steps of the run with a known profile. The stored profiles are combined
by least squares to approximate the requested profile, and the stored weights with the same coefficients.
Source: Karras et al. 2024 (arXiv:2312.02696), section 3.2 and appendix C. Unlike there, the
coefficients sum to one, which preserves weights that never moved and hardly changes the fit.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.checkpoints.documents import CONFIG, PROGRESS, SPEC
from dp_prior.checkpoints.format import (
    CheckpointError,
    DamagedError,
    Snapshot,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from dp_prior.checkpoints.scan import STEP, StoredCheckpoint, scan
from dp_prior.config import ConfigError
from dp_prior.files.durable import vacant
from dp_prior.places.reference import resolve
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.weights import weights_file
from dp_prior.training.power_function import PowerFunctionDecay

AVERAGING_METHOD = "combination of stored power-function averages, Karras et al. 2024 (arXiv:2312.02696)"
_LEAST_SINGULAR_SHARE = 1e-12  # singular values below this fraction of the largest are rounding errors

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """Weight of step tau in a power-function average: (gamma + 1) tau^gamma / step^(gamma + 1) up to `step`."""

    relative_width: float
    step: int

    @property
    def exponent(self) -> float:
        """Gamma."""
        return PowerFunctionDecay(relative_width=self.relative_width).exponent


@dataclass(frozen=True)
class Average:
    """An average in a checkpoint of a run."""

    checkpoint: Path
    name: str
    file: str
    profile: Profile


@dataclass(frozen=True)
class Reconstruction:
    """The result of `reconstruct`.

    Attributes:
        error: norm of the fitted minus the requested profile, relative to the requested one; 0 is exact.
    """

    directory: Path
    target: Profile
    error: float
    n_averages: int
    n_checkpoints: int


def inner_products(rows: list[Profile], columns: list[Profile]) -> np.ndarray:
    """(len(rows), len(columns)) float64 integrals over the run of the products of two profiles.

    Source: Karras et al. 2024, appendix C, written with quotients of steps, which do not overflow.
    """
    gamma, step = _exponents_and_steps(rows)[:, :, None]
    other_gamma, other_step = _exponents_and_steps(columns)[:, None, :]
    first, last = np.minimum(step, other_step), np.maximum(step, other_step)
    gamma_of_last = np.where(step < other_step, other_gamma, gamma)
    scale = (gamma + 1) * (other_gamma + 1) / (gamma + other_gamma + 1)
    return scale * np.exp(gamma_of_last * np.log(first / last)) / last


def _exponents_and_steps(profiles: list[Profile]) -> np.ndarray:
    """(2, len(profiles)) float64."""
    return np.array([(profile.exponent, profile.step) for profile in profiles], np.float64).T


def fit(stored: list[Profile], target: Profile) -> tuple[np.ndarray, float]:
    """The least-squares combination of profiles for a target, with coefficients that sum to one.

    Returns:
        (len(stored),) float64 coefficients, and the error of `Reconstruction`. A stored target is returned exactly.
    """
    if target in stored:
        return np.eye(len(stored))[stored.index(target)], 0.0
    gram = inner_products(stored, stored)
    projections = inner_products(stored, [target])[:, 0]
    square = inner_products([target], [target])[0, 0]
    scale = np.sqrt(square / np.diag(gram))  # unknowns in units in which every profile has the norm of the target
    total = scale / np.linalg.norm(scale)
    system = np.block([[gram * np.outer(scale, scale) / square, total[:, None]], [total[None, :], np.zeros((1, 1))]])
    right = np.append(projections * scale / square, 1.0 / np.linalg.norm(scale))
    coefficients = scale * np.linalg.lstsq(system, right, rcond=_LEAST_SINGULAR_SHARE)[0][:-1]
    rest = square - 2.0 * coefficients @ projections + coefficients @ gram @ coefficients
    return coefficients, float(np.sqrt(max(rest, 0.0) / square))


def reconstruct(
    reference: str | Path, relative_width: float, directory: str | Path, *, max_error: float = 0.1
) -> Reconstruction:
    """Write the average of a width as a directory that `load_policy` or `load_prior` reads, with its derivation.

    Holds at most two copies of the weights in memory.

    Args:
        reference: a run, for the average at its newest checkpoint; or `RUN@step_00012000`, `RUN@best` for the average
            at that checkpoint.
        relative_width: of the average, see `PowerFunctionDecay`.
        directory: must be missing or empty; appears only when it is complete.
        max_error: a larger error of the fitted profile is refused.

    Raises:
        ConfigError: the width is invalid, the run kept no power-function average, or too few for this width.
        CheckpointError: a checkpoint of the run is damaged, or belongs to another run.
        FileNotFoundError, FileExistsError: there is no such run; `directory` is in use.
    """
    width = json.dumps({"relative_width": float(relative_width)})
    relative_width = PowerFunctionDecay.from_json(width, source="the average to be made").relative_width
    chain = _chain(reference)
    averages = _consistent([list(_averages(stored)) for stored in chain])
    target = Profile(relative_width, chain[0].manifest.step)
    if not averages:
        advice = 'give train.ema an average {"type": "power_function"} and set checkpoints.keep_every before training'
        raise ConfigError(str(reference), [f"no checkpoint holds a power-function average; {advice}"])
    profiles = [average.profile for average in averages]
    coefficients, error = fit(profiles, target)
    if not error <= max_error:  # also where NaN is allowed
        raise ConfigError(str(reference), [_out_of_reach(target, profiles, len(chain), error, max_error)])
    directory = vacant(directory)
    try:
        model, documents = _built(chain[0].path)
        _combine(model, averages, coefficients)
    except DamagedError as damage:
        raise _with_advice(damage) from None
    documents["average.json"] = {
        "method": AVERAGING_METHOD,
        "relative_width": relative_width,
        "step": target.step,
        "error": error,
        "run": str(chain[0].path.parent.parent),
        "of": [_note(*part) for part in zip(averages, coefficients.tolist(), strict=True)],
    }
    moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = chain[0].manifest.model_copy(update={"metrics": {}, "monitor": None, "saved_at": moment})
    weights = {"model.safetensors": dict(model.state_dict())}
    directory, manifest = write_checkpoint(directory, Snapshot(weights, documents), manifest)
    if manifest.nonfinite:
        raise CheckpointError(f"the average holds NaN or infinity; {directory} is for inspection only")
    return Reconstruction(directory, target, error, len(averages), len(chain))


def _out_of_reach(target: Profile, stored: list[Profile], n_checkpoints: int, error: float, max_error: float) -> str:
    """The problem of a profile that the stored ones approximate too badly."""
    widths = ", ".join(f"{width:g}" for width in sorted({profile.relative_width for profile in stored}))
    finding = f"width {target.relative_width:g} at step {target.step} is out of reach: the error would be {error:.2g}"
    limit = f"at most {max_error:g} is allowed. There are the widths {widths} at {n_checkpoints} checkpoints"
    advice = "choose a width between or near those, or keep more checkpoints (checkpoints.keep_every)"
    return f"{finding}, {limit}; {advice}"


def _consistent(checkpoints: list[list[Average]]) -> list[Average]:
    """The averages of all checkpoints, newest first.

    Raises:
        CheckpointError: `train.ema` was changed during the run, so the profiles of some averages are unknown.
    """
    now = {(average.name, average.profile.relative_width) for average in checkpoints[0]}
    for averages in checkpoints[1:]:
        before = {(average.name, average.profile.relative_width) for average in averages}
        if before != now:
            place = (averages or checkpoints[0])[0].checkpoint
            raise CheckpointError(
                f"train.ema was changed during the run, see {place / 'config.json'}: power-function averages "
                f"were {_listed(before)} and are {_listed(now)}. Name a checkpoint from before, RUN@step_00012000"
            )
    return [average for averages in checkpoints for average in averages]


def _note(average: Average, coefficient: float) -> dict[str, Any]:
    """One entry of `average.json`."""
    profile, where = average.profile, {"checkpoint": average.checkpoint.name, "average": average.name}
    return {**where, "relative_width": profile.relative_width, "coefficient": coefficient}


def _listed(averages: set[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {width:g}" for name, width in sorted(averages)) or "none"


def _chain(reference: str | Path) -> list[StoredCheckpoint]:
    """The checkpoint of a reference and its predecessors in the run, newest first."""
    if "://" in str(reference):
        raise ConfigError(str(reference), ["an average needs all checkpoints of a run; copy the run here first"])
    newest = resolve(reference, "latest")
    if not STEP.fullmatch(newest.name):
        raise ConfigError(str(reference), ["this is a single checkpoint; an average needs all checkpoints of a run"])
    checkpoints, damages = scan(newest.parent)
    for damage in damages:
        raise _with_advice(damage)
    last = read_manifest(newest).sequence
    chain: list[StoredCheckpoint] = []
    for stored in checkpoints:  # after a rollback the run wrote the same steps again
        if stored.manifest.sequence <= last and (not chain or 0 < stored.manifest.step < chain[-1].manifest.step):
            chain.append(stored)
    return chain


def _averages(stored: StoredCheckpoint) -> Iterator[Average]:
    """The power-function averages in a checkpoint, according to its configuration."""
    try:
        config = read_checkpoint(stored.path, [CONFIG]).documents[CONFIG]
    except DamagedError as damage:
        raise _with_advice(damage) from None
    averages = config.get("train", {}).get("ema", {})
    for name, decay in averages.items():
        if decay.get("type") == "power_function" and stored.manifest.step > 0:
            profile = Profile(decay["relative_width"], stored.manifest.step)
            yield Average(stored.path, name, weights_file(name, list(averages)), profile)


def _built(checkpoint: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a checkpoint, with the tensors that are not averaged such as the normalizer, and its documents."""
    documents = read_checkpoint(checkpoint, [CONFIG, SPEC, PROGRESS]).documents
    rollbacks = documents.pop(PROGRESS).get("rollbacks", 0)
    if rollbacks:
        log.warning("the run was rolled back %d times; the profiles do not account for the steps in between", rollbacks)
    try:
        return Pretrained.from_pretrained(checkpoint), documents
    except ConfigError:
        raise
    except ValueError as error:  # the weights do not fit, for example
        raise ConfigError(str(checkpoint), [str(error)]) from None


def _combine(model: nn.Module, averages: list[Average], coefficients: np.ndarray) -> None:
    """Replace the parameters by the sum of coefficient times average, one file at a time."""
    names, state = [name for name, _ in model.named_parameters()], model.state_dict()
    total = {name: torch.zeros_like(state[name]) for name in names}  # as stored; modules may hold them permuted
    for average, coefficient in zip(averages, coefficients.tolist(), strict=True):
        if coefficient != 0.0:
            _add(total, average, coefficient, state)
    model.load_state_dict(state | total)


def _add(total: dict[str, Tensor], average: Average, coefficient: float, state: dict[str, Tensor]) -> None:
    """Add an average. Its tensors are freed on return, so that at most one average is in memory beside the sum."""
    tensors = read_checkpoint(average.checkpoint, [average.file]).tensors[average.file]
    if {name: value.shape for name, value in tensors.items()} != {name: value.shape for name, value in state.items()}:
        raise CheckpointError(
            f"{average.checkpoint / average.file} has other tensors than the newest checkpoint; "
            f"are there checkpoints of two runs in {average.checkpoint.parent}?"
        )
    for name, value in total.items():
        value.add_(tensors[name], alpha=coefficient)


def _with_advice(damage: DamagedError) -> CheckpointError:
    run = damage.path.parent.parent
    advice = f"`dp-prior checkpoints repair {run}` sets it aside; the average is then made from the others"
    return CheckpointError(f"checkpoint {damage.path} is damaged: {damage.problem}. {advice}.")
