"""Where a run begins: at its own checkpoint, at one from another place, or with the weights of another run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dp_prior.checkpoints.format import read_manifest
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.config import ConfigError, errors_of
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Stop
from dp_prior.networks.encoders.encoder import load_pretrained
from dp_prior.places import ResumeConfig
from dp_prior.places.resume import LocalResumeConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.weights import TransferConfig

Resume = Literal["auto", "never", "must"]


def find_checkpoint(
    load: ResumeConfig, store: CheckpointStore, resume: Resume, report: Callable[[str], None], stop: Stop
) -> Path | None:
    """The checkpoint to resume from, None for a fresh start. Call this function on the main rank only, because it
    renames damaged checkpoints.

    A run that has begun goes on from its own newest checkpoint, not from the one that `load` names.

    Raises:
        StoppedEarly: a stop was requested during a download.
        ConfigError: `resume` is never and there is a checkpoint, or must and there is none; or the run is an import.
    """
    newest, directory = store.latest(), store.root.parent
    reference = recalled(load, directory, resume)
    if resume == "never":
        return None
    if newest is not None and "://" not in (reference or ""):
        if not read_manifest(newest).can_be_resumed:
            problem = f"{directory} is an imported policy, which has no training state to resume"
            raise ConfigError("tracker.data_path", [f"{problem}; choose another directory, with train.init_from"])
        return newest
    if reference is None:
        if isinstance(load, LocalResumeConfig) and load.path is not None:
            report(f"  start from    nothing: there is no checkpoint in {load.path} (tracker.load)")
        return None
    from dp_prior.run.adoption import adopt, resumable

    if "://" not in reference:
        return resumable(reference)
    return adopt(store, reference, report, stop, is_required=resume == "must") or newest


def check_start(config: TrainConfig, directory: Path, resume: Resume) -> None:
    """Raises ConfigError as `recalled` does, and the errors of `resolve` if `train.init_from` of a new run is a path.
    Opens no socket."""
    source = TransferConfig.of(config.train.init_from)
    if recalled(config.tracker.load, directory, resume) is None and source is not None and "://" not in source.path:
        from dp_prior.places.reference import resolve

        resolve(source.path, whole=False)


def recalled(load: ResumeConfig, directory: Path, resume: Resume) -> str | None:
    """The reference that a run would resume from, None for a fresh start; opens no socket.

    Raises:
        ConfigError: `resume` is never and there is a checkpoint, or must and there is none.
    """
    if resume == "never":
        if (newest := LocalResumeConfig().recall(directory)) is not None:
            from dp_prior.places.reference import resolve

            problem = f"{directory} already holds checkpoints, up to {resolve(newest).name}; nothing is overwritten"
            remedy = "choose another directory (--set tracker.data_path=...) or resume with --resume auto"
            raise ConfigError("--resume never", [f"{problem}; {remedy}"])
        return None
    reference = load.recall(directory)
    if reference is None and resume == "must":
        other = load.path if isinstance(load, LocalResumeConfig) else None
        places = directory if other is None else f"{directory}, nor in {other} (tracker.load)"
        problem = f"there is no checkpoint in {places}; start with --resume auto to begin from scratch"
        raise ConfigError("--resume must", [problem])
    return reference


def initialise(model: Pretrained, config: TrainConfig, ranks: Ranks, report: Callable[[str], None]) -> None:
    """Give a new run the weights of another checkpoint (`train.init_from`), and its encoders their published weights
    where the checkpoint gives none.

    Raises:
        ConfigError: weights do not fit, or cannot be read.
    """
    source = TransferConfig.of(config.train.init_from)
    if source is None or source.is_partial:
        with errors_of("task.encoders", FileNotFoundError):
            ranks.unless_stopped(lambda: load_pretrained(model))
    if source is not None:
        from dp_prior.run.initial_weights import take_weights

        take_weights(model, config, source, ranks, report)
