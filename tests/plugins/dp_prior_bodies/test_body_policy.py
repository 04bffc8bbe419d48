"""The policy of one body by itself: a policy that also reads learnt features."""

import pytest
import torch

from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.randomness import Randomness
from dp_prior_bodies.body_policy import BodyPolicyConfig
from tests.messages import naming

SPEC = Spec(x_shape=(4, 2), cond_shapes={"state": (2, 3)})
SMALL = {"horizon": 4, "n_action_steps": 2, "backbone": {"type": "mlp", "hidden_dim": 8, "n_blocks": 1}}


def test_the_features_of_the_body_are_learnt_and_change_the_prediction():
    policy = BodyPolicyConfig(body="arm", embedding_dim=5, **SMALL).create(SPEC)
    assert policy.encoder.cond_shape == (2, 3 + 5) and policy.encoder.body.shape == (5,)
    values = torch.randn(6, 4, 2), {"state": torch.randn(6, 2, 3)}
    policy.fit(
        {"x": Statistics.of(values[0].numpy()[:, 0]), "state": Statistics.of(values[1]["state"].numpy()[:, 0])}, None
    )
    torch.manual_seed(0)
    for weights in policy.parameters():
        weights.data += 0.3 * torch.randn(weights.shape)
    batch = Batch(*values, torch.ones(6, 4, dtype=torch.bool), torch.arange(6))
    random = Randomness.from_counts(0, "test", batch.ids)
    loss = policy(batch, random).total
    loss.backward()
    assert policy.encoder.body.grad.abs().sum() > 0
    policy.encoder.body.data += 1
    assert policy(batch, random).total != loss


def test_a_policy_of_one_body_is_of_no_other():
    policy = BodyPolicyConfig(body="arm", **SMALL).create(SPEC)
    assert policy.body("arm") is policy and policy.body(None) is policy and policy.bodies == ("arm",)
    with pytest.raises(ValueError, match=naming("'arm'", "'leg'")):
        policy.body("leg")


def test_all_other_settings_are_those_of_a_policy():
    record = PolicyConfig(
        horizon=8, n_obs_steps=2, n_action_steps=3, relative_to="state", prefix={"max_delay": 2},
        encoders={"state": {"type": "state", "output_dim": 6}}, normalizer={"action": {"type": "gaussian"}},
        backbone=SMALL["backbone"], cond_dropout={"state": 0.2}, diffusion={"objective": {"type": "v"}},
        sampler={"type": "ddim", "steps": 3},
    )  # fmt: skip
    settings = {name: value for name, value in record.arguments().items() if name != "type"}
    assert settings.keys() == BodyPolicyConfig.model_fields.keys() - {"type", "body", "embedding_dim"}
    spec = Spec(x_shape=(8, 3), cond_shapes={"state": (2, 3)})
    policy, plain = BodyPolicyConfig(body="arm", **settings).create(spec), record.create(spec)
    weights = {name: tensor.shape for name, tensor in policy.state_dict().items()}
    differing = {name for name, tensor in plain.state_dict().items() if weights.pop(name) != tensor.shape}
    assert weights.keys() == {"encoder.body"}
    assert differing and all(name.endswith("film.linear.weight") for name in differing)  # they read the body, too
    assert (policy.horizon, policy.n_action_steps, policy.max_delay) == (8, 3, 2)
    assert policy.sampler == plain.sampler and policy.process.config == plain.process.config
    assert policy.cond_dropout == plain.cond_dropout and policy.normalizer.modes == plain.normalizer.modes
    assert policy.transforms.references == {"state"}
