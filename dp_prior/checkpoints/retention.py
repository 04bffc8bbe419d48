"""Which checkpoints stay: a pure function of their manifests, so that a restart loses nothing.

Kept is the union of the newest, the best and one for every so many steps. Only good checkpoints are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from dp_prior.config import Config

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Record:
    """What retention knows of a checkpoint.

    Attributes:
        sequence: number of the save within the run, from 1; newer is larger.
        step: optimizer step of the checkpoint.
        value: monitored metric, or None if it was not measured.
    """

    sequence: int
    step: int
    value: float | None


class RetentionConfig(Config):
    """Which checkpoints of a run are kept; the others are deleted once a newer one is durable."""

    keep_latest: int = Field(default=2, ge=2)
    """Newest checkpoints kept; never fewer than 2, so that one damaged file does not end a run."""

    keep_best: int = Field(default=1, ge=0)
    """Checkpoints kept for the best values of the monitored metric; of equal values the older stays."""

    keep_every: int | None = Field(default=None, ge=1)
    """Keep for ever the first checkpoint at or after each multiple of so many optimizer steps; null for none."""

    max_failed_saves: int = Field(default=3, ge=1)
    """The run stops, with exit code 74, when so many saves in a row have failed, for example on a full disk. A failure
    of the last save of a run is always an error."""

    def kept(self, records: Iterable[Record], mode: Mode) -> set[int]:
        """Sequence numbers of the checkpoints that stay."""
        records = sorted(records, key=lambda record: record.sequence)
        newest = records[-self.keep_latest :]
        best = ranked(records, mode)[: self.keep_best]
        spaced: dict[int, Record] = {}
        for record in records if self.keep_every is not None else []:
            if record.step >= self.keep_every:
                spaced.setdefault(record.step // self.keep_every, record)
        return {record.sequence for record in [*newest, *best, *spaced.values()]}


def ranked(records: Iterable[Record], mode: Mode) -> list[Record]:
    """Records from best to worst; those whose value is missing or not finite are not among them."""
    measured = [record for record in records if record.value is not None and math.isfinite(record.value)]
    sign = 1.0 if mode == "min" else -1.0
    return sorted(measured, key=lambda record: (sign * record.value, record.sequence))
