"""Faults of a data set: one function for each kind of fault, which yields findings."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from dp_prior.data.errors import first_few
from dp_prior.data.formats.choice import named, overlaps
from dp_prior.data.formats.episode_store import misread_ends
from dp_prior.data.recorded.odd_values import HUGE, OUTLIER_WIDTHS
from dp_prior.data.recorded.split import USUAL_PARTS
from dp_prior.files.json_text import readable_json
from dp_prior_studio.inspection.alignment import alignment
from dp_prior_studio.inspection.finding import MOST_NAMED, Finding, ranked
from dp_prior_studio.inspection.quaternions import quaternions_of
from dp_prior_studio.inspection.survey import Signal, Survey
from dp_prior_studio.inspection.units import mixed_units

AT_A_LIMIT = 0.02
"""Share of values that equal the largest or smallest one, from which a dimension counts as clipped."""

FEW_VALUES = 50
"""A dimension with at most this many different values, such as a gripper, is not continuous; jumps and rests at limits
are normal there."""

FAR, NOISE, FEW_MOVES, STILL = 8.0, 0.01, 20, 1e-3
"""A jump is this many times farther than 95 % of the moves. A change by less than `NOISE` of the middle 98 % is no
move, and a dimension with fewer moves, or a range below `STILL` of the vector's median range, is not judged."""


MOTION_LEFT_OUT = 0.05
"""Largest share of the steps in motion that a proposed condition may leave out with the steps at rest."""


def find(survey: Survey) -> list[Finding]:
    """All findings, the most severe first."""
    findings = [Finding("error", problem, code="unreadable") for problem in survey.problems]
    if survey.damaged:
        findings.append(Finding("error", survey.damage, leave_out=survey.damaged, code="episodes-damaged"))
    return ranked(itertools.chain(findings, *(check(survey) for check in CHECKS)))


def not_finite(survey: Survey) -> Iterator[Finding]:
    """NaN and infinity, which training refuses."""
    for signal in survey.signals:
        bad = np.argwhere(~np.isfinite(signal.values))
        if len(bad):
            (row, dimension), rows = bad[0], len(np.unique(bad[:, 0]))
            text = f"{signal.name}: {rows:,} steps are not finite, the first in dimension {signal.called(dimension)}"
            never = np.flatnonzero(~np.isfinite(signal.values).any(0)).tolist()
            if never and signal.role != "other":
                listed, remedy = first_few(never), f"leave it out by slice in data, or the key {signal.key}"
                problem = (
                    "too large for float32, which training reads," if signal.inexact[never].all() else "not finite"
                )
                yield Finding(
                    "error", f"{signal.name}, dimension {listed}: {problem} in any step; {remedy}", code="never-finite"
                )
            elif signal.role == "other":
                yield Finding("note", text, *survey.place(row), code="unused-not-finite")
            else:
                yield Finding("error", text, *survey.place(row), survey.owners(bad[:, 0]), code="not-finite")


def constant(survey: Survey) -> Iterator[Finding]:
    """Dimensions that never change."""
    for signal in survey.of("observation", "action"):
        if not np.isfinite(signal.values).all(1).any():  # told by `not_finite`
            continue
        is_constant = ~signal.statistics().varies
        effect = "the policy always gives these values" if signal.role == "action" else "they tell the policy nothing"
        if is_constant.any():
            yield Finding("note", f"{_listed(signal, is_constant)}: constant, {effect}", code="constant")


def types(survey: Survey) -> Iterator[Finding]:
    """Numbers that float32 cannot distinguish, and actions of integers."""
    for signal in survey.of("observation", "action"):
        is_fine = signal.inexact & np.isfinite(signal.values).any(0)
        if is_fine.any():
            text = "differences too small for float32, which training reads; subtract an offset"
            yield Finding("warning", f"{_listed(signal, is_fine)}: {text}", code="float32-too-coarse")
    for signal in survey.of("action"):
        if signal.is_whole:
            remedy = "round them when acting, if only whole ones make sense"
            yield Finding(
                "note",
                f"{signal.name} holds integers; the policy gives numbers between them too, so {remedy}",
                code="action-whole-numbers",
            )


