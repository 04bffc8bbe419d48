"""A recording without its JSON file: what it holds, and a file that reads it."""

import json

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior_robot.ros2.ros2_bags import Ros2BagsConfig
from tests.extras import needs
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.ros2.ros2_recordings import (
    by_time,
    compressed,
    film,
    joints,
    nanoseconds,
    picture,
    raw,
    stamp,
    write_bag,
)

needs("mcap_ros2", "ros")


def at(rate, topic, kind, fields, seconds=1):
    return [(7 + n / rate, topic, kind, fields) for n in range(round(rate * seconds) + 1)]


def proposed(folder):
    """The error, and the JSON in it."""
    with pytest.raises(DataError, match=naming("topics.json", "docs/data.md#ros-2-bags")) as caught:
        Ros2BagsConfig(path=folder).create()
    text = str(caught.value)
    return text, json.loads(text[text.index("{\n") :])


def test_the_proposal_reads_what_it_lists(tmp_path):
    pose = {"pose": {"position": {"x": 1.0}, "orientation": {"w": 1.0}}}
    depth = raw(np.full((20, 30), 900, np.uint16), "16UC1")
    bag = by_time(
        joints(100, 1, ["j2", "j0"], start=7),
        joints(50, 1, ["j2", "j0"], "/arm/position_command", start=7),
        film(20, 1, "/front/color/image_raw", start=7),
        at(15, "/wrist/image_raw/compressed", "sensor_msgs/CompressedImage", compressed(picture(1))),
        at(10, "/front/depth/image_rect", "sensor_msgs/Image", depth),
        at(30, "/tool/pose", "geometry_msgs/PoseStamped", pose),
        at(10, "/gripper/closed", "std_msgs/Bool", {"data": True}),
        at(5, "/said", "std_msgs/String", {"data": "x"}),
    )
    write_bag(tmp_path / "take" / "take_0.mcap", bag)
    text, found = proposed(tmp_path)
    for line in ("joints j2, j0", "100 Hz", "rgb8", "16UC1", "/said", "std_msgs/msg/String, 6 messages, 5 Hz"):
        assert line in text
    assert found["fps"] == 10 and {*found["keys"]} == {
        "observation.state", "observation.tool_pose", "observation.gripper_closed", "observation.images.front",
        "observation.images.wrist", "observation.front_depth_depth", "action",
    }  # fmt: skip
    assert found["keys"]["action"] == {"topic": "/arm/position_command", "names": ["j2", "j0"]}
    (tmp_path / "topics.json").write_text(json.dumps(found))
    store = Ros2BagsConfig(path=tmp_path).create()
    assert store.keys().keys() == found["keys"].keys() and store.episode_ends.tolist() == [11]
    assert set(store.cameras()) == {"observation.images.front", "observation.images.wrist"}
    assert set(store.depths()) == {"observation.front_depth_depth"}


def test_a_topic_that_cannot_be_decoded_is_listed_and_given_no_key(tmp_path):
    from mcap.writer import Writer

    write_bag(tmp_path / "take" / "take_0.mcap", joints(100, 1, ["j0"], start=7))
    with open(tmp_path / "take" / "take_1.mcap", "wb") as stream:
        writer = Writer(stream)
        writer.start()
        channel = writer.register_channel("/odd", "json", 0)
        for second in (8, 9, 10):
            writer.add_message(channel, second * 10**9, b"{}", second * 10**9)
        writer.finish()
    text, found = proposed(tmp_path / "take")
    assert told(text, "/odd", "3 messages") and "/odd" not in str(found["keys"])


def test_without_commands_the_action_is_the_next_state(tmp_path):
    write_bag(tmp_path / "x.mcap", joints(100, 1, ["j0"], "/left/joint_states"))
    _, found = proposed(tmp_path / "x.mcap")
    state = {"topic": "/left/joint_states", "names": ["j0"]}
    assert found["keys"] == {"observation.state": state, "action": {**state, "ahead": 1}}
    write_bag(tmp_path / "x.mcap", by_time(joints(100, 1, ["j0"], "/a"), joints(100, 1, ["j1"], "/b")))
    _, found = proposed(tmp_path / "x.mcap")
    assert [one["topic"] for one in found["keys"]["action"]] == ["/a", "/b"]


