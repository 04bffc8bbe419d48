"""Reads a run directory: configuration, logged rows, reports, films, and how the run ended.

Reads any run: finished, running, killed, moved, of an older version. Missing or damaged parts are left out and listed
in `gaps`; the rest has the types that `Story` and `EvaluationReport` declare.
"""

from __future__ import annotations

import glob
import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.config import ORIGINS, ConfigError
from dp_prior.data.errors import first_few
from dp_prior.envs.fingerprint import is_fingerprint
from dp_prior.evaluation.interval import SHARE, UNBOUNDED
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.files.durable import is_alive
from dp_prior.files.regular_files import UnfitError, open_regular, read_small
from dp_prior.run.files.changes import flat
from dp_prior.run.files.config import TrainConfig
from dp_prior.run.files.directory import refuse_checkpoint
from dp_prior.run.files.exit_file import EXIT, RUNNING
from dp_prior.run.files.scores import MEDIA, RESULT
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import EVENTS, ROWS, parse_row
from dp_prior.tracking.row_log import RowLog

BY_SEED = "/by_seed"
MOMENTS = "/moments"
CHUNKS, FRAMES = "_chunks.npy", "_frames.npy"

LARGEST_EVENTS, LARGEST_REPORTS, MOST_REPORTS = 4 << 20, 64 << 20, 2000
"""Bytes of the events and of all reports that are read, and most reports; the newest ones."""

LARGEST_FRAMES = 16 << 20
"""Most bytes of the frames of an evaluator."""

MOST_DIMENSIONS = 24
"""Most dimensions of chunks, as evaluators store them."""

LARGEST_NUMBER = 1e100
"""Beyond this numbers cannot be drawn."""

_ENDINGS = {"finished": "finished", "complete": "finished", "preempted": "stopped", "interrupted": "stopped"}


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
        rows = next((rows for name, rows in self.tables.items() if name.endswith(BY_SEED)), [])
        return [{**row, "score": math.nan if row["score"] is None else row["score"]} for row in rows]

    @property
    def env(self) -> dict[str, Any]:
        """The settings of the environment of rollouts; empty if they are not known."""
        found = self.settings.get("env")
        return found if isinstance(found, dict) else {}

    @property
    def score_range(self) -> tuple[float, float]:
        """The scores that the environment can give; unbounded if its record is not known here."""
        try:
            return RolloutConfig.from_json(json.dumps(self.settings)).score_range
        except ConfigError:
            return UNBOUNDED

    @property
    def dimensions(self) -> list[str]:
        """Names of the numbers of an action, of 6D rotations inside; empty if they have none."""
        rows = next((rows for name, rows in self.tables.items() if "/by_dimension" in name), [])
        names = [row.get("name") for row in rows]
        return names if all(isinstance(name, str) for name in names) else []

    @property
    def moments(self) -> list[str]:
        """Episode and step of each moment of `chunks`; empty if unknown."""
        rows = next((rows for name, rows in self.tables.items() if name.endswith(MOMENTS)), [])
        places = [(row.get("episode"), row.get("step")) for row in rows]
        return [f"episode {episode}, step {step}" for episode, step in places if type(episode) is type(step) is int]

    @property
    def frames(self) -> Path | None:
        """The frames of the cameras at the moments, which the first report of the evaluator stored."""
        found = sorted(self.path.parent.glob(f"{glob.escape(self.name)}_{'[0-9]' * 8}{FRAMES}"))
        return found[-1] if found else None

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

    def _beside(self, ending: str) -> list[Path]:
        return sorted(self.path.parent.glob(f"{glob.escape(self.path.stem)}_{ending}"))


