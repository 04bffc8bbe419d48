"""Reports of evaluators: the files in `media` of a run, with the films, pictures, chunks and frames beside them.

A file that is no report is left out, and `gaps` gets a line about it, as about every file that cannot be read.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.config import ConfigError, record_for
from dp_prior.data.files import map_npy
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.action_error import MOST_DIMENSIONS
from dp_prior.evaluation.interval import UNBOUNDED
from dp_prior.files.regular_files import open_regular, read_small
from dp_prior.run.scores import MEDIA
from dp_prior_studio.pages.numbers import can_be_drawn

BY_SEED = "/by_seed"
MOMENTS = "/moments"
CHUNKS, FRAMES = "_chunks.npy", "_frames.npy"

LARGEST_REPORTS, MOST_REPORTS = 64 << 20, 2000
"""Bytes of all reports that are read, and most reports; the newest ones."""

LARGEST_FRAMES = 16 << 20
"""Most bytes of the frames of an evaluator."""


@dataclass(frozen=True)
class EvaluationReport:
    """A report of an evaluator: `media/NAME_STEP.json`."""

    path: Path
    name: str
    step: int
    samples: int
    settings: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]
    environment: dict[str, Any] | None = None

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """seed, score, success and steps of each episode of a rollout, NaN for no score; empty for other reports."""
        rows = self._table(f"*{BY_SEED}")
        return [{**row, "score": math.nan if row["score"] is None else row["score"]} for row in rows]

    @property
    def env(self) -> dict[str, Any]:
        """The settings of the environment of rollouts; empty if they are not known."""
        settings = self.settings.get("env")
        return settings if isinstance(settings, dict) else {}

    @property
    def score_range(self) -> tuple[float, float]:
        """The scores that the environment can give; unbounded if its record is not known here."""
        try:
            record = record_for(EvaluatorConfig, self.settings)
            rollouts = None if record is None else record.from_json(json.dumps(self.settings)).rollouts()
        except ConfigError:
            return UNBOUNDED
        return UNBOUNDED if rollouts is None else rollouts.score_range

    @property
    def dimensions(self) -> list[str]:
        """Names of the numbers of an action, of 6D rotations inside; empty if they have none."""
        names = [row.get("name") for row in self._table("*/by_dimension*")]
        return names if all(isinstance(name, str) for name in names) else []

    @property
    def moments(self) -> list[str]:
        """Episode and step of each moment of `chunks`; empty if unknown."""
        places = [(row.get("episode"), row.get("step")) for row in self._table(f"*{MOMENTS}")]
        return [f"episode {episode}, step {step}" for episode, step in places if type(episode) is type(step) is int]

    @property
    def frames(self) -> Path | None:
        """The frames of the cameras at the moments, which the first report of the evaluator stored."""
        paths = sorted(self.path.parent.glob(f"{glob.escape(self.name)}_{'[0-9]' * 8}{FRAMES}"))
        return paths[-1] if paths else None

    @property
    def film(self) -> Path | None:
        """The video of the episodes."""
        path = self.path.with_suffix(".mp4")
        return path if path.is_file() else None

    @property
    def pictures(self) -> list[Path]:
        """The pictures of samples."""
        return [path for path in self._beside("*.png") if path.is_file()]

    @property
    def chunks(self) -> list[Path]:
        """A file of sampled chunks for each model whose action error was measured."""
        return self._beside(f"*{CHUNKS}")

    def model(self, path: Path) -> str:
        """Name of the model whose chunks are in a file."""
        return path.name.removeprefix(f"{self.path.stem}_").removesuffix(CHUNKS)

    def _table(self, pattern: str) -> list[dict[str, Any]]:
        return next((rows for name, rows in self.tables.items() if fnmatchcase(name, pattern)), [])

    def _beside(self, ending: str) -> list[Path]:
        return sorted(self.path.parent.glob(f"{glob.escape(self.path.stem)}_{ending}"))


def read_reports(folder: Path, gaps: list[str]) -> list[EvaluationReport]:
    """The reports in a folder, ordered by step and name."""
    reports = [_report(path, gaps) for path in _newest(folder, gaps)]
    return sorted(filter(None, reports), key=lambda report: (report.step, report.name))


def chunks_of(reports: Sequence[EvaluationReport], gaps: list[str]) -> dict[str, np.ndarray]:
    """The chunks of the newest report of each evaluator, (moments, 1 + draws, horizon, D) float32 by `EVALUATOR/MODEL`,
    not yet read from disk.

    Args:
        reports: ordered by step.
    """
    newest = {report.name: report for report in reports}.values()
    files: dict[str, Path] = {}
    for report in newest:
        files |= {f"{report.name}/{report.model(path)}": path for path in report.chunks}
    return _mapped(files, _are_chunks, gaps)


def frames_of(reports: Sequence[EvaluationReport], gaps: list[str]) -> dict[str, np.ndarray]:
    """The frames of each evaluator that has some, (moments, height, width, 3) uint8, not yet read from disk.

    Args:
        reports: ordered by step.
    """
    newest = {report.name: report for report in reports}
    stored = {name: report.frames for name, report in newest.items()}
    files = {name: path for name, path in stored.items() if path is not None}
    return _mapped(files, _are_frames, gaps)


def _mapped(
    files: Mapping[str, Path], are_sound: Callable[[np.ndarray], bool], gaps: list[str]
) -> dict[str, np.ndarray]:
    arrays = {}
    for name, path in files.items():
        try:
            open_regular(path).close()
            array = map_npy(path)
            if not are_sound(array):
                raise ValueError(f"it holds {array.dtype} {array.shape}")
            arrays[name] = array
        except (OSError, ValueError, EOFError) as error:
            gaps.append(f"{MEDIA}/{path.name} cannot be read: {error}")
    return arrays


def _are_chunks(chunks: np.ndarray) -> bool:
    is_whole = chunks.ndim == 4 and chunks.shape[1] >= 2 and chunks.size > 0
    return is_whole and chunks.dtype == np.float32 and chunks.shape[3] <= MOST_DIMENSIONS


def _are_frames(frames: np.ndarray) -> bool:
    return frames.ndim == 4 and frames.dtype == np.uint8 and frames.shape[3] == 3 and 0 < frames.size < LARGEST_FRAMES


def _report(path: Path, gaps: list[str]) -> EvaluationReport | None:
    try:
        document = json.loads(read_small(path))
        name = document["settings"].get("name") or document["settings"]["type"]
        is_whole = isinstance(name, str) and type(document["global_step"]) is type(document["samples_seen"]) is int
        for table, rows in document["tables"].items():
            is_whole &= all(_is_episode(row) if table.endswith(BY_SEED) else isinstance(row, dict) for row in rows)
        if not is_whole:
            raise ValueError("it lacks columns")
        environment = document.get("environment")  # older versions stored none
        if environment is not None and not is_fingerprint(environment):
            raise ValueError("it names no environment")
        clock = document["global_step"], document["samples_seen"]
        return EvaluationReport(path, name, *clock, document["settings"], document["tables"], environment)
    except OSError as error:
        gaps.append(f"{MEDIA}/{path.name} cannot be read: {error}")
        return None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        gaps.append(f"{MEDIA}/{path.name} is no report")
        return None


def _is_episode(row: dict[str, Any]) -> bool:
    has_score = row["score"] is None or can_be_drawn(row["score"])
    return has_score and type(row["seed"]) is int and row["success"] in (True, False, None)


def _newest(folder: Path, gaps: list[str]) -> list[Path]:
    """The reports by name, those written last if there are too many."""
    statuses = {path: path.stat() for path in sorted(folder.glob("*.json")) if path.exists()}
    newest, room = set(), LARGEST_REPORTS
    for path, status in sorted(statuses.items(), key=lambda item: -item[1].st_mtime_ns):
        room -= status.st_size
        if room >= 0 and len(newest) < MOST_REPORTS:
            newest.add(path)
    if len(newest) < len(statuses):
        bound = f"the newest are shown, at most {MOST_REPORTS} and {LARGEST_REPORTS:,} bytes"
        gaps.append(f"{MEDIA} holds {len(statuses)} reports; {bound}")
    return [path for path in statuses if path in newest]


def is_fingerprint(value: Any) -> bool:
    """Whether stored JSON is a fingerprint."""
    if not isinstance(value, dict) or not isinstance(value.get("packages"), dict):
        return False
    texts = [*value["packages"].values(), value.get("start")]
    return all(isinstance(text, str) for text in texts) and type(value.get("seed")) is int
