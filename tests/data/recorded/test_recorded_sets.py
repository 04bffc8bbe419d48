"""Recorded robot data, in a folder beside the repository that a clone need not have: `../shared/data`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.data.samples.loader import Loader
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.actions import arm_faults
from tests.cases import every

FOLDER = Path(__file__).parents[3].parent / "shared" / "data"
PUSHT = FOLDER / "pusht"
PUSHT_STORES = {
    "zarr": ({"type": "zarr", "path": str(PUSHT / "pusht_cchi_v7_replay_lowdim.zarr.zip")}, "state", [0, 2]),
    "npz": ({"type": "npz", "path": str(PUSHT / "pusht_lowdim.npz")}, "state", [0, 2]),
    "lerobot": ({"type": "lerobot", "path": str(PUSHT / "lerobot_v30")}, "observation.state", None),
}
LEROBOT_SETS = {  # folder: (format, episodes, steps, state size, action size, state key, action key)
    "cr5_banana_plate": ("LeRobot v2.1", 3, 687, 6, 7, "observation.state", "action"),
    "g1_yellow_bottle": ("LeRobot v2.1", 2, 498, 26, 26, "observation.state", "action"),
    "gr00t_gr1_picknplace": ("LeRobot v2.0", 5, 2096, 44, 44, "observation.state", "action"),
    "lingzu_open50_v30": ("LeRobot v3.0", 50, 20814, 34, 34, "state", "actions"),
}
NPZ_SETS = {  # file: (episodes, steps, state size, action size, state key)
    "cr5_banana_plate/lowdim_81ep.npz": (81, 18039, 6, 7, "state"),
    "g1_yellow_bottle/lowdim_100ep.npz": (100, 35965, 26, 26, "state"),
    "adroit_door_human/adroit_door_human_25.npz": (25, 6729, 39, 28, "observation"),
    "adroit_pen_human/adroit_pen_human_50x100.npz": (50, 5000, 45, 24, "observation"),
    "d4rl_kitchen_complete/kitchen_complete_4ep.npz": (4, 755, 60, 9, "observation"),
}


def need(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"NOT CHECKED against recorded data: {path} is not there")


def open_set(episodes: dict, state_key: str, action_key: str, part=None):
    if episodes["type"] != "npz":
        pytest.importorskip({"zarr": "zarr", "lerobot": "pyarrow"}[episodes["type"]])
    need(Path(episodes["path"]))
    record = {
        "episodes": episodes,
        "obs": {"agent_pos": {"key": state_key, "slice": part}},
        "action": {"key": action_key},
    }
    return TrajectoriesConfig.from_json(json.dumps(record)).create(horizon=16, n_obs_steps=2, n_action_steps=8)


@pytest.mark.parametrize("name", ["npz", "lerobot"])
def test_human_pusht_gives_bit_equal_batches_from_every_format(name):
    expected = open_set(PUSHT_STORES["zarr"][0], "state", "action", [0, 2])
    found = open_set(PUSHT_STORES[name][0], PUSHT_STORES[name][1], "action", PUSHT_STORES[name][2])
    assert found.fingerprint == expected.fingerprint
    assert found.split_ids == expected.split_ids
    assert found.spec.fps == (10.0 if name == "lerobot" else None)  # the others store no rate
    assert found.spec.model_copy(update={"fps": None}) == expected.spec
    for key, value in expected.statistics().items():
        for field in ("count", "min", "max", "mean", "std", "q01", "q99"):
            np.testing.assert_array_equal(getattr(found.statistics()[key], field), getattr(value, field))
    loaders = [
        Loader(data.train, batch_size=256, accumulation=2, seed=3, rank=0, world_size=1) for data in (found, expected)
    ]
    for samples_seen in (0, 512, len(expected.train) - 100, 10**9):
        for ours, theirs in zip(*(loader.global_batch(samples_seen) for loader in loaders), strict=True):
            assert torch.equal(ours.x, theirs.x) and torch.equal(ours.mask, theirs.mask)
            assert torch.equal(ours.cond["agent_pos"], theirs.cond["agent_pos"])
            assert torch.equal(ours.ids, theirs.ids) and torch.equal(ours.denominator, theirs.denominator)


def test_human_pusht_has_the_published_counts():
    report = open_set(PUSHT_STORES["npz"][0], "state", "action", [0, 2]).report()
    assert report["episodes"] == 206 and report["steps"] == 25650 and report["warnings"] == []
    assert report["episode_lengths"] == {"min": 49, "max": 246}
    # Every episode of 49 steps or more has length + 1 + 7 - 16 + 1 windows.
    assert sum(part["windows"] for part in report["parts"].values()) == 25650 - 7 * 206


@pytest.mark.parametrize("name", LEROBOT_SETS)
def test_recorded_lerobot_sets_are_read_as_they_are(name):
    version, episodes, steps, state_size, action_size, state_key, action_key = LEROBOT_SETS[name]
    data = open_set({"type": "lerobot", "path": str(FOLDER / name / "lerobot")}, state_key, action_key)
    report = data.report()
    assert (report["format"], report["episodes"], report["steps"]) == (version, episodes, steps)
    assert data.spec.x_shape == (16, action_size) and data.spec.cond_shapes == {"agent_pos": (2, state_size)}
    batch = data.train.fetch(torch.arange(len(data.train)))
    assert batch.x.isfinite().all() and batch.cond["agent_pos"].isfinite().all()


@every(name=NPZ_SETS)
def test_recorded_npz_sets_are_read_as_they_are(name):
    episodes, steps, state_size, action_size, state_key = NPZ_SETS[name]
    data = open_set({"type": "npz", "path": str(FOLDER / name)}, state_key, "action")
    report = data.report()
    assert (report["episodes"], report["steps"]) == (episodes, steps)
    assert data.spec.x_shape == (16, action_size) and data.spec.cond_shapes == {"agent_pos": (2, state_size)}


@pytest.mark.parametrize("name", ["cr5_banana_plate", "g1_yellow_bottle"])
def test_a_lerobot_copy_and_an_npz_copy_of_the_same_episodes_agree(name):
    lerobot = open_set({"type": "lerobot", "path": str(FOLDER / name / "lerobot")}, "observation.state", "action")
    (npz,) = (path for path in NPZ_SETS if path.startswith(name))
    need(FOLDER / npz)
    with np.load(FOLDER / npz) as arrays:
        starts = np.concatenate([[0], arrays["episode_ends"]])
        first = {"cr5_banana_plate": 0, "g1_yellow_bottle": 29}[name]  # the README there says which episodes were kept
        rows = np.concatenate([np.arange(starts[first + e], starts[first + e + 1]) for e in lerobot.split_ids["train"]])
        action = arrays["action"][rows]
    found = lerobot.train.columns["x"].values[torch.from_numpy(lerobot.is_train_step)]
    np.testing.assert_array_equal(found, action)


WRISTS = [{"slice": [4, 7], "form": "euler_XYZ"}, {"slice": [11, 14], "form": "euler_XYZ"}]
FOREARM, FOREARM_ACTION = [{"slice": [0, 3], "form": "euler_XYZ"}], [{"slice": [1, 4], "form": "euler_XYZ"}]


def joints(key, *slices):
    return [{"type": "offset", "action": each, "key": key, "slice": each} for each in slices]


def pose(action, observed):
    """Three hinges whose axes meet are Euler angles; no set has positions beside, so three joints stand for them."""
    return {
        "type": "pose",
        "position": {"action": action[0], "key": "state", "slice": observed[0]},
        "rotation": {"action": action[1], "key": "state", "slice": observed[1]},
        "observed": "relative",
    }


ARMS = {  # name: (episodes, state key, its rotations, action key, its rotations, arms)
    "g1": ({"type": "npz", "path": str(FOLDER / "g1_yellow_bottle/lowdim_100ep.npz")}, "state", WRISTS, "action",
           WRISTS, [*(pose([a, b], [a, b]) for a, b in (([0, 3], [4, 7]), ([7, 10], [11, 14]))),
                    *joints("state", [3, 4], [10, 11])]),
    "gr00t": ({"type": "lerobot", "path": str(FOLDER / "gr00t_gr1_picknplace/lerobot")}, "observation.state", [],
              "action", [], joints("state", [0, 7], [22, 29], [41, 44])),
    "lingzu": ({"type": "lerobot", "path": str(FOLDER / "lingzu_open50_v30/lerobot")}, "state", [], "actions", [],
               joints("state", [0, 7], [7, 14])),
    "cr5": ({"type": "npz", "path": str(FOLDER / "cr5_banana_plate/lowdim_81ep.npz")}, "state", [], "action", [],
            joints("state", [0, 6])),
    "adroit": ({"type": "npz", "path": str(FOLDER / "adroit_door_human/adroit_door_human_25.npz")}, "observation",
               FOREARM, "action", FOREARM_ACTION, [pose([[4, 7], [1, 4]], [[3, 6], [0, 3]])]),
}  # fmt: skip


@pytest.mark.parametrize("name", ARMS)
def test_every_recorded_action_comes_back_from_the_arms_of_its_robot(name):
    episodes, state_key, turned, action_key, turned_action, arms = ARMS[name]
    if episodes["type"] == "lerobot":
        pytest.importorskip("pyarrow")
    need(Path(episodes["path"]))
    record = {
        "episodes": episodes,
        "obs": {"state": {"key": state_key, "rotations": turned}},
        "action": {"key": action_key, "rotations": turned_action},
    }
    data = TrajectoriesConfig.from_json(json.dumps(record)).create(horizon=4, n_obs_steps=2, n_action_steps=3)
    task = PolicyConfig.from_json(json.dumps({"horizon": 4, "n_action_steps": 3, "arms": arms}))
    assert list(arm_faults(task.arms, data.spec)) == []
    transforms = task.transforms(data.spec)
    for part in (data.train, data.val, data.test):
        for ids in torch.arange(len(part)).split(8192):
            batch = part.fetch(ids)
            inside = transforms.encode(batch.x, batch.cond)
            found = transforms.decode(inside, batch.cond)
            torch.testing.assert_close(found, batch.x, rtol=0, atol=1e-5)
            assert inside.shape[-1] == batch.x.shape[-1] + 3 * len(turned_action)
