"""The loss: its value, its mask, its independence of the batch; and sampling through the same conversions."""

import itertools
import json

import pytest
import torch

from dp_prior.diffusion.bits_per_dim import bits_per_dim
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, DDPM, DPMSolver, Heun
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.diffusion.sampling import sample_of
from tests.messages import naming

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


@every(output=[None, (torch.zeros(6, 5, 2),), {"sample": torch.zeros(6, 5, 2)}])
def test_a_network_that_returns_no_tensor_is_named(output):
    x_0, mask = example()
    with pytest.raises(ValueError, match=naming("network", type(output).__name__, "(6, 5, 2)")):
        DiffusionProcess(config()).loss(lambda x_t, t: output, x_0, mask, rows(6))


@every(weighting=["uniform", "min_snr"], objective=OBJECTIVES)
def test_loss_equals_a_direct_computation(objective, weighting):
    process = DiffusionProcess(config(objective={"type": objective}, weighting={"type": weighting}))
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
    process = DiffusionProcess(config(objective={"type": objective}))
    x_0, mask = example()
    eps = rows(6).stream("noise").normal(5, 2)

    def oracle(x_t, t):
        alpha, sigma = (level[t].float().view(-1, 1, 1) for level in (process.table.alpha, process.table.sigma))
        return process.objective.target(x_0, eps, alpha, sigma)

    assert process.loss(oracle, x_0, mask, rows(6)).total == 0


def test_no_mask_is_a_mask_of_ones():
    process = DiffusionProcess(config())
    x_0, _ = example()
    masked = process.loss(network, x_0, torch.ones(6, 5, dtype=torch.bool), rows(6))
    plain = process.loss(network, x_0, None, rows(6))
    assert torch.equal(masked.total, plain.total) and torch.equal(masked.valid, plain.valid)
    plain_vector = process.loss(lambda x_t, t: x_t, x_0[:, 0], None, rows(6))
    assert plain_vector.valid.tolist() == [1] * 6


def test_padding_gets_no_gradient_and_real_elements_get_theirs():
    process = DiffusionProcess(config())
    x_0, mask = example()
    output = torch.zeros_like(x_0, requires_grad=True)
    process.loss(lambda x_t, t: output, x_0, mask, rows(6)).total.backward()
    assert (output.grad[~mask] == 0).all() and (output.grad[mask] != 0).all()


def test_a_row_that_is_all_padding_contributes_nothing():
    process = DiffusionProcess(config())
    x_0, mask = example()
    whole, without = process.loss(network, x_0, mask, rows(6)), process.loss(network, x_0[1:], mask[1:], rows(6)[1:])
    torch.testing.assert_close(whole.total, without.total, rtol=1e-6, atol=0)
    assert whole.per_sample[0] == 0
    nothing = process.loss(network, x_0[:1], mask[:1], rows(1))
    assert nothing.total == 0 and torch.isfinite(nothing.total)


def test_micro_batches_with_the_denominator_of_the_whole_add_up_to_the_whole():
    process = DiffusionProcess(config(weighting={"type": "min_snr"}))
    x_0, mask = example()
    whole = process.loss(network, x_0, mask, rows(6)).total
    denominator = mask.sum() / 2  # of two micro-batches
    parts = [process.loss(network, x_0[i : i + 3], mask[i : i + 3], rows(3, i), denominator).total for i in (0, 3)]
    torch.testing.assert_close((parts[0] + parts[1]) / 2, whole, rtol=1e-6, atol=0)


def test_a_row_of_the_loss_does_not_depend_on_the_batch():
    process = DiffusionProcess(config())
    x_0, mask = example()
    whole = process.loss(network, x_0, mask, rows(6))
    for i in range(6):
        alone = process.loss(network, x_0[i : i + 1], mask[i : i + 1], rows(1, i))
        assert alone.t == whole.t[i] and torch.equal(alone.per_sample, whole.per_sample[i : i + 1])


