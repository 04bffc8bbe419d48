"""Whether states follow the actions, and after how many steps."""

from __future__ import annotations

from collections.abc import Iterator

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
        yield Finding(
            "warning",
            f'{copied}; if these are positions, "action": {{"key": {keys}, "ahead": 1}} in data',
            code="action-is-observation",
        )
        return
    state = np.concatenate([signal.values for signal in states], axis=1)
    if not (action.size and state.size and np.isfinite(action).all() and np.isfinite(state).all()):
        return
    margin = max(LAGS) + 1
    middle = np.concatenate([np.arange(begin + margin, end - margin) for _, begin, end in survey.spans])
    if len(middle) < LEAST_ROWS:
        return
    now, after = state[middle], state[middle + 1]
    place = np.maximum(*(abs(_correlation(action[middle], there)) for there in (now, after)))
    largest = max(place.max(), abs(_correlation(action[middle], after - now)).max())
    if largest < 0.2:
        text = f"no dimension of the action correlates with where states are or go, {largest:.2f} at most"
        yield Finding("warning", f"{text}; do actions and states belong together?", code="action-unrelated")
        return
    pairs = [(i, int(j)) for i, j in enumerate(place.argmax(1)) if place[i, j] > 0.9]
    if not pairs:
        return
    which = np.array(pairs)
    fit = {lag: _unexplained(action[middle][:, which[:, 0]], state[middle + lag][:, which[:, 1]]) for lag in LAGS}
    misfit = {lag: np.median(fit[lag], axis=0).mean() for lag in LAGS}  # jumps of a few steps do not count
    best = min(misfit, key=misfit.__getitem__)
    if best <= 0 and misfit[best] < 0.5 * misfit[1]:
        when = "of the same step" if best == 0 else f"of {-best} steps before"
        text = f"actions agree best with the states {when}, not with later ones"
        remedy = f'"ahead": {1 - best} in data.action takes later ones'
        yield Finding(
            "warning",
            f"{text}; the action of a step is the command given after its observations: {remedy}",
            code="action-late",
        )
        return
    lag = max(1, best)
    wrong = fit[lag].mean(1)
    episode = np.searchsorted(survey.bounds, middle, side="right") - 1
    count = np.bincount(episode, minlength=len(survey.episodes))
    mean = np.bincount(episode, wrong, minlength=len(survey.episodes)) / np.maximum(count, 1)
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
