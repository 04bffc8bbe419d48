"""Draw: how samples are drawn, one record from the caller to the diffusion process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.diffusion.target import Target
from dp_prior.tensors.randomness import Randomness


class Draw(NamedTuple):
    """How B samples are drawn; every field that is None is as the model is configured.

    Models take and return data units; a `DiffusionProcess` takes the same record in normalised units.
    """

    sampler: SamplerConfig | None = None
    """Replaces the configured sampler; a process has none of its own."""

    previous: Tensor | None = None
    """(B, *x_shape) samples to start from, such as the last chunks shifted to now; noised to `renoise` of the sampler,
    of whose steps the last are done. None starts from noise."""

    known: tuple[Tensor, Tensor] | None = None
    """Values (B, *x_shape) and a bool mask of the known ones, which the samples have exactly; see `fixed_values`."""

    shown: Tensor | None = None
    """Bool mask of the known elements that the network was trained to see without noise, `known` of
    `DiffusionProcess.loss`. The network sees them without noise at every step; the others reach it noised."""

    prefix: Tensor | None = None
    """(B, n_obs_steps - 1 + d, action_dim) the first actions of a policy's chunks, given to its network as in training
    with `task.prefix`; d from 1 to its `max_delay`. The policy turns them into `known` and `shown`."""

    target: Target | None = None
    """Values that every estimate is guided toward before known values and the clip; on any trained model."""

    guidance_scale: float | None = None
    """Scale of classifier-free guidance, see `Guidance`; above 1 the condition is amplified."""

    noise: Tensor | None = None
    """(B, *x_shape) the noise that a model starts from, for example the result of `DiffusionModel.invert`; None draws
    new noise. A process is given its noise beside this record."""

    @classmethod
    def of_known(cls, values: Tensor, known: Tensor | None) -> Draw:
        """With known elements of the values (B, *x_shape) that the network sees without noise; None for none."""
        return cls() if known is None else cls(known=(values, known), shown=known)


AS_CONFIGURED = Draw()


def rows_of_noise(random: Randomness | None, count: int, device: torch.device, noun: str) -> Randomness:
    """`count` rows for samples of a `predict`; the same noise at every call where `random` is None.

    Args:
        noun: what the samples are of, for the error.

    Raises:
        ValueError: `random` has another number of rows.
    """
    if random is None:
        return Randomness.from_counts(0, "predict", torch.arange(count, device=device))
    if len(random) != count:
        raise ValueError(f"random has {len(random)} rows for {count} {noun}; pass one for each")
    return random


def drawn_in_batches(
    draw: Callable[[dict[str, Tensor], Randomness], Tensor],
    cond: dict[str, Tensor],
    random: Randomness,
    batch_size: int | None,
) -> Tensor:
    """(B, *shape): what `draw` makes of the conditions, at most `batch_size` rows at a time; None for all at once.

    A row depends on its own condition and noise, so another size changes memory, speed and rounding alone.

    Raises:
        ValueError: batch_size is less than 1.
    """
    if batch_size is None:
        return draw(cond, random)
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected 1 or more samples drawn together, or None for all")
    parts = []
    for begin in range(0, len(random), batch_size):
        rows = slice(begin, begin + batch_size)
        parts.append(draw({key: value[rows] for key, value in cond.items()}, random[rows]))
    return torch.cat(parts)
