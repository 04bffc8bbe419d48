"""Cameras whose settings contradict each other are refused by name."""

import pytest

from dp_prior.config import ConfigError
from tests.data.recorded.test_mirror import CAMERAS, MIRROR, config, filmed
from tests.messages import naming


def test_a_region_is_that_of_the_mirror(tmp_path):
    def cameras(**regions):
        return {name: {**camera, "region": regions.get(name)} for name, camera in CAMERAS.items()}

    right = {"left": [0.5, 0, 1, 0.6], "right": [0.5, 0.4, 1, 1], "side": [0.1, 0, 0.9, 0.3], "floor": [0.1, 0.1, 1, 1]}
    assert config(tmp_path / "a.npz", filmed(), images=cameras(**right), mirror=MIRROR).create(5, 2, 3).train
    for name, region, seen in (
        ("left", [0.5, 0.4, 1, 1], [0.5, 0.0, 1.0, 0.6]),
        ("side", [0, 0, 0.5, 1], [0.5, 0.0, 1.0, 1.0]),
        ("top", [0, 0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]),
    ):
        given = cameras(**{**right, name: region})
        with pytest.raises(ConfigError, match=naming(f"images.{name}.mirror", [*map(float, region)], seen)):
            config(tmp_path / "a.npz", filmed(), images=given, mirror=MIRROR)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"mirror": {"arms": MIRROR["arms"]}},
            ("['arms']", "'load'", "'action'"),
        ),
        ({"mirror": {**MIRROR, "leg": {}}}, ("['action', 'arms', 'leg', 'load']", "['arms', 'load', 'action']")),
        (
            {"images": {"top": {"key": "top", "size": [8, 8]}}, "mirror": MIRROR},
            ("mirror", "images.top", '"mirror"'),
        ),
        (
            {"images": {"top": CAMERAS["top"]}},
            ("images.top.mirror", "mirror", "empty"),
        ),
        (
            {"images": {"side": {**CAMERAS["side"], "mirror": {"flip": "diagonal"}}}, "mirror": MIRROR},
            ("images.side.mirror.flip", "'diagonal'", "[6, 8]"),
        ),
        (
            {"images": {"left": CAMERAS["left"]}, "mirror": MIRROR},
            ("images.left.mirror.camera", "'right'", "['left']"),
        ),
        (
            {"images": {**CAMERAS, "right": {**CAMERAS["right"], "mirror": {"flip": "left_right"}}}, "mirror": MIRROR},
            ("twice", "'left'", "'right'", "'left_right'"),
        ),
        (
            {"images": {**CAMERAS, "right": {**CAMERAS["right"], "size": [8, 8]}}, "mirror": MIRROR},
            ("images.left.mirror.camera", "'right'", "(8, 8)", "images.left", "(6, 8)"),
        ),
        (
            {"images": {**CAMERAS, "right": {**CAMERAS["right"], "fit": "crop"}}, "mirror": MIRROR},
            ("images.left.mirror.camera", "'right'", "crop", "images.left", "resize"),
        ),
        (
            {"language": {"told": {"folder": {"path": "t", "format": "parquet"}}}, "mirror": MIRROR},
            ("mirror", "['told']"),
        ),
        (
            {"obs": {"action": {"key": "arms"}}, "mirror": MIRROR},
            ("'action'", "observation"),
        ),
    ],
)
def test_what_is_not_said_of_every_key_is_refused(tmp_path, change, line):
    with pytest.raises(ConfigError, match=naming(*line)):
        config(tmp_path / "a.npz", **change)
