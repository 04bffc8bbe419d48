"""Optimizer and learning rate: records, decay groups, and an update that clips and skips inside the fused kernel.

The learning rate is a closed form of the optimizer step; there is no scheduler state to save.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dp_prior.config import Config
from dp_prior.networks.encoders.pretrained import FineTuned


class LearningRate(Config):
    """Linear warm-up to `peak`, then a shape given by the subclass."""

    peak: float = Field(default=1e-4, gt=0)
    """Highest learning rate, reached at the end of the warm-up."""

    warmup_steps: int = Field(default=500, ge=0)
    """Optimizer steps over which the rate rises linearly from peak / warmup_steps; 0 for none. diffusers, which
    Diffusion Policy uses, begins at 0 and is one step behind until the peak."""

    def at(self, step: int, total_steps: int, spent_steps: int | None = None) -> float:
        """The learning rate of optimizer step `step`, counted from 0.

        Args:
            total_steps: budget of the run in steps of the current global batch.
            spent_steps: part of it that is spent; None is `step`. They differ once a run has changed its global batch.
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        spent = (step if spent_steps is None else spent_steps) - self.warmup_steps
        return self.peak * self._shape(min(1.0, max(0, spent) / max(1, total_steps - self.warmup_steps)))

    def _shape(self, fraction: float) -> float:
        raise NotImplementedError


class ConstantLearningRate(LearningRate):
    """Stays at the peak after the warm-up."""

    type: Literal["constant"] = "constant"

    def _shape(self, fraction: float) -> float:
        return 1.0


class LinearLearningRate(LearningRate):
    """Falls linearly after the warm-up."""

    type: Literal["linear"] = "linear"

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the run as a fraction of the peak."""

    def _shape(self, fraction: float) -> float:
        return 1.0 + (self.final_fraction - 1.0) * fraction


class CosineLearningRate(LearningRate):
    """Falls along half a cosine after the warm-up (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts)."""

    type: Literal["cosine"] = "cosine"

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the run as a fraction of the peak."""

    def _shape(self, fraction: float) -> float:
        return self.final_fraction + (1.0 - self.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * fraction))


LearningRateConfig = Annotated[
    ConstantLearningRate | LinearLearningRate | CosineLearningRate, Field(discriminator="type")
]


Momentum = Annotated[float, Field(ge=0, lt=1)]


class AdamWConfig(Config):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), fused."""

    betas: tuple[Momentum, Momentum] = (0.95, 0.999)
    """Decay of the first and second moment; Diffusion Policy's values."""

    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""

    weight_decay: float = Field(default=1e-6, ge=0)
    """Decoupled decay of weight matrices and convolutions; biases, norms and embeddings have none."""

    def create(self, model: nn.Module) -> AdamW:
        """An optimizer over the trainable parameters of `model`; frozen ones are left out.

        Parts of a model that are `FineTuned` learn at their own multiple of the learning rate.
        """
        tuned = [module for module in model.modules() if isinstance(module, FineTuned)]
        scales = {id(parameter): module.lr_scale for module in tuned for parameter in module.parameters()}
        groups = []
        for parameters, decay in zip(decay_groups(model), (self.weight_decay, 0.0), strict=True):
            by_scale: dict[float, list[nn.Parameter]] = {}
            for parameter in parameters.values():
                by_scale.setdefault(scales.get(id(parameter), 1.0), []).append(parameter)
            groups += [{"params": some, "weight_decay": decay, "lr_scale": scale} for scale, some in by_scale.items()]
        return AdamW(groups, betas=self.betas, eps=self.eps)


class AdamW:
    """torch's fused AdamW kernel without its class.

    `torch.optim.AdamW` imports torch's compiler, which takes most of a second at every start.

    Attributes:
        param_groups: `params`, their `weight_decay` and `lr`, and `lr_scale`, by which `lr` differs from the schedule.
        state: `exp_avg`, `exp_avg_sq` and `step` of each parameter, from its first step on.
        grad_scale: () the step divides the gradient by it; None for 1.
        found_inf: () the step changes nothing if this is not 0; None for 0.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True  # makes `torch.amp.GradScaler` set the two above; the kernel unscales

    def __init__(self, groups: list[dict], *, betas: tuple[float, float], eps: float):
        self.param_groups = [{"lr": 0.0, "lr_scale": 1.0, **group} for group in groups]
        self.betas = betas
        self.eps = eps
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self._state(parameter) for parameter in parameters]
            moments = {name: [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")}
            adamw(
                parameters,
                [parameter.grad for parameter in parameters],
                moments["exp_avg"],
                moments["exp_avg_sq"],
                [],
                moments["step"],
                fused=True,
                grad_scale=self.grad_scale,
                found_inf=self.found_inf,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=self.eps,
                maximize=False,
            )

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if parameter not in self.state:
            self.state[parameter] = {
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
                "step": torch.zeros((), device=parameter.device),
            }
        return self.state[parameter]


def decay_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Trainable parameters by name: those with weight decay, and those without (biases, norms, embeddings, scalars)."""
    norms_and_embeddings = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.Embedding)
    exempt = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, norms_and_embeddings)
        for parameter in module.parameters(recurse=False)
    }
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    free = {name: found for name, found in trained.items() if found.ndim < 2 or id(found) in exempt}
    return {name: found for name, found in trained.items() if name not in free}, free


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Give every group its multiple of the learning rate of the coming step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def update(optimizer: AdamW, max_grad_norm: float, scaler: torch.amp.GradScaler | None = None) -> tuple[Tensor, Tensor]:
    """Clip the gradient by its global norm and take one optimizer step, or none if the gradient is not finite.

    The fused kernel divides by `grad_scale` and skips on `found_inf` by itself, so clipping costs one pass for the
    norm, and neither needs the host to look at the gradient.

    Args:
        max_grad_norm: the norm is clipped to this; infinity clips nothing.
        scaler: the loss scaler of fp16 training, which unscales the gradient and keeps its own skip rule.

    Returns:
        (norm, finite): () float32 norm before clipping, () bool whether the step was taken.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    finite = torch.isfinite(norm)
    excess = (norm / max_grad_norm).clamp(min=1.0)
    if scaler is not None:
        torch._foreach_div_([p.grad for p in parameters], torch.where(finite, excess, 1.0))
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.grad_scale = torch.where(finite, excess, 1.0)
        optimizer.found_inf = (~finite).to(torch.float32)
        optimizer.step()
    optimizer.zero_grad()
    return norm, finite
