"""A box that holds none of the recorded points is told before training."""

import json

import pytest

from tests.messages import told
from tests.test_point_clouds import ENCODER, cloud_run
from tests.tiny import train


@pytest.mark.parametrize(("shift", "is_told"), [(0, False), (100, True)])
def test_a_box_without_points_is_told(shift, is_told, tmp_path):
    box = [[end + shift for end in corner] for corner in ENCODER["box"]]
    config = cloud_run(tmp_path, task__encoders={"cloud": {**ENCODER, "box": box}})
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = train(tmp_path / "config.json", "--check").output
    assert told(found, "warning", "task.encoders.cloud.box", "100%", "inspect") == is_told
