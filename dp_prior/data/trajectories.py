"""Recorded episodes as training samples: an action chunk, given the observations before it.

All steps of all episodes lie in contiguous float32 arrays, edges repeated once, so that every window is one contiguous
run (see `windows.py`) and a batch is one gather of runs per array, on whatever device the arrays are.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from dp_prior.batch import Batch, Spec
from dp_prior.config import Config
from dp_prior.data.episodes import EpisodeStore, EpisodeStoreConfig
from dp_prior.data.selection import ACTION, KeyConfig, read_selected
from dp_prior.data.split import Split, SplitConfig
from dp_prior.data.windows import Windows, make_windows
from dp_prior.normalizer import Statistics

HUGE = 1e6
"""Larger magnitudes are worth a warning: they are more often a sentinel or a broken sensor than a measurement."""

OUTLIER_WIDTHS = 100.0
"""A value this many times the 1 %..99 % width away from it is worth a warning."""


def _good_key(value: str) -> str:
    if value == ACTION or not value.replace("_", "a").replace("-", "a").isalnum():
        raise ValueError(
            f"name {value!r} cannot be used; take letters, digits, _ and -, and not {ACTION!r} (the action). "
            f'The name is yours: the name in the data set goes into "key"'
        )
    return value


class TrajectoriesConfig(Config):
    """Windows over recorded episodes: observations as condition, an action chunk as what is diffused."""

    type: Literal["trajectories"] = "trajectories"

    episodes: EpisodeStoreConfig
    """The recorded data set."""

    obs: dict[Annotated[str, AfterValidator(_good_key)], KeyConfig] = Field(min_length=1)
    """What the policy sees: the policy's name of each observation, and where it is found in the data set."""

    action: KeyConfig
    """What the policy does: one axis of numbers per step."""

    split: SplitConfig = SplitConfig()
    """Which episodes are trained on, validated on and tested on."""

    batch_size: int = Field(default=256, ge=1)
    """Samples per rank and micro-batch."""

    mask_padding: bool = True
    """Repeated actions before and after an episode carry no loss; false trains on them, as Diffusion Policy does."""

    device: Literal["auto", "cpu"] = "auto"
    """Where the data lie: auto puts them on the training device while they take at most half of its free memory."""

    def create(self, horizon: int, n_obs_steps: int, n_action_steps: int) -> Trajectories:
        """Open, check and read the data set.

        Raises:
            DataError: the data set cannot be trained on; all that is wrong with it, in one report.
        """
        return Trajectories(
            store=self.episodes.create(),
            horizon=horizon,
            n_obs_steps=n_obs_steps,
            n_action_steps=n_action_steps,
            **{name: value for name, value in self.arguments().items() if name not in ("episodes", "batch_size")},
        )


class WindowSet:
    """The windows of some episodes: n samples, fetched by index a batch at a time."""

    def __init__(
        self, rows: dict[str, Tensor], is_valid: Tensor, first: Tensor, counts: Tensor, horizon: int, n_obs_steps: int
    ):
        """Args:
        rows: (m, *feature_shape) float32 padded rows by key, the action as "x", contiguous.
        is_valid: (m,) bool, what the mask says of each padded row.
        first: (n,) int64 padded row where each window begins.
        counts: (n,) int64 on the CPU, number of True in each window's mask.
        """
        self.valid_counts = counts
        self._arguments = (rows, is_valid, first, counts, horizon, n_obs_steps)
        self._first = first
        self._x = _runs(rows[ACTION], horizon)
        self._mask = _runs(is_valid, horizon)
        self._cond = {key: _runs(value, n_obs_steps) for key, value in rows.items() if key != ACTION}

    def __len__(self) -> int:
        return len(self._first)

    @property
    def device(self) -> torch.device:
        """Where the samples are gathered."""
        return self._first.device

    def fetch(self, ids: Tensor) -> Batch:
        """The samples at ids, (B,) int64 on this device, in data units; the loader adds positions and denominator."""
        first = self._first.index_select(0, ids)
        return Batch(
            x=self._x.index_select(0, first),
            cond={key: runs.index_select(0, first) for key, runs in self._cond.items()},
            mask=self._mask.index_select(0, first),
            ids=ids,
        )

    def to(self, device: torch.device | str) -> WindowSet:
        """The same samples on another device."""
        rows, is_valid, first, *rest = self._arguments
        moved = {key: value.to(device) for key, value in rows.items()}
        return WindowSet(moved, is_valid.to(device), first.to(device), *rest)


def _runs(rows: Tensor, length: int) -> Tensor:
    """(m - length + 1, length, ...) every run of `length` rows, as a view of the contiguous (m, ...) rows."""
    shape, stride = rows.shape, rows.stride()
    return rows.as_strided((max(shape[0] - length + 1, 0), length, *shape[1:]), (stride[0], *stride))


