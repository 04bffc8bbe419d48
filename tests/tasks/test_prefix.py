"""Training-time chunking: what the network is given, what the loss counts, and what a policy continues."""

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.diffusion.target import Target
from dp_prior.tasks.inpainting import InpaintingPolicyConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tasks.prefix import PrefixConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming
from tests.tasks.test_policy import statistics

SPEC = Spec(x_shape=(8, 2), cond_shapes={"agent_pos": (2, 2), "goal": (2, 1)})
BACKBONES = {
    "unet1d": {"down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8},
    "unet1d_local": {"down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8},
    "transformer": {"embed_dim": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.0},
    "dit": {"embed_dim": 16, "n_layers": 1, "n_heads": 2},
    "mlp": {"hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8},
}
X0 = {"objective": {"type": "x0"}, "schedule": {"type": "cosine", "steps": 10}, "clip": None}


def rows(n):
    return Randomness.from_counts(0, "test", torch.arange(n))


def batch(n=400):
    random = torch.Generator().manual_seed(0)
    cond = {key: torch.rand(n, *shape, generator=random) for key, shape in SPEC.cond_shapes.items()}
    mask = torch.ones(n, 8, dtype=torch.bool)
    mask[0, 4:] = mask[1, :1] = False  # an episode ends, another begins
    x = torch.rand(n, 8, 2, generator=random).masked_fill(~mask[..., None], 9.0)
    return Batch(x=x, cond=cond, mask=mask, ids=torch.arange(n), positions=torch.arange(n))


def build(backbone="mlp", max_delay=5, **change):
    torch.manual_seed(0)
    config = {
        "horizon": 8,
        "n_action_steps": 3,
        "backbone": {"type": backbone, **BACKBONES[backbone]},
        "diffusion": {"schedule": {"type": "cosine", "steps": 10}, "clip": None},
        "sampler": {"type": "ddim", "steps": 3},
        "prefix": None if max_delay is None else {"max_delay": max_delay},
        **change,
    }
    policy = PolicyConfig.model_validate(config).create(SPEC)
    data = batch()
    real = data.x[data.mask]
    policy.normalizer.fit({"x": statistics(real), **{key: statistics(value) for key, value in data.cond.items()}})
    for parameter in policy.backbone.parameters():  # some begin at zero
        nn.init.normal_(parameter, std=0.2)
    return policy.eval()


class Spy(nn.Module):
    def __init__(self, channels=2):
        super().__init__()
        self.calls, self.channels = [], channels
        self.answer = 0.0

    def forward(self, x_t, t, cond):
        self.calls.append(x_t.clone())
        return 0.1 * x_t[..., : self.channels] + self.answer


def test_each_sample_is_given_the_actions_up_to_a_delay_of_its_own():
    policy, data, n = build(), batch(), 400
    policy.backbone = spy = Spy()
    policy(data, rows(n))
    x_t, marks = spy.calls[0].split(2, dim=-1)
    assert torch.equal(marks[..., 0], marks[..., 1])
    given = marks[..., 0].bool()
    assert not (given & ~data.mask).any()  # padding is never given
    lengths = given[2:].sum(1)
    assert torch.equal(given[2:], torch.arange(8) < lengths[:, None])
    counts = lengths.bincount(minlength=8).tolist()  # delay 0 gives nothing, d gives 1 + d actions
    assert counts[1] == counts[7] == 0 and all(40 < count < 95 for count in [counts[0], *counts[2:7]])
    clean = policy.diffused(data.x, data.cond)
    assert torch.equal(x_t[given], clean[given])
    assert (x_t[~given & data.mask] != clean[~given & data.mask]).all()
    half = [part[100:200] for part in (data.mask, rows(n))]
    assert torch.equal(PrefixConfig(max_delay=5).draw(half[0], 1, half[1])[..., 0], given[100:200])


def test_every_draw_of_a_sample_has_a_delay_of_its_own():
    policy, data = build(diffusion={**X0, "draws": 2}).train(), batch(100)
    policy.backbone = spy = Spy()
    policy(data, rows(100))
    first, second = spy.calls[0][..., 2].chunk(2)
    single = build(diffusion=X0)
    single.backbone = other = Spy()
    single(data, rows(100))
    assert torch.equal(first, other.calls[0][..., 2]) and not torch.equal(first, second)


def test_what_is_given_has_no_cost_and_the_rest_its_mean():
    policy, data, n = (
        build(diffusion={"objective": {"type": "x0"}, "schedule": {"type": "cosine", "steps": 10}}),
        batch(),
        400,
    )
    policy.backbone = spy = Spy()
    loss = policy(data, rows(n))
    output = 0.1 * spy.calls[0][..., :2]
    given = spy.calls[0][..., 2].bool()
    counted = data.mask & ~given
    error = ((output - policy.diffused(data.x, data.cond)) ** 2).mean(-1)
    expected = torch.stack([error[i][counted[i]].mean() if counted[i].any() else torch.tensor(0.0) for i in range(n)])
    torch.testing.assert_close(loss.per_sample, expected)
    spy.answer = torch.where(given, 99.0, 0.0)[..., None]
    assert torch.equal(policy(data, rows(n)).per_sample, loss.per_sample)
    assert loss.total.isfinite()


@every(backbone=BACKBONES)
def test_with_delay_0_it_is_the_policy_without_a_prefix(backbone):
    """The same loss, gradient and chunks; what differs is the input layer, whose further weights have no effect."""
    wide, plain, data = build(backbone, max_delay=0), build(backbone, max_delay=None), batch(6)
    for mine, theirs in zip(plain.backbone.parameters(), wide.backbone.parameters(), strict=True):
        if mine.shape != theirs.shape:  # the input layers: two channels of x and two of the mask
            theirs = theirs.unflatten(-1, (-1, 4))[..., :2].flatten(-2)
        mine.data.copy_(theirs.data)
    found, expected = (policy(data, rows(6)) for policy in (wide, plain))
    torch.testing.assert_close(found.per_sample, expected.per_sample)
    assert torch.equal(found.t, expected.t)
    torch.testing.assert_close(wide.predict(data.cond, rows(6)), plain.predict(data.cond, rows(6)))
    torch.testing.assert_close(
        wide.bits_per_dim(batch(9)[3:], rows(6)).total, plain.bits_per_dim(batch(9)[3:], rows(6)).total
    )


@every(delay=[1, 5], backbone=BACKBONES)
def test_the_chunk_has_its_prefix_and_every_sampling_step_sees_it(backbone, delay):
    policy, data = build(backbone, diffusion={**X0, "self_condition": 0.5}), batch(6)
    prefix = torch.rand(6, 1 + delay, 2)
    chunk = policy.predict(data.cond, rows(6), prefix=prefix)
    assert torch.equal(chunk[:, : 1 + delay], prefix) and chunk.isfinite().all()
    assert not torch.equal(chunk[:, 1 + delay :], policy.predict(data.cond, rows(6))[:, 1 + delay :])
    policy.backbone = spy = Spy()
    policy.predict(data.cond, rows(6), prefix=prefix)
    assert len(spy.calls) == 3
    for seen in spy.calls:
        x_t, _, marks = seen.split(2, dim=-1)
        torch.testing.assert_close(policy.normalizer.unnormalize("x", x_t[:, : 1 + delay]), prefix)
        assert (marks[:, : 1 + delay] == 1).all() and (marks[:, 1 + delay :] == 0).all()


def test_a_prefix_is_in_data_units_and_moves_with_relative_actions():
    """Moving robot and prefix moves the chunk; the same for guidance toward values."""
    policy, data = build(relative_to="agent_pos"), batch(6)
    policy.backbone = Spy()  # sees the chunk alone
    moved = {**data.cond, "agent_pos": data.cond["agent_pos"] + 3.0}
    prefix = torch.rand(6, 4, 2)
    first = policy.predict(data.cond, rows(6), prefix=prefix)
    other = policy.predict(moved, rows(6), prefix=prefix + 3.0)
    torch.testing.assert_close(other - 3.0, first, rtol=1e-4, atol=1e-4)
    values = torch.rand(6, 8, 2)
    weights = torch.linspace(1, 0, 8)[:, None]
    guided = policy.predict(data.cond, rows(6), target=Target(values, weights, 5.0))
    shifted = policy.predict(moved, rows(6), target=Target(values + 3.0, weights, 5.0))
    torch.testing.assert_close(shifted - 3.0, guided, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(guided, policy.predict(data.cond, rows(6)))


@pytest.mark.slow
def test_a_policy_learns_to_continue_what_its_observations_do_not_tell():
    """Every action of a chunk is the same number, drawn anew for each chunk."""
    torch.manual_seed(0)
    policy = build(max_delay=3, diffusion=X0)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    for step in range(500):
        data = batch(64)
        x = (2 * Randomness.from_counts(step, "x", data.ids).uniform(1, 2) - 1).expand(64, 8, 2)
        data = Batch(x=x, cond=data.cond, mask=torch.ones(64, 8, dtype=torch.bool), ids=data.ids)
        optimizer.zero_grad()
        policy(data, Randomness.from_counts(step, "train", data.ids)).total.backward()
        optimizer.step()
    wanted = torch.linspace(-0.9, 0.9, 20)[:, None, None].expand(20, 3, 2)
    chunk = policy.predict(batch(20).cond, rows(20), prefix=wanted)
    free = policy.predict(batch(20).cond, rows(20))
    assert (chunk - wanted[:, :1]).abs().mean() < 0.15 < (free - wanted[:, :1]).abs().mean()


def test_a_saved_policy_keeps_its_prefix(tmp_path):
    policy, data = build("unet1d"), batch(6)
    policy.save_pretrained(tmp_path / "export")
    again = DiffusionPolicy.from_pretrained(tmp_path / "export")
    prefix = torch.rand(6, 3, 2)
    assert torch.equal(*(each.predict(data.cond, rows(6), prefix=prefix) for each in (policy, again)))


def test_what_cannot_be_continued_is_refused():
    policy, obs = build(), batch(6).cond
    with pytest.raises(ValueError, match=naming("7 actions", "6 steps", "1 to 5", "task.prefix.max_delay")):
        policy.predict(obs, rows(6), prefix=torch.rand(6, 7, 2))
    with pytest.raises(ValueError, match=naming("1 actions", "0 steps", "1 to 5", "task.prefix.max_delay")):
        policy.predict(obs, rows(6), prefix=torch.rand(6, 1, 2))
    with pytest.raises(ValueError, match=naming("prefix", "known")):
        policy.predict(obs, rows(6), prefix=torch.rand(6, 3, 2), known=(torch.rand(6, 8, 2), torch.tensor(True)))
    with pytest.raises(ValueError, match=naming("task.prefix", "'guided'")):
        build(max_delay=None).predict(obs, rows(6), prefix=torch.rand(6, 3, 2))
    with pytest.raises(ValueError, match=naming("prefix.max_delay", 7, "horizon 8", "n_obs_steps 2")):
        build(max_delay=7)
    with pytest.raises(ConfigError, match=naming("test", "prefix")):
        InpaintingPolicyConfig.from_json('{"prefix": {"max_delay": 1}}', source="test")
