"""Policies with arms and rotations: trained, sampled, exported and refused in data units, which are absolute."""

import copy
import importlib.util

import numpy as np
import pytest
import torch

from dp_prior import Agent, load_policy
from dp_prior.config import ConfigError
from dp_prior.diffusion.target import Target
from dp_prior.evaluation.blind import blinded
from dp_prior.inference.chunking import Ensemble
from dp_prior.inference.plans import _Plan
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tasks.inpainting import InpaintingPolicyConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.normalizer import Identity, SliceConfig, Slices, Statistics
from dp_prior.tensors.randomness import Randomness
from dp_prior.tensors.six_d import from_6d, matrix_of, to_6d
from dp_prior_robot.export.exported_agent import ExportAgent
from dp_prior_robot.export.graph_options import GraphOptions
from dp_prior_robot.export.numpy_randomness import NumpyRandomness
from dp_prior_robot.export.write import POLICIES, write_export
from tests.messages import naming
from tests.plugins.dp_prior_robot.export.policies import SMALL, ByTorch
from tests.tensors.test_actions import two_arms
from tests.tiny import experiment, tiny

QUATERNION = [{"slice": [0, 4], "form": "quaternion_xyzw"}]
ARM = {
    "type": "pose",
    "position": {"action": [0, 3], "key": "eef_pos"},
    "rotation": {"action": [3, 6], "key": "eef_rot"},
    "observed": "relative",
}
DATA = {
    "data__obs": {
        "eef_pos": {"key": "pos"},
        "eef_rot": {"key": "quat", "rotations": QUATERNION},
        "gripper": {"key": "gripper"},
    },
    "data__action": {"key": "action", "rotations": [{"slice": [3, 6], "form": "axis_angle"}]},
    "task__arms": [ARM],
}


def columns(matrix):
    return matrix[..., :2].mT.flatten(-2)


def write_arm(path, n, steps=14):
    """Episodes in which a hand turns and moves with a constant velocity of its own, from anywhere; quaternions have
    either sign. The action is the next pose, and a gripper that closes."""
    random = torch.Generator().manual_seed(0)
    pose = matrix_of(torch.randn(n, 6, generator=random))
    position = 5 * torch.randn(n, 3, generator=random)
    rates = torch.rand(n, 2, generator=random) - 0.5
    turn = matrix_of(to_6d(rates[:, :1] * torch.tensor([0.0, 0.3, 0.9]), "axis_angle"))
    move = (0.2 + rates[:, 1:, None]) * torch.tensor([[0.5], [0.0], [0.1]])
    found = {key: [] for key in ("pos", "quat", "gripper", "action")}
    for step in range(steps):
        sign = torch.randint(2, (n, 1), generator=random) * 2 - 1
        found["pos"].append(position)
        found["quat"].append(sign * from_6d(columns(pose), "quaternion_xyzw"))
        found["gripper"].append(torch.full((n, 1), float(step > 7)))
        position, pose = position + (pose @ move)[..., 0], pose @ turn
        closed = torch.full((n, 1), float(step > 6))
        found["action"].append(torch.cat([position, from_6d(columns(pose), "axis_angle"), closed], -1))
    arrays = {key: torch.stack(parts, 1).flatten(0, 1).numpy() for key, parts in found.items()}
    np.savez(path, **arrays, episode_ends=np.arange(1, n + 1) * steps)
    return path


