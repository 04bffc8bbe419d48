"""The rollout that a policy runs in. LeRobot gives a policy neither the robot nor the rate: its programs hold both in a
`RolloutContext`, a local variable `ctx` of the functions that reset the policy before the first action."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from lerobot_policy_dp_prior.fit import Ends

if TYPE_CHECKING:
    from lerobot.rollout.context import RolloutContext

STATE, ACTION = "observation.state", "action"


def running_rollout() -> RolloutContext | None:
    """The rollout whose code is calling; None outside of `lerobot-rollout`, as in an evaluation or a script."""
    context = sys.modules.get("lerobot.rollout.context")  # imported by a rollout alone
    frame = inspect.currentframe() if context is not None else None
    while frame is not None:
        if isinstance(found := frame.f_locals.get("ctx"), context.RolloutContext):
            return found
        frame = frame.f_back
    return None


def robot_ends(rollout: RolloutContext) -> Ends:
    """What the robot of a rollout gives and takes, its cameras under the names that the policy is given."""
    features, renamed = rollout.data.hw_features, rollout.runtime.cfg.rename_map
    cameras = {
        renamed.get(key, key): one["shape"][:2] for key, one in features.items() if one["dtype"] in ("video", "image")
    }
    names = {key: one["names"] for key, one in {**features, **rollout.data.dataset_features}.items()}
    return Ends(names.get(STATE, []), names.get(ACTION, []), cameras, rollout.runtime.cfg.fps)


def recording_fault(rollout: RolloutContext) -> str | None:
    """Why the rate of the data set that the rollout records is wrong, which LeRobot does not compare."""
    dataset, fps = rollout.data.dataset, rollout.runtime.cfg.fps
    if dataset is None or abs(dataset.fps - fps) < 1e-3 * fps:
        return None
    return f"the recording would say {dataset.fps:g} Hz, the robot runs at {fps:g} Hz; give --dataset.fps={fps:g}, too"
