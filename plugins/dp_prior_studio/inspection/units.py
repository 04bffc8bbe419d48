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
    suspected: set[tuple[int, ...]] = set()
    for signal in survey.of("observation", "action"):
        sizes = np.maximum.reduceat(
            np.where(np.isfinite(signal.values), abs(signal.values), 0), survey.bounds[:-1], axis=0
        )[is_long]
        varied = np.flatnonzero(signal.statistics().varies & (sizes > 0).all(0)).tolist()
        is_larger, dimensions = _largest_group({dimension: sizes[:, dimension] for dimension in varied})
        size = sizes[:, dimensions[0]] if dimensions else np.ones(len(sizes))
        if is_larger is None and len(varied) > 1:
            size = np.median(sizes[:, varied] / np.median(sizes[:, varied], axis=0), axis=1)
            is_larger, dimensions = _larger_group(size), varied
        if is_larger is None:
            continue
        finding = _mixture(survey.numbers[is_long], is_larger, size, f"{signal.name}, {_called(signal, dimensions)}")
        rest = survey.numbers[is_long][~np.isin(survey.numbers[is_long], finding.leave_out)]
        suspected |= {tuple(finding.leave_out), tuple(rest.tolist())}
        yield finding
    yield from (finding for finding in mixed_scales(survey) if tuple(finding.leave_out) not in suspected)


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
        together = abs(action.T @ state) / len(action)
        ratios = {}
        for number, place in enumerate(together.argmax(1).tolist()):
            both = action_sizes[is_long, number], state_sizes[is_long, place]
            if together[number, place] > FOLLOWS and (np.minimum(*both) > 0).all():
                ratios[number] = both[0] / both[1]
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
        state, pairs = signal.values[np.minimum(rows + 1, len(signal.values) - 1)].astype(np.float64), {}
        if not (state.size and action.size and np.isfinite(action).all() and np.isfinite(state).all()):
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            together = np.corrcoef(action.T, state.T)[: action.shape[1], action.shape[1] :]
            scale = state.std(0)[None] / action.std(0)[:, None]
        for i, j in enumerate(np.nan_to_num(abs(together)).argmax(1).tolist()):
            if abs(together[i, j]) > FOLLOWS and (units := _unit(max(scale[i, j], 1 / scale[i, j]))):
                pairs.setdefault((units, scale[i, j] > 1), []).append((i, j))
        for (units, is_larger), matches in pairs.items():
            if len(matches) == 1 and action.shape[1] > 1:  # a single number, such as a gripper of another range
                matches = [match for match in matches if _unit(_above_1(scale[match]), SURE)]
            if matches:
                i, j = matches[0]
                size = f"{scale[i, j]:.3g} times" if is_larger else f"1/{1 / scale[i, j]:.3g} of"
                text = (
                    f"{signal.name}, dimension {signal.called(j)}, follows the action's {actions[0].called(i)}, but is"
                )
                yield Finding("warning", f"{text} {size} its size; {units}?", code="units-differ")


def still_grippers(survey: Survey) -> Iterator[Finding]:
    """Dimensions that are called a gripper and never change."""
    for signal in survey.of("observation", "action"):
        labels = [str(column) for column in signal.columns] or [""] * signal.values.shape[1]
        is_gripper = np.array(["grip" in f"{signal.key} {name}".lower() for name in labels], bool)
        if still := np.flatnonzero(is_gripper & ~signal.statistics().varies).tolist():
            listed = first_few([signal.called(dimension) for dimension in still])
            yield Finding(
                "warning",
                f"{signal.name}, dimension {listed}: the gripper never moves; was it recorded?",
                code="gripper-still",
            )


def _larger_group(sizes: np.ndarray, widest: float = WIDEST) -> np.ndarray | None:
    """(k,) bool, which magnitudes are the others times the factor between two units; None without two groups. Args:
    widest: factor between the magnitudes of one group."""
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
    """Which units a factor above 1 lies between."""
    return next((units for unit, units in UNITS.items() if unit / near < factor < unit * near), None)
