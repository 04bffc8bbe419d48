"""Pictures of Meta-World depend on the scene alone. MUJOCO_GL is read at import: in a process of their own."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.data.formats.choice import ALL_EPISODES
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.camera import ImageConfig
from dp_prior_worlds.renderers import metaworld as renderers
from dp_prior_worlds.renderers.metaworld import (
    BODIES,
    POSITIONS,
    SCENE,
    SITES,
    MetaWorldRendererConfig,
    environments,
    scene_of,
)
from tests.messages import naming
from tests.plugins.dp_prior_worlds.conftest import metaworld  # noqa: F401


@pytest.fixture
def models(metaworld):  # noqa: F811
    import mujoco

    def of(task):
        return mujoco.MjModel.from_xml_path(str(environments()[task].model_name.fget(None)))

    return of


def test_a_scene_tells_the_task_and_holds_what_differs(models):
    import mujoco

    model = models("door-open-v3")
    data = mujoco.MjData(model)
    plain = scene_of("door-open-v3", model, data)
    assert plain.shape == (SCENE,) == MetaWorldRendererConfig.state_shape and plain.dtype == np.float32
    assert list(environments())[int(plain[0])] == "door-open-v3"
    for array in (model.body_pos, model.site_pos, data.qpos):
        array.flat[-1] += 1  # the last number is in it, too
        assert (scene_of("door-open-v3", model, data) != plain).sum() == 1
        array.flat[-1] -= 1


@pytest.mark.slow
def test_every_task_has_room_in_a_scene(models):
    """And the rooms are no larger than the largest task asks."""
    found = [(model.nbody, model.nsite, model.nq) for model in map(models, environments())]
    assert tuple(np.max(found, axis=0)) == (BODIES, SITES, POSITIONS)


@pytest.mark.parametrize("number", [-1, 0.5, 50])
def test_a_scene_of_no_task_is_refused(number, metaworld):  # noqa: F811
    scene = np.zeros((1, SCENE))
    scene[0, 0] = number
    with pytest.raises(ValueError, match=naming(f"{number:g}", "0 to 49")):
        MetaWorldRendererConfig().create((16, 16))(scene)


@pytest.mark.parametrize(("rows", "opened"), [(1, 24), (12, 12)])
def test_tasks_that_take_turns_stay_open(rows, opened, metaworld, monkeypatch):  # noqa: F811
    """Twelve, twice: a renderer that holds the last ten opens all of them again."""
    asked = []
    stage = SimpleNamespace(draw=lambda scene: np.zeros((16, 16, 3), np.uint8))
    monkeypatch.setattr(renderers, "_Stage", lambda config, size, task: asked.append(task) or stage)
    draw = MetaWorldRendererConfig().create((16, 16), rows)
    for number in (*range(12), *range(12)):
        draw(np.full((1, SCENE), number))
    assert len(asked) == opened


def test_a_task_opens_once_for_all_its_episodes_of_a_recording(metaworld, monkeypatch, tmp_path):  # noqa: F811
    """Twelve tasks that take turns by episode, more than a renderer holds."""
    asked = []
    stage = SimpleNamespace(draw=lambda scene: np.full((16, 16, 3), scene[0], np.uint8))
    monkeypatch.setattr(renderers, "_Stage", lambda config, size, task: asked.append(task) or stage)
    scenes = np.zeros((72, SCENE), np.float32)
    scenes[:, 0] = np.repeat(np.arange(36) % 12, 2)
    np.savez(tmp_path / "d.npz", scene=scenes, episode_ends=np.arange(2, 73, 2))
    store = NpzStoreConfig(path=tmp_path / "d.npz").create()
    record = ImageConfig(key="scene", render=MetaWorldRendererConfig(), size=(16, 16))
    cache = record.cache(store, ALL_EPISODES.of(store)[0], tmp_path)
    cache.build(3)
    assert sorted(asked) == sorted(list(environments())[:12])
    assert np.array_equal(cache.open().rows(torch.arange(72))[:, 0, 0, 0].numpy(), scenes[:, 0])


def test_without_metaworld_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    for asked in (MetaWorldRendererConfig().versions, lambda: MetaWorldRendererConfig().create((16, 16))):
        with pytest.raises(ImportError, match=naming('pip install "dp_prior[metaworld]"')):
            asked()


PROGRAM = """
from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
from dp_prior_worlds.metaworld import MetaWorldConfig
from dp_prior_worlds.renderers import metaworld
from dp_prior_worlds.renderers.metaworld import MetaWorldRendererConfig

