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
    """Find the checkpoint to resume from; None for a fresh start. For the main rank only: damaged checkpoints are
    renamed.

    A run's own newest checkpoint takes precedence over `load`.

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
    """Check, without the network, that a run can begin or resume.

    Raises:
        ConfigError: see `recalled`; names of a new run cannot be written, see `check_names`.
        FileNotFoundError, CheckpointError: there is no checkpoint at the path `train.init_from`; see `resolve`.
    """
    if recalled(config.tracker.load, directory, resume) is not None:
        return
    reports = (evaluator.name for evaluator in (*config.evaluate, *config.test))
    names = [*reports, *config.train.ema, *config.data.recorded_sets()]
    are_plain = all(name.isascii() and name.isidentifier() for name in names)
    # Names of most runs are plain and differ by more than case: they load no rules about disks.
    if config.tracker.save or not are_plain or len({*map(str.lower, names)}) < len(names):
        from dp_prior.run.written_names import check_names

        check_names(config)
    source = TransferConfig.of(config.train.init_from)
    if source is not None and "://" not in source.path:
        from dp_prior.places.reference import resolve

        resolve(source.path, whole=False)


def recalled(load: ResumeConfig, directory: Path, resume: Resume) -> str | None:
    """Name the checkpoint that a run would resume from, without the network; None for a fresh start.

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