def test_loss_is_float32_whatever_the_network_computes_in():
    process = DiffusionProcess(config()).to(torch.bfloat16)
    x_0, mask = example()
    seen = []

    def half(x_t, t):
        seen.append(x_t.dtype)
        return torch.zeros_like(x_t, dtype=torch.bfloat16)

    loss = process.loss(half, x_0, mask, rows(6))
    assert loss.total.dtype == loss.per_sample.dtype == torch.float32 and seen == [torch.float32]
    zeros = DiffusionProcess(config()).loss(lambda x_t, t: torch.zeros_like(x_t), x_0, mask, rows(6))
    assert torch.equal(loss.total, zeros.total)
    assert sample_of(process, half, (5, 2), rows(2), Draw(DDIM())).dtype == torch.float32


def test_the_process_has_nothing_to_save():
    process = DiffusionProcess(config())
    assert not process.state_dict() and not list(process.parameters())


@every(sampler=[DDPM(), DDIM()], objective=OBJECTIVES)
def test_sampling_with_an_oracle_network_returns_the_one_sample(objective, sampler):
    process = DiffusionProcess(config(objective={"type": objective}))
    x_0 = torch.linspace(-0.9, 0.9, 10).view(1, 5, 2)

    def oracle(x_t, t):
        alpha, sigma = process.table.levels[int(t[0])]
        return process.objective.target(x_0, (x_t - alpha * x_0) / sigma, alpha, sigma)

    samples = sample_of(process, oracle, (5, 2), rows(3), Draw(sampler))
    torch.testing.assert_close(samples, x_0.expand(3, 5, 2), rtol=0, atol=2e-4)


def test_all_objectives_sample_alike():
    """One denoiser spoken through four objectives: the same chunk to rounding."""
    samples = []
    for objective in OBJECTIVES:
        process = DiffusionProcess(config(objective={"type": objective}, schedule={"type": "linear"}))

        def spoken(x_t, t, process=process):
            alpha, sigma = process.table.levels[int(t[0])]
            x_0 = torch.tanh(x_t)
            return process.objective.target(x_0, (x_t - alpha * x_0) / sigma, alpha, sigma)

        samples.append(sample_of(process, spoken, (5, 2), rows(3), Draw(DDIM(eta=0.5))))
    for sample in samples[1:]:
        torch.testing.assert_close(sample, samples[0], rtol=0, atol=2e-4)


def test_a_sampled_row_does_not_depend_on_the_batch():
    process = DiffusionProcess(config())
    whole = sample_of(process, network, (5, 2), rows(7), Draw(DDPM()))
    assert torch.equal(sample_of(process, network, (5, 2), rows(2, 3), Draw(DDPM())), whole[3:5])


def test_threads_that_sample_batches_of_other_sizes_do_not_meet(monkeypatch):
    """Another thread comes in wherever this one has just noted something in the process they share."""
    process = DiffusionProcess(config())
    expected, note = sample_of(process, network, (5, 2), rows(3), Draw(DDIM(steps=2))), type(process).__setattr__

    def interrupted(self, name, value):
        note(self, name, value)
        monkeypatch.setattr(type(process), "__setattr__", note)
        sample_of(process, network, (5, 2), rows(6), Draw(DDIM(steps=2)))

    process._kept_indices = ()
    monkeypatch.setattr(type(process), "__setattr__", interrupted)
    assert torch.equal(sample_of(process, network, (5, 2), rows(3), Draw(DDIM(steps=2))), expected)


def test_samples_can_be_differentiated_after_others_were_drawn_in_inference_mode():
    process = DiffusionProcess(config())
    with torch.inference_mode():
        sample_of(process, network, (5, 2), rows(3), Draw(DDIM(steps=2)))
    gain = torch.ones((), requires_grad=True)
    sample_of(process, lambda x_t, t: gain * network(x_t, t), (5, 2), rows(3), Draw(DDIM(steps=2))).sum().backward()
    assert gain.grad is not None


def test_clipping_bounds_the_sample():
    def far(x_t, t):
        return 10 * torch.ones_like(x_t)

    x0 = {"type": "x0"}
    assert (sample_of(DiffusionProcess(config(objective=x0)), far, (5, 2), rows(2), Draw(DDIM())) == 1).all()
    wide = DiffusionProcess(config(objective=x0, clip={"type": "fixed", "bound": 3.0}))
    assert (sample_of(wide, far, (5, 2), rows(2), Draw(DDIM())) == 3).all()
    free = DiffusionProcess(DiffusionConfig(objective=x0, clip=None))
    assert (sample_of(free, far, (5, 2), rows(2), Draw(DDIM())) == 10).all()


