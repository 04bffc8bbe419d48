"""The camera of Push-T: the pictures of recorded data sets, of rollouts and of states are the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.envs.pusht import PushTConfig
from dp_prior.envs.pusht_camera import StateCamera
from dp_prior.envs.pusht_demonstrations import write_demonstrations

pytest.importorskip("gym_pusht")
RECORDED = Path(__file__).parents[2].parent / "shared/data/pusht"


def test_the_picture_of_a_state_is_the_one_of_the_rollout():
    env = PushTConfig(n_envs=2, camera=(96, 64)).create()
    obs, take = env.reset([3, 4]), StateCamera((96, 64))
    assert env.obs_shapes["camera"] == (96, 64, 3) and obs["camera"].dtype == np.uint8
    seen = []
    for _ in range(20):
        obs = env.step(np.array([[250.0, 250.0], [300.0, 200.0]])).obs
        seen.append(np.abs(take(obs["state"]).astype(int) - obs["camera"]).mean())
    assert max(seen) < 0.05  # the state is rounded to float32, which moves edges


def test_the_camera_changes_no_state_and_is_what_is_filmed():
    plain, seeing = PushTConfig(n_envs=1).create(), PushTConfig(n_envs=1, camera=(96, 96), render_size=200).create()
    assert np.array_equal(plain.reset([5])["state"], seeing.reset([5])["state"])
    action = np.array([[200.0, 300.0]])
    before, after = plain.step(action), seeing.step(action)
    assert np.array_equal(before.obs["state"], after.obs["state"]) and before.reward == after.reward
    film = seeing.render([0])[0]
    assert film.shape == (192, 192, 3) and np.array_equal(film[::2, ::2], after.obs["camera"][0])


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recorded frames are not at {RECORDED}")
def test_pictures_are_those_of_the_recorded_data_set():
    zarr = pytest.importorskip("zarr")
    frames = zarr.open_group(zarr.storage.ZipStore(RECORDED / "pusht_img_u8.zarr.zip", mode="r"), mode="r")["data/img"]
    rows = np.arange(0, frames.shape[0], 499)
    expected = np.stack([np.asarray(frames[int(row)]) for row in rows]).astype(int)
    with np.load(RECORDED / "pusht_lowdim.npz") as file:
        states = file["state"][rows]
    difference = np.abs(StateCamera((96, 96))(states) - expected).mean((1, 2, 3))
    assert difference.mean() < 0.2, difference


def test_the_command_adds_pictures_to_demonstrations(tmp_path):
    write_demonstrations(tmp_path / "d.npz", 1, seed=0, workers=1)
    command = ["render-demonstrations", "--episodes", str(tmp_path / "d.npz"), "--size", "32"]
    output = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "i.npz")], catch_exceptions=False).output
    with np.load(tmp_path / "d.npz") as plain, np.load(tmp_path / "i.npz") as made:
        assert set(made.files) == {*plain.files, "camera"}
        assert all(np.array_equal(plain[name], made[name]) for name in plain.files)
        assert np.array_equal(made["camera"], StateCamera((32, 32))(plain["state"]))
        assert f"wrote {len(made['camera'])} pictures" in output
    shutil.copy(tmp_path / "d.npz", tmp_path / "again.npz")
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "again.npz")])
    assert result.exit_code == 64 and "exists; choose another file, or delete it" in result.output
