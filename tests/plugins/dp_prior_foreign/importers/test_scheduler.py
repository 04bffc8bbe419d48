"""A scheduler of diffusers becomes our schedule with the same noise."""

import math

import numpy as np
import pytest
from pydantic import TypeAdapter

from dp_prior.config import ConfigError
from dp_prior.diffusion.schedule import NoiseScheduleConfig
from dp_prior_foreign.importers.scheduler import Scheduler
from tests.cases import every
from tests.messages import naming

BETAS = {  # of diffusers' DDPMScheduler.__init__, for `steps` timesteps
    "linear": lambda low, high, steps: np.linspace(low, high, steps),
    "scaled_linear": lambda low, high, steps: np.linspace(low**0.5, high**0.5, steps) ** 2,
    "sigmoid": lambda low, high, steps: (high - low) / (1 + np.exp(-np.linspace(-6, 6, steps))) + low,
    "squaredcos_cap_v2": lambda low, high, steps: np.array(
        [min(1 - cosine((i + 1) / steps) / cosine(i / steps), 0.999) for i in range(steps)]
    ),
}


def cosine(t):
    return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2


def diffusion_of(**fields):
    return Scheduler(type="DDPMScheduler", **fields).diffusion()


@every(name=BETAS, steps=[10, 100, 1000])
def test_the_noise_of_every_timestep_is_theirs(name, steps):
    fields = {"beta_start": 0.0002, "beta_end": 0.03}
    schedule = TypeAdapter(NoiseScheduleConfig).validate_python(
        diffusion_of(beta_schedule=name, num_train_timesteps=steps, **fields)["schedule"]
    )
    expected = np.cumprod(1 - BETAS[name](*fields.values(), steps))
    np.testing.assert_allclose(schedule.alpha_bar(), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("theirs", "ours"), [("epsilon", "eps"), ("sample", "x0"), ("v_prediction", "v")])
def test_the_network_predicts_what_theirs_does(theirs, ours):
    assert diffusion_of(prediction_type=theirs)["objective"] == {"type": ours}


def test_clipping_is_on_by_default_with_its_range_and_can_be_off():
    assert [diffusion_of(**fields)["clip"]["bound"] for fields in ({}, {"clip_sample_range": 2.5})] == [1.0, 2.5]
    assert diffusion_of(clip_sample=False)["clip"] is None


@pytest.mark.parametrize("steps", [None, 7])
@pytest.mark.parametrize("kind", ["ddpm", "ddim"])
def test_every_timestep_is_visited_unless_told_how_many(kind, steps):
    scheduler = Scheduler(type=f"{kind.upper()}Scheduler", num_train_timesteps=50)
    sampler = scheduler.sampler(steps)
    assert (sampler["type"], sampler["steps"]) == (kind, steps or 50)


@pytest.mark.parametrize("field", ["thresholding", "rescale_betas_zero_snr"])
def test_what_would_sample_differently_is_refused_by_name(field):
    with pytest.raises(ConfigError, match=naming(field, "false", "true")):
        Scheduler(type="DDIMScheduler", **{field: True})
