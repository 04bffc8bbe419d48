"""What an evaluation hands back, and the report it leaves on disk."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_prior.clock import Progress
from dp_prior.config import Config


@dataclass(frozen=True)
class Measurement:
    """Numbers, files and tables of one evaluation; equal on all ranks but for the files, which rank 0 writes.

    Attributes:
        metrics: the names that the evaluator's `metric_names()` lists, and those that only the model can tell; NaN
            where there is no value.
        media: pictures and videos by name, for loggers that show them.
        tables: rows of numbers by name, one row per seed or horizon index.
    """

    metrics: dict[str, float]
    media: dict[str, Path] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def write_report(path: Path, settings: Config, progress: Progress, result: Measurement) -> None:
    """Write how an evaluation was set up and all it found as JSON, so that its numbers can be reproduced."""
    report = {
        "settings": settings.model_dump(mode="json"),
        "samples_seen": progress.samples_seen,
        "global_step": progress.global_step,
        "metrics": result.metrics,
        "tables": result.tables,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(_without_nan(report), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN: null stands for it."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
