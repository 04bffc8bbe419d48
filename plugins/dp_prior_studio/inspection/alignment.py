"""Whether states follow the actions, and after how many steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dp_prior.data.errors import first_few
from dp_prior.files.json_text import readable_json
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.survey import Survey

LAGS = range(-10, 11)
"""Steps by which actions are shifted against states to see which fits best."""


LEAST_ROWS = 100
"""Rows from which actions and states are compared."""


def alignment(survey: Survey) -> Iterator[Finding]:
    """Actions that states do not follow: in no dimension, in some episodes, or because they come too late."""
    actions, states = survey.of("action"), survey.of("observation")
    if not actions or not states:
        return
    action = actions[0].values
    if copied := _copied(action, survey) if len(action) >= LEAST_ROWS else "":
        keys = readable_json(list(actions[0].keys) if len(actions[0].keys) > 1 else actions[0].key)
        remedy = f'if these are positions, "action": {{"key": {keys}, "ahead": 1}} in data'
        yield Finding("warning", f"{copied}; {remedy}", code="action-is-observation")
        return
    state = np.concatenate([signal.values for signal in states], axis=1)
    if not (action.size and state.size and np.isfinite(action).all() and np.isfinite(state).all()):
        return
    margin = max(LAGS) + 1
    rows = np.concatenate([np.arange(begin + margin, end - margin) for _, begin, end in survey.spans])
    if len(rows) < LEAST_ROWS:
        return
    pairs, largest = _pairs(action[rows], state[rows], state[rows + 1])
    if largest < 0.2:
        text = f"no dimension of the action correlates with where states are or go, {largest:.2f} at most"
        yield Finding("warning", f"{text}; do actions and states belong together?", code="action-unrelated")
    elif len(pairs):
        of_action, of_state = pairs.T
        misfits = {lag: _unexplained(action[rows][:, of_action], state[rows + lag][:, of_state]) for lag in LAGS}
        yield from _late(misfits) or _not_followed(misfits, rows, survey)


def _pairs(action: np.ndarray, now: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, float]:
    """The dimensions of the action and of the state that move together, and the largest correlation of any two.

    Args:
        action: (n, A); now, after: (n, S), the states of the same step and of the next one.

    Returns:
        (p, 2) int64 dimensions of action and state; and the largest, in [0, 1], also with the changes of states.
    """
    place = np.maximum(abs(_correlation(action, now)), abs(_correlation(action, after)))
    largest = max(place.max(), abs(_correlation(action, after - now)).max())
    nearest = place.argmax(1)
    of_action = np.flatnonzero(place.max(1) > 0.9)
    return np.stack([of_action, nearest[of_action]], axis=1), float(largest)


def _best_lag(misfits: Mapping[int, np.ndarray]) -> tuple[int, dict[int, float]]:
    """The lag at which actions and states differ least, and the difference at each lag; jumps of a few steps do not
    count. Args: misfits: (n, pairs) by lag."""
    medians = {lag: float(np.median(misfit, axis=0).mean()) for lag, misfit in misfits.items()}
    return min(medians, key=medians.__getitem__), medians


def _late(misfits: Mapping[int, np.ndarray]) -> list[Finding]:
    """The finding that actions are those of states before. Args: misfits: (n, pairs) by lag."""
    best, medians = _best_lag(misfits)
    if best > 0 or medians[best] >= 0.5 * medians[1]:
        return []
    when = "of the same step" if best == 0 else f"of {-best} steps before"
    text = f"actions agree best with the states {when}, not with later ones"
    remedy = f'"ahead": {1 - best} in data.action takes later ones'
    text = f"{text}; the action of a step is the command given after its observations: {remedy}"
    return [Finding("warning", text, code="action-late")]


def _not_followed(misfits: Mapping[int, np.ndarray], rows: np.ndarray, survey: Survey) -> Iterator[Finding]:
    """The episodes in which states do not follow the actions as in the others.

    Args:
        misfits: (n, pairs) by lag.
        rows: (n,) of the arrays.
    """
    best, _ = _best_lag(misfits)
    misfit = misfits[max(1, best)].mean(1)
    episode = np.searchsorted(survey.bounds, rows, side="right") - 1
    count = np.bincount(episode, minlength=len(survey.episodes))
    mean = np.bincount(episode, misfit, minlength=len(survey.episodes)) / np.maximum(count, 1)
    strange = np.flatnonzero((mean > 10 * np.median(mean[count > 0])) & (mean > 0.3))
    if len(strange):
        numbers = survey.numbers[strange].tolist()
        text = f"states do not follow the actions in episodes {first_few(numbers)} as in the others"
        yield Finding("warning", text, numbers[0], leave_out=numbers, code="states-do-not-follow")


def _copied(action: np.ndarray, survey: Survey) -> str:
    """The finding that most numbers of the action, at least two, equal observations of the same step, so that a policy
    may learn to stand still; an empty string for other actions.

    Args:
        action: (n, width).
    """
    statistics = survey.of("action")[0].statistics()
    varied = np.flatnonzero(statistics.varies).tolist()
    same = []
    for dimension in varied:
        column = action[:, dimension, None]
        if any((signal.values == column).all(0).any() for signal in survey.of("observation")):
            same.append(dimension)
    if len(same) < 2 or 2 * len(same) < len(varied):
        return ""
    listed = first_few([survey.of("action")[0].called(dimension) for dimension in same])
    return f"action, dimensions {listed}: equal to the observation of the same step, which a policy learns to repeat"


def _standard(values: np.ndarray) -> np.ndarray:
    """(n, width) with mean 0 and variance 1; constant dimensions are 0."""
    centred = values - values.mean(0, dtype=np.float64)
    deviation = centred.std(0)
    return np.where(deviation > 1e-6 * abs(values).max(0), centred / np.where(deviation > 0, deviation, 1), 0)


def _correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return _standard(first).T @ _standard(second) / len(first)


def _unexplained(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(n, pairs) squared residual of each column of `first` on that of `second`, in units of its variance."""
    first, second = _standard(first), _standard(second)
    return (first - second * (first * second).mean(0)) ** 2
