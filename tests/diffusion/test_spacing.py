"""Timestep spacings: those published, and the law that the noisiest timestep comes first."""

import json
import math

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.diffusion.beta_schedules import Linear
from dp_prior.diffusion.sampler import DDIM, DDPM
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.diffusion.spacing import KARRAS_SIGMA_MAX, spaced_timesteps
from dp_prior.diffusion.table import NoiseTable
from tests.cases import every
from tests.messages import naming


class _Tables(dict):
    """A table of each length; which levels it has does not matter to sections."""

    def __missing__(self, steps: int) -> NoiseTable:
        self[steps] = Flow(steps=steps).table()
        return self[steps]


TABLES = _Tables()
EVERY = ["trailing", "linspace", "leading", "quadratic", "karras"]


@every(spacing=EVERY, counts=[(100, 100), (100, 7), (100, 1), (200, 199), (10, 3)])
def test_spacings_begin_at_the_noisiest_timestep_and_fall(spacing, counts):
    trained, steps = counts
    for schedule in (Cosine(steps=trained), Flow(steps=trained)):
        timesteps = spaced_timesteps(schedule.table(), steps, spacing)
        assert len(timesteps) == steps and timesteps[0] == trained - 1 and timesteps[-1] >= 0
        assert all(a > b for a, b in zip(timesteps, timesteps[1:], strict=False))


@every(counts=[(100,), (10,), (1, 1, 1), (10, 15, 20), (30, 2, 30)])
def test_sections_begin_at_the_noisiest_timestep_and_fall(counts):
    timesteps = spaced_timesteps(Cosine().table(), None, counts)
    assert len(timesteps) == sum(counts) and timesteps[0] == 99
    assert all(a > b for a, b in zip(timesteps, timesteps[1:], strict=False))


@every(spacing=EVERY)
def test_no_number_of_steps_visits_every_timestep(spacing):
    assert spaced_timesteps(Cosine(steps=50).table(), None, spacing) == tuple(range(49, -1, -1))


def test_spacings_are_those_published():
    table = Cosine().table()
    assert spaced_timesteps(table, 5, "trailing") == (99, 79, 59, 39, 19)
    assert spaced_timesteps(Cosine(steps=101).table(), 5, "linspace") == (100, 75, 50, 25, 0)
    assert spaced_timesteps(Cosine(steps=101).table(), 5, "quadratic") == (100, 56, 25, 6, 0)
    assert spaced_timesteps(table, 5, "leading") == (99, 60, 40, 20, 0)
    assert spaced_timesteps(table, 5, "ddim") == (99, 60, 40, 20, 0)
    assert spaced_timesteps(table, 5, "diffusers") == (80, 60, 40, 20, 0)
    assert spaced_timesteps(table, 34, "ddim")[:3] == (99, 96, 93)
    # improved-diffusion: space_timesteps(300, [10, 15, 20]) has 0..99 with 10, 100..199 with 15, 200..299 with 20
    sections = spaced_timesteps(Cosine(steps=300).table(), None, (10, 15, 20))
    assert sections[-10:] == (99, 88, 77, 66, 55, 44, 33, 22, 11, 0)
    assert sections[:20][::-1][:3] == (200, 205, 210) and sections[20] == 199 and sections[34] == 100
    assert spaced_timesteps(table, None, (10,)) == spaced_timesteps(table, 10, "linspace")
    # section 1 has strides of 99 / 14, and 7 of them add up to 49.499999999999986 and not to 49.5
    assert 149 in sections and 150 not in sections


def improved_diffusion(trained: int, counts: tuple[int, ...]) -> list[int]:
    """The timesteps that Nichol and Dhariwal's repository takes, one addition of the stride after the other."""
    taken, start = [], 0
    for number, count in enumerate(counts):
        size = trained // len(counts) + (1 if number < trained % len(counts) else 0)
        stride = 1 if count <= 1 else (size - 1) / (count - 1)
        place = 0.0
        for _ in range(count):
            taken.append(start + round(place))
            place += stride
        start += size
    return taken


def test_sections_are_those_of_improved_diffusion_but_for_the_first_step():
    """Over 200 random lists; the noisiest timestep is the last one trained, theirs where the last section has 2."""
    random, moved = np.random.default_rng(0), 0
    for _ in range(200):
        sections = int(random.integers(1, 6))
        trained = int(random.integers(sections, 1001))
        counts = tuple(int(random.integers(1, trained // sections + 1)) for _ in range(sections))
        theirs = improved_diffusion(trained, counts)
        found = list(reversed(spaced_timesteps(TABLES[trained], None, counts)))
        assert found[:-1] == theirs[:-1], (trained, counts)
        assert found[-1] == trained - 1 and (found == theirs or counts[-1] == 1), (trained, counts)
        moved += found != theirs
    assert 0 < moved < 15  # the lists that end in a section of 1


def test_karras_spacing_is_even_in_the_seventh_root_of_sigma():
    table = Linear(steps=1000).table()
    timesteps = spaced_timesteps(table, 10, "karras")
    roots = [math.exp(-table.half_log_snr[t]) ** (1 / 7) for t in timesteps[1:]]
    strides = [a - b for a, b in zip(roots, roots[1:], strict=False)]
    assert max(strides) / min(strides) < 1.05
    assert timesteps[-1] == 0


def test_what_cannot_be_spaced_is_refused_with_the_remedy():
    table = Cosine().table()
    with pytest.raises(ValueError, match=naming(200, 100)):
        DDIM(steps=200).timesteps(table)
    with pytest.raises(ValueError, match=naming(30, 100, 25, 34)):
        DDIM(steps=30, spacing="ddim").timesteps(table)
    with pytest.raises(ValueError, match=naming(60, 1, 50)):
        DDPM(spacing=(10, 60)).timesteps(table)
    with pytest.raises(ConfigError, match=naming("steps", 16, 45)):
        DDIM.from_json(json.dumps({"spacing": [10, 15, 20]}))
    assert len(DDIM.from_json(json.dumps({"spacing": [10, 15, 20], "steps": None})).timesteps(table)) == 45


def test_karras_leaves_levels_noisier_than_its_largest_to_the_first_step():
    table = Cosine(steps=1000, zero_terminal_snr=True).table()
    first, second, *_ = spaced_timesteps(table, 10, "karras")
    noise = (table.sigma / table.alpha).tolist()
    ends = noise[0] ** (1 / 7), KARRAS_SIGMA_MAX ** (1 / 7)
    assert first == 999
    assert noise[second] == pytest.approx((ends[0] + 8 / 9 * (ends[1] - ends[0])) ** 7, rel=0.1)  # the nearest timestep


def test_leading_strides_are_whole_where_they_do_not_divide_the_timesteps():
    """`step_ratio = num_train_timesteps // num_inference_steps` of diffusers."""
    table = Cosine().table()
    assert spaced_timesteps(table, 7, "leading") == (99, 70, 56, 42, 28, 14, 0)
    assert spaced_timesteps(table, 7, "diffusers") == (84, 70, 56, 42, 28, 14, 0)
    assert spaced_timesteps(table, 60, "diffusers") == tuple(range(59, -1, -1))