@dataclass(frozen=True)
class Story:
    """See the module.

    Attributes:
        state: finished, stopped, running, killed, failed or unknown.
        settings: the configuration by dotted key.
        changed: the settings that differ from the defaults.
        parts: package, version and module of each part of another package, by its type.
        rows: of `metrics.jsonl`, with `step`, `samples_seen` and metrics; None for a metric that was not finite.
        reports: of the evaluators, ordered by step.
        chunks: recorded and sampled chunks of the newest reports, by evaluator and model, see `ActionErrorEvaluator`.
        frames: what the cameras saw at the moments of `chunks`, (moments, height, width, 3) uint8, by evaluator.
        gaps: one line for each part that could not be read.
    """

    directory: Path
    name: str
    state: str = "unknown"
    ending: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    reports: list[EvaluationReport] = field(default_factory=list)
    chunks: dict[str, np.ndarray] = field(default_factory=dict)
    frames: dict[str, np.ndarray] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)

    @property
    def test(self) -> dict[str, float]:
        """The scores of the best weights; empty before the run has finished."""
        found = self.result.get("test")
        return {name: value for name, value in found.items() if is_number(value)} if isinstance(found, dict) else {}

    @property
    def tested(self) -> EvaluationReport | None:
        """The newest rollout of the main evaluator: the first evaluator in `test`, else the evaluator of the monitored
        metric, else the first evaluator that ran."""
        rollouts = {report.name: report for report in self.reports if report.episodes}  # the newest of each name
        candidates = [*self.test, str(self.settings.get("train.monitor.metric"))]
        named = [name for metric in candidates if (name := metric.removesuffix("/score")) in rollouts]
        return rollouts.get(named[0] if named else next(iter(rollouts), ""))

    @property
    def ceilings(self) -> set[str]:
        """Names of the evaluators that replay recordings, so that their scores are those of no policy."""
        types = {key for key, value in self.settings.items() if key.endswith(".type") and value == "replay"}
        return {str(self.settings.get(f"{key.removesuffix('.type')}.name")) for key in types}

    @property
    def monitored(self) -> str:
        """Name of the metric that selects the best weights; empty if unknown."""
        return str(self.settings.get("train.monitor.metric") or "")

    @property
    def selected(self) -> tuple[float, int] | None:
        """Value of the monitored metric of the best weights, and their step; None if it was never measured."""
        best = self.result.get("best")
        if isinstance(best, dict) and isinstance(best.get("metrics"), dict):
            value, step = best["metrics"].get(self.monitored), best.get("step")
            if can_be_drawn(value) and type(step) is int:
                return value, step
        measured = [(row[self.monitored], row["step"]) for row in self.rows if row.get(self.monitored) is not None]
        sign = self.direction(self.monitored)
        return max(measured, key=lambda found: sign * found[0], default=None)

    def limits(self, metric: str) -> tuple[float, float]:
        """The least and the greatest value that a metric can have, as far as known."""
        group, _, kind = metric.rpartition("/")
        if kind == "success_rate":
            return SHARE
        rollouts = (report for report in reversed(self.reports) if report.name == group and report.episodes)
        report = next(rollouts, None) if kind == "score" else None
        return UNBOUNDED if report is None else report.score_range

    def direction(self, metric: str) -> int:
        """1 if high values of a score or of the monitored metric are better, -1 if low values are."""
        return -1 if metric == self.monitored and self.settings.get("train.monitor.mode") == "min" else 1


def read_story(directory: Path, log: RowLog | None = None) -> Story:
    """Read a run directory.

    Raises:
        FileNotFoundError: the directory holds no run.
    """
    refuse_checkpoint(directory)
    if not any((directory / name).is_file() for name in (CONFIG, ROWS, EXIT)):
        raise FileNotFoundError(f"there is no run at {directory}: it has neither {CONFIG} nor {ROWS} nor {EXIT}")
    gaps: list[str] = []

    def read(name: str, needed: bool = False) -> dict[str, Any]:
        path = directory / name
        if not path.is_file():
            gaps.extend([f"{name} is missing"] * needed)
            return {}
        try:
            found = json.loads(read_small(path))
            if isinstance(found, dict):
                return found
            gaps.append(f"{name} is no JSON object")
        except (OSError, ValueError, RecursionError, UnfitError) as error:
            gaps.append(f"{name} cannot be read: {error}")
        return {}

    config, ending = read(CONFIG, needed=True), read(EXIT)
    settings, changed = _settings(config, gaps)
    events = [parse_row(line) for line in _events(directory / EVENTS, gaps)]
    found = [report for path in _newest_reports(directory / MEDIA, gaps) if (report := _report(path, gaps))]
    reports = sorted(found, key=lambda report: (report.step, report.name))
    rows = _rows(log or RowLog(directory / ROWS), directory / ROWS, gaps)
    return Story(
        directory, str(read(IDENTITY).get("name") or directory.resolve().name), state_of(ending), ending, settings,
        changed, parts_of(config), rows, [event for event in events if event], read(RESULT),
        reports, _chunks(reports, gaps), _frames(reports, gaps), gaps,
    )  # fmt: skip


