"""Exponential moving averages of a model's weights, with a decay that is a function of the optimizer step.

Every rank holds the averages, buffers included. They depend on no counter but the step, so a resumed run is exact.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Config, family


class Decay(Config):
    """The decay of an average. A subclass has a `type` and `at`."""

    @abstractmethod
    def at(self, step: int) -> float:
        """Weight that the average keeps, 0 to 1, in the update after optimizer step number `step`, counted from 1."""


class PowerDecay(Decay):
    """Decay that warms up as 1 - (1 + step / inv_gamma) ** -power (after @crowsonkb).

    Equal to `EMAModel` of diffusers with `use_ema_warmup`. The one in Diffusion Policy's repository counts its updates
    from 0 and so copies the weights twice: 0, 0, 0.405, 0.561 in the first four updates with power 0.75, where this
    has 0, 0.405, 0.561, 0.646. With `update_after_step` 1 both are equal.
    """

    type: Literal["power"] = "power"

    inv_gamma: float = Field(default=1.0, gt=0)
    """Time constant of the warm-up, in optimizer steps."""

    power: float = Field(default=0.75, gt=0)
    """Exponent; 0.75 reaches 0.999 at 10 thousand steps, 2/3 at 31 thousand."""

    min_decay: float = Field(default=0.0, ge=0, le=1)
    """The decay never falls below this after the first step."""

    max_decay: float = Field(default=0.9999, ge=0, le=1)
    """The decay never rises above this."""

    update_after_step: int = Field(default=0, ge=0)
    """Optimizer steps by which the warm-up is delayed; until then the average copies the weights. N + 1 gives what
    Diffusion Policy's `EMAModel` does with `update_after_step` N."""

    def faults(self) -> Iterator[str]:
        if self.min_decay > self.max_decay:
            yield f"min_decay is {self.min_decay:g} and max_decay {self.max_decay:g}; the least is above the largest"

    def at(self, step: int) -> float:
        """Decay of the update after optimizer step number `step`, counted from 1; the first one keeps nothing."""
        warm_steps = step - 1 - self.update_after_step
        if warm_steps <= 0:
            return 0.0
        warm = 1.0 - (1.0 + warm_steps / self.inv_gamma) ** -self.power
        return min(self.max_decay, max(self.min_decay, warm))


class ConstantDecay(Decay):
    """The same decay at every step."""

    type: Literal["constant"] = "constant"

    decay: float = Field(default=0.999, ge=0, le=1)
    """Weight kept by the average per step."""

    def at(self, step: int) -> float:
        return self.decay


DecayConfig = family(
    "averages",
    PowerDecay,
    ConstantDecay,
    {"power_function": "dp_prior.training.power_function:PowerFunctionDecay"},
    needs=("at",),
)


class EMA:
    """An average: `model` is a copy of the trained model that holds the averaged weights."""

    def __init__(self, model: nn.Module, decay: DecayConfig):
        """
        Args:
            model: the trained model, unwrapped and on its device; updates read its tensors in place.
        """
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._averages, self._weights = list(self.model.parameters()), list(model.parameters())
        self._buffers, self._sources = list(self.model.buffers()), list(model.buffers())

    @torch.no_grad()
    def update(self, step: int, finite: Tensor) -> None:
        """average = decay * average + (1 - decay) * weights; other tensors are copied.

        Args:
            step: optimizer step just taken, counted from 1.
            finite: () bool on the model's device; False leaves the average as it is.
        """
        fraction = (1.0 - self.decay.at(step)) * finite
        if fraction.device.type != "cpu":  # without a copy to the host
            difference = torch._foreach_sub(self._weights, self._averages)
            torch._foreach_mul_(difference, fraction)
            torch._foreach_add_(self._averages, difference)
        elif fraction.item() != 0:  # otherwise 0 * NaN would reach the averages
            torch._foreach_lerp_(self._averages, self._weights, fraction.item())
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._sources)
