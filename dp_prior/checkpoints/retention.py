"""Retention: decides which checkpoints are kept, as a pure function of their manifests, so it needs no saved state.

Kept are the newest, the best, and one for every N steps. Only good checkpoints count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from dp_prior.config import Config

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Record:
    """The properties of a checkpoint that retention depends on.

    Attributes:
        sequence: number of the save within the run, from 1; newer is larger.
        step: optimizer step of the checkpoint.
        value: monitored metric, or None if it was not measured.
    """

    sequence: int
    step: int
    value: float | None


class RetentionConfig(Config):
    """Retention: the checkpoints of a run that are kept. Others are deleted once a newer one is durable."""

    keep_latest: int = Field(default=2, ge=2)
    """Newest checkpoints kept; never fewer than 2, so that one damaged file does not end a run."""

    keep_best: int = Field(default=1, ge=0)
    """Checkpoints kept for the best values of the monitored metric; of equal values the older is kept."""

    keep_every: int | None = Field(default=None, ge=1)
    """Keep permanently the first checkpoint at or after each multiple of this many optimizer steps; null for none."""

    max_failed_saves: int = Field(default=3, ge=1)
    """The run stops with exit code 74 when this many saves in a row have failed, for example on a full disk. A failure
    of the last save of a run is always an error."""

    def decide(self, records: Iterable[Record], mode: Mode) -> tuple[set[int], set[int]]:
        """Sequence numbers of the checkpoints to keep, and of those kept ones that replace a deleted checkpoint.

        Verify the latter before deleting anything.
        """
        records = sorted(records, key=lambda record: record.sequence)
        rules: list[tuple[Sequence[Record], int]] = [  # records in order of preference, and the number to keep
            (records[::-1], self.keep_latest),
            (ranked(records, mode), self.keep_best),
        ]
        if self.keep_every is not None:
            spaced: dict[int, list[Record]] = {}
            for record in records:
                if record.step >= self.keep_every:
                    spaced.setdefault(record.step // self.keep_every, []).append(record)
            rules += [(group, 1) for group in spaced.values()]
        kept = {record.sequence for group, count in rules for record in group[:count]}
        preferred = {
            record.sequence
            for group, count in rules
            if any(other.sequence not in kept for other in group[count:])
            for record in group[:count]
        }
        return kept, preferred


def ranked(records: Iterable[Record], mode: Mode) -> list[Record]:
    """Records from best to worst, without those whose value is missing or not finite."""
    measured = [record for record in records if record.value is not None and math.isfinite(record.value)]
    sign = 1.0 if mode == "min" else -1.0
    return sorted(measured, key=lambda record: (sign * record.value, record.sequence))