class Trajectories:
    """A checked data set in memory, split by episode.

    Attributes:
        spec: shapes of one sample.
        train, val, test: WindowSets; val and test may be empty.
        split_ids: episode numbers of each part by name, to be stored with a run.
        fingerprint: SHA-256 of the selected arrays and the episode ends; equal for equal content in any file format.
    """

    def __init__(
        self,
        *,
        store: EpisodeStore,
        obs: dict[str, KeyConfig],
        action: KeyConfig,
        split: SplitConfig,
        mask_padding: bool,
        device: str,
        horizon: int,
        n_obs_steps: int,
        n_action_steps: int,
    ):
        self._placement = device
        self._described = store.describe()
        self._arrays, self._ends, self._warnings = read_selected(store, {**obs, ACTION: action})
        self._horizon, self._n_obs_steps = horizon, n_obs_steps
        self._split = split.assign(len(self._ends))
        self.split_ids = self._split.ids()
        self._lengths = np.diff(self._ends, prepend=0)
        self.spec = Spec(
            x_shape=(horizon, *self._arrays[ACTION].shape[1:]),
            cond_shapes={key: (n_obs_steps, *self._arrays[key].shape[1:]) for key in obs},
        )
        self.fingerprint = _fingerprint(self._arrays, self._ends)
        self._statistics: dict[str, Statistics] | None = None
        parts = [getattr(self._split, name) for name in ("train", "val", "test")]
        self._windows = [
            make_windows(self._lengths[part], horizon, n_obs_steps - 1, n_action_steps - 1) for part in parts
        ]
        self.train, self.val, self.test = (
            self._window_set(np.array(part, dtype=np.int64), windows, mask_padding)
            for part, windows in zip(parts, self._windows, strict=True)
        )

    def _window_set(self, episodes: np.ndarray, windows: Windows, mask_padding: bool) -> WindowSet:
        source = _rows_of(episodes, self._ends, self._lengths)[windows.source]
        rows = {key: torch.from_numpy(array[source]) for key, array in self._arrays.items()}
        is_valid, counts = windows.is_real, windows.valid_counts
        if not mask_padding:
            is_valid, counts = np.ones_like(is_valid), np.full_like(counts, self._horizon)
        return WindowSet(
            rows,
            torch.from_numpy(is_valid),
            torch.from_numpy(windows.first),
            torch.from_numpy(counts),
            self._horizon,
            self._n_obs_steps,
        )

    def statistics(self) -> dict[str, Statistics]:
        """Statistics over the frames of train episodes, by observation key, and of the action as "x"."""
        if self._statistics is None:
            rows = _rows_of(np.array(self._split.train), self._ends, self._lengths)
            self._statistics = {key: Statistics.of(array[rows]) for key, array in self._arrays.items()}
        return self._statistics

    def to(self, device: torch.device | str) -> Trajectories:
        """Move the samples to the training device if the config lets them and they take at most half its memory."""
        device = torch.device(device)
        if self._placement == "auto" and self.n_bytes <= _free_bytes(device) // 2:
            self.train, self.val, self.test = (part.to(device) for part in (self.train, self.val, self.test))
        return self

    @property
    def n_bytes(self) -> int:
        """Memory that the samples take on their device."""
        per_row = sum(array[:1].nbytes for array in self._arrays.values()) + 1
        return sum(len(windows.source) * per_row + len(windows) * 8 for windows in self._windows)

    def report(self) -> dict[str, Any]:
        """What the data set is: counts per part, padding, ranges, and warnings. JSON-able."""
        parts = {}
        for name, windows in zip(("train", "val", "test"), self._windows, strict=True):
            lengths = self._lengths[self.split_ids[name]]
            parts[name] = {
                "episodes": len(lengths),
                "steps": int(lengths.sum()),
                "windows": len(windows),
                "padded_positions": int(len(windows) * self._horizon - windows.valid_counts.sum()),
                "short_episodes": int((lengths < self._horizon).sum()),
            }
        statistics = self.statistics()
        return {
            **self._described,
            "episodes": len(self._ends),
            "steps": int(self._ends[-1]),
            "episode_lengths": {"min": int(self._lengths.min()), "max": int(self._lengths.max())},
            "horizon": self._horizon,
            "dropped_train_episodes": len(self._split.dropped),
            "parts": parts,
            "keys": {key: _describe_key(value) for key, value in statistics.items()},
            "fingerprint": self.fingerprint,
            "warnings": [*self._warnings, *_split_warnings(self._split), *_range_warnings(statistics)],
        }


def _rows_of(episodes: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows of the given episodes, one episode after another."""
    if len(episodes) == 0:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.arange(ends[e] - lengths[e], ends[e]) for e in episodes])


def _free_bytes(device: torch.device) -> int:
    """Free memory of an accelerator; the CPU's own memory holds the arrays already."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 1 << 62


def _fingerprint(arrays: dict[str, np.ndarray], ends: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(ends, dtype="<i8").tobytes())
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key], dtype="<f4")
        digest.update(f"{key}{array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _describe_key(statistics: Statistics) -> dict[str, Any]:
    constant = np.flatnonzero(statistics.min == statistics.max).tolist()
    low, high = statistics.min.ravel().tolist(), statistics.max.ravel().tolist()
    return {"shape": list(statistics.min.shape), "min": low, "max": high, "constant_dimensions": constant}


def _split_warnings(split: Split) -> list[str]:
    return [] if split.val else ["no episode is left to validate on: val metrics will be missing"]


def _range_warnings(statistics: dict[str, Statistics]) -> list[str]:
    warnings = []
    for key, value in statistics.items():
        for i in range(value.min.size):
            low, high = value.min.ravel()[i], value.max.ravel()[i]
            q01, q99 = value.q01.ravel()[i], value.q99.ravel()[i]
            width = q99 - q01
            far = width > 0 and max(high - q99, q01 - low) > OUTLIER_WIDTHS * width
            if far or max(abs(low), abs(high)) > HUGE:
                warnings.append(
                    f"{key!r}, dimension {i}: values reach from {low:g} to {high:g}, but 98 % of them lie in "
                    f"[{q01:g}, {q99:g}]; look for sentinels or outliers, or use the quantile normalizer"
                )
    return warnings
