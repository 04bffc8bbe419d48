"""What a policy reads is the same from its spec, from a server's metadata and from an export."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior import Agent
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Normalizer, Statistics
from dp_prior.tensors.observations import check_obs, obs_spec, policy_reads
from dp_prior.tensors.pixels.resize import Fit
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from dp_prior_client.wire import pack, unpack
from dp_prior_robot.export.torch_policy import AgentPolicy
from tests.dp_prior_client.onboard.test_scene import picture, scene
from tests.examples import examples
from tests.messages import naming, told
from tests.plugins.dp_prior_robot.export.policies import CAMERA, ByTorch, build

SPEC = Spec(
    x_shape=(8, 2),
    cond_shapes={"a": (2, 3), "turn": (2, 4), "before": (2, 2), "camera": (2, 4, 6, 3), "told": (2, 5)},
    kinds={"camera": "image", "told": "text"},
    fits={"camera": Fit(size=(4, 6))},
    rotations={"turn": (RotationSlice(slice=(1, 4), form="axis_angle"),)},
    previous_actions={"before": (0.5, 1.0)},
    fps=12.5,
    names={"a": ("pan", "lift", "flex"), "x": ("dx", "dy")},
)


def test_the_metadata_of_a_server_hold_all_of_it():
    first = obs_spec(SPEC).metadata()
    again = ObsSpec.from_metadata(first)
    assert again.metadata() == first
    assert first["obs"]["camera"] == {"shape": [None, None, 3], "dtype": "uint8", "kind": "image"}
    assert first["rotations"]["turn"] == [[1, 4, "axis_angle"]]
    assert {key: value.tolist() for key, value in again.first_actions().items()} == {"before": [0.5, 1.0]}
    assert (again.fps, again.action.shape, again.observations["camera"].size) == (12.5, (2,), (4, 6))
    framed = obs_spec(SPEC.model_copy(update={"fits": {"camera": Fit(size=(4, 6), region=(0.5, 0.0, 1.0, 1.0))}}))
    assert "scenes" not in first
    shown = obs_spec(SPEC.model_copy(update={"scenes": {"camera": scene(picture(0))}})).metadata()
    assert shown == {**first, "scenes": {"camera": scene(picture(0)).metadata()}}
    assert ObsSpec.from_metadata(shown).metadata() == shown
    assert framed.metadata()["trained"]["camera"] == {"size": [4, 6], "region": [0.5, 0.0, 1.0, 1.0]}
    assert ObsSpec.from_metadata(framed.metadata()).observations["camera"].region == (0.5, 0.0, 1.0, 1.0)
    turned = obs_spec(SPEC.model_copy(update={"fits": {"camera": Fit(size=(4, 6), turn="left", bgr=True)}}))
    assert turned.metadata()["trained"]["camera"] == {"size": [4, 6], "turn": "left", "bgr": True}
    camera = ObsSpec.from_metadata(turned.metadata()).observations["camera"]
    assert (camera.turn, camera.bgr) == ("left", True)
    assert "region" not in first["trained"]["camera"] and again.observations["camera"].region is None
    assert again.observations["a"].names == ("pan", "lift", "flex") and again.action.names == ("dx", "dy")


def test_an_export_reads_what_its_policy_reads():
    camera = CAMERA.model_copy(update={"scenes": {"camera": scene(picture(0))}})
    for policy in (build(), build(camera, encoders={"camera": {"type": "resnet", "width": 16, "blocks": [1]}})):
        exported, ours = ByTorch.of(policy), policy_reads(policy).metadata()
        found = exported.reads.metadata()
        assert AgentPolicy(exported).reads.metadata() == ours
        for key in ours["obs"]:  # an export takes frames of the size of training alone
            ours["obs"][key]["shape"] = list(policy.spec.cond_shapes[key][1:])
        assert found == ours and all("low" in found["trained"][key] for key in found["obs"] if key != "camera")


def test_a_policy_knows_the_range_of_its_vectors_in_training():
    policy = build()
    for key, one in Agent(policy).reads.observations.items():
        low, high = one.range
        assert np.array_equal(low, policy.normalizer.get_buffer(f"{key}/min").numpy()) and (low < high).all()
    assert all(one.range is None for one in obs_spec(SPEC).observations.values())


def test_the_range_of_what_the_policy_sees_in_other_coordinates_is_not_known():
    """Of a vector with a rotation the other numbers have their range; a relative pose, and a relative action, none."""
    normalizer = Normalizer({"a": (3,), "turn": (7,), "x": (2,)}, {})  # the rotation as 6D
    draws = {key: np.random.default_rng(0).normal(size=(50, *shape)) for key, shape in normalizer.shapes.items()}
    normalizer.fit({key: Statistics.of(one) for key, one in draws.items()})
    found = obs_spec(SPEC, normalizer, {"a"}).observations
    low, high = found["turn"].range
    assert found["a"].range is None and np.isinf(low[1:]).all() and np.isinf(high[1:]).all()
    np.testing.assert_allclose([low[0], high[0]], [draws["turn"][:, 0].min(), draws["turn"][:, 0].max()], rtol=1e-6)
    again = ObsSpec.from_metadata(unpack(pack(obs_spec(SPEC, normalizer).metadata())))
    np.testing.assert_array_equal(
        again.observations["turn"].range, obs_spec(SPEC, normalizer).observations["turn"].range
    )
    normalizer.get_buffer("a/count").zero_()  # statistics made up for an imported policy
    assert obs_spec(SPEC, normalizer).observations["a"].range is None


def test_a_robot_is_compared_with_the_policy_before_it_moves():
    reads = obs_spec(SPEC)
    reads.compare(
        fps=12.6, names={"a": ["pan", "lift", "flex"], "turn": ["w"], "action": ["dx", "dy"]}, cameras=["camera"]
    )
    with pytest.raises(ValueError) as error:
        reads.compare(fps=50, names={"a": ["lift", "pan", "flex"], "b": ["x"]}, cameras=["wrist"])
    for parts in (
        ("50 steps", 12.5),
        ("'a'", "['lift', 'pan', 'flex']", "['pan', 'lift', 'flex']"),
        ("'b'", "['a', 'turn', 'before', 'camera', 'told', 'action']"),
        ("['wrist']", "['camera']"),
    ):
        assert told(str(error.value), *parts)


def test_what_the_training_does_not_state_is_told_instead_of_compared(caplog):
    reads = obs_spec(Spec(x_shape=(8, 2), cond_shapes={"a": (2, 3)}, names={"a": SPEC.names["a"]}))
    reads.compare(names={"a": ["pan", "lift", "flex"]}, cameras=[])
    assert not caplog.messages
    reads.compare(fps=30, names={"a": ["pan", "lift", "flex"], "action": ["dx", "dy"]})
    assert told(caplog.messages[-1], "fps", "'action'") and "'a'" not in caplog.messages[-1]


def test_a_vector_of_another_length_is_refused_with_the_names_of_the_numbers():
    with pytest.raises(ValueError, match=naming("'a'", (4,), "(3,) (pan, lift, flex)")):
        obs_spec(Spec(x_shape=(8, 2), cond_shapes={"a": (2, 3)}, names={"a": SPEC.names["a"]})).check(
            {"a": np.zeros((1, 4))}, rows=1
        )


def outcome(check):
    try:
        return str({key: np.asarray(value).tolist() for key, value in check().items()})  # nan is not nan
    except ValueError as error:
        return str(error)


VALUES = [0.5, -1, 1e300, np.nan, np.inf, True]


@examples(300)
@given(data=st.data())
def test_tensors_and_arrays_are_checked_alike(data):
    """Shapes, rows, steps, types and values; what torch refuses on another device is what numpy refuses here."""
    shapes = {key: SPEC.cond_shapes[key] for key in ("a", "turn")}
    spec = Spec(x_shape=(8, 2), cond_shapes=shapes, rotations=SPEC.rotations)
    rows, steps = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([(), (2,), (1, 2)]))
    obs = {}
    for key in data.draw(st.sampled_from([("a", "turn"), ("a",), ("a", "turn", "more")])):
        width = data.draw(st.sampled_from([4 if key == "turn" else 3, 2]))
        shape = (data.draw(st.sampled_from([rows, rows + 1])), *steps[:1], width)
        value = np.zeros(shape)
        value.flat[data.draw(st.integers(0, value.size - 1))] = data.draw(st.sampled_from(VALUES))
        obs[key] = value
    active = data.draw(st.sampled_from([None, np.array([rows - 1])]))
    tensors = {key: torch.from_numpy(value) for key, value in obs.items()}
    found = outcome(lambda: obs_spec(spec).check(obs, rows=rows, steps=steps, active=active))
    for given_ in (obs, tensors):
        assert outcome(lambda given_=given_: check_obs(given_, spec, rows=rows, steps=steps, active=active)) == found


@pytest.mark.parametrize(
    ("frame", "remedy"),
    [
        (np.zeros((3, 4, 6), np.uint8), "channels"),
        (np.zeros((4, 6), np.uint8), "greyscale"),
        (np.zeros((4, 6, 4), np.uint8), "fourth channel"),
        (np.zeros((0, 6, 3), np.uint8), "per row"),
    ],
)
def test_a_frame_of_another_shape_is_refused_with_its_remedy(frame, remedy):
    reads = ObsSpec({"camera": obs_spec(SPEC).observations["camera"]})
    with pytest.raises(ValueError, match=naming("'camera'", frame.shape, "uint8 (height, width, 3)", remedy)):
        reads.check({"camera": frame[None]}, rows=1)
    assert reads.check({"camera": np.zeros((1, 9, 9, 3), np.uint8)}, rows=1)["camera"].shape == (1, 9, 9, 3)


@pytest.mark.parametrize(("kind", "dtype", "channels"), [("image", "uint8", 3), ("depth", "float32", 1)])
def test_a_frame_of_another_size_is_refused_where_nothing_resizes_it(kind, dtype, channels):
    reads = ObsSpec({"camera": Reads((12, 16, channels), dtype, kind)})
    frame = np.zeros((48, 64, channels), dtype)
    with pytest.raises(ValueError, match=naming("'camera'", frame.shape, (12, 16, channels), "resize it", "--frames")):
        reads.check({"camera": frame[None]}, rows=1)


def test_the_motion_of_training_is_known_from_the_spec_over_the_wire_and_from_an_export():
    """With infinity where it is not known; a policy of relative actions knows their range by it, too."""
    motion = ActionMotion(
        low=(0, None), high=(100, None), step=(3, None), answers=(("position", 1), None), distance=(5, None)
    )  # fmt: skip
    spec = Spec(x_shape=(8, 2), cond_shapes={"position": (2, 2)}, motion=motion, names={"x": ("a.pos", "b.vel")})
    for change in ({}, {"relative_to": "position"}):
        policy = build(spec, **change)
        own = policy_reads(policy)
        sent = ObsSpec.from_metadata(unpack(pack(own.metadata())))
        for action in (own.action, sent.action, ByTorch.of(policy).reads.action):
            np.testing.assert_array_equal(action.motion.step, [3, np.inf])
            np.testing.assert_array_equal(action.motion.distance, [5, np.inf])
            assert list(action.motion.answers) == [("position", 1), None]
            np.testing.assert_array_equal(action.range, own.action.range)
            assert action.velocities == [1]
        if change:
            np.testing.assert_array_equal(own.action.range, [[0, -np.inf], [100, np.inf]])
    assert policy_reads(build()).action.motion is None


@pytest.mark.parametrize("name", ["x.vel", "wheel_vel", "base.velocity", "VEL", "left velocity"])
def test_a_number_is_a_velocity_by_the_end_of_its_name(name):
    assert Reads((3,), "float32", names=("x.pos", name, "level")).velocities == [1]
    assert Reads((3,), "float32", names=("a.novel", "vel.pos", "velocity_x")).velocities == []


def test_depth_that_no_sensor_measures_is_none():
    depth = ObsSpec({"far": Reads((1, 5, 1), "float32", "depth")})
    values = np.array([[np.nan], [np.inf], [-np.inf], [-1.0], [2.5]])[None]
    assert depth.array("far", values).ravel().tolist() == [0, 0, 0, 0, 2.5] and np.isnan(values[0, 0, 0])


@pytest.mark.parametrize(
    ("given_points", "taken"), [(10, [0, 2, 5, 7]), (4, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (1, [0] * 4)]
)
def test_a_cloud_of_any_size_gives_evenly_spaced_points(given_points, taken):
    spec = ObsSpec({"cloud": Reads((4, 3), "float32", "points")})
    cloud = np.arange(3.0 * given_points).reshape(given_points, 3)
    np.testing.assert_array_equal(spec.array("cloud", cloud), cloud[taken])
    np.testing.assert_array_equal(spec.array("cloud", cloud[None, None]), cloud[None, None][..., taken, :])


def test_a_fault_is_told_by_the_row_that_acts():
    spec, values = ObsSpec({"a": Reads((2,), "float32")}), np.zeros((4, 2))
    values[1, 0] = np.nan
    values[3, 1] = np.inf
    spec.check({"a": values}, rows=4, active=np.array([0, 2]))
    with pytest.raises(ValueError, match=naming("'a'", "row 3", "element [1]", "inf")):
        spec.check({"a": values}, rows=4, active=np.array([0, 2, 3]))


@pytest.mark.parametrize(
    ("cameras", "fits"), [({"front"}, False), ({"front", "wrist"}, True), ({"front", "wrist", "top"}, True)]
)
def test_a_robot_may_have_more_cameras_than_the_policy_reads(cameras, fits):
    spec = ObsSpec({name: Reads((4, 4, 3), "uint8", "image") for name in ("front", "wrist")})
    if fits:
        spec.compare(cameras=cameras)
        return
    with pytest.raises(ValueError, match=naming("['front']", "['front', 'wrist']")):
        spec.compare(cameras=cameras)
