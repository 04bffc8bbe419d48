"""Signs of a wrong unit: episodes, or states beside actions, that are degrees among radians or millimetres among
metres; and grippers that never move."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dp_prior.data.errors import first_few
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.survey import Signal, Survey, spread_rows

UNITS = {180 / math.pi: "degrees among radians", 1000.0: "millimetres among metres"}
"""Factors between units that are mixed up, and what they are."""

LEAST_GAP, WIDEST = 8.0, 10.0
"""Two groups of episodes differ by at least the first factor; within one, magnitudes differ by less than the second."""

LEAST_STEPS = 10
"""Shorter episodes reach no usual magnitude."""

NEAR, SURE, FOLLOWS = 1.8, 1.1, 0.95
"""A factor is that of two units within `NEAR` times, of a single number within `SURE` times; a state follows an action
from this correlation on."""

SAME_SCALE = 3.0
"""Largest factor between two episodes of one unit, of an action's size beside that of the state."""


def find_units(survey: Survey) -> Iterator[Finding]:
    """Find episodes and numbers in another unit than the rest, and grippers that never move."""
    yield from mixed_units(survey)
    yield from other_units(survey)
    yield from still_grippers(survey)


def mixed_units(survey: Survey) -> Iterator[Finding]:
    """Episodes in another unit than the others: by their largest magnitudes, in several numbers or in the middle of
    all; of an action also by its size beside the state that follows, in a single number too."""
    is_long = np.diff(survey.bounds) >= LEAST_STEPS
    if is_long.sum() < 3:
        return
    episodes = survey.numbers[is_long]
    suspected: set[tuple[int, ...]] = set()
    for signal in survey.of("observation", "action"):
        finding = _mixed_magnitudes(signal, _magnitudes(signal, survey)[is_long], episodes)
        if finding is not None:
            rest = episodes[~np.isin(episodes, finding.leave_out)]
            suspected |= {tuple(finding.leave_out), tuple(rest.tolist())}
            yield finding
    for finding in mixed_scales(survey):
        if tuple(finding.leave_out) not in suspected:
            yield finding


def _magnitudes(signal: Signal, survey: Survey) -> np.ndarray:
    """(k, width) the largest finite magnitude of each number in each episode."""
    magnitudes = np.where(np.isfinite(signal.values), abs(signal.values), 0)
    return np.maximum.reduceat(magnitudes, survey.bounds[:-1], axis=0)


def _mixed_magnitudes(signal: Signal, sizes: np.ndarray, episodes: np.ndarray) -> Finding | None:
    """The finding about a signal whose magnitudes fall into two groups; None for a single group.

    Args:
        sizes: (k, width), see `_magnitudes`.
        episodes: (k,) their own numbers.
    """
    varied = np.flatnonzero(signal.statistics().varies & (sizes > 0).all(0)).tolist()
    is_larger, dimensions = _largest_group({dimension: sizes[:, dimension] for dimension in varied})
    if is_larger is not None:
        size = sizes[:, dimensions[0]]
    elif len(varied) > 1:  # too few numbers agree, but their middle may still show two groups
        size = np.median(sizes[:, varied] / np.median(sizes[:, varied], axis=0), axis=1)
        is_larger, dimensions = _larger_group(size), varied
    if is_larger is None:
        return None
    return _mixture(episodes, is_larger, size, f"{signal.name}, {_called(signal, dimensions)}")


def mixed_scales(survey: Survey) -> Iterator[Finding]:
    """Episodes in which actions have another size beside the states that follow them than in the other episodes."""
    lengths = np.diff(survey.bounds)
    is_long = lengths >= LEAST_STEPS
    actions, states = survey.of("action"), survey.of("observation")
    if not actions or not states or is_long.sum() < 3:
        return
    later = np.minimum(np.arange(len(actions[0].values)) + 1, np.repeat(survey.bounds[1:] - 1, lengths))
    action, action_sizes = _of_episodes(actions[0].values, survey.bounds)
    for signal in states:
        state, state_sizes = _of_episodes(signal.values[later], survey.bounds)
        correlations = abs(action.T @ state) / len(action)
        ratios = {}
        for number, place in enumerate(correlations.argmax(1).tolist()):
            action_size, state_size = action_sizes[is_long, number], state_sizes[is_long, place]
            is_moving = (np.minimum(action_size, state_size) > 0).all()
            if correlations[number, place] > FOLLOWS and is_moving:
                ratios[number] = action_size / state_size
        is_larger, dimensions = _largest_group(ratios, SAME_SCALE)
        if is_larger is not None:
            where = f"{actions[0].name}, {_called(actions[0], dimensions)}, beside {signal.name}"
            yield _mixture(survey.numbers[is_long], is_larger, ratios[dimensions[0]], where)