def widths(process, estimates):
    """A network that notes the second half of its input."""

    def noting(x_in, t):
        x_t, estimate = x_in.chunk(2, -1)
        estimates.append(estimate)
        return torch.tanh(x_t + 0.3 * estimate)

    return noting


def test_self_conditioning_shows_the_network_its_own_estimate():
    process = DiffusionProcess(config(self_condition=0.5, objective={"type": "v"}))
    assert process.input_factor == 2 and DiffusionProcess(config()).input_factor == 1
    x_0, mask = example()
    estimates = []
    without = process.loss(widths(process, estimates), x_0, mask, rows(6))
    assert len(estimates) == 1 and (estimates[0] == 0).all()
    estimates.clear()
    shown = process.loss(widths(process, estimates), x_0, mask, rows(6), self_condition=True)
    assert len(estimates) == 2 and (estimates[0] == 0).all() and not estimates[1].requires_grad
    assert without.total != shown.total and torch.equal(without.t, shown.t)
    alpha, sigma = (level[shown.t].float().view(-1, 1, 1) for level in (process.table.alpha, process.table.sigma))
    x_t = alpha * x_0 + sigma * rows(6).stream("noise").normal(5, 2)
    first = process.objective.to_x0(x_t, torch.tanh(x_t), alpha, sigma).clamp(-1, 1)
    torch.testing.assert_close(estimates[1], first)


def test_samplers_feed_each_estimate_to_the_next_step():
    process = DiffusionProcess(config(self_condition=0.5))
    shown = []
    denoiser = process.denoiser(widths(process, shown))
    states = list(process.progressive(denoiser, process.noise((5, 2), rows(2)), rows(2), Draw(DDIM(steps=6))))
    assert (shown[0] == 0).all()
    for (_, estimate), seen in zip(states, shown[1:], strict=False):
        assert torch.equal(estimate, seen)
    again = []
    sample_of(process, widths(process, again), (5, 2), rows(2), Draw(DDIM(steps=6)))
    assert all(torch.equal(a, b) for a, b in zip(shown, again, strict=True))  # nothing is left over from before


def test_whether_a_step_is_self_conditioned_is_a_function_of_the_clock():
    process = DiffusionProcess(config(self_condition=0.25))
    decisions = [process.self_conditions(7, samples) for samples in range(0, 40_000, 10)]
    assert sum(decisions) / 4000 == pytest.approx(0.25, abs=0.03)
    assert decisions == [process.self_conditions(7, samples) for samples in range(0, 40_000, 10)]
    assert decisions != [process.self_conditions(8, samples) for samples in range(0, 40_000, 10)]
    assert all(DiffusionProcess(config(self_condition=1.0)).self_conditions(0, n) for n in range(100))
    assert not any(DiffusionProcess(config()).self_conditions(0, n) for n in range(100))


def test_self_conditioning_with_learned_variance_of_pictures():
    process = DiffusionProcess(config(self_condition=1.0, variance={"type": "learned_range"}))

    def network(x_in, t):
        assert x_in.shape == (2, 4, 4, 6)
        return torch.tanh(x_in)

    loss = process.loss(network, torch.rand(2, 4, 4, 3), None, rows(2), self_condition=True)
    assert torch.isfinite(loss.total)
    assert sample_of(process, network, (4, 4, 3), rows(2), Draw(DDPM(steps=4))).shape == (2, 4, 4, 3)


@every(kind=[DDIM, DDPM], renoise=[0.1, 0.5, 1.0])
def test_a_warm_start_redoes_the_last_share_of_the_steps(renoise, kind):
    process = DiffusionProcess(config())
    sampler = kind(steps=10, renoise=renoise)
    seen = []

    def noting(x_t, t):
        seen.append((int(t[0]), x_t))
        return network(x_t, t)

    previous = torch.rand(4, 5, 2)
    sample_of(process, noting, (5, 2), rows(4), Draw(sampler, previous=previous))
    count = round(10 * renoise)
    assert [t for t, _ in seen] == list(sampler.timesteps(process.table)[-count:])
    alpha, sigma = process.table.levels[seen[0][0]]
    torch.testing.assert_close(seen[0][1], alpha * previous + sigma * rows(4).stream("start").normal(5, 2))