def is_number(value: Any) -> bool:
    """Whether a value from an unchecked file is a finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def can_be_drawn(value: Any) -> bool:
    """Whether a value from an unchecked file is a number that fits a chart."""
    return is_number(value) and abs(value) <= LARGEST_NUMBER


def _rows(log: RowLog, path: Path, gaps: list[str]) -> list[dict[str, Any]]:
    logged = log.rows() if path.is_file() else []
    rows = [row for row in logged if type(row.get("samples_seen")) is int and 0 <= row["samples_seen"] < 1 << 63]
    if len(rows) < len(logged):
        gaps.append(f"{len(logged) - len(rows)} rows of {ROWS} do not say how many samples were seen")
    found = [{name: value for name, value in row.items() if value is None or can_be_drawn(value)} for row in rows]
    odd = {name for row, kept in zip(rows, found, strict=True) for name in row.keys() - kept.keys()} - {"nonfinite"}
    if odd:
        gaps.append(
            f"{ROWS} holds values that are no finite numbers or too large to be drawn, of {first_few(sorted(odd))}"
        )
    return found


def _settings(config: dict[str, Any], gaps: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings by dotted key, and the subset that differs from the defaults."""
    try:
        record = TrainConfig.from_json(json.dumps(config))
    except ConfigError:
        why = "is of a version that this one does not read"
        if parts := parts_of(config):
            why = f"has parts of other packages ({first_few(sorted(parts))}), whose modules --import names"
        gaps.append(f"{CONFIG} {why}; its settings are shown as stored")
        return _listed({key: value for key, value in config.items() if key != ORIGINS}), {}
    settings = _listed(record.model_dump(mode="json"))
    chosen = _listed(record.model_dump(mode="json", exclude_defaults=True))  # without any `type`
    records = {".".join(parts[:end]) for parts in (key.split(".") for key in chosen) for end in range(len(parts) + 1)}
    types = {f"{record}.type" for record in records}
    return settings, {key: value for key, value in settings.items() if key in chosen or key in types}


def parts_of(config: dict[str, Any]) -> dict[str, str]:
    """Package, version and module of each part of another package, by its type."""
    found = config.get(ORIGINS)
    return {kind: str(origin) for kind, origin in found.items()} if isinstance(found, dict) else {}


def _listed(config: dict[str, Any]) -> dict[str, Any]:
    """The settings by dotted key; the records of a list have their places as keys, as in --set."""
    settings = {}
    for key, value in flat(config).items():
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            settings |= _listed({f"{key}.{place}": each for place, each in enumerate(value)})
        else:
            settings[key] = value
    return settings


def _report(path: Path, gaps: list[str]) -> EvaluationReport | None:
    try:
        found = json.loads(read_small(path))
        name = found["settings"].get("name") or found["settings"]["type"]
        is_whole = isinstance(name, str) and type(found["global_step"]) is type(found["samples_seen"]) is int
        for table, rows in found["tables"].items():
            is_whole &= all(_is_episode(row) if table.endswith(BY_SEED) else isinstance(row, dict) for row in rows)
        if not is_whole:
            raise ValueError("it lacks columns")
        environment = found.get("environment")  # older versions stored none
        if environment is not None and not is_fingerprint(environment):
            raise ValueError("it names no environment")
        return EvaluationReport(
            path, name, found["global_step"], found["samples_seen"], found["settings"], found["tables"], environment
        )
    except (OSError, ValueError, RecursionError, UnfitError, KeyError, TypeError, AttributeError):
        gaps.append(f"{MEDIA}/{path.name} is no report")
        return None


