"""Policies that act by onnxruntime, however small, and what they do."""

import numpy as np

from dp_prior.inference.agent import Agent
from dp_prior_robot.export.example_rows import observations
from tests.plugins.dp_prior_robot.export.policies import CAMERA, build

UNIT = 100.0
"""Half the range of the actions of `build`."""

DIFFUSION = {"schedule": {"type": "cosine", "steps": 10}, "objective": {"type": "v"}}
POLICIES = {
    "mlp": {},
    "unet": {"backbone": {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}},
    "dit": {"backbone": {"type": "dit", "embed_dim": 16, "n_layers": 2, "n_heads": 2, "step_embed_dim": 8}},
    "local unet": {"backbone": {"type": "unet1d_local", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}},
    "transformer": {"backbone": {"type": "transformer", "embed_dim": 16, "n_layers": 2, "n_heads": 2}},
    "guided, self-conditioned": {
        "cond_dropout": {"position": 0.1, "embedding": 0.1},
        "diffusion": {**DIFFUSION, "self_condition": 0.5, "guidance": {"scale": 2.0}},
    },
    "images": {
        "spec": CAMERA,
        "encoders": {"camera": {"type": "resnet", "width": 16, "blocks": [1], "crop": [16, 16]}},
    },
}


def loaded(name="mlp"):
    policy = build(**POLICIES[name])
    policy.is_loaded = True
    return policy


def steps(policy, count):
    obs = [observations(policy, seed, 1) for seed in range(count)]
    return [{key: value[0, -1].numpy() for key, value in rows.items()} for rows in obs]


def acted(agent, policy):
    agent.reset(3)
    return np.stack([agent.act(obs) for obs in steps(policy, 9)])


def assert_acts_alike(actions, expected):
    np.testing.assert_allclose(actions / UNIT, expected / UNIT, rtol=0, atol=1e-5)


def assert_in_torch(policy, expected):
    assert policy.runtime is None and np.array_equal(acted(Agent(policy), policy), expected)