TASKS = ["reach-v3", "drawer-open-v3", "peg-insert-side-v3", "window-close-v3"]
env = MetaWorldConfig(task=TASKS, n_envs=4, cameras={"corner2": (48, 64)}, render_size=48).create()
expert = MetaWorldConfig(task=TASKS).expert()
obs = env.reset([4, 5, 6, 7])
for _ in range(12):
    acting = [expert({key: values[row] for key, values in obs.items()}) for row in range(4)]
    obs = env.step(np.stack(acting)).obs
seen = obs["corner2"]
metaworld.TASKS_HELD = 2  # the third task closes the first
draw = MetaWorldRendererConfig(camera="corner2").create((48, 64))
for scenes, expected in ((obs["scene"], seen), (obs["scene"][::-1], seen[::-1]), (obs["scene"], seen)):
    np.testing.assert_array_equal(draw(scenes), expected)  # of a recording and of a live task, in any order
assert len({frame.tobytes() for frame in seen}) == 4
assert seen[:, :8].std((1, 2)).max() < 8 < seen[:, -8:].std((1, 2)).min()  # upright: above is the background

with ThreadPoolExecutor(4) as pool:  # a renderer each, as for the episodes of a recording
    rows = [obs["scene"][row : row + 1] for row in range(4)] * 3
    drawn = list(pool.map(lambda scenes: MetaWorldRendererConfig(camera="corner2").create((48, 64))(scenes)[0], rows))
np.testing.assert_array_equal(drawn, np.tile(seen, (3, 1, 1, 1)))

for row in range(4):  # Meta-World's own picture of the live task, turned upright
    live = env.envs[row]._env._env
    mujoco.mj_forward(live.model, live.data)
    for shadows in (False, True):
        theirs = mujoco.Renderer(live.model, 48, 64)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            theirs.scene.flags[flag] = shadows
        theirs.update_scene(live.data, "corner2")
        own = MetaWorldRendererConfig(camera="corner2", shadows=shadows).create((48, 64))(obs["scene"][row : row + 1])
        off = np.abs(own[0].astype(int) - theirs.render()[::-1, ::-1])
        assert (off > 1).mean() < 1e-3, (row, shadows, off.max())  # a scene has float32
        theirs.close()
    live.model.cam_pos[2] = [0.75, 0.075, 0.7]  # as LeRobot's environment moves the third camera, corner2
    mujoco.mj_camlight(live.model, live.data)
    theirs = mujoco.Renderer(live.model, 48, 64)
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        theirs.scene.flags[flag] = False
    theirs.update_scene(live.data, "corner2")
    own = MetaWorldRendererConfig(camera="corner2_near").create((48, 64))(obs["scene"][row : row + 1])
    off = np.abs(own[0].astype(int) - theirs.render()[::-1, ::-1])
    assert (off > 1).mean() < 1e-3, ("corner2_near", row, off.max())
    corner4 = MetaWorldRendererConfig(camera="corner4").create((48, 64))(obs["scene"][row : row + 1])
    np.testing.assert_array_equal(corner4, own)  # Meta-World's own camera at that place
    theirs.close()

for change in ({"camera": "topview"}, {"shadows": True}):
    assert (MetaWorldRendererConfig(**{"camera": "corner2", **change}).create((48, 64))(obs["scene"]) != seen).any()
assert env.render([1, 0]).shape == (2, 48, 48, 3)
shaded = MetaWorldConfig(task=TASKS, n_envs=1, cameras={"corner2": (48, 64)}, shadows=True).create().reset([4])
assert (shaded["corner2"] != env.reset([4])["corner2"]).any()
assert set(MetaWorldRendererConfig().versions()) == {"metaworld", "mujoco"}
"""


@pytest.mark.slow
def test_a_live_task_a_recording_and_meta_world_give_the_same_pictures(metaworld):  # noqa: F811
    environment = {**os.environ, "MUJOCO_GL": "egl", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True)
    if "cannot render" in ended.stderr:
        pytest.skip(f"NOT CHECKED: no EGL on this machine: {ended.stderr.splitlines()[-1]}")
    assert (ended.returncode, ended.stderr) == (0, "")