def clipped(survey: Survey) -> Iterator[Finding]:
    """Dimensions that often have exactly their largest or smallest value."""
    for signal in survey.of("observation", "action"):
        share = np.zeros(signal.values.shape[1])
        for dimension in np.flatnonzero(_is_continuous(signal)):
            values = signal.values[:, dimension]
            share[dimension] = max((values == values.max()).mean(), (values == values.min()).mean())
        if (share >= AT_A_LIMIT).any():
            text = f"{_listed(signal, share >= AT_A_LIMIT)}: exactly at a limit in up to {share.max():.0%} of the steps"
            yield Finding("note", f"{text}; clipped, at a stop, or at rest there", code="at-limits")


def outliers(survey: Survey) -> Iterator[Finding]:
    """Values far outside the range of almost all others, which squeeze these together in the normalizer."""
    for signal in survey.of("observation", "action"):
        statistics = signal.statistics()
        width = statistics.q99 - statistics.q01
        reach = np.maximum(statistics.max - statistics.q99, statistics.q01 - statistics.min)
        is_far = (width > 0) & (reach > OUTLIER_WIDTHS * width) & _is_continuous(signal)
        for dimension in np.flatnonzero(is_far | (np.maximum(abs(statistics.min), abs(statistics.max)) > HUGE)):
            values, low, high = signal.values[:, dimension], statistics.q01[dimension], statistics.q99[dimension]
            text = (
                f"{signal.name}, dimension {signal.called(dimension)}: values reach from "
                f"{statistics.min[dimension]:g} to {statistics.max[dimension]:g}, but 98 % of them lie in "
                f"[{low:g}, {high:g}]; look for sentinels; the quantile normalizer with clip null keeps the rest apart"
            )
            yield Finding(
                "warning", text, *survey.place(int(np.nanargmax(abs(values - (low + high) / 2)))), code="outliers"
            )


def jumps(survey: Survey) -> Iterator[Finding]:
    """Observations that change within a step by far more than usual, without those that are findings of rotations."""
    for signal in survey.of("observation"):
        statistics = signal.statistics()
        usual_jumps = {place: rows for place, (_, rows) in whole_turns(signal, survey).items()}
        for quaternion in quaternions_of(signal, survey):
            usual_jumps |= dict.fromkeys(quaternion.places, quaternion.flips)
        reaches = statistics.max - statistics.min
        least = STILL * np.median(reaches[statistics.varies]) if statistics.varies.any() else 0.0
        for dimension in np.flatnonzero(_is_continuous(signal) & (reaches >= least)):
            size = abs(survey.steps(signal.values[:, dimension]))
            size[usual_jumps.get(dimension, [])] = np.nan
            width = (statistics.q99 - statistics.q01)[dimension]
            moves = size[size > NOISE * width]
            if len(moves) < FEW_MOVES:
                continue
            usual = np.quantile(moves, 0.95)
            far = np.flatnonzero(size > max(FAR * usual, 0.3 * width))
            if not len(far):
                continue
            largest = int(np.nanargmax(size))
            text = f"{signal.name}, dimension {signal.called(dimension)}: {len(far):,} steps jump by up to "
            text = f"{text}{size[largest]:.4g}, where 95 % of the moves are below {usual:.2g}"
            yield Finding("warning", text, *survey.place(largest), code="jumps")


def whole_turns(signal: Signal, survey: Survey) -> dict[int, tuple[float, np.ndarray]]:
    """The dimensions that are angles which wrap around: what a turn is, and after which rows they do."""
    statistics, turns = signal.statistics(), {}
    reaches = statistics.max - statistics.min
    for dimension in np.flatnonzero(_is_continuous(signal)).tolist():
        turn = next((turn for turn in (2 * np.pi, 360.0) if abs(reaches[dimension] / turn - 1) < 0.02), None)
        if turn is not None:
            size = abs(survey.steps(signal.values[:, dimension]))
            rows = np.flatnonzero(abs(size / turn - 1) < 0.2)
            if len(rows) and FAR * np.nanquantile(np.delete(size, rows), 0.95) < turn:
                turns[dimension] = turn, rows
    return turns


