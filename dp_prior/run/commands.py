"""Commands on a finished run or a checkpoint: measure it again, upload it, export it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.documents import CONFIG, PROGRESS
from dp_prior.checkpoints.format import MANIFEST, MODEL_FILES, read_checkpoint, read_manifest
from dp_prior.config import ConfigError, an
from dp_prior.export.graphs import Format
from dp_prior.export.write import write_export
from dp_prior.job.ranks import Ranks, make_accelerator
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.local import copy_checkpoint
from dp_prior.places.reference import resolve
from dp_prior.places.upload import UploadConfig, UploadSaver
from dp_prior.run.assembly import Assembly
from dp_prior.run.imported import SOURCE
from dp_prior.run.start import take_weights
from dp_prior.run.stored import read_stored
from dp_prior.run_files.config import TrainConfig
from dp_prior.run_files.directory import refuse_checkpoint
from dp_prior.run_files.scores import has_result_of, read_result, shown_on_card
from dp_prior.tasks.bounded import UnbuildableError
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.measure import measure


def evaluate_checkpoint(
    reference: str, overrides: tuple[str, ...] = (), out: Path | None = None
) -> list[tuple[str, float, float | None]]:
    """Run the evaluators of a checkpoint's own configuration on it again.

    Args:
        reference: path of a checkpoint or a run.
        overrides: changes to the configuration, for example other data or more episodes.
        out: folder for reports, films and pictures; None for nowhere.

    Returns:
        (metric, value now, value stored in the checkpoint, or in the result of its run, or None) for all evaluators,
        those of `test` last; empty on other ranks than the first.

    Raises:
        FileExistsError: `out` is not empty.
        ConfigError: the checkpoint holds no training state.
    """
    directory = resolve(reference)
    manifest = read_manifest(directory)
    is_imported = SOURCE in manifest.files
    if not is_imported and not manifest.can_be_resumed:
        problem = "holds only the files for inference; name the checkpoint, or a copy by `dp-prior export --whole`"
        raise ConfigError(str(directory), [problem])
    snapshot = read_checkpoint(directory)
    source = str(directory / CONFIG)
    config = TrainConfig.from_json(json.dumps(snapshot.documents[CONFIG]), overrides, source=source)
    with tempfile.TemporaryDirectory(prefix="dp_prior_evaluate_") as place:
        small = {  # no step is taken, so the data may be fewer than one, or the ranks more
            "data": config.data.model_copy(update={"batch_size": 1}),
            "train": config.train.model_copy(update={"accumulation": 1}),
        }
        unmeasured = config.model_copy(update={"evaluate": (), "test": (), **small})
        ranks = Ranks(make_accelerator(config.train.precision, config.train.dist_timeout))
        weights = snapshot.tensors[MODEL_FILES[0]].values()
        try:
            parts = Assembly(unmeasured, ranks, report=lambda line: None, directory=Path(place), weights=weights)
        except UnbuildableError as error:
            raise ConfigError(source, [str(error)]) from error
        ranks.decide(lambda: _check_empty(out))
        evaluators = [record.create(parts.data, out) for record in (*config.evaluate, *config.test)]
        if is_imported:
            take_weights(parts.model, str(directory), ranks)
        trainer = parts.trainer(Tracker(Path(place), config.tracker), None)
        if not is_imported:
            parts.restore(trainer, snapshot, allow_changes=("data", "seed"))  # measuring on other data is allowed
        with parts.watched():
            metrics, _ = measure(evaluators, trainer.models, ranks, trainer.progress, "evaluation")
        ranks.end()
    stored, run = snapshot.documents.get(PROGRESS, {"metrics": {}})["metrics"], directory.parent.parent
    if has_result_of(run, directory):
        stored |= read_result(run)["test"]
    return [(name, value, stored.get(name)) for name, value in metrics.items()] if ranks.is_main_process else []


def _check_empty(folder: Path | None) -> None:
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose another folder, so that no file is overwritten")


def push_run(run: Path, repo: str | None, limit_s: float, report: Callable[[str], None]) -> list[str]:
    """Upload the checkpoints in the outbox of a run; its training may be running.

    Args:
        run: the run directory.
        repo: Hub repository for which the best checkpoint is queued first; created as a private one if missing.
        limit_s: seconds after which to give up.

    Returns:
        One line for each checkpoint that is not uploaded yet.

    Raises:
        FileNotFoundError: there is no such run.
        ConfigError: the run has no saver that uploads, and `repo` is None.
    """
    refuse_checkpoint(run)
    if not (run / CONFIG).is_file():
        raise FileNotFoundError(f"there is no run at {run}: it has no {CONFIG}")
    config = TrainConfig.from_json_path(run / CONFIG)
    records = [record for record in config.tracker.save if isinstance(record, UploadConfig)]
    if repo is not None:
        named = [one for one in records if isinstance(one, HuggingFaceSaverConfig) and one.repo == repo]
        records = named or [HuggingFaceSaverConfig.from_json(json.dumps({"type": "huggingface", "repo": repo}))]
        best = resolve(run)
        asked = records[0].model_copy(update={"save_best": True})  # the saver itself may send the latest only
        UploadSaver(asked, run).complete(best, *shown_on_card(run, best))
    if not records:
        raise ConfigError(str(run), ["its configuration has no saver that uploads; name a repository with --repo"])
    missing: list[str] = []
    for record in records:
        is_known = record in config.tracker.save
        saver = UploadSaver(record, run, command="dp-prior push RUN" + ("" if is_known else f" --repo {repo}"))
        lines = saver.drain(limit_s)
        report("\n".join(lines) if lines else f"{saver.name}: {saver.remark or 'everything is uploaded'}")
        missing += lines
    return missing


def export_checkpoint(reference: str, directory: Path, *, whole: bool) -> tuple[Path, str]:
    """Copy a checkpoint to a directory that `load_policy` reads.

    Args:
        whole: include what is needed to continue training.

    Returns:
        The directory that was copied, and the SHA-256 of the copy's manifest.

    Raises:
        FileExistsError: `directory` exists and is not such a copy.
    """
    source = resolve(reference, whole=whole)
    copy_checkpoint(source, directory, None if whole else MODEL_FILES)
    return source, hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()


def export_policy(reference: str, directory: Path, layout: Format, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Export a policy as graphs; see `write_export`.

    Args:
        overrides: changes to `task.sampler` of the configuration.

    Raises:
        ConfigError: it is no policy, or an override changes something else.
    """
    source = resolve(reference, whole=False)
    if not all(one.startswith("task.sampler") for one in overrides):
        raise ConfigError("--set", ["only task.sampler can be changed in an export; the rest is trained"])
    task = read_stored(source, overrides, with_data=False).task
    if task.kind != "policy":
        advice = "leave --format out to copy the checkpoint, or draw from it by dp-prior sample"
        raise ConfigError(str(source), [f"holds {an(task.type)}, but only policies become graphs; {advice}"])
    try:
        policy = DiffusionPolicy.from_pretrained(source)
    except ValueError as error:
        raise ConfigError(str(source), [str(error)]) from None
    return write_export(policy, directory, layout, source=str(source), sampler=task.sampler)
