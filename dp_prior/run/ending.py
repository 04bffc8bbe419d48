"""The end of a run: measures the best weights once, and hands checkpoint, result and report on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.format import read_checkpoint, read_manifest
from dp_prior.checkpoints.store import Saved
from dp_prior.evaluation.curve import draw_learning_curve
from dp_prior.files.entry_points import listeners, missing_plugins
from dp_prior.run.assembly import Assembly, Services
from dp_prior.run.scores import has_result_of, shown_on_card, write_result
from dp_prior.tensors.pixels.video_writer import write_gif
from dp_prior.tracking.jsonl import ROWS
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.measure import measure
from dp_prior.training.trainer import PolicyTrainer


def measure_best(parts: Assembly, trainer: PolicyTrainer, best: Path) -> None:
    """Measure the best weights, which the trainer restores, draw the learning curve, and store both."""
    ranks, tracker, end = parts.ranks, trainer.tracker, trainer.progress
    with ranks.busy():
        trainer.restore(read_checkpoint(best))
    findings = measure(parts.tests, trainer.models, ranks, trainer.progress, "test").whole()
    tracker.log(findings.metrics, end)
    tracker.log_images(findings.media, end)
    if not ranks.is_main_process:
        return
    with ranks.busy():
        films = [path for path in findings.media.values() if path.suffix == ".mp4"]
        with _optional(parts, "no learning curve was drawn", ImportError, OSError, ValueError):
            findings.media["curve"] = draw_learning_curve(parts.directory / ROWS, parts.media / "curve.png")
            tracker.log_images({"curve": findings.media["curve"]}, end)
        with _optional(parts, "no GIF was made", ImportError, OSError, ValueError):
            for film in films[:1]:
                write_gif(film, film.with_suffix(".gif"))
        result = write_result(parts.directory, best, findings.metrics, findings.media, _test_settings(parts))
        tracker.log_file(result, end)


def is_measured(parts: Assembly, best: Path) -> bool:
    """Whether the run has the result of these weights. A collective."""
    return parts.ranks.decide(lambda: has_result_of(parts.directory, best, _test_settings(parts)))


def deliver(parts: Assembly, tracker: Tracker, best: Path, ending: str) -> None:
    """Write the report, if `tracker.report` asks for it, and pass the best checkpoint and the result to the savers.
    Both may be repeated; a report that fails leaves the result as it is.

    Args:
        ending: state of the run in a report.
    """
    if not parts.ranks.is_main_process:
        return
    with parts.ranks.busy():
        if parts.config.tracker.report:
            if remedy := missing_plugins():
                parts.report(f"warning: no report was written. {remedy}")
            for write_report in listeners("reports"):
                with _optional(parts, "warning: no report was written", Exception):  # of drawing libraries, a full disk
                    write_report(parts.directory, ending)
        tracker.complete(best, *shown_on_card(parts.directory, best))


def pass_on_latest(parts: Assembly, services: Services) -> None:
    """Pass the latest checkpoint to the savers again."""
    if not parts.ranks.is_main_process or (latest := services.store.latest()) is None:
        return
    with parts.ranks.busy():
        manifest = read_manifest(latest)
        services.tracker.save(Saved(latest, manifest.progress, manifest.metrics, is_latest=True, is_best=False))


@contextlib.contextmanager
def _optional(parts: Assembly, failure: str, *errors: type[Exception]) -> Iterator[None]:
    """Inside, errors of these types are reported and end nothing else."""
    try:
        yield
    except errors as error:
        parts.report(f"{failure}: {type(error).__name__}: {error}")


def _test_settings(parts: Assembly) -> list[dict[str, Any]]:
    """The settings of the test evaluators, as JSON."""
    return parts.config.to_document()["test"]
