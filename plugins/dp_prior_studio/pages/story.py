"""Reads a run directory: configuration, logged rows, reports, films, and how the run ended.

Reads any run: finished, running, killed, moved, of an older version. Missing or damaged parts are left out and listed
in `gaps`; the rest has the types that `Story` and `EvaluationReport` declare.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import MANIFEST
from dp_prior.config import ORIGINS, ConfigError
from dp_prior.config.overrides import flat
from dp_prior.data.errors import first_few
from dp_prior.evaluation.interval import SHARE, UNBOUNDED
from dp_prior.files.entry_points import misplaced
from dp_prior.files.regular_files import UnfitError, open_regular, read_small
from dp_prior.files.temporary import is_alive
from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import EXIT, RUNNING
from dp_prior.run.scores import MEDIA, RESULT
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import EVENTS, ROWS, parse_row
from dp_prior.tracking.row_log import RowLog
from dp_prior_studio.pages.evaluation_report import EvaluationReport, chunks_of, frames_of, read_reports
from dp_prior_studio.pages.numbers import can_be_drawn, is_number

LARGEST_EVENTS = 4 << 20
"""Bytes of the events that are read; the newest ones."""

_ENDINGS = {"finished": "finished", "complete": "finished", "preempted": "stopped", "interrupted": "stopped"}


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
        scores = self.result.get("test")
        return {name: value for name, value in scores.items() if is_number(value)} if isinstance(scores, dict) else {}

    @property
    def tested(self) -> EvaluationReport | None:
        """The newest rollout of the main evaluator: the first evaluator in `test`, else the evaluator of the monitored
        metric, else the first evaluator that ran."""
        rollouts = {report.name: report for report in self.reports if report.episodes}  # the newest of each name
        candidates = [*self.test, str(self.settings.get("train.monitor.metric"))]
        names = [metric.removesuffix("/score") for metric in candidates]
        tested = [name for name in (*names, *rollouts) if name in rollouts]
        return rollouts[tested[0]] if tested else None

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
        return max(measured, key=lambda measurement: sign * measurement[0], default=None)

    def limits(self, metric: str) -> tuple[float, float]:
        """The least and the greatest value that a metric can have; infinite where unknown."""
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
        finding = f"there is no run at {directory}: it has neither {CONFIG} nor {ROWS} nor {EXIT}"
        raise FileNotFoundError(f"{finding}{misplaced(directory, 'checkpoint')}")
    gaps = [] if (directory / CONFIG).is_file() else [f"{CONFIG} is missing"]
    config, ending = _document(directory / CONFIG, gaps), _document(directory / EXIT, gaps)
    settings, changed = _settings(config, gaps)
    events = [parse_row(line) for line in _events(directory / EVENTS, gaps)]
    reports = read_reports(directory / MEDIA, gaps)
    rows = _rows(log or RowLog(directory / ROWS), directory / ROWS, gaps)
    return Story(
        directory=directory, state=state_of(ending), ending=ending, settings=settings, changed=changed,
        name=str(_document(directory / IDENTITY, gaps).get("name") or directory.resolve().name),
        parts=parts_of(config), rows=rows, events=[event for event in events if event],
        result=_document(directory / RESULT, gaps), reports=reports,
        chunks=chunks_of(reports, gaps), frames=frames_of(reports, gaps), gaps=gaps,
    )  # fmt: skip


def _document(path: Path, gaps: list[str]) -> dict[str, Any]:
    """Read a JSON object of a run; empty for a missing file, and with a line in `gaps` for a damaged one."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError, UnfitError) as error:
        gaps.append(f"{path.name} cannot be read: {error}")
        return {}
    if isinstance(document, dict):
        return document
    gaps.append(f"{path.name} is no JSON object")
    return {}


def _rows(log: RowLog, path: Path, gaps: list[str]) -> list[dict[str, Any]]:
    """Read the logged rows, with the values that can be drawn."""
    logged = log.rows() if path.is_file() else []
    rows = [row for row in logged if type(row.get("samples_seen")) is int and 0 <= row["samples_seen"] < 1 << 63]
    if len(rows) < len(logged):
        gaps.append(f"{len(logged) - len(rows)} rows of {ROWS} do not say how many samples were seen")
    drawn_rows = []
    undrawn: set[str] = set()
    for row in rows:
        drawn = {name: value for name, value in row.items() if value is None or can_be_drawn(value)}
        undrawn |= row.keys() - drawn.keys()
        drawn_rows.append(drawn)
    undrawn.discard("nonfinite")
    if undrawn:
        why = "that are no finite numbers or too large to be drawn"
        gaps.append(f"{ROWS} holds values {why}, of {first_few(sorted(undrawn))}")
    return drawn_rows


def _settings(config: dict[str, Any], gaps: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings by dotted key, and the subset that differs from the defaults."""
    try:
        record = TrainConfig.from_json(json.dumps(config))
    except ConfigError:
        why = "is of a version that this one does not read"
        parts = parts_of(config)
        if parts:
            why = f"has parts of other packages ({first_few(sorted(parts))}), whose modules --import names"
        gaps.append(f"{CONFIG} {why}; its settings are shown as stored")
        return _listed({key: value for key, value in config.items() if key != ORIGINS}), {}
    settings = _listed(record.model_dump(mode="json"))
    chosen = _listed(record.model_dump(mode="json", exclude_defaults=True))  # without any `type`
    types = {".type"}
    for key in chosen:
        types |= {f"{record}.type" for record in itertools.accumulate(key.split("."), "{}.{}".format)}
    return settings, {key: value for key, value in settings.items() if key in chosen or key in types}


def parts_of(config: dict[str, Any]) -> dict[str, str]:
    """Package, version and module of each part of another package, by its type."""
    origins = config.get(ORIGINS)
    return {kind: str(origin) for kind, origin in origins.items()} if isinstance(origins, dict) else {}


def _listed(config: dict[str, Any]) -> dict[str, Any]:
    """The settings by dotted key; the records of a list have their places as keys, as in --set."""
    settings = {}
    for key, value in flat(config).items():
        if isinstance(value, list) and value and all(isinstance(record, dict) for record in value):
            settings |= _listed({f"{key}.{place}": record for place, record in enumerate(value)})
        else:
            settings[key] = value
    return settings


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


def state_of(ending: dict[str, Any]) -> str:
    """`Story.state` from the content of `exit.json`; `killed` if the process ran on this machine and is gone."""
    reason = ending.get("reason")
    if reason != RUNNING:
        return "unknown" if reason is None else _ENDINGS.get(str(reason), "failed")
    pid = ending.get("pid")
    is_dead = isinstance(pid, int) and is_alive(str(ending.get("host")), pid) is False
    return "killed" if is_dead else "running"


def refuse_checkpoint(directory: Path) -> None:
    """Raises FileNotFoundError if `directory` is a checkpoint or export, whose files must not change, and not a run."""
    if (directory / MANIFEST).is_file():
        parent = directory.resolve().parent
        remedy = f"name its run, {parent.parent}" if parent.name == "checkpoints" else "name the run it is of"
        raise FileNotFoundError(f"{directory} is a checkpoint, not a run; {remedy}")
