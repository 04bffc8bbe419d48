"""Timesteps are drawn with the stated probabilities, each from its own row; importance sampling is unbiased."""

import math

import pytest
import torch
from torch.distributions import Normal

from dp_prior.diffusion.loss_aware_timesteps import LossSecondMoment
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.timesteps import ListedTimesteps, LogitNormal, UniformTimesteps
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming

COUNT = 100_000
RANDOM = Randomness.from_counts(0, "test", torch.arange(COUNT))
POSITIONS = torch.arange(COUNT)


def check_frequencies(t, probability):
    """All within 4.5 standard errors."""
    frequency = torch.bincount(t, minlength=len(probability)).double() / len(t)
    error = (probability * (1 - probability) / len(t)).sqrt()
    assert ((frequency - probability).abs() <= 4.5 * error + 1e-6).all()


def test_uniform_timesteps_are_equally_likely():
    check_frequencies(UniformTimesteps().create(100).draw(RANDOM)[0], torch.full((100,), 0.01).double())


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-0.5, 0.7)])
def test_logit_normal_timesteps_are_those_of_a_continuous_time(mean, std):
    """t = floor(T sigmoid(n)) with n normal."""
    edges = torch.logit(torch.arange(51).double() / 50)
    probability = Normal(mean, std).cdf(edges).diff()
    assert probability.sum() == pytest.approx(1)
    check_frequencies(LogitNormal(mean=mean, std=std).create(50).draw(RANDOM)[0], probability)


@every(listed=[(0,), (9,), (9, 3, 0), tuple(range(10)), (3, 3, 7)], stratified=[False, True])
def test_listed_timesteps_are_equally_likely_and_no_others_are_drawn(listed, stratified):
    probability = torch.zeros(10).double()
    probability[list(listed)] = 1 / len(set(listed))
    t, _ = ListedTimesteps(listed=listed, stratified=stratified).create(10).draw(RANDOM, POSITIONS)
    assert set(t.tolist()) == set(listed)
    check_frequencies(t, probability)


@pytest.mark.parametrize("record", [UniformTimesteps(), LogitNormal(), LossSecondMoment()], ids=repr)
def test_a_row_draws_the_same_timestep_in_any_batch(record):
    sampler = record.create(100)
    t, _ = sampler.draw(RANDOM)
    assert t.dtype == torch.int64
    assert torch.equal(sampler.draw(RANDOM[7:19])[0], t[7:19])


@every(start=[0, 12345, 10**12 + 7], record=[UniformTimesteps(stratified=True), LogitNormal(stratified=True)])
def test_stratified_timesteps_fill_every_global_batch_evenly(record, start):
    """Each sixteenth of the distribution gets its share of 256 to within 2; at random it would be within 12."""
    sampler = record.create(1000)
    t, _ = sampler.draw(RANDOM[:256], start + torch.arange(256))
    cumulative = torch.cat([torch.zeros(1), sampler.inner_edges, torch.ones(1)])
    middle = (cumulative[t] + cumulative[t + 1]) / 2
    assert (torch.bincount((middle * 16).long(), minlength=16) - 16).abs().max() <= 2


def test_stratified_timesteps_are_distributed_alike_and_do_not_depend_on_the_ranks():
    record = LogitNormal(stratified=True)
    whole, _ = record.create(50).draw(RANDOM, POSITIONS)
    check_frequencies(whole, Normal(0, 1).cdf(torch.logit(torch.arange(51).double() / 50)).diff())
    for rank in range(3):
        mine = slice(rank, None, 3)
        assert torch.equal(record.create(50).draw(RANDOM[mine], POSITIONS[mine])[0], whole[mine])


def test_stratified_training_without_positions_is_refused_and_evaluation_draws_at_random():
    sampler = UniformTimesteps(stratified=True).create(50)
    with pytest.raises(ValueError, match=naming("positions=batch.positions")):
        sampler.draw(RANDOM)
    assert torch.equal(sampler.eval().draw(RANDOM)[0], UniformTimesteps().create(50).draw(RANDOM)[0])


def filled(steps=20, **fields):
    """A sampler whose timestep t had the losses t + 1."""
    sampler = LossSecondMoment(history=3, **fields).create(steps)
    t = torch.arange(steps).repeat(3)
    sampler.update(t, t + 1.0, torch.ones(len(t)))
    return sampler