def test_a_warm_start_from_a_true_sample_stays_in_the_law():
    process = DiffusionProcess(config(schedule={"type": "linear"}, objective={"type": "x0"}, clip=None))

    def exact(x_t, t):
        alpha, sigma = process.table.levels[int(t[0])]
        return 0.4 + alpha * 0.25 / (alpha**2 * 0.25 + sigma**2) * (x_t - alpha * 0.4)

    previous = 0.4 + 0.5 * torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    x_0 = sample_of(process, exact, (1,), rows(20_000), Draw(DPMSolver(steps=50, renoise=0.4), previous=previous))
    assert x_0.mean().item() == pytest.approx(0.4, abs=0.02) and x_0.std().item() == pytest.approx(0.5, abs=0.02)
    assert not torch.equal(x_0, previous)


def test_progressive_ends_on_the_sample():
    process = DiffusionProcess(config())
    noise = process.noise((5, 2), rows(2))
    states = list(process.progressive(process.denoiser(network), noise, rows(2), Draw(DDIM(steps=6))))
    assert len(states) == 6
    assert torch.equal(states[-1][0], sample_of(process, network, (5, 2), rows(2), Draw(DDIM(steps=6))))


FIELDS = {
    "schedule": {"type": "linear"},
    "objective": {"type": "v"},
    "criterion": {"type": "l1"},
    "weighting": {"type": "min_snr"},
    "dim_weights": [1.0, 2.0],
    "horizon_weights": [1.0, 1.0, 1.0, 1.0, 2.0],
    "timesteps": {"type": "logit_normal"},
    "start": "zeros",
    "variance": {"type": "fixed_large"},
    "data_step": 0.01,
    "self_condition": 0.5,
    "clip": {"type": "fixed", "bound": 0.5},
    "guidance": {"scale": 2.0},
}
NEEDED = {"start": {"schedule": {"type": "flow", "steps": 10}, "objective": {"type": "x0"}}}  # for a change of a field


def test_every_part_of_the_config_changes_the_loss_the_sample_or_the_likelihood():
    x_0, mask = example()

    def results(**data):
        process = DiffusionProcess(config(**data))

        def net(x_in, t):
            return torch.tanh(x_in[..., :2] + 0.1 * x_in[..., -2:])

        loss = process.loss(net, x_0, mask, rows(6), self_condition=True)
        sample = sample_of(
            process, net, (5, 2), rows(2), Draw(DDPM(steps=5)), unconditional=lambda x, t: 0.5 * x[..., :2]
        )
        bits = bits_per_dim(process, process.denoiser(net, unconditional=lambda x, t: x[..., :2]), x_0, mask, rows(6))
        return loss.total, sample.sum(), bits.total.sum()

    fields, plain, without_effect = DiffusionConfig.model_fields.keys() - {"draws"}, results(), []  # tasks/model.py
    for field in sorted(fields):
        needed = NEEDED.get(field, {})
        before = results(**needed) if needed else plain
        if results(**needed, **{field: FIELDS[field]}) == before:
            without_effect.append(field)
    assert without_effect == []


def test_config_survives_json():
    for field, value in FIELDS.items():
        built = config(**NEEDED.get(field, {}), **{field: value})
        assert DiffusionConfig.from_json(built.to_json()) == built


def half_known(horizon=5, width=2):
    """(horizon, width): the second channel of the first two steps."""
    known = torch.zeros(horizon, width, dtype=torch.bool)
    known[:2, 1] = True
    return known


def test_known_elements_are_shown_without_noise_and_the_others_as_ever():
    process, (x_0, mask), known, seen = DiffusionProcess(config()), example(), half_known(), []

    def spy(x_t, t):
        seen.append(x_t)
        return network(x_t, t)

    process.loss(spy, x_0, mask, rows(6), known=known)
    process.loss(spy, x_0, mask, rows(6))
    assert torch.equal(seen[0], torch.where(known, x_0, seen[1]))
    assert not torch.equal(seen[0], seen[1])


