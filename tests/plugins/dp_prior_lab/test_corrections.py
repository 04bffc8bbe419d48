"""The expert's episodes begin where the policy went, hold the expert's own part alone, and can be repeated."""

import contextlib

import numpy as np
import pytest

from dp_prior.envs.toy import ToyConfig
from dp_prior_lab import corrections
from dp_prior_lab.corrections import correct, counted, reached

RECORD, KEYS = ToyConfig(n_envs=4), ["goal", "agent_pos"]
RIGHT = np.tile(np.array([[0.9, -0.8]], np.float32), (12, 1))  # away from the goal, and not into the disc
LOST = {5: RIGHT, 6: -RIGHT[:9], 9: RIGHT[:7]}
ASKED = ["5_0", "5_4", "5_8", "6_0", "6_3", "6_6", "9_0", "9_2", "9_4"]


def episodes(folder):
    """The arrays of each file, which are what a person can list."""
    found = {}
    for path in sorted(folder.iterdir()):
        with np.load(path) as file:
            found[path.stem] = dict(file)
    return found


def test_an_episode_is_what_the_expert_did_from_the_state_that_the_policy_reached(tmp_path):
    correct(RECORD, KEYS, LOST, 3, tmp_path)
    found = episodes(tmp_path)
    assert list(found) == ASKED and counted(tmp_path) == (9, 0)
    with contextlib.closing(RECORD.model_copy(update={"n_envs": 1, "max_steps": 80}).create()) as env:
        for name, episode in found.items():
            seed, step = map(int, name.split("_"))
            obs = reached(env, seed, LOST[seed][:step])
            for row, action in enumerate(episode["action"]):
                for key in KEYS:
                    np.testing.assert_array_equal(episode[f"obs.{key}"][row], obs[key][0])
                obs, _, _, info = env.step(action[None])
            assert info["success"] == 1


def test_what_the_expert_does_not_solve_is_left_out_and_counted(tmp_path):
    stuck = np.zeros((12, 2), np.float32)  # at the disc
    correct(RECORD, KEYS, {5: RIGHT, 6: stuck}, 4, tmp_path)
    solved, unsolved = counted(tmp_path)
    assert solved + unsolved == 8 and solved > 4 and unsolved > 0


def test_killed_it_goes_on_with_the_next_take_over_and_writes_the_same(tmp_path, monkeypatch):
    correct(RECORD, KEYS, LOST, 3, tmp_path / "whole")
    solve, calls = corrections.solution, []

    def counted_solve(*arguments):
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return solve(*arguments)

    monkeypatch.setattr(corrections, "solution", counted_solve)
    with pytest.raises(KeyboardInterrupt):
        correct(RECORD, KEYS, LOST, 3, tmp_path / "killed")
    assert counted(tmp_path / "killed") == (4, 0)
    correct(RECORD, KEYS, LOST, 3, tmp_path / "killed")
    correct(RECORD, KEYS, LOST, 3, tmp_path / "killed")
    assert len(calls) == 5 + 5  # nothing is asked again
    whole, killed = episodes(tmp_path / "whole"), episodes(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    for name, arrays in whole.items():
        assert all((arrays[key] == killed[name][key]).all() for key in arrays)
