"""Timestep spacings: which of the trained timesteps a sampler visits."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from dp_prior.diffusion.table import NoiseTable

Spacing = (
    Literal["trailing", "linspace", "leading", "ddim", "diffusers", "quadratic", "karras"]
    | Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
)

KARRAS_SIGMA_MAX = 80.0
"""Largest sigma / alpha of the spacing of Karras et al. 2022, table 1; noisier levels are left to the first step."""


@lru_cache(256)
def spaced_timesteps(table: NoiseTable, steps: int | None, spacing: Spacing) -> tuple[int, ...]:
    """Timesteps to visit, noisiest first, beginning with the noisiest one trained.

    Some published spacings begin at a less noisy timestep, where the network would be told less noise than there is;
    their first step is moved up, except for `diffusers`.

    Args:
        steps: how many; None for all, or for the sum of the sections.
    """
    trained = len(table)
    if isinstance(spacing, tuple):
        rising = _sections(trained, spacing)
    else:
        steps = steps or trained
        if steps > trained:
            raise ValueError(f"the sampler has {steps} steps, but {trained} timesteps are trained; lower its steps")
        rising = _rising(table, steps, spacing)
    return rising[-1] if spacing == "diffusers" else trained - 1, *reversed(rising[:-1])


def _rising(table: NoiseTable, steps: int, spacing: str) -> list[int]:
    trained, last, gaps = len(table), len(table) - 1, max(steps - 1, 1)
    match spacing:
        case "trailing":
            return [round(i * trained / steps) - 1 for i in range(1, steps + 1)]
        case "linspace":
            return [round(i * last / gaps) for i in range(steps)]
        case "leading" | "diffusers":
            return [i * (trained // steps) for i in range(steps)]
        case "quadratic":
            return _distinct([last * (i / gaps) ** 2 for i in range(steps)], trained)
        case "karras":
            return _karras(table, steps)
    return _ddim(table, steps)


def _ddim(table: NoiseTable, steps: int) -> list[int]:
    strides = {-(-len(table) // stride): stride for stride in range(len(table), 0, -1)}  # by the steps they give
    if steps in strides:
        return list(range(0, len(table), strides[steps]))
    by_distance = sorted(sorted(strides), key=lambda count: abs(count - steps))
    nearest = sorted(by_distance[:2])
    raise ValueError(
        f"spacing 'ddim' needs a whole stride, and none gives {steps} of {len(table)} timesteps; "
        f"use {' or '.join(map(str, nearest))} steps, or spacing 'trailing'"
    )


def _karras(table: NoiseTable, steps: int) -> list[int]:
    noise = [math.exp(-half_log_snr) for half_log_snr in table.half_log_snr]
    low, high = noise[0] ** (1 / 7), min(noise[-1], KARRAS_SIGMA_MAX) ** (1 / 7)
    sigmas = [(low + i / max(steps - 1, 1) * (high - low)) ** 7 for i in range(steps)]

    def nearest(sigma: float) -> int:
        return min(range(len(noise)), key=lambda t: abs(math.log(noise[t] / sigma)))

    return _distinct([nearest(sigma) for sigma in sigmas], len(table))


def _sections(trained: int, counts: tuple[int, ...]) -> list[int]:
    """Evenly spaced timesteps from each of equal sections, both ends of each included.

    Equal to `space_timesteps` of improved-diffusion. The stride is accumulated in floating point, as it is there: the
    rounding decides ties, so `j * stride` would give another timestep in about 1 of 10 lists.
    """
    sizes = [trained // len(counts) + (i < trained % len(counts)) for i in range(len(counts))]
    timesteps = []
    for i, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if count > size:
            raise ValueError(f"spacing asks for {count} timesteps of section {i}, which has {size}; lower it")
        stride = (size - 1) / max(count - 1, 1)
        places = itertools.accumulate(itertools.repeat(stride, count - 1), initial=0.0)
        timesteps += [sum(sizes[:i]) + round(place) for place in places]
    return timesteps


def _distinct(places: list[float], trained: int) -> list[int]:
    """Rising places rounded to distinct timesteps, moved as little as possible."""
    result: list[int] = []
    for i, place in enumerate(places):
        lowest, highest = (result[-1] + 1 if result else 0), trained - len(places) + i
        result.append(min(max(round(place), lowest), highest))
    return result
