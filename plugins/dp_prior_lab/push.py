"""`dp-prior checkpoints push`: upload the checkpoints that a run still has to deliver, or its best one to the Hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.config import ConfigError
from dp_prior.files.entry_points import misplaced
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.reference import resolve
from dp_prior.places.upload import UploadConfig, UploadSaver
from dp_prior.run.config import TrainConfig
from dp_prior.run.scores import shown_on_card
from dp_prior_studio.pages.story import refuse_checkpoint


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
        raise FileNotFoundError(f"there is no run at {run}: it has no {CONFIG}{misplaced(run, 'checkpoint')}")
    config = TrainConfig.from_json_path(run / CONFIG)
    records = [record for record in config.tracker.save if isinstance(record, UploadConfig)]
    if repo is not None:
        matching = [record for record in records if isinstance(record, HuggingFaceSaverConfig) and record.repo == repo]
        settings = json.dumps({"type": "huggingface", "repo": repo})
        records = matching or [HuggingFaceSaverConfig.from_json(settings, source="--repo, which is user/name")]
        best = resolve(run)
        asked = records[0].model_copy(update={"save_best": True})  # the saver itself may send the latest only
        UploadSaver(asked, run).complete(best, *shown_on_card(run, best))
    if not records:
        raise ConfigError(str(run), ["its configuration has no saver that uploads; name a repository with --repo"])
    missing: list[str] = []
    for record in records:
        is_known = record in config.tracker.save
        saver = UploadSaver(
            record, run, command="dp-prior checkpoints push RUN" + ("" if is_known else f" --repo {repo}")
        )
        lines = saver.drain(limit_s)
        report("\n".join(lines) if lines else f"{saver.name}: {saver.remark or 'everything is uploaded'}")
        missing += lines
    return missing
