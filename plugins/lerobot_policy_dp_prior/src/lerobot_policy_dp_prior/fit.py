"""Whether a policy fits a robot: joints, cameras, rate and units, compared before the first action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Ends(NamedTuple):
    """Inputs and outputs of a robot, as a policy expects them or as they are; None where nothing says."""

    state: Sequence[str] | None
    """Names of the numbers of the state, in order."""

    action: Sequence[str] | None
    """Names of the numbers of an action, in order."""

    cameras: Mapping[str, Sequence[int] | None]
    """Height and width of frames by LeRobot's key."""

    fps: float | None
    """Control steps per second."""


def misfits(policy: Ends, robot: Ends) -> Iterator[str]:
    """One line for each difference, with both sides and the remedy."""
    for what, option, ours, theirs in (
        ("the state", "state_names", policy.state, robot.state),
        ("an action", "action_names", policy.action, robot.action),
    ):
        if ours is None:
            yield f"the policy does not say the joints of {what}; the robot has {[*theirs]}. {_same(option, theirs)}"
        elif [*ours] != [*theirs]:
            is_order, is_number = sorted(ours) == sorted(theirs), len(ours) == len(theirs)
            how = "in another order" if is_order else "others"
            remedy = f". If they have other names only: {_same(option, theirs)}" if is_number and not is_order else ""
            yield f"joints of {what} are {how}: the policy has {[*ours]}, the robot {[*theirs]}{remedy}"
    yield from _other_cameras(policy.cameras, robot.cameras)
    yield from _other_rate(policy.fps, robot.fps)


def strange_values(
    names: Sequence[str], ranges: Sequence[Sequence[float] | None], values: Mapping[str, float]
) -> Iterator[str]:
    """One line for each joint whose value lies further outside its range in training than this range is wide.

    Other units, such as degrees for radians, are seen this way.

    Args:
        ranges: lowest and highest value by joint; None for joints that the policy does not read.
        values: of the robot by joint; may lack some.
    """
    for name, ends in zip(names, ranges, strict=False):
        if ends is None or name not in values:
            continue
        (low, high), value = ends, values[name]
        if not low - (high - low) <= value <= high + (high - low) and high > low:
            yield f"{name} is {value:.4g}, in training it was {low:.4g} to {high:.4g}"


def _other_cameras(
    ours: Mapping[str, Sequence[int] | None], theirs: Mapping[str, Sequence[int] | None]
) -> Iterator[str]:
    listed = {key: "x".join(map(str, reversed(size))) for key, size in theirs.items()}  # width x height
    for key, size in ours.items():
        if key not in theirs:
            rename = '--rename_map=\'{"observation.images.THEIRS": "' + key + "\"}'"
            found = listed or "none"
            yield f"the policy reads camera {key}; the robot has {found}. If it has another name: {rename}"
        elif size is None:
            known = f"--policy.frame_sizes='{{\"{key}\": {[*theirs[key]]}}}'"
            yield f"the size of the recorded frames of {key} is not known; if it was the robot's {listed[key]}: {known}"
        elif [*size] != [*theirs[key]]:
            wanted = "x".join(map(str, reversed(size)))
            yield f"frames of {key} were {wanted} in training, the robot's are {listed[key]}; set the camera's size"


def _other_rate(ours: float | None, theirs: float) -> Iterator[str]:
    if ours is None:
        known = f"--policy.fps={theirs:g}"
        yield f"the policy does not say its rate; the robot runs at {theirs:g} Hz. If it is the same: {known}"
    elif abs(ours - theirs) > 1e-3 * ours:
        factor = round(theirs / ours)
        between = f"; for {ours * factor:g} commands a second also --interpolation_multiplier={factor}"
        remedy = f"run it at its own: --fps={ours:g}{between if factor > 1 else ''}"
        yield f"the policy was trained at {ours:g} Hz, the robot runs at {theirs:g} Hz; {remedy}"


def _same(option: str, names: Sequence[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"--policy.{option}='[{listed}]'"
