"""Faults of rotations: the order, sign and length of quaternions, and angles that wrap around."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import numpy as np

from dp_prior_client.onboard.rotation_check import NOT_UNIT
from dp_prior_studio.inspection.faults import whole_turns
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.quaternions import (
    ORDERS,
    Quaternion,
    angle_between,
    declared_places,
    likely_order,
    quaternions_of,
    rotation_setting,
)
from dp_prior_studio.inspection.survey import Signal, Survey, spread_rows

APART, CLOSER = 0.5, 5.0
"""Radians between two quaternions from which they are no neighbours, and how much closer the right order brings them;
the rule of arms too."""

SIMULATED_IN_ORDER, SIMULATORS_ORDER = ("robosuite", "libero"), "xyzw"
"""Environments whose recordings have quaternions in robosuite's order, and this order."""

_EULER = {("roll", "pitch", "yaw"): "euler_xyz", ("rx", "ry", "rz"): "euler_xyz", ("yaw", "pitch", "roll"): "euler_ZYX"}


def find_rotations(survey: Survey) -> Iterator[Finding]:
    """All findings of this kind."""
    signals = survey.of("observation", "action")
    quaternions = list(itertools.chain.from_iterable(quaternions_of(signal, survey) for signal in signals))
    for quaternion in quaternions:
        yield from _lengths(quaternion, survey)
        yield from _order(quaternion, survey)
    yield from _two_orders(quaternions)
    for signal in signals:
        yield from _wraps(signal, survey)


def _order(quaternion: Quaternion, survey: Survey) -> Iterator[Finding]:
    """The order, and changes of the sign, which a policy sees as jumps unless `rotations` names the quaternion."""
    values = quaternion.values[np.isfinite(quaternion.values).all(1)]
    if not len(values):
        return
    is_whole = len(values) == len(quaternion.values)
    likely = likely_order(values, quaternion.flips if is_whole else quaternion.flips[:0])
    if likely is not None and quaternion.stated not in (None, likely[0]):
        by = "the configuration reads it" if quaternion.is_declared else "the names say that it is"
        values_say = f"the values look like {likely[0]}: {likely[1]}"
        text = f"{quaternion.called}: {by} as a quaternion {quaternion.stated}, {values_say}"
        yield Finding(
            "warning",
            f"{text}; look into the recorder, and write {quaternion.setting(likely[0])}",
            code="quaternion-order",
        )
        return
    if quaternion.is_declared:
        return
    order, why = likely or (None, "")
    order, why = (quaternion.stated, "by its names") if quaternion.stated else (order, why)
    if order is None and (survey.store.environment() or {}).get("type") in SIMULATED_IN_ORDER:
        order, why = SIMULATORS_ORDER, "as robosuite writes them"
    reading = f"most likely {order} ({why})" if order else f"its order cannot be told: {_readings(values)}"
    remedy = f"write {quaternion.setting(order)} beside its key, and the policy reads it as 6D"
    if len(quaternion.flips):
        changes = f"changes its sign in {len(quaternion.flips):,} steps, though q and -q are one rotation"
        text = f"{quaternion.called}: a quaternion {changes}"
        yield Finding(
            "warning", f"{text}; {reading}; {remedy}", *survey.place(int(quaternion.flips[0])), code="quaternion-sign"
        )
    else:
        yield Finding("note", f"{quaternion.called}: a quaternion, {reading}; {remedy}", code="quaternion")


def _lengths(quaternion: Quaternion, survey: Survey) -> Iterator[Finding]:
    """Steps whose quaternion is no rotation, which training refuses once `rotations` names it."""
    length = np.linalg.norm(quaternion.values, axis=1)
    bad = np.flatnonzero(abs(length - 1) > NOT_UNIT)  # NaN is a finding of its own
    if len(bad):
        low, high = length[bad].min(), length[bad].max()
        lengths = f"{low:.3g} to {high:.3g} instead of 1 in {len(bad):,} steps"
        text = f"{quaternion.called}: the length of the quaternion is {lengths}"
        remedy = "no rotation was recorded there; repair them, or leave the episodes out"
        severity = "error" if quaternion.is_declared else "warning"
        yield Finding(
            severity, f"{text}: {remedy}", *survey.place(int(bad[0])), survey.owners(bad), code="quaternion-length"
        )


