"""The expert's episodes begin where the policy went, hold the expert's own part alone, and can be repeated."""

import contextlib

import numpy as np
import pytest

from dp_prior.commands import corrections
from dp_prior.commands.corrections import counted, write_corrections
from dp_prior.config import ConfigError
from dp_prior.envs.expert import reached
from dp_prior.envs.toy import ToyConfig
from tests.messages import naming

RECORD, KEYS = ToyConfig(n_envs=4), ["goal", "agent_pos"]
RIGHT = np.tile(np.array([[0.9, -0.8]], np.float32), (12, 1))  # away from the goal, and not into the disc
LOST = {5: RIGHT, 6: -RIGHT[:9], 9: RIGHT[:7]}


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def test_an_episode_is_what_the_expert_did_from_the_state_that_the_policy_reached(tmp_path):
    path = tmp_path / "episodes.npz"
    write_corrections(RECORD, KEYS, LOST, 3, path)
    found, ends = arrays(path), arrays(path)["episode_ends"]
    assert [*zip(found["lost_seed"], found["lost_step"], strict=True)] == [
        (5, 0), (5, 4), (5, 8), (6, 0), (6, 3), (6, 6), (9, 0), (9, 2), (9, 4),
    ]  # fmt: skip
    assert counted(path) == (9, 0)
    with contextlib.closing(RECORD.model_copy(update={"n_envs": 1, "max_steps": 80}).create()) as env:
        for rows, seed, step in zip(
            np.split(np.arange(ends[-1]), ends[:-1]), found["lost_seed"], found["lost_step"], strict=True
        ):
            obs = reached(env, int(seed), LOST[seed][:step])
            for row in rows:
                for key in KEYS:
                    np.testing.assert_array_equal(found[f"obs.{key}"][row], obs[key][0])
                obs, _, _, info = env.step(found["action"][row][None])
            assert info["success"] == 1


def test_what_the_expert_does_not_solve_is_left_out_and_counted(tmp_path):
    lost = {5: RIGHT, 6: np.zeros((12, 2), np.float32)}  # the second is stuck at the disc
    write_corrections(RECORD, KEYS, lost, 4, tmp_path / "episodes.npz")
    solved, unsolved = counted(tmp_path / "episodes.npz")
    assert solved + unsolved == 8 and unsolved > 0
    with pytest.raises(ConfigError, match=naming(tmp_path / "none.npz", 2)):
        write_corrections(ToyConfig(max_steps=9), KEYS, {5: RIGHT[:1], 6: RIGHT[:1]}, 1, tmp_path / "none.npz")


def test_killed_it_goes_on_with_the_next_lost_episode_and_writes_the_same(tmp_path, monkeypatch):
    write_corrections(RECORD, KEYS, LOST, 3, tmp_path / "whole.npz")
    solve, calls = corrections.solution, []

    def counted_solve(*arguments):
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return solve(*arguments)

    monkeypatch.setattr(corrections, "solution", counted_solve)
    with pytest.raises(KeyboardInterrupt):
        write_corrections(RECORD, KEYS, LOST, 3, tmp_path / "killed.npz")
    assert not (tmp_path / "killed.npz").exists()
    write_corrections(RECORD, KEYS, LOST, 3, tmp_path / "killed.npz")
    assert len(calls) == 5 + 6  # the first episode is not asked again
    one, other = arrays(tmp_path / "whole.npz"), arrays(tmp_path / "killed.npz")
    assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.npz", "whole.npz"]


def test_episodes_of_a_person_are_counted_without_take_overs(tmp_path):
    np.savez(tmp_path / "own.npz", action=np.zeros((3, 2)), episode_ends=np.array([1, 3]))
    assert counted(tmp_path / "own.npz") == (2, 0)
