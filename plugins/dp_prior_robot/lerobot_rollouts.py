"""The numbers of a LeRobot data set that LeRobot's own rollouts pass between a robot and a policy.

`lerobot-rollout` (0.6) gives a policy the cameras and `observation.state`: the robot's numbers whose names end in
`.pos` or `.vel`. The rollout commands the numbers of an action with such names. `lerobot-record` records all numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from dp_prior.data.errors import first_few
from dp_prior.data.formats.store_record import RolloutNeeds
from dp_prior_robot.export.lerobot_source import STATE

PASSED = (".pos", ".vel")
"""Endings of the names of numbers that are passed."""


def passes(key: str, name: str) -> bool:
    """Whether a rollout gives a policy the number of this name under a key of the data set."""
    return key == STATE and name.endswith(PASSED)


def rollout_gaps(needs: RolloutNeeds) -> Iterator[str]:
    """Explain why a policy cannot run in a rollout, or in a rollout with `--inference.type=rtc`. Data of simulators,
    without a number that a rollout passes, get lines for their names alone."""
    passed = f"lerobot-rollout passes only numbers whose names end in {' or '.join(PASSED)}"
    every_name = itertools.chain(*needs.obs.values(), needs.action)
    is_of_robot = any(name.endswith(PASSED) for name in every_name)
    for key, names in needs.obs.items():
        withheld = [name for name in names if not passes(key, name)]
        if key != STATE and is_of_robot:
            yield (
                f"{key} is not given by lerobot-rollout, which gives {STATE} and cameras; leave it out for LeRobot's "
                f"arms, or say where the arm has its numbers: dp-prior export --keys NAME={STATE}[NUMBERS]"
            )
        elif key == STATE and withheld and len(withheld) == len(names):
            yield (
                f"{key}: {passed}, so a robot gives none of {first_few(withheld)} under these names; where it has them "
                f"under others, --policy.state_names of the rollout says so"
            )
        elif key == STATE and withheld:
            remedy = 'for LeRobot\'s arms read the others alone, by "names"'
            yield f"{key}: {passed}, so not {first_few(withheld)}; {remedy}"
    withheld = [name for name in needs.action if not name.endswith(PASSED)]
    if withheld:
        yield f"action: {passed}, so a robot is not commanded {first_few(withheld)}"
    if needs.n_obs_steps > 1 and is_of_robot:
        yield (
            f"task.n_obs_steps is {needs.n_obs_steps}, and lerobot-rollout --inference.type=rtc gives one observation "
            f"for a chunk; for rtc set it to 1, --inference.type=sync takes any"
        )
    if needs.previous_action is not None and is_of_robot:
        yield (
            f"data.previous_action is {needs.previous_action!r}, and lerobot-rollout --inference.type=rtc does not say "
            f"the last action; for rtc leave it out, --inference.type=sync takes it"
        )
