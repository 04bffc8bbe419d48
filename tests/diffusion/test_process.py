"""The loss: its value, its mask, its independence of the batch; and sampling through the same conversions."""

import json

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.diffusion.process import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, DDPM
from dp_prior.randomness import Randomness

OBJECTIVES = ["eps", "x0", "v", "flow"]


def rows(count: int, start: int = 0) -> Randomness:
    return Randomness.from_counts(0, "test", torch.arange(start, start + count))


def config(**data) -> DiffusionConfig:
    return DiffusionConfig.from_json(json.dumps(data))


def example(batch=6, horizon=5, width=2):
    x_0 = torch.randn(batch, horizon, width, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(batch, horizon, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[0] = False
    mask[1] = True
    return x_0, mask


def network(x_t, t):
    return torch.tanh(x_t + t.view(-1, 1, 1) / 100)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("weighting", ["uniform", "min_snr"])
def test_loss_equals_a_direct_computation(objective, weighting):
    process = config(objective={"type": objective}, weighting={"type": weighting}).create()
    x_0, mask = example()
    loss = process.loss(network, x_0, mask, rows(6))
    alpha, sigma = process.table.alpha.float(), process.table.sigma.float()
    eps = rows(6).stream("noise").normal(5, 2)
    total, per_sample = 0.0, []
    for i, t in enumerate(loss.t.tolist()):
        a, s = alpha[t], sigma[t]
        target = {"eps": eps[i], "x0": x_0[i], "v": a * eps[i] - s * x_0[i], "flow": eps[i] - x_0[i]}[objective]
        snr = (a / s) ** 2
        scale = {"eps": snr, "x0": 1, "v": snr + 1, "flow": ((a + s) / s) ** 2}[objective]
        weight = 1.0 if weighting == "uniform" else snr.clamp(max=5) / scale
        output = network((a * x_0[i] + s * eps[i])[None], loss.t[i : i + 1])[0]
        errors = (weight * (output - target) ** 2)[mask[i]]
        total += errors.sum()
        per_sample.append(errors.mean() if mask[i].any() else torch.tensor(0.0))
    torch.testing.assert_close(loss.total, total / (mask.sum() * 2), rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.per_sample, torch.stack(per_sample), rtol=1e-5, atol=1e-7)
    assert torch.equal(loss.valid, mask.sum(1))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_true_target_has_no_loss(objective):
    process = config(objective={"type": objective}).create()
    x_0, mask = example()
    eps = rows(6).stream("noise").normal(5, 2)

    def oracle(x_t, t):
        alpha, sigma = (level[t].float().view(-1, 1, 1) for level in (process.table.alpha, process.table.sigma))
        return process.objective.target(x_0, eps, alpha, sigma)

    assert process.loss(oracle, x_0, mask, rows(6)).total == 0


def test_no_mask_is_a_mask_of_ones():
    process = config().create()
    x_0, _ = example()
    masked = process.loss(network, x_0, torch.ones(6, 5, dtype=torch.bool), rows(6))
    plain = process.loss(network, x_0, None, rows(6))
    assert torch.equal(masked.total, plain.total) and torch.equal(masked.valid, plain.valid)
    plain_vector = process.loss(lambda x_t, t: x_t, x_0[:, 0], None, rows(6))
    assert plain_vector.valid.tolist() == [1] * 6


def test_padding_gets_no_gradient_and_real_elements_get_theirs():
    process = config().create()
    x_0, mask = example()
    output = torch.zeros_like(x_0, requires_grad=True)
    process.loss(lambda x_t, t: output, x_0, mask, rows(6)).total.backward()
    assert (output.grad[~mask] == 0).all() and (output.grad[mask] != 0).all()


def test_a_row_that_is_all_padding_contributes_nothing():
    process = config().create()
    x_0, mask = example()
    whole, without = process.loss(network, x_0, mask, rows(6)), process.loss(network, x_0[1:], mask[1:], rows(6)[1:])
    torch.testing.assert_close(whole.total, without.total, rtol=1e-6, atol=0)
    assert whole.per_sample[0] == 0
    nothing = process.loss(network, x_0[:1], mask[:1], rows(1))
    assert nothing.total == 0 and torch.isfinite(nothing.total)


def test_micro_batches_with_the_denominator_of_the_whole_add_up_to_the_whole():
    process = config(weighting={"type": "min_snr"}).create()
    x_0, mask = example()
    whole = process.loss(network, x_0, mask, rows(6)).total
    denominator = mask.sum() / 2  # of two micro-batches
    parts = [process.loss(network, x_0[i : i + 3], mask[i : i + 3], rows(3, i), denominator).total for i in (0, 3)]
    torch.testing.assert_close((parts[0] + parts[1]) / 2, whole, rtol=1e-6, atol=0)


def test_a_row_of_the_loss_does_not_depend_on_the_batch():
    process = config().create()
    x_0, mask = example()
    whole = process.loss(network, x_0, mask, rows(6))
    for i in range(6):
        alone = process.loss(network, x_0[i : i + 1], mask[i : i + 1], rows(1, i))
        assert alone.t == whole.t[i] and torch.equal(alone.per_sample, whole.per_sample[i : i + 1])


def test_loss_is_float32_whatever_the_network_computes_in():
    process = config().create().to(torch.bfloat16)
    x_0, mask = example()
    seen = []

    def half(x_t, t):
        seen.append(x_t.dtype)
        return torch.zeros_like(x_t, dtype=torch.bfloat16)

    loss = process.loss(half, x_0, mask, rows(6))
    assert loss.total.dtype == loss.per_sample.dtype == torch.float32 and seen == [torch.float32]
    zeros = config().create().loss(lambda x_t, t: torch.zeros_like(x_t), x_0, mask, rows(6))
    assert torch.equal(loss.total, zeros.total)
    assert process.sample(half, (5, 2), rows(2), DDIM()).dtype == torch.float32


def test_the_process_has_nothing_to_save():
    process = config().create()
    assert not process.state_dict() and not list(process.parameters())


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sampler", [DDPM(), DDIM()], ids=repr)
def test_sampling_with_an_oracle_network_returns_the_one_sample(objective, sampler):
    process = config(objective={"type": objective}).create()
    x_0 = torch.linspace(-0.9, 0.9, 10).view(1, 5, 2)

    def oracle(x_t, t):
        alpha, sigma = process.table.levels[int(t[0])]
        return process.objective.target(x_0, (x_t - alpha * x_0) / sigma, alpha, sigma)

    samples = process.sample(oracle, (5, 2), rows(3), sampler)
    torch.testing.assert_close(samples, x_0.expand(3, 5, 2), rtol=0, atol=2e-4)


def test_all_objectives_sample_alike():
    """One denoiser spoken through four objectives: the same chunk to rounding."""
    samples = []
    for objective in OBJECTIVES:
        process = config(objective={"type": objective}, schedule={"type": "linear"}).create()

        def spoken(x_t, t, process=process):
            alpha, sigma = process.table.levels[int(t[0])]
            x_0 = torch.tanh(x_t)
            return process.objective.target(x_0, (x_t - alpha * x_0) / sigma, alpha, sigma)

        samples.append(process.sample(spoken, (5, 2), rows(3), DDIM(eta=0.5)))
    for sample in samples[1:]:
        torch.testing.assert_close(sample, samples[0], rtol=0, atol=2e-4)


def test_a_sampled_row_does_not_depend_on_the_batch():
    process = config().create()
    whole = process.sample(network, (5, 2), rows(7), DDPM())
    assert torch.equal(process.sample(network, (5, 2), rows(2, 3), DDPM()), whole[3:5])


def test_clipping_bounds_the_sample():
    def far(x_t, t):
        return 10 * torch.ones_like(x_t)

    x0 = {"type": "x0"}
    assert (config(objective=x0).create().sample(far, (5, 2), rows(2), DDIM()) == 1).all()
    wide = config(objective=x0, clip={"type": "fixed", "bound": 3.0}).create()
    assert (wide.sample(far, (5, 2), rows(2), DDIM()) == 3).all()
    free = DiffusionConfig(objective=x0, clip=None).create()
    assert (free.sample(far, (5, 2), rows(2), DDIM()) == 10).all()


def test_a_pair_that_cannot_be_inverted_is_refused_in_the_config():
    with pytest.raises(ConfigError, match="objective 'eps' cannot be turned into x_0 at timestep 99 of 100"):
        config(schedule={"type": "flow"})
    config(schedule={"type": "flow"}, objective={"type": "flow"})


def test_every_part_of_the_config_changes_the_loss_or_the_sample():
    x_0, mask = example()
    base = config().create()
    for data in (
        {"schedule": {"type": "linear"}},
        {"objective": {"type": "v"}},
        {"weighting": {"type": "min_snr"}},
    ):
        changed = config(**data).create()
        assert base.loss(network, x_0, mask, rows(6)).total != changed.loss(network, x_0, mask, rows(6)).total