def _is_episode(row: dict[str, Any]) -> bool:
    has_score = row["score"] is None or can_be_drawn(row["score"])
    return has_score and type(row["seed"]) is int and row["success"] in (True, False, None)


def _chunks(reports: list[EvaluationReport], gaps: list[str]) -> dict[str, np.ndarray]:
    """The chunks of the newest report of each evaluator, (moments, 1 + draws, horizon, D), not yet read from disk."""
    chunks = {}
    for report in {report.name: report for report in reports}.values():
        for path in report.chunks:
            try:
                open_regular(path).close()
                found = np.load(path, mmap_mode="r", allow_pickle=False)
                is_sound = found.ndim == 4 and found.dtype == np.float32 and found.shape[1] >= 2 and found.size
                if not is_sound or found.shape[3] > MOST_DIMENSIONS:
                    raise ValueError(f"it holds {found.dtype} {found.shape}")
                chunks[f"{report.name}/{report.model(path)}"] = found
            except (OSError, ValueError, EOFError) as error:
                gaps.append(f"{MEDIA}/{path.name} cannot be read: {error}")
    return chunks


def _frames(reports: list[EvaluationReport], gaps: list[str]) -> dict[str, np.ndarray]:
    """The frames of each evaluator that has some, not yet read from disk."""
    frames = {}
    for report in {report.name: report for report in reports}.values():
        if (path := report.frames) is None:
            continue
        try:
            open_regular(path).close()
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if found.dtype != np.uint8 or found.ndim != 4 or found.shape[3] != 3 or not 0 < found.size < LARGEST_FRAMES:
                raise ValueError(f"it holds {found.dtype} {found.shape}")
            frames[report.name] = found
        except (OSError, ValueError, EOFError, UnfitError) as error:
            gaps.append(f"{MEDIA}/{path.name} cannot be read: {error}")
    return frames


def _events(path: Path, gaps: list[str]) -> list[bytes]:
    """The newest lines of the events."""
    if not path.is_file():
        return []
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - LARGEST_EVENTS))
        lines = file.read(LARGEST_EVENTS).splitlines(keepends=True)
    if size > LARGEST_EVENTS:
        gaps.append(f"{EVENTS} has {size:,} bytes; the newest {LARGEST_EVENTS:,} are shown")
        del lines[:1]
    return lines


def _newest_reports(folder: Path, gaps: list[str]) -> list[Path]:
    """The reports by name, those written last if there are too many."""
    found = {path: path.stat() for path in sorted(folder.glob("*.json")) if path.exists()}
    kept, room = set(), LARGEST_REPORTS
    for path, status in sorted(found.items(), key=lambda item: -item[1].st_mtime_ns):
        room -= status.st_size
        if room >= 0 and len(kept) < MOST_REPORTS:
            kept.add(path)
    if len(kept) < len(found):
        bound = f"the newest are shown, at most {MOST_REPORTS} and {LARGEST_REPORTS:,} bytes"
        gaps.append(f"{MEDIA} holds {len(found)} reports; {bound}")
    return [path for path in found if path in kept]


def state_of(ending: dict[str, Any]) -> str:
    """`Story.state` from the content of `exit.json`; `killed` if the process ran on this machine and is gone."""
    reason = ending.get("reason")
    if reason != RUNNING:
        return "unknown" if reason is None else _ENDINGS.get(str(reason), "failed")
    pid = ending.get("pid")
    is_dead = isinstance(pid, int) and is_alive(str(ending.get("host")), pid) is False
    return "killed" if is_dead else "running"
