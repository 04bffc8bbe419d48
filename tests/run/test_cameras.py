"""A camera that is drawn for training in another way than for rollouts is told."""

import json

import pytest

from dp_prior.run.cameras import camera_warnings
from dp_prior.run_directory.config import TrainConfig
from tests.messages import told_each
from tests.tiny import tiny


def warned(place, kind, render, **env):
    """Warnings of a configuration with a camera `corner2` or `angle` and a rollout of its environment."""
    name = {"metaworld": "corner2", "aloha": "angle"}[kind]
    image = {"key": "scene", "size": [32, 32], "render": {"type": kind, **render}}
    env = {"type": kind, "cameras": {name: [32, 32]}, **env}
    config = tiny(
        place,
        data__images={name: image},
        task__encoders={name: {"type": "resnet", "width": 16, "blocks": [1]}},
        test=[{"type": "rollout", "name": "test", "env": env}],
    )
    return [*camera_warnings(TrainConfig.from_json(json.dumps(config)))]


@pytest.mark.parametrize(
    ("kind", "name", "usual", "env"),
    [("metaworld", "corner2", "corner4", {"task": "push-v3"}), ("aloha", "angle", "top", {"task": "insertion"})],
)
def test_another_camera_or_other_shadows_are_told(kind, name, usual, env, tmp_path):
    place = f"data.images.{name}.render"
    assert not warned(tmp_path, kind, {"camera": name}, **env)
    assert not warned(tmp_path, kind, {"camera": name, "shadows": True}, shadows=True, **env)
    assert told_each(warned(tmp_path, kind, {}, **env), (f"{place}.camera", f"'{usual}'", f"'{name}'", "'test'"))
    found = warned(tmp_path, kind, {"camera": name}, shadows=True, **env)
    assert told_each(found, (f"{place}.shadows", "False", "True", "'test'"))


def test_every_set_of_a_mixture_is_looked_at(tmp_path):
    config = tiny(tmp_path, task__encoders={"corner2": {"type": "resnet", "width": 16, "blocks": [1]}})
    data = config.pop("data")
    shared = {key: data.pop(key) for key in ("batch_size", "split") if key in data}
    image = {"key": "scene", "size": [32, 32]}
    sets = {
        name: {**data, "images": {"corner2": {**image, "render": {"type": "metaworld", "camera": camera}}}}
        for name, camera in (("wrong", "topview"), ("right", "corner2"))
    }
    config["data"] = {"type": "mixture", "sets": sets, **shared}
    env = {"type": "metaworld", "task": "push-v3", "cameras": {"corner2": [32, 32]}}
    config["test"] = [{"type": "rollout", "name": "test", "env": env}]
    sets["data"] = sets["wrong"]
    expected = {name: (f"data.sets.{name}.images.corner2.render.camera", "'topview'") for name in ("wrong", "data")}
    for name, other in (("wrong", "data"), ("data", "wrong"), ("right", "wrong")):
        config["data"]["sets"] = {one: sets[one] for one in (name, other)}
        named = [expected[one] for one in (name, other) if one in expected]
        assert told_each([*camera_warnings(TrainConfig.from_json(json.dumps(config)))], *named)
