"""AdamW: its record, decay groups, and an update that clips and skips inside the fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dp_prior.config import Change, Config
from dp_prior.networks.encoders.encoder import FineTuned

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Momentum = Annotated[float, Field(ge=0, lt=1)]


class TunedPartConfig(Config):
    """Overrides of learning rate and weight decay for one part of the network."""

    lr_scale: float = Field(default=1.0, gt=0)
    """Learning rate as a multiple of `train.lr`; multiplied with the `lr_scale` of an encoder inside."""

    weight_decay: float | None = Field(default=None, ge=0)
    """Weight decay in place of the optimizer's, of the same kinds of parameters; null: the optimizer's."""


class AdamWConfig(Config):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), fused."""

    type: Annotated[Literal["adamw"], Change("architecture")] = "adamw"

    betas: tuple[Momentum, Momentum] = (0.95, 0.999)
    """Decay of the first and second moment; Diffusion Policy's values."""

    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""

    weight_decay: float = Field(default=1e-6, ge=0)
    """Decoupled decay of weight matrices, convolutions and learned tokens and positions; biases, norms and embedding
    tables have none."""

    parts: dict[str, TunedPartConfig] = {}
    """Parts of the network with a learning rate or weight decay of their own, by the beginning of the names of their
    tensors, such as `encoder`, `encoder.camera` or `backbone.down.0`. Of several that name a tensor the longest
    counts."""

    def create(self, model: nn.Module) -> AdamW:
        """An optimizer over the trainable parameters of `model`; frozen ones are left out.

        Parts of a model that are `FineTuned` learn at their own multiple of the learning rate.

        Raises:
            ConfigError: `parts` names none of the model's.
        """
        return AdamW(parameter_groups(model, self.weight_decay, self.parts), betas=self.betas, eps=self.eps)


