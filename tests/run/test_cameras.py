"""A camera that is drawn for training in another way than for rollouts is told."""

import json

import pytest

from dp_prior.run.cameras import camera_warnings
from dp_prior.run.files.config import TrainConfig
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