def test_importance_sampling_follows_the_root_mean_square_of_the_losses():
    sampler = filled(uniform=0.1)
    wanted = torch.arange(1, 21).double()
    probability = 0.9 * wanted / wanted.sum() + 0.1 / 20
    torch.testing.assert_close(sampler.probability().double(), probability)
    t, factor = sampler.draw(RANDOM)
    check_frequencies(t, probability)
    torch.testing.assert_close(factor.double(), 1 / (20 * probability[t]))


@pytest.mark.parametrize("stratified", [False, True])
def test_importance_sampling_is_unbiased(stratified):
    """The mean of factor * f(t) is the mean of f over all timesteps, within 4 standard errors."""
    t, factor = filled(stratified=stratified).draw(RANDOM, POSITIONS)
    values = torch.cos(torch.arange(20.0)) + 1
    estimates = factor * values[t]
    error = estimates.std() / math.sqrt(COUNT)
    assert abs(estimates.mean() - values.mean()) < 4 * error
    assert abs(factor.mean() - 1) < 4 * factor.std() / math.sqrt(COUNT)


def test_history_is_saved_with_the_model_and_goes_on_from_there():
    config = DiffusionConfig(timesteps=LossSecondMoment(history=3))
    process, copy = DiffusionProcess(config), DiffusionProcess(config)
    assert process.learns_timesteps and not DiffusionProcess(DiffusionConfig()).learns_timesteps
    t = torch.arange(100).repeat(4)
    process.observe(t, torch.rand(400), torch.ones(400))
    copy.load_state_dict(process.state_dict())
    assert torch.equal(copy.timesteps.draw(RANDOM)[0], process.timesteps.draw(RANDOM)[0])
    for each in (process, copy):
        each.observe(t[:7], torch.arange(7.0), torch.ones(7))
    assert torch.equal(copy.timesteps.losses, process.timesteps.losses)


def test_the_total_loss_carries_the_factors_and_the_samples_do_not():
    config = DiffusionConfig(timesteps=LossSecondMoment(history=1, uniform=0.5))
    process, random = DiffusionProcess(config), RANDOM[:64]
    process.observe(torch.arange(100), torch.arange(1.0, 101.0), torch.ones(100))
    x_0 = torch.randn(64, 3, 2)
    loss = process.loss(lambda x_t, t: torch.zeros_like(x_t), x_0, None, random)
    _, factor = process.timesteps.draw(random.stream("timestep"))
    torch.testing.assert_close(loss.total, (loss.per_sample * factor).mean())
    assert not torch.allclose(loss.total, loss.per_sample.mean())


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        (UniformTimesteps(), "stratified", True),
        (LogitNormal(), "stratified", True),
        (LogitNormal(), "mean", 1.0),
        (LogitNormal(), "std", 0.5),
        (ListedTimesteps(listed=(3, 5)), "stratified", True),
        (ListedTimesteps(listed=(3, 5)), "listed", (3, 6)),
        (LossSecondMoment(), "stratified", True),
        (LossSecondMoment(), "history", 3),
        (LossSecondMoment(), "uniform", 0.5),
    ],
    ids=repr,
)
def test_every_field_changes_the_timesteps(record, name, value):
    def drawn(record):
        sampler = record.create(20)
        if isinstance(record, LossSecondMoment):
            t = torch.arange(20).repeat(12)
            sampler.update(t, torch.arange(240.0), torch.ones(240))
        return sampler.draw(RANDOM[:200], POSITIONS[:200])[0]

    assert not torch.equal(drawn(record), drawn(record.model_copy(update={name: value})))


@pytest.mark.parametrize("record", [UniformTimesteps(), LogitNormal(), LossSecondMoment(history=2)], ids=repr)
def test_a_cast_sampler_draws_the_same_timesteps(record):
    """bfloat16 tells 256 numbers apart: of 1,000 timesteps most were never drawn."""
    sampler, cast = record.create(1000), record.create(1000).to(torch.bfloat16)
    for each in (sampler, cast):
        if each.learns:
            each.update(torch.arange(1000).repeat(2), torch.arange(2000) / 7, torch.ones(2000))
    assert torch.equal(cast.draw(RANDOM)[0], sampler.draw(RANDOM)[0])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(cast.buffers(), sampler.buffers(), strict=True))