class AdamW:
    """torch's fused AdamW kernel without its class.

    `torch.optim.AdamW` imports torch's compiler, which takes most of a second at every start.

    Attributes:
        param_groups: dicts with `params`, `weight_decay`, `lr`, `lr_scale` (`lr` over the schedule's rate) and `part`
            (the entry of `parts`, or "").
        state: by parameter, the tensors that `moments` names, from the first step on; an empty dict for a parameter
            that another rank updates.
        replicas: how the ranks divide the update and its state; by default each of them has all.
        grad_scale: () the step divides the gradient by it; None for 1.
        found_inf: () the step changes nothing if this is not 0; None for 0.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    updates_parts: ClassVar[bool] = True
    """Whether `step_group` of this very class accepts parts of weights; see `train.shard` "model"."""

    _step_supports_amp_scaling = True  # makes `torch.amp.GradScaler` set the two above; the kernel unscales

    def __init__(self, groups: list[dict], *, betas: tuple[float, float], eps: float):
        self.param_groups = [{"lr": 0.0, "lr_scale": 1.0, "part": "", **group} for group in groups]
        self.betas = betas
        self.eps = eps
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        from dp_prior.training.replicas import Replicas  # reading a configuration does without

        self.replicas = Replicas()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that are trained."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient. With shards a collective."""
        updated: list[nn.Parameter] = []
        for group in self.param_groups:
            ready = [parameter for parameter in group["params"] if parameter.grad is not None]
            updated_here = [parameter for parameter in ready if self.updates(parameter)]
            if updated_here:
                self.step_group(group, updated_here)
            if len(updated_here) < len(ready):
                self.state |= {parameter: {} for parameter in ready if not self.updates(parameter)}
            updated += ready
        self.replicas.share(updated)

    def step_group(self, group: dict, parameters: list[nn.Parameter]) -> None:
        """Update parameters of one group; each has a gradient."""
        states = [self.state_of(parameter) for parameter in parameters]
        moments = {name: [state[name] for state in states] for name in _MOMENTS}
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

    def updates(self, parameter: nn.Parameter) -> bool:
        """Whether this rank updates a parameter, and has its state."""
        return self.replicas.is_own(parameter)

    @property
    def taken(self) -> Tensor | float:
        """1, or 0 for a step that changes nothing; a tensor, for which the host does not wait."""
        return 1.0 if self.found_inf is None else 1.0 - self.found_inf

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The gradient of a parameter, unscaled; zeros if the step changes nothing, since 0 * NaN is NaN."""
        gradient = parameter.grad if self.grad_scale is None else parameter.grad / self.grad_scale
        return gradient if self.found_inf is None else torch.where(self.found_inf == 0, gradient, 0.0)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def moments(self, parameter: nn.Parameter) -> tuple[str, ...]:
        """Names of the tensors in the state of a parameter."""
        return _MOMENTS

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The state of a parameter; zeros before its first step.

        Raises:
            ConfigError: another rank has this state, so a subclass updates too much.
        """
        if not self.updates(parameter):
            raise self.replicas.refusal(self)
        if parameter not in self.state:
            self.state[parameter] = self.zeros(parameter)
        return self.state[parameter]

    def zeros(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """A new state of a parameter."""
        return {
            name: torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter)
            for name in self.moments(parameter)
        }

    def collected(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """`state` on the host; on the main rank with the states of other ranks. With shards a collective."""
        return self.replicas.collected(self.state)


def parameter_groups(
    model: nn.Module, weight_decay: float, parts: Mapping[str, TunedPartConfig] | None = None
) -> list[dict]:
    """Group the trainable parameters by part, learning rate and weight decay; see `AdamW.param_groups`.

    Args:
        parts: see `AdamWConfig.parts`, also for the error.
    """
    tuned = [module for module in model.modules() if isinstance(module, FineTuned)]
    scales = {id(parameter): module.lr_scale for module in tuned for parameter in module.parameters()}
    parts, part_names = parts or {}, {}
    if parts:
        from dp_prior.training.tuned_parts import part_of_each

        part_names = part_of_each(model, parts)
    groups: dict[tuple[bool, str, float], dict] = {}
    for parameters, is_decayed in zip(decay_groups(model), (True, False), strict=True):
        for name, parameter in parameters.items():
            part = part_names.get(name, "")
            settings = parts.get(part, TunedPartConfig())
            scale = scales.get(id(parameter), 1.0) * settings.lr_scale
            decay = weight_decay if settings.weight_decay is None else settings.weight_decay
            kind = {"part": part, "lr_scale": scale, "weight_decay": decay * is_decayed, "is_decayed": is_decayed}
            groups.setdefault((is_decayed, part, scale), {"params": [], **kind})["params"].append(parameter)
    return [*groups.values()]


def decay_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Trainable parameters by name, with weight decay and without (biases, norms, embeddings, scalars)."""
    norms_and_embeddings = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.Embedding)
    exempt = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, norms_and_embeddings)
        for parameter in module.parameters(recurse=False)
    }
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    free = {name: parameter for name, parameter in trained.items() if parameter.ndim < 2 or id(parameter) in exempt}
    return {name: parameter for name, parameter in trained.items() if name not in free}, free


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Give every group its multiple of the learning rate of the coming step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def learning_rate(optimizer: AdamW) -> float:
    """The learning rate of the last step, before the multiples of groups."""
    group = optimizer.param_groups[0]
    return group["lr"] / group["lr_scale"]


def update(
    optimizer: AdamW,
    max_grad_norm: float,
    scaler: torch.amp.GradScaler | None = None,
    norm_of: Callable[[list[Tensor]], Tensor] = torch.nn.utils.get_total_norm,
) -> tuple[Tensor, Tensor]:
    """Clip the gradient by its global norm and take one optimizer step, or none if the gradient is not finite.

    The order is backward, unscale, clip, step. With a loss scaler, backward leaves scaled gradients. They are unscaled
    before the norm is taken, since `max_grad_norm` limits the unscaled norm, and clipped in place, since the scaler
    sets the optimizer's `grad_scale` and `found_inf`. Without a scaler, the fused kernel clips and skips by itself: its
    `grad_scale` is the excess of the norm, so clipping costs one pass for the norm, and the host does not wait.

    Args:
        max_grad_norm: the norm is clipped to this; infinity clips nothing.
        scaler: the loss scaler of fp16 training, which unscales the gradient and keeps its own skip rule.
        norm_of: the norm of the gradient of all ranks; see `Replicas.total_norm`.

    Returns:
        (norm, finite): () float32 norm before clipping, () bool whether the step was taken.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = norm_of([p.grad for p in parameters]).float()  # the kernel takes no other `grad_scale`
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