def time(survey: Survey) -> Iterator[Finding]:
    """Gaps in the timestamps, timestamps that do not increase, and another rate than the data set declares."""
    if survey.clock is None:
        return
    steps = survey.steps(survey.clock)
    period = np.nanmedian(steps) if np.isfinite(steps).any() else np.nan
    backwards, gaps = np.flatnonzero(steps <= 0), np.flatnonzero(steps > 1.5 * period)
    if len(backwards):
        yield Finding(
            "warning",
            f"timestamps do not increase in {len(backwards):,} steps",
            *survey.place(backwards[0]),
            code="time-backwards",
        )
    if len(gaps) and period > 0:
        text = f"{len(gaps):,} gaps in time, of up to {np.nanmax(steps):.3g} s, where a step takes {period:.3g} s"
        yield Finding("warning", f"{text}: steps are missing", *survey.place(gaps[0]), code="time-gaps")
    if survey.fps is not None and period > 0 and abs(period * survey.fps - 1) > 0.05:
        yield Finding(
            "warning",
            f"timestamps say {1 / period:.3g} steps per second, the data set declares {survey.fps:g}",
            code="rate-differs",
        )


def duplicates(survey: Survey) -> Iterator[Finding]:
    """Episodes with the same numbers as an earlier one."""
    signals = survey.of("observation", "action")
    first: dict[bytes, int] = {}
    copies: list[tuple[int, int]] = []
    if not signals:
        return
    for number, begin, end in survey.spans:
        digest = hashlib.sha256()
        for signal in signals:
            digest.update(signal.values[begin:end].tobytes())
        original = first.setdefault(digest.digest(), number)
        if original != number:
            copies.append((number, original))
    if copies:
        listed = first_few([f"{number} of {other}" for number, other in copies])
        text = f"{len(copies)} episodes are copies: {listed}; a split may put them into training and validation"
        yield Finding(
            "warning", text, copies[0][0], leave_out=[number for number, _ in copies], code="episodes-repeated"
        )


def idle(survey: Survey) -> Iterator[Finding]:
    """Long times in which neither states nor actions change."""
    signals = [signal for signal in survey.of("observation", "action") if signal.statistics().varies.any()]
    if not signals or any(mixed_units(survey)):  # among episodes in a larger unit the others seem to rest
        return
    moves = np.zeros(len(signals[0].values) - 1, bool)
    for signal in signals:
        statistics = signal.statistics()
        width = np.maximum(statistics.q99 - statistics.q01, 1e-3 * (statistics.max - statistics.min))[statistics.varies]
        width = np.minimum(width, _usual_reach(signal.values[:, statistics.varies], survey.bounds))
        moves |= (abs(survey.steps(signal.values[:, statistics.varies])) > 1e-3 * width).any(1)
    whole, ends = [], []
    for number, begin, end in survey.spans:
        moving = np.flatnonzero(moves[begin : end - 1])
        if end - begin < 2:
            continue
        if not len(moving):
            whole.append(number)
        elif (rest := max(moving[0], end - begin - 2 - moving[-1])) > max(10, 0.2 * (end - begin)):
            ends.append((number, int(rest)))
    if whole:
        text = f"nothing moves in episodes {first_few(whole)}"
        yield Finding("warning", text, whole[0], leave_out=whole, code="episodes-still")
    if ends:
        text = (
            f"{len(ends)} of {len(survey.episodes)} episodes begin or end with more than a fifth of their time at rest"
        )
        longest = max(ends, key=lambda episode: episode[1])
        text = f"{text}, up to {longest[1]} steps; a policy learns to wait there"
        text = f"{text}, unless data leave such rows out: {_without_rest(survey, moves)}"
        yield Finding(
            "note" if len(ends) < 0.2 * len(survey.episodes) else "warning", text, longest[0], code="rest-at-ends"
        )