def run_of(place, steps):
    write_arm(place / "toy.npz", n=120)
    config = tiny(place, **DATA, **{
        "task__backbone": {"type": "mlp", "hidden_dim": 64, "n_blocks": 2, "step_embed_dim": 16, "dropout": 0.0},
        "task__diffusion": {"schedule": {"type": "cosine", "steps": 20}, "objective": {"type": "x0"}},
        "train__steps": steps, "train__lr": {"type": "cosine", "peak": 3e-3}, "train__save_every": {"steps": steps},
        "train__log_every": {"steps": 50},
        "train__ema": {"ema": {"type": "constant", "decay": 0.95}}, "data__batch_size": 64,
        "evaluate": [{"type": "action_error", "every": {"steps": 1000}, "eval_timesteps": [4], "n_samples": 16}],
        "train__monitor": {"metric": "action_error/ema/mse[steps=4]"},
    })  # fmt: skip
    run = experiment(config)
    run.run()
    return place / "run", run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a few steps: what it predicts holds for any weights."""
    return run_of(tmp_path_factory.mktemp("arm"), 8)


def observed(run, count=24):
    batch = run.parts.data.val.fetch(torch.arange(count))
    return batch, Randomness.from_counts(0, "test", batch.ids)


def moved(obs, shift, turn):
    rotation = turn @ matrix_of(to_6d(obs["eef_rot"], "quaternion_xyzw"))
    position = obs["eef_pos"] @ turn.mT + shift
    return {**obs, "eef_pos": position, "eef_rot": -from_6d(columns(rotation), "quaternion_xyzw")}


@pytest.mark.slow
def test_a_policy_of_relative_poses_learns_the_motion_of_held_out_episodes(tmp_path):
    directory, run = run_of(tmp_path, 300)
    policy = load_policy(directory)
    batch, random = observed(run, len(run.parts.data.val))
    still = torch.cat([batch.cond["eef_pos"][:, -1:],
                       from_6d(to_6d(batch.cond["eef_rot"][:, -1:], "quaternion_xyzw"), "axis_angle"),
                       batch.cond["gripper"][:, -1:]], -1).expand_as(batch.x)  # fmt: skip
    layout = policy.spec.layout("x")

    def error(found):
        return (layout.encode(found) - layout.encode(batch.x))[batch.mask][..., :9].square().mean().item()

    assert error(policy.predict(batch.cond, random)) < 0.3 * error(still)


def test_moving_the_world_moves_the_actions_of_a_policy_that_sees_relative_poses(trained):
    directory, run = trained
    policy = load_policy(directory)
    batch, random = observed(run)
    shift, turn = torch.tensor([3.0, -2.0, 5.0]), matrix_of(torch.tensor([1.0, 2, 3, -3, 1, 1]))
    before, after = policy.predict(batch.cond, random), policy.predict(moved(batch.cond, shift, turn), random)
    torch.testing.assert_close(after[..., :3], before[..., :3] @ turn.mT + shift, rtol=0, atol=1e-4)
    expected = turn @ matrix_of(to_6d(before[..., 3:6], "axis_angle"))
    torch.testing.assert_close(matrix_of(to_6d(after[..., 3:6], "axis_angle")), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(after[..., 6], before[..., 6], rtol=0, atol=1e-4)


def test_statistics_are_of_transformed_values_and_rotations_are_left_alone(trained):
    run = trained[1]
    policy, samples = run.parts.model, run.parts.data.train
    batch = samples.fetch(torch.arange(len(samples)))
    inside = policy.transforms.encode(batch.x, batch.cond)[batch.mask]
    expected = Statistics.of(inside.numpy())
    state = policy.normalizer.state_dict()
    np.testing.assert_allclose(state["x/mean"], expected.mean, atol=1e-6)
    np.testing.assert_allclose(state["x/max"], expected.max, atol=1e-6)
    assert state["x/scale"].shape == (10,) and state["eef_rot/scale"].shape == (6,)
    assert torch.equal(state["x/scale"][3:9], torch.ones(6)) and torch.equal(state["x/offset"][3:9], torch.zeros(6))
    normal = policy.normalizer.normalize("x", inside)
    torch.testing.assert_close(normal[:, :3].amax(0), torch.ones(3))
    assert state["eef_pos/max"].abs().max() < 1 < batch.cond["eef_pos"].abs().max()  # relative to the newest
    found = blinded(as_numpy(batch.cond, -1), policy, ["eef_rot"])["eef_rot"]
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-5)


def as_numpy(obs, step):
    return {key: value[:, step].numpy() for key, value in obs.items()}


def test_known_actions_prefixes_and_targets_are_in_data_units(trained):
    policy = load_policy(trained[0])
    batch, random = observed(trained[1])
    known = torch.zeros_like(batch.x, dtype=torch.bool)
    known[:, :2] = True
    found = policy.predict(batch.cond, random, known=(torch.where(known, batch.x, 0.0), known))
    assert torch.equal(found[:, :2], batch.x[:, :2])
    values = torch.where(known, batch.x, 0.0)  # zeros are no action, and have no weight
    with torch.no_grad():
        guided = policy.predict(batch.cond, random, target=Target(values, known[..., :1].float(), 5.0))
        free = policy.predict(batch.cond, random)
    layout = policy.spec.layout("x")
    distance = [(layout.encode(one) - layout.encode(batch.x))[:, :2].abs().mean() for one in (guided, free)]
    assert guided.isfinite().all() and distance[0] < distance[1]
    again = policy.predict(batch.cond, random, previous=batch.x)
    assert again.isfinite().all() and not torch.equal(again, free)


def test_a_policy_continues_a_prefix_exactly():
    spec, arms, actions, obs = two_arms()
    config = {**SMALL, "arms": [arm.model_dump() for arm in arms], "prefix": {"max_delay": 3}}
    policy = fitted(PolicyConfig.model_validate(config).create(spec), actions, obs)
    found = policy.predict(obs, Randomness.from_counts(0, "test", torch.arange(5)), prefix=actions[:, :3])
    assert torch.equal(found[:, :3], actions[:, :3]) and found.shape == actions.shape


def fitted(policy, actions, obs):
    seen = policy.transforms.encode_obs(obs)
    values = {"x": policy.transforms.encode(actions, obs), **seen}
    policy.normalizer.fit({key: Statistics.of(value.flatten(0, 1).numpy()) for key, value in values.items()})
    return policy.eval().requires_grad_(False)


def test_agents_average_rotations_as_rotations(trained):
    """Half a turn is written with either sign, whose mean is no rotation."""
    policy = load_policy(trained[0])
    agent = VectorAgent(policy, merge=Ensemble(decay=0.0), n_action_steps=1)
    agent.reset([0])
    for angle in (np.pi - 0.01, 0.01 - np.pi):
        chunk = torch.tensor([0.0, 0, 0, angle, 0, 0, 0]).expand(1, policy.horizon, 7)
        agent._plans.append(_Plan(0, 0, chunk))
    turned = matrix_of(to_6d(agent._action()[..., 3:6], "axis_angle"))[0]
    torch.testing.assert_close(turned, torch.diag(torch.tensor([1.0, -1, -1])), rtol=0, atol=1e-5)


def acts_alike(policy, exported, batch):
    """An exported policy gives the actions and the normalised chunks of the policy; a rotation has several forms."""
    layout, agents = policy.spec.layout("x"), [Agent(policy, seed=2), ExportAgent(exported, seed=2)]
    for agent in agents:
        agent.reset(3)
    for row in range(5):
        obs = {key: value[row, 1].numpy() for key, value in batch.cond.items()}
        expected, found = (layout.encode(torch.from_numpy(agent.act(obs))) for agent in agents)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    arrays = {key: value.numpy() for key, value in batch.cond.items()}
    normalized = policy.diffused(batch.x, batch.cond).numpy()
    if "graphs" not in exported.document:  # one graph of the whole sampler does not show its normalised chunks
        np.testing.assert_allclose(exported._normalized(batch.x.numpy(), arrays), normalized, atol=1e-5)
    warm, noise = policy.predict(batch.cond, observed_rows(batch), previous=batch.x), NumpyRandomness
    found = exported.predict(arrays, noise.from_counts(0, "test", batch.ids.tolist()), previous=batch.x.numpy())
    torch.testing.assert_close(layout.encode(torch.from_numpy(found)), layout.encode(warm), rtol=1e-4, atol=1e-4)


def observed_rows(batch):
    return Randomness.from_counts(0, "test", batch.ids)


def test_the_graphs_of_an_export_act_alike(trained):
    policy = load_policy(trained[0])
    acts_alike(policy, ByTorch.of(policy), observed(trained[1], 5)[0])
    described = ByTorch.of(policy).document
    assert described["format"] == 2 and described["transforms"] == {"x_dim": 10, "references": ["eef_pos", "eef_rot"]}
    obs = {key: value[0, 1].numpy() for key, value in observed(trained[1], 1)[0].cond.items()}
    with pytest.raises(ValueError, match=naming("'eef_rot'", 0, "[0, 4]", 1)):
        ExportAgent(ByTorch.of(policy)).act({**obs, "eef_rot": np.zeros(4)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "options"),
    [("onnx", GraphOptions()), ("onnx", GraphOptions(unroll=True, opset=17)), ("torch_export", GraphOptions())],
)
def test_exported_files_of_arms_act_alike(trained, tmp_path, layout, options):
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"NOT CHECKED: {missing} not installed")
    policy = load_policy(trained[0])
    report = write_export(policy, tmp_path / "out", layout, source="a test", options=options)
    assert report["largest_error"] < 1e-5 and report["cases"][0]["error_in_data_units"] < 1e-4
    acts_alike(policy, POLICIES[layout].load(tmp_path / "out"), observed(trained[1], 5)[0])


@pytest.mark.slow
def test_graphs_of_rotations_alone_need_no_observations(tmp_path):
    spec, _, actions, obs = two_arms("quaternion_wxyz")
    policy = fitted(PolicyConfig.model_validate(SMALL).create(spec), actions, obs)
    assert write_export(policy, tmp_path / "out", "torch_export", source="a test")["largest_error"] < 1e-5


def opened(place, **changes):
    write_arm(place / "toy.npz", n=4)
    return experiment(tiny(place, **copy.deepcopy({**DATA, **changes})))


def test_normalizers_of_slices_count_in_data_units(tmp_path):
    slices = Slices(slices=(SliceConfig(slice=(6, 7), normalizer=Identity()),))
    model = opened(tmp_path, task__normalizer={"action": slices.model_dump(mode="json")}).parts.model
    scale = model.normalizer.get_buffer("x/scale")
    assert scale[9] == 1 and torch.equal(scale[3:9], torch.ones(6)) and (scale[:3] != 1).all()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"task__relative_to": "eef_pos"}, ("relative_to", "arms")),
        ({"task__relative_to": "eef_rot", "task__arms": []}, ("task.relative_to", "task.arms")),
        ({"task__encoders": {"eef_rot": {"type": "angle"}}}, ("task.encoders.eef_rot", "'eef_rot'", "6D")),
        ({"task__arms": [{"type": "offset", "action": [0, 3], "key": "hand"}]}, ("task.arms.0.key", "'hand'")),
        (
            {"task__normalizer": {"action": {"type": "slices", "slices": [
                {"slice": [2, 4], "normalizer": {"type": "identity"}}]}}},
            ("[2, 4]", "[3, 6]"),
        ),
        (
            {"task__normalizer": {"gripper": {"type": "slices", "slices": [
                {"slice": [0, 2], "normalizer": {"type": "identity"}}]}}},
            ("task.normalizer.gripper", "[0, 2]", 1),
        ),
        (
            {"data__obs__eef_rot__rotations": [{"slice": [0, 4], "form": "quaternion_wxyz"}]},
            ("task.arms.0.rotation", "data.obs.eef_rot", "'quaternion_xyzw'"),
        ),
    ],
)  # fmt: skip
def test_what_contradicts_is_refused_at_the_start(changes, words, tmp_path):
    with pytest.raises(ConfigError, match=naming(*words)):
        opened(tmp_path, **changes).parts  # noqa: B018


def test_one_odd_episode_does_not_make_a_form_wrong_wherever_it_lies(tmp_path, monkeypatch):
    arrays = dict(np.load(write_arm(tmp_path / "toy.npz", n=10)))
    arrays["quat"][-14:] = arrays["quat"][-14:, [3, 0, 1, 2]]  # its writer had the other order
    np.savez(tmp_path / "toy.npz", **arrays)
    fitted = []
    for at_once in (8192, 1):
        monkeypatch.setattr("dp_prior.tasks.policy.WINDOWS_AT_ONCE", at_once)
        parts = experiment(tiny(tmp_path, **DATA)).parts
        assert 9 in parts.data.split_ids["train"]
        fitted.append(parts.model.normalizer.state_dict())
    assert all(torch.equal(value, fitted[1][key]) for key, value in fitted[0].items())


def test_an_inpainting_policy_refuses_rotations():
    spec, _, _, _ = two_arms()
    spec = spec.model_copy(update={"cond_shapes": {k: (8, *s[1:]) for k, s in spec.cond_shapes.items()}})
    with pytest.raises(ConfigError, match=naming("'left_rot'", "'policy'")):
        InpaintingPolicyConfig(horizon=8, n_action_steps=4).create(spec)


def test_a_robot_that_sends_no_rotation_is_told(trained):
    policy = load_policy(trained[0])
    agent, obs = Agent(policy), {"eef_pos": np.zeros(3), "eef_rot": np.array([0.0, 0, 0, 1]), "gripper": np.zeros(1)}
    agent.act(obs)
    with pytest.raises(ValueError, match=naming("'eef_rot'", 0, "[0, 4]", 1)):
        agent.act({**obs, "eef_rot": np.zeros(4)})
