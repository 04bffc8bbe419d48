"""Selects the best checkpoint: one monitored metric, its direction, and the best value so far."""

from __future__ import annotations

import math
from typing import Literal

from dp_prior.config import Config


class MonitorConfig(Config):
    """The metric that selects the best checkpoint; one that an evaluator in `evaluate` measures."""

    metric: str = "validation/ema/loss"
    """Name of the metric. Test metrics do not exist during training, so they cannot select a checkpoint."""

    mode: Literal["min", "max"] = "min"
    """Whether small (min) or large (max) values are better."""


class Best:
    """The best value of the monitored metric and the optimizer step that reached it; part of every checkpoint."""

    def __init__(self, monitor: MonitorConfig):
        self.monitor = monitor
        self.value: float | None = None
        self.step: int | None = None

    def improves(self, metrics: dict[str, float], step: int) -> bool:
        """Update with the metrics measured at `step`. Returns whether they are the best so far.

        A missing or non-finite value is never the best; of two equal values the older stays.
        """
        value = metrics.get(self.monitor.metric)
        if value is None or not math.isfinite(value):
            return False
        if self.value is not None:
            better = value < self.value if self.monitor.mode == "min" else value > self.value
            if not better:
                return False
        self.value, self.step = value, step
        return True

    def state(self) -> dict:
        """The state to save in a checkpoint."""
        return {"metric": self.monitor.metric, "mode": self.monitor.mode, "value": self.value, "step": self.step}

    def load(self, state: dict) -> None:
        """Restore `state`, unless it is of another metric or direction."""
        if (state["metric"], state["mode"]) == (self.monitor.metric, self.monitor.mode):
            self.value, self.step = state["value"], state["step"]
