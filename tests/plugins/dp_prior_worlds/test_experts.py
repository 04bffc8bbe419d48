"""An expert takes over in exactly the state that a policy reached, and what it does there can be done again."""

import contextlib

import numpy as np
import pytest

from dp_prior.envs.toy import ToyConfig
from dp_prior_lab.corrections import reached, solution
from dp_prior_worlds.aloha import AlohaConfig
from dp_prior_worlds.metaworld import MetaWorldConfig
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS
from dp_prior_worlds.pusht import PushTConfig
from dp_prior_worlds.pusht_goals import PushTGoalsConfig


@pytest.fixture(params=["toy", "pusht"])
def record(request):
    if request.param == "pusht":
        request.getfixturevalue("gym_pusht")
    return {"toy": ToyConfig(n_envs=3), "pusht": PushTConfig(n_envs=3)}[request.param]


def wandering(record, seeds, steps):
    """The actions (n, steps, A) of a policy without a plan, and the observations after each step."""
    random, scale = np.random.default_rng(0), 1.0 if record.type == "toy" else 512.0
    actions = (random.random((len(seeds), steps, 2)) * scale).astype(np.float32)
    with contextlib.closing(record.create()) as env:
        seen = [env.reset(seeds), *(env.step(actions[:, step]).obs for step in range(steps))]
    return actions, seen


def test_the_state_after_a_replay_is_the_recorded_state(record):
    seeds = [7, 8, 9]
    actions, seen = wandering(record, seeds, 12)
    with contextlib.closing(record.model_copy(update={"n_envs": 1}).create()) as env:
        for row, seed in enumerate(seeds):
            for step in (0, 1, 5, 12):
                found = reached(env, seed, actions[row, :step])
                for key, values in seen[step].items():
                    np.testing.assert_array_equal(found[key][0], values[row], err_msg=f"{key} at step {step}")


def test_an_expert_solves_it_from_where_a_policy_went_and_its_actions_lead_there_again(record):
    actions, _ = wandering(record, [7, 8, 9], 12)
    alone = record.model_copy(update={"n_envs": 1, "max_steps": 400})
    with contextlib.closing(alone.create()) as env:
        found = solution(env, record.expert(), reached(env, 8, actions[1]))
        assert found is not None and found["action"].dtype == np.float32
        again = [reached(env, 8, actions[1]), *(env.step(one[None]).obs for one in found["action"])]
        for key in found.keys() - {"action"}:
            np.testing.assert_array_equal(found[key], [one[key][0] for one in again[:-1]])
        assert env.step(found["action"][-1:]).info["success"] == 1


def test_an_episode_that_the_expert_does_not_solve_is_none():
    with contextlib.closing(ToyConfig(n_envs=1, max_steps=5).create()) as env:
        assert solution(env, ToyConfig().expert(), env.reset([0])) is None


def test_experts_are_those_of_the_demonstrations(metaworld, gym_aloha):
    from dp_prior_worlds import aloha_demonstrations, metaworld_demonstrations

    for record, (states, actions, *_) in (
        (MetaWorldConfig(task="reach-v3"), metaworld_demonstrations.demonstrate(3, "reach-v3")),
        (AlohaConfig(), aloha_demonstrations.demonstrate(3, "transfer_cube")),
    ):
        expert = record.expert()
        chosen = [expert({"state": state}).astype(np.float32) for state in states[:3]]
        np.testing.assert_allclose(chosen, actions[:3], atol=1e-5)  # states are stored in float32


def test_the_expert_of_several_tasks_does_what_the_instruction_tells(metaworld):
    tasks, state = ("reach-v3", "window-close-v3"), np.linspace(1.0, 0.0, 39, dtype=np.float32)
    several = MetaWorldConfig(task=tasks).expert()
    found = [several({"state": state, "instruction": np.array(INSTRUCTIONS[task])}) for task in tasks]
    np.testing.assert_array_equal(found, [MetaWorldConfig(task=task).expert()({"state": state}) for task in tasks])
    assert (found[0] != found[1]).any()


def test_the_expert_of_one_goal_is_none_of_four():
    assert PushTGoalsConfig.expert is None