def _two_orders(quaternions: list[Quaternion]) -> Iterator[Finding]:
    """Quaternions of two keys, such as of a state and its action, that agree only if one is xyzw and the other wxyz."""
    for first, second in itertools.combinations(quaternions, 2):
        if first.signal is second.signal:
            continue
        rows = spread_rows(len(first.values))
        values_of_first, values_of_second = first.values[rows], second.values[rows]
        readings = {
            ("xyzw", "wxyz"): angle_between(np.roll(values_of_first, 1, 1), values_of_second),
            ("wxyz", "xyzw"): angle_between(values_of_first, np.roll(values_of_second, 1, 1)),
        }
        straight, best = angle_between(values_of_first, values_of_second), min(readings, key=readings.__getitem__)
        if straight > APART and readings[best] < straight / CLOSER and (first.stated, second.stated) != best:
            text = (
                f"{first.called}, and {second.called}, are quaternions of different order: {straight:.2g} rad apart, "
                f"{readings[best]:.2g} if the first is {best[0]} and the second {best[1]}"
            )
            yield Finding(
                "warning",
                f"{text}; write {first.setting(best[0])} and {second.setting(best[1])}",
                code="quaternion-orders-differ",
            )


def _wraps(signal: Signal, survey: Survey) -> Iterator[Finding]:
    """Angles that jump by a whole turn, a line for each Euler rotation or single angle."""
    declared = declared_places(signal)
    turns = {place: turn for place, turn in whole_turns(signal, survey).items() if place not in declared}
    reported: set[int] = set()
    for place, (turn, _) in turns.items():
        if place in reported:
            continue
        start, form = _euler_of(signal, place)
        unit = "_degrees" if turn == 360 else ""
        angles = [place] if form is None else [angle for angle in turns if start <= angle < start + 3]
        reported.update(angles)
        rows = np.unique(np.concatenate([turns[angle][1] for angle in angles]))
        listed = ", ".join(map(signal.called, angles))
        text = f"{signal.name}, dimension{'s' * (len(angles) > 1)} {listed}: {len(rows):,} steps change by {turn:.4g}"
        if form is not None:
            remedy = f"write {rotation_setting(start, start + 3, form + unit)} beside its key"
        else:
            encoder = "give it the encoder `angle`, or cosine and sine" if signal.role == "observation" else "unwrap it"
            setting = rotation_setting("START", "STOP", f"euler_xyz{unit}")
            remedy = f"alone, {encoder}; as one of three Euler angles, write {setting}"
        yield Finding(
            "warning", f"{text}: an angle that wraps around; {remedy}", *survey.place(int(rows[0])), code="angle-wraps"
        )


def _euler_of(signal: Signal, place: int) -> tuple[int, str | None]:
    """Where the three Euler angles begin that an angle belongs to, and their form; None if it may stand alone."""
    names = [str(name).lower() for name in signal.columns]
    for start in range(max(0, place - 2), place + 1):
        columns = names[start : start + 3]
        for words, form in _EULER.items():
            if len(columns) == 3 and all(word in name for word, name in zip(words, columns, strict=True)):
                return start, form
    is_all = signal.values.shape[1] == 3 and re.search(r"euler|rpy|rot|orient", signal.key, re.I)
    return (0, "euler_xyz") if is_all else (place, None)


def _readings(values: np.ndarray) -> str:
    """The median angle of rotations, read in either order."""
    angles = {order: np.median(abs(values[:, order.index("w")]).clip(0, 1)) for order in ORDERS}
    degrees = {order: np.degrees(2 * np.arccos(scalar)) for order, scalar in angles.items()}
    return "half of them turn by less than " + ", ".join(f"{degrees[order]:.0f} degrees as {order}" for order in ORDERS)