@every(
    parts=[
        *({"objective": {"type": objective}, "weighting": {"type": "min_snr"}} for objective in OBJECTIVES),
        {"criterion": {"type": "huber"}, "dim_weights": [1.0, 3.0], "horizon_weights": [1.0, 2.0, 3.0, 4.0, 5.0]},
        {"self_condition": 1.0},
    ]
)
def test_loss_with_known_elements_is_the_plain_loss_with_these_masked(parts):
    """Brute force: weights that leave one element make the plain loss its cost, by a network that sees known values."""
    process, (x_0, mask), known = DiffusionProcess(config(**parts)), example(), half_known()

    def shown(x_t, t):
        own = x_t[..., 2:] if process.input_factor == 2 else 0.0
        return network(torch.where(known, x_0, x_t[..., :2]) + own, t)

    costs = torch.zeros_like(x_0)
    for step, channel in itertools.product(range(5), range(2)):
        weights = {"horizon_weights": [0.0] * 5, "dim_weights": [0.0] * 2}
        weights["horizon_weights"][step] = parts.get("horizon_weights", [1.0] * 5)[step]
        weights["dim_weights"][channel] = parts.get("dim_weights", [1.0] * 2)[channel]
        alone = DiffusionProcess(config(**{**parts, **weights})).loss(shown, x_0, None, rows(6), self_condition=True)
        costs[:, step, channel] = alone.per_sample * 10
    counted = mask[..., None] & ~known
    per_sample = (costs * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)
    loss = process.loss(shown, x_0, mask, rows(6), known=known, self_condition=True)
    torch.testing.assert_close(loss.per_sample, per_sample, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(loss.total, (per_sample * mask.sum(1)).sum() / mask.sum(), rtol=1e-5, atol=1e-7)
    assert torch.equal(loss.valid, mask.sum(1))


@pytest.mark.parametrize("variance", ["fixed_small", "learned_range"])
def test_known_elements_have_no_gradient(variance):
    process, (x_0, mask), known = DiffusionProcess(config(variance={"type": variance})), example(), half_known()
    output = torch.randn(6, 5, 2 * process.output_factor, generator=torch.Generator().manual_seed(3)).requires_grad_()
    process.loss(lambda x_t, t: output, x_0, mask, rows(6), known=known).total.backward()
    gradient = output.grad[..., :2]
    assert (gradient[:, known] == 0).all() and (gradient[mask[..., None] & ~known] != 0).all()
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("parts", [{}, {"self_condition": 0.5}, {"clip": {"type": "dynamic", "quantile": 0.5}}])
def test_known_elements_cannot_be_got_wrong_in_sampling(parts):
    """What the network answers there reaches neither the sample nor the network again."""
    process, (x_0, _), known = DiffusionProcess(config(**parts)), example(), half_known()

    def answering(noise):
        def answer(x_t, t):
            assert torch.equal(x_t[..., :2][:, known], x_0[:, known])
            if process.input_factor == 2 and (x_t[..., 2:] != 0).any():
                assert torch.equal(x_t[..., 2:][:, known], x_0[:, known])
            return torch.where(known, noise, torch.tanh(x_t[..., :2]))

        return answer

    for sampler in (DDIM(steps=5), DDPM(steps=5), DPMSolver(steps=5), Heun(steps=5)):
        drawn = [
            sample_of(process, answering(noise), (5, 2), rows(6), Draw(sampler, known=(x_0, known), shown=known))
            for noise in (torch.tensor(0.0), torch.tensor(50.0))
        ]
        assert torch.equal(*drawn) and torch.equal(drawn[0][:, known], x_0[:, known])


@pytest.mark.parametrize("sampler", [DDPM(steps=None), DDIM(steps=None, eta=1.0), DPMSolver(steps=40), Heun(steps=40)])
def test_inpainting_with_the_exact_denoiser_draws_from_the_conditional_law(sampler):
    """x = (a, o), jointly Gaussian with correlation 0.8: a given o has mean 0.8 o and deviation 0.6, and o is o."""
    process, count = DiffusionProcess(config(objective={"type": "x0"}, clip=None)), 20_000

    def exact(x_t, t):
        """The mean of (a, o) given a_t and o, which is read as what it is without noise."""
        alpha, sigma = (level[t].float() for level in (process.table.alpha, process.table.sigma))
        a_t, o = x_t.unbind(-1)
        variance = 0.6**2
        gain = alpha * variance / (alpha**2 * variance + sigma**2)
        return torch.stack([0.8 * o + gain * (a_t - alpha * 0.8 * o), o], dim=-1)

    o = torch.randn(count, generator=torch.Generator().manual_seed(0))
    values, known = torch.stack([torch.full_like(o, float("nan")), o], dim=-1), torch.tensor([False, True])
    sample = sample_of(process, exact, (2,), rows(count), Draw(sampler, known=(values, known), shown=known))
    assert torch.equal(sample[:, 1], o)
    residual = sample[:, 0] - 0.8 * o
    assert residual.mean().item() == pytest.approx(0, abs=5 * 0.6 / count**0.5)
    assert residual.std().item() == pytest.approx(0.6, rel=0.04)
    assert torch.corrcoef(torch.stack([residual, o]))[0, 1].item() == pytest.approx(0, abs=5 / count**0.5)


MIP = {"schedule": {"type": "flow", "steps": 2, "scale": 9}, "start": "zeros", "clip": None}
"""Timestep 0 is t* = 0.9 of the paper, with 0.9 of the chunk and 0.1 of noise; timestep 1 is its t = 0."""


def mip_policy(action, time):
    """pi(o, I, t) of the paper, for one o; shapes (H, A)."""
    return torch.tanh(1.3 * action + 0.5 * time) + torch.linspace(-1, 1, 10).view(5, 2)


def mip_network(objective, table):
    """The same policy as a network with this objective."""

    def network(x_t, t):
        outputs = []
        for row, step in zip(x_t, t.tolist(), strict=True):
            alpha, sigma = table.levels[step]
            estimate = mip_policy(row, [0.9, 0.0][step])
            velocity = (alpha * row - (alpha**2 + sigma**2) * estimate) / sigma
            outputs.append(estimate if objective == "x0" else velocity)
        return torch.stack(outputs)

    return network


@pytest.mark.parametrize("objective", ["x0", "v"])
def test_two_flow_timesteps_and_zeros_are_mip(objective):
    """Pan et al. 2025 (arXiv:2512.01809): the terms of the loss, and the policy that acts."""
    process = DiffusionProcess(config(**MIP, objective={"type": objective}))
    assert process.table.levels[0] == pytest.approx((0.9, 0.1)) and process.table.levels[1] == (0.0, 1.0)
    network = mip_network(objective, process.table)
    first = mip_policy(torch.zeros(5, 2), 0.0)
    acted = mip_policy(0.9 * first, 0.9)
    chunks = sample_of(process, network, (5, 2), rows(3), Draw(DDIM(steps=2)))
    torch.testing.assert_close(chunks, acted.expand(3, 5, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(sample_of(process, network, (5, 2), rows(3), Draw(DDIM(steps=1))), first.expand(3, 5, 2))

    x_0, _ = example(batch=40)
    loss = process.loss(network, x_0, None, rows(40))
    eps = rows(40).stream("noise").normal(5, 2)
    scale = {"x0": [1.0, 1.0], "v": [(0.82 / 0.1) ** 2, 1.0]}[objective]
    for i, t in enumerate(loss.t.tolist()):
        seen, time = [(0.9 * x_0[i] + 0.1 * eps[i], 0.9), (torch.zeros(5, 2), 0.0)][t]
        error = ((mip_policy(seen, time) - x_0[i]) ** 2).mean()
        assert loss.per_sample[i].item() == pytest.approx(scale[t] * error.item(), rel=1e-4)
    assert set(loss.t.tolist()) == {0, 1}


def test_half_of_every_global_batch_of_mip_starts_from_zeros_whatever_the_rank():
    process = DiffusionProcess(
        config(**MIP, objective={"type": "x0"}, timesteps={"type": "uniform", "stratified": True})
    )
    network, (x_0, _), places = mip_network("x0", process.table), example(batch=64), torch.arange(640, 704)
    whole = process.loss(network, x_0, None, rows(64), positions=places)
    assert abs(whole.t.sum().item() - 32) <= 1
    for rank in range(4):
        mine = slice(rank, None, 4)
        part = process.loss(network, x_0[mine], None, rows(64)[mine], positions=places[mine])
        assert torch.equal(part.t, whole.t[mine]) and torch.equal(part.per_sample, whole.per_sample[mine])


def test_policy_that_starts_at_zeros_is_deterministic_and_warm_starts_add_no_noise():
    process = DiffusionProcess(config(**MIP, objective={"type": "x0"}))
    network, previous = mip_network("x0", process.table), example(batch=2)[0]
    draw = Draw(DDIM(steps=2), previous=previous)
    one, other = (sample_of(process, network, (5, 2), rows(2, start), draw) for start in (0, 7))
    assert torch.equal(one, other)
    torch.testing.assert_close(one, torch.stack([mip_policy(0.9 * chunk, 0.9) for chunk in previous]))


def test_noise_that_is_given_belongs_to_x_0():
    process = DiffusionProcess(config(objective={"type": "v"}))
    x_0, mask = example()
    drawn = rows(6).stream("noise").normal(5, 2)
    assert torch.equal(
        process.loss(network, x_0, mask, rows(6), eps=drawn).total, process.loss(network, x_0, mask, rows(6)).total
    )
    assert (
        process.loss(network, x_0, mask, rows(6), eps=-drawn).total != process.loss(network, x_0, mask, rows(6)).total
    )


def test_a_cast_process_keeps_its_levels_and_weights_in_float32():
    parts = {"weighting": {"type": "min_snr"}, "dim_weights": [1.0, 3.3], "horizon_weights": [1.1, 2.2, 3.3, 4.4, 5.5]}
    process, cast = DiffusionProcess(config(**parts)), DiffusionProcess(config(**parts)).to(torch.bfloat16)
    for name in ("levels", "dim_weights", "horizon_weights"):
        assert getattr(cast, name).dtype == torch.float32 and torch.equal(getattr(cast, name), getattr(process, name))
    x_0, mask = example()
    assert torch.equal(cast.loss(network, x_0, mask, rows(6)).total, process.loss(network, x_0, mask, rows(6)).total)


def test_a_learned_variance_adds_its_bound_which_does_not_move_the_prediction():
    weight = 0.01
    variance = {"type": "learned_range", "vlb_weight": weight}
    schedule = {"type": "cosine", "steps": 7}
    process = DiffusionProcess(config(variance=variance, schedule=schedule))
    plain, (x_0, mask) = DiffusionProcess(config(schedule=schedule)), example()
    prediction, raw = torch.randn(2, 6, 5, 2, generator=torch.Generator().manual_seed(4)).unbind(0)
    alone = prediction.clone().requires_grad_()
    prediction.requires_grad_(), raw.requires_grad_()
    loss = process.loss(lambda x_t, t: torch.cat([prediction, raw], -1), x_0, mask, rows(6))
    torch.testing.assert_close(loss.per_sample, loss.terms["simple"] + weight * 7 * loss.terms["vb"])
    loss.total.backward()
    plain.loss(lambda x_t, t: alone, x_0, mask, rows(6)).total.backward()
    torch.testing.assert_close(prediction.grad, alone.grad)
    assert (raw.grad[mask] != 0).all()


def test_guidance_shows_both_networks_the_same_last_estimate():
    """The mixed one: a memory of its own would show the unconditional network zeros for ever."""
    process = DiffusionProcess(config(self_condition=0.5, guidance={"scale": 2.0}))
    seen, seen_unconditional = [], []
    plain = widths(process, seen_unconditional)
    denoiser = process.denoiser(widths(process, seen), unconditional=lambda x_t, t: -plain(x_t, t))
    noise = process.noise((5, 2), rows(2))
    estimates = [x_0 for _, x_0 in process.progressive(denoiser, noise, rows(2), Draw(DDIM(steps=4)))]
    assert len(seen) == len(seen_unconditional) == 4
    for shown, shown_unconditional, last in zip(seen[1:], seen_unconditional[1:], estimates, strict=False):
        assert torch.equal(shown, last) and torch.equal(shown_unconditional, last)


@pytest.mark.parametrize("denominator", [0.25, 1.0, 40.0])
def test_total_is_divided_by_the_given_denominator_also_below_one(denominator):
    """A global batch with one valid position is shared by four micro-batches."""
    process, (x_0, mask) = DiffusionProcess(config()), example()
    loss = process.loss(network, x_0, mask, rows(6), torch.tensor(denominator))
    torch.testing.assert_close(loss.total, (loss.per_sample * loss.valid).sum() / denominator)
