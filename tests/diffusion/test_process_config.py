"""The record of a diffusion process refuses contradictory settings."""

import contextlib
import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.diffusion.beta_schedules import Linear
from dp_prior.diffusion.objective import X0, Eps, FlowVelocity, V
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.tasks.prior import PriorDiffusionConfig
from tests.messages import naming, told

MIP = {"schedule": {"type": "flow", "steps": 2, "scale": 9}, "start": "zeros", "clip": None}


def config(**data) -> DiffusionConfig:
    return DiffusionConfig.from_json(json.dumps(data))


@pytest.mark.parametrize("spacing", ["trailing", "leading", "linspace", "quadratic"])
def test_a_sampler_fits_listed_timesteps_if_it_visits_no_other(spacing):
    for steps in (1, 2, 4):
        sampler = DDIM(steps=steps, spacing=spacing)
        visited = list(sampler.timesteps(Flow(steps=12).table()))
        for listed in ({*visited}, {*range(12)}, {*visited} - {visited[-1]}):
            if not listed:
                continue
            flow = {"schedule": {"type": "flow", "steps": 12}, "objective": {"type": "flow"}}
            record = config(**flow, timesteps={"type": "listed", "listed": sorted(listed)})
            faults = list(record.sampler_faults(sampler))
            assert bool(faults) == bool({*visited} - listed)
            assert not faults or str(visited[-1]) in faults[0] and str(sorted(listed)) in faults[0]


@pytest.mark.parametrize("objective", [Eps(), X0(), V(), FlowVelocity()], ids=lambda one: one.type)
@pytest.mark.parametrize("schedule", [Flow(steps=99), Linear(steps=99), Cosine(steps=99)], ids=lambda one: one.type)
def test_a_pair_is_refused_exactly_if_a_timestep_says_nothing_about_x_0(schedule, objective):
    """The target is p eps + q x_0, and x_t alpha x_0 + sigma eps; both say the same where p alpha = q sigma."""
    mixtures = [(*objective.mixture(alpha, sigma), alpha, sigma) for alpha, sigma in schedule.table().levels[:-1]]
    fits = all(p * alpha != q * sigma for p, q, alpha, sigma in mixtures)
    parts = {"schedule": json.loads(schedule.to_json()), "objective": {"type": objective.type}}
    refusal = pytest.raises(ConfigError, match=naming(f"'{objective.type}'", "timestep 98", 99))
    with contextlib.nullcontext() if fits else refusal:
        assert config(**parts).objective == objective


def test_a_pair_that_cannot_be_inverted_is_refused_in_the_config():
    with pytest.raises(ConfigError, match=naming("'eps'", "x_0", "timestep 99", 100)):
        config(schedule={"type": "flow"})
    config(schedule={"type": "flow"}, objective={"type": "flow"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": {"type": "cosine"}}, ("start", "'zeros'", "'cosine'")),
        ({"objective": {"type": "flow"}}, ("'zeros'", "'flow'", "x0", "v")),
        ({"weighting": {"type": "min_snr"}}, ("'min_snr'", "start", "'zeros'", "'uniform'")),
        ({"criterion": {"type": "vlb"}}, ("start", "'zeros'", "'fixed_small'")),
        ({"variance": {"type": "learned"}}, ("start", "'zeros'", "'fixed_small'")),
        ({"timesteps": {"type": "listed", "listed": [2]}}, (2, 1)),
    ],
)  # fmt: skip
def test_start_at_zeros_that_means_nothing_is_refused(change, message):
    with pytest.raises(ConfigError, match=naming(*message)):
        config(**{**MIP, "objective": {"type": "x0"}, **change})


def test_start_at_zeros_needs_a_sampler_that_begins_at_the_noisiest_timestep():
    mip = config(**{**MIP, "objective": {"type": "x0"}})
    assert list(mip.sampler_faults(DDIM(steps=1))) == []
    (fault,) = mip.sampler_faults(DDIM(steps=1, spacing="diffusers"))
    assert told(fault, "start", "'zeros'", "timestep 0 of 2")


def test_prior_has_no_start_since_its_candidates_would_all_be_the_same():
    with pytest.raises(ConfigError, match=naming("config", "start", "unknown key")):
        PriorDiffusionConfig.from_json(json.dumps({**MIP, "clip": {"type": "l2norm"}}))
    assert PriorDiffusionConfig().start == "noise"


@pytest.mark.parametrize(
    ("draws", "kind", "is_refused"),
    [
        (1, "loss_second_moment", False),
        (2, "loss_second_moment", True),
        (4, "loss_second_moment", True),
        (2, "uniform", False),
    ],
)
def test_timesteps_that_learn_from_one_draw_are_refused_with_several(draws, kind, is_refused):
    made = contextlib.nullcontext()
    if is_refused:
        made = pytest.raises(ConfigError, match=naming(f"draws is {draws}", repr(kind), 1))
    with made:
        config(draws=draws, timesteps={"type": kind})