def _without_rest(survey: Survey, moves: np.ndarray) -> str:
    """The line of data that leaves rows at rest out: by the change of a key that moves when the robot does, or by a key
    that a user adds.

    Args:
        moves: (n - 1,) whether a number of any signal changes from a row to the next.
    """
    is_inside = np.ones(len(moves), bool)
    is_inside[survey.bounds[1:-1] - 1] = False
    for signal in (*survey.of("action"), *survey.of("observation")):
        if len(signal.keys) > 1:
            continue
        changes, is_rest = np.abs(survey.steps(signal.values)).max(1)[is_inside], ~moves[is_inside]
        at_rest = float(changes[is_rest].max())
        least = (at_rest + float(changes[changes > at_rest].min(initial=math.inf))) / 2
        least = float(f"{least:.2g}")
        if at_rest < least < math.inf and (changes[~is_rest] < least).mean() <= MOTION_LEFT_OUT:
            weights = {"key": signal.keys[0], "change": True, "at_least": least}
            return f'"weights": {json.dumps(weights)}'
    return '"weights": {"key": KEY} with a key that is 0 there and 1 elsewhere'


def _usual_reach(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """(width,) median over the episodes that move of the distance from the smallest to the largest value."""
    reaches = np.maximum.reduceat(values, bounds[:-1], axis=0) - np.minimum.reduceat(values, bounds[:-1], axis=0)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a number that moves between episodes alone
        usual = np.nanmedian(np.where(reaches > 0, reaches, np.nan), axis=0)
    return np.where(np.isfinite(usual), usual, np.inf)


def strange_lengths(survey: Survey) -> Iterator[Finding]:
    """Episodes that are far shorter or longer than usual."""
    median = np.median(survey.lengths)
    for comparative, strange in (("shorter", survey.lengths < median / 5), ("longer", survey.lengths > median * 5)):
        numbers = survey.chosen.named(np.flatnonzero(strange))
        if numbers:
            span = f"{survey.lengths[strange].min():,} to {survey.lengths[strange].max():,} steps"
            listed = first_few(numbers)
            text = f"far {comparative} than the others ({span}, the median is {median:,.0f}): episodes {listed}"
            yield Finding("warning", text, numbers[0], code="length-unusual")


def strange_episodes(survey: Survey) -> Iterator[Finding]:
    """Episodes whose mean in some dimension lies far from those of all others."""
    if len(survey.episodes) < 10 or any(mixed_units(survey)):
        return
    for signal in survey.of("observation", "action"):
        sums = np.add.reduceat(signal.values.astype(np.float64), survey.bounds[:-1], axis=0)
        means = sums / np.diff(survey.bounds)[:, None]
        low, middle, high = np.quantile(means, [0.1, 0.5, 0.9], axis=0)
        spread = np.maximum(high - low, 0.05 * np.ptp(signal.values, axis=0))
        with np.errstate(invalid="ignore", divide="ignore"):
            away = np.where(spread > 0, abs(means - middle) / spread, 0)
        strange = np.flatnonzero((away > 5).any(1))
        if len(strange):
            worst, dimension = np.unravel_index(np.nanargmax(away), away.shape)
            means_text = f"{means[worst, dimension]:.4g} on average, the others {middle[dimension]:.4g}"
            listed = first_few(survey.numbers[strange])
            text = f"{signal.name} differs in episodes {listed}: dimension {signal.called(dimension)} is {means_text}"
            yield Finding("note", text, int(survey.numbers[worst]), code="episodes-differ")


def instructions(survey: Survey) -> Iterator[Finding]:
    """Empty instructions, and those that differ only in case and blanks."""
    if "" in survey.texts or any(not text.strip() for text in survey.texts):
        yield Finding("warning", "some episodes have an empty instruction", code="instruction-empty")
    groups: dict[str, list[str]] = {}
    for text in survey.texts:
        groups.setdefault(" ".join(text.lower().split()).rstrip("."), []).append(text)
    for group in groups.values():
        if len(group) > 1:
            text = f"{' and '.join(map(repr, group[:MOST_NAMED]))} are different instructions to a policy"
            yield Finding("warning", f"{text}; write them alike", code="instructions-alike")


def after_the_end(survey: Survey) -> Iterator[Finding]:
    """Rows that belong to no episode."""
    end = int(survey.chosen.recorded[-1])
    keys = set().union(*(signal.keys for signal in survey.of("observation", "action")))
    rows = min(map(survey.store.rows, keys), default=end)
    if rows > end:
        text = f"{rows - end:,} rows after the last episode's end, row {end:,}, belong to no episode and are not used"
        remedy = f"add the end that is missing, {rows:,} perhaps, or cut these rows"
        yield Finding(
            "error", f"{text}{misread_ends(survey.chosen.recorded, rows)}; else {remedy}", code="rows-after-end"
        )


def interventions(survey: Survey) -> Iterator[Finding]:
    """Steps at which a human corrected a policy."""
    for signal in survey.signals:
        is_flag = marks_corrections(signal.key) and signal.values.shape[1] == 1
        share = (signal.values > 0).mean() if is_flag else 0.0
        if share > 0:
            flags = np.unique(signal.values[signal.values > 0])[:MOST_NAMED].astype(survey.store.dtype(signal.key))
            weights = readable_json({"key": signal.key, "values": {named(flag): 4 for flag in flags}})
            how = f'"weights": {weights} in data draws them more often, and dp-prior improve --corrections learns them'
            yield Finding(
                "note", f"{signal.name}: {share:.1%} of the steps are corrections by a human; {how}", code="corrections"
            )


def parts(survey: Survey) -> Iterator[Finding]:
    """Parts that the data set has by name, and episodes that two of them share."""
    every = len(survey.chosen.recorded)
    partial = {name: places for name, places in survey.store.parts().items() if 0 < len(places) < every}
    if partial:
        listed = first_few([f"{name} ({len(places)} of {every} episodes)" for name, places in partial.items()], 8)
        how = '; name them in data, "split": {"parts": {"train": [...], "val": [...]}}, to divide by them'
        yield Finding("note", f"the data set has the parts {listed}{'' if survey.is_divided else how}", code="parts")
    usual = {name: partial[name] for name in itertools.chain(*USUAL_PARTS.values()) if name in partial}
    for line in overlaps(usual, survey.chosen.names):
        yield Finding("warning", f"{line}: what is validated on is trained on", code="parts-overlap")


CHECKS: tuple[Callable[[Survey], Iterator[Finding]], ...] = (
    not_finite, time, alignment, jumps, outliers, duplicates, idle, strange_lengths, instructions, strange_episodes,
    clipped, constant, types, parts, after_the_end, interventions,
)  # fmt: skip


def _is_continuous(signal: Signal) -> np.ndarray:
    """(width,) bool: dimensions with many different values, all finite."""
    values = signal.values[:: max(1, len(signal.values) // 20_000)]
    return np.array([np.isfinite(column).all() and len(np.unique(column)) > FEW_VALUES for column in values.T], bool)


def _listed(signal: Signal, which: np.ndarray) -> str:
    """The dimensions, by name if they are few, else in ranges."""
    dimensions = np.flatnonzero(which)
    runs = np.split(dimensions, np.flatnonzero(np.diff(dimensions) > 1) + 1)
    labels = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    if len(dimensions) <= MOST_NAMED:
        labels = [signal.called(dimension) for dimension in dimensions]
    return (
        f"{signal.name}, dimension{'s' * (len(dimensions) > 1)} {', '.join(labels)} ({len(dimensions)} of {len(which)})"
    )


def marks_corrections(key: str) -> bool:
    """Whether a key marks the steps at which a person acted in place of a policy, by its name: LeRobot's `intervention`
    and `complementary_info.is_intervention`."""
    return re.split(r"[./]", key)[-1].removeprefix("is_") == "intervention"