def _of_episodes(values: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, width) values with mean 0 and variance 1 in each episode, 0 where an episode is constant or not finite, and
    (k, width) the deviations of the episodes."""
    lengths = np.diff(bounds)
    values = np.where(np.isfinite(values).all(1, keepdims=True), values, 0).astype(np.float64)
    means = np.add.reduceat(values, bounds[:-1], axis=0) / lengths[:, None]
    centred = values - np.repeat(means, lengths, axis=0)
    deviations = np.sqrt(np.add.reduceat(centred**2, bounds[:-1], axis=0) / lengths[:, None])
    deviations[deviations < 1e-6 * np.maximum(abs(means), 1e-9)] = 0
    scale = np.repeat(np.where(deviations > 0, deviations, np.inf), lengths, axis=0)
    return centred / scale, deviations


def _largest_group(sizes: dict[int, np.ndarray], widest: float = WIDEST) -> tuple[np.ndarray | None, list[int]]:
    """The episodes in another unit that most numbers agree on, and these numbers; None without such episodes.

    Args:
        sizes: (k,) of each episode, by number.
    """
    groups: dict[bytes, list[int]] = {}
    for dimension, of_episodes in sizes.items():
        is_larger = _larger_group(of_episodes, widest)
        if is_larger is not None:
            groups.setdefault(is_larger.tobytes(), []).append(dimension)
    if not groups:
        return None, []
    is_larger, dimensions = max(groups.items(), key=lambda group: len(group[1]))
    is_lone = widest == WIDEST and len(dimensions) < min(2, len(sizes))
    return (None, []) if is_lone else (np.frombuffer(is_larger, bool), dimensions)


def _called(signal: Signal, dimensions: list[int]) -> str:
    """Dimensions of a signal in messages."""
    names = first_few([signal.called(dimension) for dimension in dimensions])
    return f"dimension{'s' * (len(dimensions) > 1)} {names}"


def _mixture(numbers: np.ndarray, is_larger: np.ndarray, size: np.ndarray, where: str) -> Finding:
    """The finding about the smaller of two groups of episodes.

    Args:
        numbers: own numbers of the episodes.
        size: (k,) of each episode.
    """
    factor = float(np.median(size[is_larger]) / np.median(size[~is_larger]))
    is_few = is_larger if 2 * is_larger.sum() <= len(is_larger) else ~is_larger
    few, units = numbers[is_few].tolist(), _unit(factor)
    times = f"{factor:.3g} times" if is_few is is_larger else f"1/{factor:.3g} of"
    who = f"episodes {first_few(few)} have" if len(few) > 1 else f"episode {few[0]} has"
    return Finding(
        "warning", f"{where}: {who} {times} the size of the others; {units}?", few[0], leave_out=few, code="units-mixed"
    )


def other_units(survey: Survey) -> Iterator[Finding]:
    """Actions whose states follow them at a scale that is the factor between two units."""
    actions, states = survey.of("action"), survey.of("observation")
    if not actions or not states or len(actions[0].values) < 3:
        return
    rows = spread_rows(len(actions[0].values))
    action = actions[0].values[rows].astype(np.float64)
    for signal in states:
        state = signal.values[np.minimum(rows + 1, len(signal.values) - 1)].astype(np.float64)
        if not (state.size and action.size and np.isfinite(action).all() and np.isfinite(state).all()):
            continue
        for units, pairs in _pairs_in_other_units(action, state).items():
            number, place, scale = pairs[0]
            is_single = len(pairs) == 1 and action.shape[1] > 1  # perhaps a gripper of another range
            if is_single and not _unit(_above_1(scale), SURE):
                continue
            size = f"{scale:.3g} times" if scale > 1 else f"1/{1 / scale:.3g} of"
            text = f"{signal.name}, dimension {signal.called(place)}, follows the action's {actions[0].called(number)}"
            yield Finding("warning", f"{text}, but is {size} its size; {units[0]}?", code="units-differ")


def _pairs_in_other_units(
    action: np.ndarray, state: np.ndarray
) -> dict[tuple[str, bool], list[tuple[int, int, float]]]:
    """Pair each number of (n, width) actions with the number of the (n, width) states after them that follows it best,
    where the ratio of their deviations is the factor between two units.

    Returns:
        Number of the action, number of the state, and ratio, by units and by whether the state is larger.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = np.corrcoef(action.T, state.T)[: action.shape[1], action.shape[1] :]
        scales = state.std(0)[None] / action.std(0)[:, None]
    strengths = np.nan_to_num(abs(correlations))
    pairs: dict[tuple[str, bool], list[tuple[int, int, float]]] = {}
    for number, place in enumerate(strengths.argmax(1).tolist()):
        if strengths[number, place] > FOLLOWS:
            scale = scales[number, place]
            units = _unit(_above_1(scale))
            if units is not None:
                pairs.setdefault((units, scale > 1), []).append((number, place, scale))
    return pairs


def still_grippers(survey: Survey) -> Iterator[Finding]:
    """Dimensions that are called a gripper and never change."""
    for signal in survey.of("observation", "action"):
        labels = [str(column) for column in signal.columns] or [""] * signal.values.shape[1]
        is_gripper = np.array(["grip" in f"{signal.key} {label}".lower() for label in labels], bool)
        still = np.flatnonzero(is_gripper & ~signal.statistics().varies).tolist()
        if still:
            listed = first_few([signal.called(dimension) for dimension in still])
            text = f"{signal.name}, dimension {listed}: the gripper never moves; was it recorded?"
            yield Finding("warning", text, code="gripper-still")


def _larger_group(sizes: np.ndarray, widest: float = WIDEST) -> np.ndarray | None:
    """(k,) bool, which magnitudes are the others times the factor between two units; None without two groups.

    Args:
        widest: factor between the magnitudes of one group.
    """
    order = np.sort(np.log(sizes))
    gaps = np.diff(order)
    cut = int(gaps.argmax())
    low, high = order[: cut + 1], order[cut + 1 :]
    is_apart = gaps[cut] > math.log(LEAST_GAP) and max(np.ptp(low), np.ptp(high)) < math.log(widest)
    if not is_apart or not _unit(math.exp(np.median(high) - np.median(low))):
        return None
    return np.log(sizes) > (low[-1] + high[0]) / 2


def _above_1(factor: float) -> float:
    return max(factor, 1 / factor)


def _unit(factor: float, near: float = NEAR) -> str | None:
    """The two units whose factor is near a factor above 1; None for no such units."""
    return next((units for unit, units in UNITS.items() if unit / near < factor < unit * near), None)
