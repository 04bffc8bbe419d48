"""One check of observations serves every caller; it names the row, the key and the element."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.inference.agent import Agent
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Normalizer, Statistics
from dp_prior.tensors.observations import check_obs, obs_spec
from dp_prior.tensors.randomness import Randomness
from tests.examples import examples
from tests.messages import naming
from tests.tasks.test_policy import SMALL, statistics

SPEC = Spec(x_shape=(4, 2), cond_shapes={"a": (2, 3), "b": (2, 1)})
IMAGE = Spec(x_shape=(4, 2), cond_shapes={"a": (2, 3), "camera": (2, 4, 4, 3)}, kinds={"camera": "image"})


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    values = {key: value for key, value in SMALL.items() if key != "encoders"}
    found = PolicyConfig.model_validate(values, strict=False).create(SPEC)
    numbers = torch.randn(100, 3)
    found.fit({"x": statistics(numbers[:, :2]), "a": statistics(numbers), "b": statistics(numbers[:, :1])}, None)
    return found.eval()


def good(rows=3) -> dict[str, np.ndarray]:
    return {"a": np.ones((rows, 3)), "b": np.ones((rows, 1))}


def by_predict(policy, obs, rows=3):
    steps = {key: np.stack([value] * 2, 1) if hasattr(value, "ndim") else value for key, value in obs.items()}
    return policy.predict(steps, Randomness.from_counts(0, "test", torch.arange(rows)))


def by_vector_agent(policy, obs, rows=3):
    agent = VectorAgent(policy)
    agent.reset(range(rows))
    return agent.act(obs)


def by_agent(policy, obs):
    return Agent(policy).act({key: value[-1] if hasattr(value, "ndim") else value for key, value in obs.items()})


CALLERS = [by_predict, by_vector_agent, by_agent]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("glitch", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_is_not_finite_is_named_by_every_caller(policy, caller, glitch):
    obs = good()
    obs["a"][2, 1] = glitch
    row = "row 0" if caller is by_agent else "row 2"
    element = "[0, 1]" if caller is by_predict else "[1]"
    with pytest.raises(ValueError, match=naming("'a'", row, element, np.inf if glitch == 1e300 else glitch)):
        caller(policy, obs)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": None}, ("'b'", "numbers")),
        ({"b": "text"}, ("'b'", "<U4")),
        ({"b": [[[1], [2, 3]]] * 3}, ("'b'", "inhomogeneous")),
        ({"a": np.ones((3, 4))}, ("'a'", 4, 3)),
        ({"a": np.ones((3, 3), complex)}, ("'a'", "complex128")),
    ],
)
def test_what_is_no_observation_is_refused_by_every_caller(policy, caller, change, message):
    with pytest.raises(ValueError, match=naming(*message)):
        caller(policy, {**good(), **change})


@pytest.mark.parametrize("caller", CALLERS)
def test_a_missing_key_is_named_by_every_caller_among_a_million_others(policy, caller):
    obs = {"a": good()["a"]} | {f"key {number}": 0 for number in range(100_000)}
    with pytest.raises(ValueError, match=naming("'b'", "a (3,)", "b (1,)")) as caught:
        caller(policy, obs)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("caller", CALLERS)
def test_a_good_observation_passes_every_caller(policy, caller):
    assert np.isfinite(np.asarray(caller(policy, good()))).all()


def test_nothing_of_a_refused_observation_is_remembered(policy):
    disturbed, undisturbed = VectorAgent(policy), VectorAgent(policy)
    disturbed.reset(range(3))
    undisturbed.reset(range(3))
    for step in range(5):
        obs = {key: value * step for key, value in good().items()}
        bad = {**obs, "b": np.full((3, 1), np.nan)}
        with pytest.raises(ValueError, match=naming("'b'", "row 0")):
            disturbed.act(bad)
        np.testing.assert_array_equal(disturbed.act(obs), undisturbed.act(obs))


def test_rows_that_are_not_active_may_hold_anything(policy):
    agent, obs = VectorAgent(policy), good()
    agent.reset(range(3))
    obs["a"][1] = np.nan
    assert np.isfinite(agent.act(obs, active=np.array([True, False, True]))).all()
    obs["a"][2] = np.nan
    with pytest.raises(ValueError, match=naming("row 2", "[0]")):
        agent.act(obs, active=np.array([True, False, True]))


@examples(100)
@given(
    dtype=st.sampled_from(["?", "u1", "i2", ">i4", "u8", "<f2", ">f8", "g"]),
    layout=st.sampled_from(["plain", "flipped", "strided", "fortran", "tensor"]),
    values=st.lists(st.integers(0, 1), min_size=6, max_size=6),
)
def test_any_numbers_of_any_layout_are_the_same_float32(dtype, layout, values):
    plain = np.array(values).reshape(2, 3).astype(dtype)
    forms = {
        "plain": plain,
        "flipped": plain[:, ::-1].copy()[:, ::-1],
        "strided": np.repeat(plain, 2, axis=1)[:, ::2],
        "fortran": np.asfortranarray(plain),
        "tensor": torch.tensor(plain.astype(np.float64)),
    }
    spec = Spec(x_shape=(1, 1), cond_shapes={"a": (1, 3)})
    found = check_obs({"a": forms[layout]}, spec, rows=2)["a"]
    assert found.dtype == torch.float32 and found.tolist() == plain.astype(np.float32).tolist()


def test_pixels_stay_bytes_and_nothing_else_is_pixels():
    obs = {"a": np.ones((2, 3)), "camera": np.full((2, 4, 4, 3), 200, np.uint8)}
    assert check_obs(obs, IMAGE, rows=2)["camera"].dtype == torch.uint8
    for wrong in (obs["camera"] / 255, torch.ones(2, 4, 4, 3), obs["camera"].astype(np.int64)):
        with pytest.raises(ValueError, match=naming("'camera'", "uint8", "'image'")):
            check_obs({**obs, "camera": wrong}, IMAGE, rows=2)


def test_large_whole_numbers_keep_their_sign():
    spec = Spec(x_shape=(1, 1), cond_shapes={"a": (1, 1)})
    assert check_obs({"a": np.array([[2**64 - 1]], np.uint64)}, spec, rows=1)["a"].item() == float(2**64)


def test_the_number_of_rows_is_checked():
    with pytest.raises(ValueError, match=naming("'a'", "2 rows", 3)):
        check_obs(good(2), SPEC, rows=3)


def test_ranges_are_those_of_the_data_and_unknown_without_data():
    """Imported policies have statistics that are of no data, whose count is 0."""
    normalizer = Normalizer({"x": (2,), "a": (3,), "b": (1,)}, {})
    numbers = np.linspace(-1, 2, 10)[:, None] * [1.0, 2.0, 3.0]
    normalizer.fit(
        {"x": Statistics.of(numbers[:, :2]), "a": Statistics.of(numbers), "b": Statistics.of(numbers[:, :1])}
    )
    reads = obs_spec(SPEC, normalizer)
    np.testing.assert_allclose(reads.observations["a"].range, [[-1, -2, -3], [2, 4, 6]], rtol=1e-6)
    np.testing.assert_allclose(reads.action.range, [[-1, -2], [2, 4]], rtol=1e-6)
    for name in ("x", "a"):
        normalizer._buffers[f"{name}/count"].zero_()
    reads = obs_spec(SPEC, normalizer)
    assert reads.observations["a"].range is None is reads.action.range and reads.observations["b"].range is not None
    assert obs_spec(SPEC).observations["a"].range is None


def test_ranges_of_what_the_normalizer_sees_relative_are_those_of_the_motion_of_training():
    """Its statistics are those of offsets, which say nothing of where the robot goes."""
    entries = {"low": (-4.0, None), "high": (5.0, None), "step": (0.5, None), "distance": (None, None)}
    motion = ActionMotion(answers=(None, None), **entries)
    spec = SPEC.model_copy(update={"motion": motion})
    normalizer = Normalizer({"x": (2,), "a": (3,), "b": (1,)}, {})
    small = Statistics.of(np.linspace(-0.1, 0.1, 10)[:, None] * np.ones(3))
    normalizer.fit({"x": small.part(0, 2), "a": small, "b": small.part(0, 1)})
    reads = obs_spec(spec, normalizer, moved={"x", "a"})
    np.testing.assert_array_equal(reads.action.range, [[-4, -np.inf], [5, np.inf]])
    assert reads.observations["a"].range is None and reads.observations["b"].range is not None
    np.testing.assert_array_equal(reads.action.motion.step, [0.5, np.inf])
    assert obs_spec(SPEC, normalizer, moved={"x"}).action.range is None


@pytest.mark.parametrize("as_tensor", [False, True])
def test_depth_that_was_not_measured_is_0_in_arrays_and_tensors(as_tensor):
    spec = Spec(
        x_shape=(1, 1),
        cond_shapes={"depth": (1, 2, 3, 1)},
        kinds={"depth": "depth"},
        depths={"depth": {"near": 0.1, "far": 2.0}},
    )
    metres = np.array([[0.5, np.nan, np.inf], [-np.inf, -1.0, 1.5]], np.float32)[None, :, :, None]
    found = check_obs({"depth": torch.from_numpy(metres) if as_tensor else metres}, spec, rows=1)["depth"]
    assert found[0, :, :, 0].tolist() == [[0.5, 0, 0], [0, 0, 1.5]]
