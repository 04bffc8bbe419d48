"""From demonstrations that go two ways to a policy that reaches the goal: the whole road on the toy, in seconds."""

import numpy as np
import pytest
import torch

from dp_prior.envs.toy import ToyConfig, demonstrations
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.randomness import Randomness
from tests.evaluation.fakes import NOW

HORIZON, N_OBS = 8, 2


def windows():
    """All windows of 200 demonstrations, edges repeated: obs (N, N_OBS, 4), actions (N, HORIZON, 2)."""
    data = demonstrations(200, seed=1)
    starts = np.concatenate([[0], data["episode_ends"][:-1]])
    obs, actions = [], []
    for start, end in zip(starts, data["episode_ends"], strict=True):
        for now in range(start, end):
            first = now - N_OBS + 1
            index = np.clip(np.arange(first, first + HORIZON), start, end - 1)
            obs.append(data["state"][index[:N_OBS]])
            actions.append(data["action"][index])
    return torch.tensor(np.stack(obs)), torch.tensor(np.stack(actions))


def statistics(values):
    array = values.flatten(0, 1).double().numpy()
    low, high = np.quantile(array, [0.01, 0.99], axis=0)
    return Statistics(len(array), array.min(0), array.max(0), array.mean(0), array.std(0), low, high)


@pytest.mark.slow
@pytest.mark.long
def test_diffusion_policy_learns_the_toy_from_two_way_demonstrations():
    obs, actions = windows()
    torch.manual_seed(0)
    policy = PolicyConfig.from_json(
        '{"horizon": 8, "n_obs_steps": 2, "n_action_steps": 4, "sampler": {"type": "ddim", "steps": 10},'
        ' "backbone": {"type": "unet1d", "down_dims": [32, 64], "step_embed_dim": 32}}'
    ).create(Spec(x_shape=(HORIZON, 2), cond_shapes={"agent_pos": (N_OBS, 2), "goal": (N_OBS, 2)}))
    cond = {"agent_pos": obs[..., :2], "goal": obs[..., 2:]}
    policy.normalizer.fit({"x": statistics(actions), **{key: statistics(value) for key, value in cond.items()}})
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=1e-4)
    steps = 600
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        ids = torch.randint(len(obs), (256,))
        mask = torch.ones(256, HORIZON, dtype=torch.bool)
        batch = Batch(x=actions[ids], cond={key: value[ids] for key, value in cond.items()}, mask=mask, ids=ids)
        loss = policy(batch, Randomness.from_counts(0, "training", step * 256 + torch.arange(256))).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    rollout = RolloutConfig(env=ToyConfig(n_envs=50), n_episodes=50, model="online", videos=0)
    metrics = rollout.create().run({"online": policy}, None, NOW).metrics
    assert metrics["rollout/score"] > 0.9 and metrics["rollout/success_rate"] > 0.8
