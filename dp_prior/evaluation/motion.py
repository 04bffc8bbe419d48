"""The motion of an episode: paths of executed actions and of observations that are vectors, while a block runs.

Numbers that an environment calls angles are left out: a radian is no pixel, and a full turn is no way.

Sources: Balasubramanian, Melendez-Calderon and Burdet 2012, "A robust and sensitive metric for quantifying movement
smoothness"; Balasubramanian et al. 2015, "On the analysis of movement smoothness" (spectral arc length with its
adaptive cut, log dimensionless jerk); Hogan and Sternad 2009, "Sensitivity of smoothness measures to movement duration,
amplitude, and arrests".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dp_prior.tensors.batch import Spec

MOST_FOLLOWED = 64
"""Numbers of an observation whose path is followed; longer vectors, such as embeddings, are no positions."""

ACTION = "action"

MEASURES = ("distance", "sparc", "mean_squared_jerk", "log_dimensionless_jerk")
"""The columns of `measures`."""

HIGHEST_HZ, LEAST_SHARE, PADDING = 10.0, 0.05, 16
"""The spectrum counts up to this frequency and the last share of its peak; zeros make it this many times finer. Values
of the paper of 2015."""

Signals = Mapping[str, list[int]]
"""Numbers whose path is followed, by the name of their vector."""


def signals(
    obs_shapes: Mapping[str, tuple[int, ...]], action_dim: int, spec: Spec, angles: Mapping[str, Collection[int]]
) -> Signals:
    """The executed action, and each vector that the policy observes, unless it is named as the action is.

    Args:
        angles: numbers that are angles, by key; a vector of nothing else is left out.
    """
    observed = [key for key in obs_shapes if key in spec.cond_shapes and spec.kind(key) not in ("image", "text")]
    lengths = {
        key: obs_shapes[key][0] for key in observed if len(obs_shapes[key]) == 1 and obs_shapes[key][0] <= MOST_FOLLOWED
    }
    followed = {ACTION: list(range(action_dim))}
    for key, length in lengths.items():
        places = [place for place in range(length) if place not in angles.get(key, ())]
        if places and key != ACTION:
            followed[key] = places
    return followed


class Motion:
    """Paths of n episodes in lockstep."""

    def __init__(self, followed: Signals, first: Mapping[str, np.ndarray], max_steps: int, rate: float):
        """
        Args:
            followed: see `signals`.
            first: the first observation.
            rate: control steps per second.
        """
        self._followed, self._rate, self._length = followed, rate, max_steps + 1
        self._paths: dict[str, list[np.ndarray]] = {name: [] if name == ACTION else [first[name]] for name in followed}

    def add(self, actions: np.ndarray, obs: Mapping[str, np.ndarray]) -> None:
        """One step of all episodes; the values of an episode that is over do not count."""
        for name, path in self._paths.items():
            path.append(actions if name == ACTION else obs[name])

    def measured(self, steps: np.ndarray) -> np.ndarray:
        """(n, signals * measures) after `steps` (n,) of each episode; see `measures`."""
        columns = []
        for name, path in self._paths.items():
            values = np.stack(path, axis=1).astype(np.float64)[..., self._followed[name]]
            padded = np.zeros((len(values), self._length, values.shape[2]))  # the same for any block
            padded[:, : values.shape[1]] = values
            columns.append(measures(padded, steps + (name != ACTION), self._rate))
        return np.concatenate(columns, axis=1)


def motion_table(names: Collection[str], rows: np.ndarray) -> list[dict[str, Any]]:
    """A line for each signal: means of its measures over the episodes that have one, from rows of `Motion.measured`."""
    columns = rows.reshape(len(rows), len(names), len(MEASURES))
    lines = []
    for number, name in enumerate(names):
        finite = [column[np.isfinite(column)] for column in columns[:, number].T]
        means = {
            key: float(values.mean()) if len(values) else None for key, values in zip(MEASURES, finite, strict=True)
        }
        lines.append({"signal": name, **means})
    return lines


def measures(paths: np.ndarray, steps: np.ndarray, rate: float) -> np.ndarray:
    """How far and how smoothly n paths lead: (n, 4) by the order of `MEASURES`; NaN where a path is too short, stands
    still, or holds NaN.

    Args:
        paths: (n, T, D) positions, of which the first `steps` (n,) of a path count; T changes no bit of the result if
            it stays the same for all paths that are compared.
        rate: positions per second.
    """
    is_step = np.arange(paths.shape[1] - 1) < np.maximum(steps - 1, 0)[:, None]
    speed = np.where(is_step, np.linalg.norm(np.diff(paths, axis=1), axis=2) * rate, 0.0)  # (n, T - 1), 0 at the end
    jerk = np.square(_differences(paths, steps, rate, 3)).sum(axis=2).sum(axis=1) / np.maximum(steps - 3, 1)
    values = np.stack(
        [speed.sum(axis=1) / rate, _sparc(speed, rate), jerk, _log_dimensionless_jerk(speed, steps, rate)], axis=1
    )
    values[steps < 4] = np.nan
    return values


def _differences(values: np.ndarray, steps: np.ndarray, rate: float, order: int) -> np.ndarray:
    """(n, T - order, D) finite differences, 0 from the end of a path on. Args: steps: values of a path that count."""
    differences = np.diff(values, n=order, axis=1) * rate**order
    return np.where((np.arange(differences.shape[1]) < (steps - order)[:, None])[..., None], differences, 0.0)


def _sparc(speed: np.ndarray, rate: float) -> np.ndarray:
    """(n,) spectral arc length of (n, T) speeds, 0 from the end of a path on; lower for more submovements."""
    points = 1 << (PADDING * speed.shape[1] - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(speed, points, axis=1))
    spectrum = spectrum[:, np.arange(spectrum.shape[1]) * rate / points <= HIGHEST_HZ]
    with np.errstate(invalid="ignore"):
        spectrum /= spectrum[:, :1]  # the greatest, since no speed is negative
    last = spectrum.shape[1] - 1 - (spectrum >= LEAST_SHARE)[:, ::-1].argmax(axis=1)
    is_part = np.arange(spectrum.shape[1] - 1) < last[:, None]
    arc = np.hypot(1 / np.maximum(last, 1)[:, None], np.diff(spectrum, axis=1))
    return -np.where(is_part, arc, 0.0 * spectrum[:, :1]).sum(axis=1)  # NaN stays NaN


def _log_dimensionless_jerk(speed: np.ndarray, steps: np.ndarray, rate: float) -> np.ndarray:
    """(n,) -log of the squared second derivative of the speed, integrated, times duration cubed over peak squared."""
    with np.errstate(divide="ignore", invalid="ignore"):
        integral = np.square(_differences(speed[..., None], steps - 1, rate, 2)).sum(axis=(1, 2)) / rate
        duration = (steps - 1) / rate
        jerk = -np.log(duration**3 / speed.max(axis=1) ** 2 * integral)
    return np.where(np.isfinite(jerk), jerk, np.nan)
