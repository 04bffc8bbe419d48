"""Windows of fixed length over episodes of any length: the windows of Diffusion Policy's SequenceSampler, vectorised.

A window may begin before its episode (so that the first frame can be the newest observation) or end after the episode;
missing steps repeat the first or last step and are masked. The edges are repeated once, before training: in these
*padded* rows every window is a contiguous run, and a batch is a copy of runs without index arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.samples.over_columns import RowSelection
from dp_prior.tensors.batch import X


@dataclass(frozen=True)
class Windows:
    """All windows of some episodes, n in number, in order of episode and then of time.

    Attributes:
        horizon: steps in a window, padding included.
        first: (n,) int64 padded row where the window begins; it covers `horizon` rows from there.
        source: (m,) int64 for every padded row the step it repeats, counted over the episodes given.
        is_real: (m,) bool, False where a padded row is a repeated edge.
    """

    horizon: int
    first: np.ndarray
    source: np.ndarray
    is_real: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def valid_counts(self) -> np.ndarray:
        """(n,) steps of each window that lie inside its episode; at least 1."""
        real_before = np.cumsum(np.append(0, self.is_real))
        return real_before[self.first + self.horizon] - real_before[self.first]


def make_windows(lengths: np.ndarray, horizon: int, pad_before: int, pad_after: int) -> Windows:
    """Every window with at most `pad_before` steps before and `pad_after` steps after its episode.

    An episode that is too short for any such window still gets a window, which begins `pad_before` steps early and is
    padded to the horizon; Diffusion Policy drops such episodes silently.

    Args:
        lengths: (E,) steps of each episode, all at least 1.
        pad_before, pad_after: from 0 to horizon - 1.
    """
    if horizon < 1 or not (0 <= pad_before < horizon and 0 <= pad_after < horizon):
        raise ValueError(
            f"windows of {horizon} steps cannot be padded by {pad_before} before and {pad_after} after; "
            f"both must lie from 0 to horizon - 1, and the horizon be at least 1"
        )
    lengths = np.asarray(lengths, dtype=np.int64)
    counts = np.maximum(lengths + pad_before + pad_after - horizon + 1, 1)
    padded_lengths = counts + horizon - 1
    first = np.repeat(_starts(padded_lengths), counts) + _count_within(counts)

    step = _count_within(padded_lengths) - pad_before
    episode = np.repeat(np.arange(len(lengths)), padded_lengths)
    clamped = np.clip(step, 0, lengths[episode] - 1)
    return Windows(horizon, first, source=_starts(lengths)[episode] + clamped, is_real=step == clamped)


class WindowRows(RowSelection):
    """Each sample is a run of padded rows: `horizon` of the action, the first `n_obs_steps` of each observation.

    Attributes:
        valid_counts: (n,) int64 on the CPU, number of True in each window's mask.
    """

    def __init__(
        self, is_valid: Tensor, begins: Tensor, horizon: int, n_obs_steps: int, device: torch.device | str = "cpu"
    ):
        """
        Args:
            is_valid: (m,) bool on the CPU, what the mask says of each padded row.
            begins: (n,) int64 padded row where each window begins.
            device: where batches are made.
        """
        self.begins, self._is_valid, self._horizon, self._n_obs_steps = begins, is_valid, horizon, n_obs_steps
        before = torch.nn.functional.pad(is_valid.cumsum(0), (1, 0))
        self.valid_counts = before[begins + horizon] - before[begins]
        mask = is_valid.to(device)
        self.device = mask.device  # not the device asked for: "cuda" is not equal to "cuda:0"
        self._mask = MemoryColumn(mask).runs(horizon)

    @classmethod
    def of(cls, windows: Windows, n_obs_steps: int, mask_padding: bool = True) -> WindowRows:
        """The given windows; the mask is True everywhere unless padding is to be masked."""
        is_valid = windows.is_real if mask_padding else np.ones_like(windows.is_real)
        return cls(torch.from_numpy(is_valid), torch.from_numpy(windows.first), windows.horizon, n_obs_steps)

    @classmethod
    def joined(cls, parts: Sequence[WindowRows]) -> WindowRows:
        """The windows of several data sets, one set after another."""
        rows = np.cumsum([0, *(part.n_rows for part in parts)])
        is_valid = torch.cat([part._is_valid for part in parts])
        begins = torch.cat([part.begins + int(begin) for part, begin in zip(parts, rows, strict=False)])
        return cls(is_valid, begins, parts[0]._horizon, parts[0]._n_obs_steps)

    def masked(self, has_loss: np.ndarray) -> WindowRows:
        """The same windows with a mask that is False also where `has_loss` (m,) is."""
        is_valid = self._is_valid & torch.from_numpy(has_loss)
        return WindowRows(is_valid, self.begins, self._horizon, self._n_obs_steps)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def n_rows(self) -> int:
        """m, padded rows."""
        return len(self._is_valid)

    def view(self, key: str, column: Column) -> Column:
        return column.runs(self._horizon if key == X else self._n_obs_steps)

    def mask(self, begins: Tensor) -> Tensor:
        """See `RowSelection`; (B, horizon)."""
        return self._mask.rows(begins)

    def count_valid(self, ids: Tensor) -> int:
        return int(self.valid_counts[ids].sum())

    def to(self, device: torch.device | str) -> WindowRows:
        return WindowRows(self._is_valid, self.begins, self._horizon, self._n_obs_steps, device)


def thinned(begins: np.ndarray, lengths: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Episodes at a lower rate: `stride` episodes of each, the i-th made of the rows i, i + stride, ...

    Args:
        begins, lengths: (E,) first row and number of rows of each episode.

    Returns:
        (m,) rows, one thinned episode after another, and (F,) the length of each; F is E for a stride of 1.
    """
    runs = []
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        firsts = range(begin, begin + min(stride, length))
        runs += [np.arange(first, begin + length, stride) for first in firsts]
    return np.concatenate([np.arange(0), *runs]), np.array([len(run) for run in runs], np.int64)


def _starts(lengths: np.ndarray) -> np.ndarray:
    """(E,) where each run begins when runs of these lengths follow one another."""
    return np.cumsum(lengths) - lengths


def _count_within(lengths: np.ndarray) -> np.ndarray:
    """0, 1, .. within every run, for consecutive runs of these lengths."""
    return np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)