NEVER = {"header": {"stamp": {"sec": 0, "nanosec": 0}}}
POSE = {"pose": {"position": {"x": 1.0}, "orientation": {"w": 1.0}}}
DRIFTED = [(7 + n / 50, {"header": {"stamp": stamp(nanoseconds(7 + n / 50 - n % 9 / 10))}, **POSE}) for n in range(99)]
SENT_TWICE = [(7.1, {"data": True}), (9.0, {"data": False})]
STEPS = [(7 + n / 20, n) for n in range(60)]
ODD = {
    "zero stamps": ("/tool", "geometry_msgs/PoseStamped", [(t, NEVER | POSE) for t, _ in STEPS], {"clock": "log"}),
    "stamps that go back": ("/tool", "geometry_msgs/PoseStamped", DRIFTED, {"clock": "log"}),
    "sent on changes": ("/grip/cmd", "std_msgs/Bool", SENT_TWICE, {"max_gap": 4.0}),
    "slow commands": (
        "/force/cmd", "std_msgs/Float32", [(7 + n / 2, {"data": n}) for n in range(6)],
        {"between": "last", "max_gap": 1.0},
    ),
    "slow pictures": (
        "/top/image_raw", "sensor_msgs/Image", [(7 + n, raw(picture(n), "rgb8")) for n in range(4)], {"max_gap": 2.0},
    ),
    "velocities alone": (
        "/grip/joint_states", "sensor_msgs/JointState", [(t, {"name": ["g"], "velocity": [1.0]}) for t, _ in STEPS],
        {"names": ["g"], "field": "velocity"},
    ),
    "trajectories of a point": (
        "/arm/joint_trajectory", "trajectory_msgs/JointTrajectory",
        [(t, {**NEVER, "joint_names": ["j1", "j0"], "points": [{"positions": [n, 0.0]}]}) for t, n in STEPS],
        {"field": "points.0.positions", "names": ["j1", "j0"], "clock": "log"},
    ),
    "plans": (
        "/arm/joint_trajectory", "trajectory_msgs/JointTrajectory",
        [(t, {"joint_names": ["j0"], "points": [{"positions": [0.0]}] * 2}) for t, _ in STEPS], "2 points",
    ),
    "raw colours of a sensor": (
        "/top/image_raw", "sensor_msgs/Image", [(t, raw(picture(n)[..., :1], "bayer_rggb8")) for t, n in STEPS],
        "bayer_rggb8",
    ),
    "a video": (
        "/top/h264", "sensor_msgs/CompressedImage", [(t, {"format": "h264", "data": b"0001g"}) for t, _ in STEPS],
        "h264",
    ),
    "no numbers": ("/a", "std_msgs/Float64MultiArray", [(t, {"data": []}) for t, _ in STEPS], "no numbers"),
    "changing sizes": ("/a", "std_msgs/Float64MultiArray", [(t, {"data": [0.0] * n}) for t, n in STEPS[1:9]], "(2,)"),
    "a rotation of zeros": (
        "/tool", "geometry_msgs/PoseStamped", [(t, {"pose": {"position": {"x": 1.0}}}) for t, _ in STEPS], "rotation",
    ),
    "a single message": ("/mode/target", "std_msgs/Int32", [(7.5, {"data": 3})], "one time"),
    "a joint named twice": (
        "/twice", "sensor_msgs/JointState", [(t, {"name": ["g", "g"], "position": [0.0, 1.0]}) for t, _ in STEPS],
        "twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_what_is_proposed_is_read_and_what_is_left_out_has_a_reason(case, tmp_path):
    topic, kind, messages, expected = ODD[case]
    odd = [(seconds, topic, kind, fields) for seconds, fields in messages]
    write_bag(tmp_path / "x.mcap", by_time(joints(100, 3, ["j0", "j1"], start=7), film(20, 3, start=7), odd))
    text, found = proposed(tmp_path / "x.mcap")
    (tmp_path / "topics.json").write_text(json.dumps(found))
    store = Ros2BagsConfig(path=tmp_path / "x.mcap").create()
    assert store.keys().keys() == found["keys"].keys()
    entries = [part for entry in found["keys"].values() for part in (entry if isinstance(entry, list) else [entry])]
    options = [{name: value for name, value in part.items() if name != "ahead"} for part in entries]
    if isinstance(expected, str):
        assert told(text, topic, "left out", expected) and topic not in str(options)
    else:
        assert {"topic": topic, **expected} in options
        assert store.episode_ends[0] > (1 if "top" in topic else 30)
    is_command = isinstance(expected, dict) and ("cmd" in topic or "trajectory" in topic)
    assert told(text.partition("{\n")[0], '"ahead": 1') == (not is_command)


def test_all_publishers_of_a_topic_and_topics_of_one_short_name_are_proposed(tmp_path):
    bag = by_time(
        joints(100, 1, ["j0", "j1"], start=7),
        joints(50, 1, ["j5"], start=7),
        film(20, 1, "/left/image_raw", start=7),
        film(20, 1, "/left/color/image_raw", start=7),
        at(20, "/x", "std_msgs/Float32", {"data": 1.0}),
        at(20, "/x/data", "std_msgs/Float32", {"data": 2.0}),
        at(20, "/left/image_raw/compressed", "sensor_msgs/CompressedImage", compressed(picture(1))),
    )
    write_bag(tmp_path / "x.mcap", bag)
    text, found = proposed(tmp_path / "x.mcap")
    assert told(text, "/left/image_raw/compressed", "left out", "/left/image_raw")
    (tmp_path / "topics.json").write_text(json.dumps(found))
    store = Ros2BagsConfig(path=tmp_path / "x.mcap").create()
    assert store.stored_metadata()["names"]["observation.state"] == ["j0", "j1", "j5"]
    assert len(store.cameras()) == 2
    assert {store.read(key)[0, 0] for key in ("observation.x", "observation.x_data")} == {1.0, 2.0}
    found["keys"]["observation.state"] = found["keys"]["action"] = found["keys"]["observation.state"][0]
    (tmp_path / "topics.json").write_text(json.dumps(found))
    store = Ros2BagsConfig(path=tmp_path / "x.mcap").create()
    assert any("j5" in remark and "/joint_states" in remark for remark in store.remarks())


def test_joints_that_come_after_the_first_message_are_told(tmp_path):
    first, *rest = joints(100, 1, ["j0", "j1"], start=7)
    first[3].update(name=["j0"], position=[0.0])
    write_bag(tmp_path / "x.mcap", [first, *rest])
    text, found = proposed(tmp_path / "x.mcap")
    assert told(text, "/joint_states", "left out", "j1") and found["keys"]["observation.state"]["names"] == ["j0"]


def test_a_recording_without_a_readable_topic_gets_no_file(tmp_path):
    write_bag(tmp_path / "x.mcap", at(20, "/a", "std_msgs/Float64MultiArray", {"data": []}))
    with pytest.raises(DataError, match=naming("/a", "left out", "no numbers", "#other-files")) as caught:
        Ros2BagsConfig(path=tmp_path / "x.mcap").create()
    assert "{\n" not in str(caught.value)


def test_a_recording_that_was_cut_off_leaves_the_proposal_to_the_next(tmp_path):
    for number in range(2):
        path = write_bag(tmp_path / f"take_{number}.mcap", joints(100, 1, [f"j{number}"], start=7))
    (tmp_path / "take_0.mcap").write_bytes(path.read_bytes()[:-9])
    assert proposed(tmp_path)[1]["keys"]["observation.state"]["names"] == ["j1"]


def test_a_dropout_is_told_beside_the_proposal(tmp_path):
    frames = [message for message in film(20, 3, start=7) if not 8 < message[0] < 9]
    write_bag(tmp_path / "x.mcap", by_time(joints(100, 3, ["j0"], start=7), frames))
    text, _ = proposed(tmp_path / "x.mcap")
    assert told(text, "/front/image_raw", "1.000", "max_gap", 0.25)
