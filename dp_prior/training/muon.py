"""Muon: momentum whose matrices are made orthogonal, for the weights inside a network; AdamW for all others."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from dp_prior.config import Change, Config
from dp_prior.training.optimizer import AdamW, Momentum, TunedPartConfig, parameter_groups

QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's coefficients; singular values end between about 0.7 and 1.2
NEWTON_SCHULZ_STEPS = 5
UPDATE_RMS = 0.2  # that of AdamW's steps, as Liu et al. measured it


class MuonConfig(Config):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for weight matrices and convolutions, which
    it sees as matrices (out, in x kernel); AdamW for biases, norms and embedding tables.

    Steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv:2502.16982), so that one learning rate and weight
    decay serves both. State: one number per weight, where AdamW has two.
    """

    model_config = ConfigDict(json_schema_extra={"required": ["type"]})  # omitted, it is AdamW

    type: Annotated[Literal["muon"], Change("architecture")] = "muon"

    momentum: Momentum = 0.95
    """Decay of the momentum, which is Nesterov's."""

    weight_decay: float = Field(default=1e-6, ge=0)
    """Decoupled decay of weight matrices, convolutions and learned tokens and positions; biases, norms and embedding
    tables have none."""

    betas: tuple[Momentum, Momentum] = (0.95, 0.999)
    """AdamW's, for the other parameters."""

    eps: float = Field(default=1e-8, gt=0)
    """AdamW's, for the other parameters."""

    parts: dict[str, TunedPartConfig] = {}
    """Parts of the network with a learning rate or weight decay of their own; see `AdamWConfig`."""

    def create(self, model: nn.Module) -> Muon:
        """See `AdamWConfig`."""
        groups = parameter_groups(model, self.weight_decay, self.parts)
        return Muon(groups, momentum=self.momentum, betas=self.betas, eps=self.eps)


class Muon(AdamW):
    """See `MuonConfig`. `state` has `momentum` of matrices and convolutions."""

    updates_parts = True

    def __init__(self, groups: list[dict], *, momentum: float, betas: tuple[float, float], eps: float):
        super().__init__(groups, betas=betas, eps=eps)
        self.momentum = momentum
        matrices = (parameter for group in groups if group["is_decayed"] for parameter in group["params"])
        self._matrices = {id(parameter) for parameter in matrices}

    def moments(self, parameter: nn.Parameter) -> tuple[str, ...]:
        return ("momentum",) if id(parameter) in self._matrices else super().moments(parameter)

    def step_group(self, group: dict, parameters: list[nn.Parameter]) -> None:
        if not group["is_decayed"]:
            super().step_group(group, parameters)
            return
        taken = self.taken
        for parameter in parameters:
            gradient, momentum = self.gradient(parameter), self.state_of(parameter)["momentum"]
            momentum += (1.0 - self.momentum) * taken * (gradient - momentum)
            direction = self.replicas.gathered(parameter, gradient.lerp(momentum, self.momentum))
            matrix = orthogonal(direction.flatten(1))
            size = UPDATE_RMS * math.sqrt(max(matrix.shape))
            parameter *= 1.0 - group["lr"] * group["weight_decay"] * taken
            parameter -= group["lr"] * size * taken * self.replicas.part(parameter, matrix.view_as(direction))


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with equal singular values, roughly, of a matrix (A, B).

    A quintic iteration on the singular values, which the division brings to at most 1 before. In bfloat16 as in
    Jordan's code, but in float32 on a CPU: products in bfloat16 are far slower on CPUs without AMX.
    """
    is_tall = len(matrix) > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x.float() if x.device.type == "cpu" else x.bfloat16()
    x = x / x.norm().clamp(min=1e-7)
    x = _iterated_by_gram(x) if x.dtype == torch.float32 else _iterated(x)
    return (x.T if is_tall else x).to(matrix.dtype)


def _iterated(x: Tensor) -> Tensor:
    """X becomes (a + b G + c G^2) X, where G = X X^T, several times."""
    a, b, c = QUINTIC
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _iterated_by_gram(x: Tensor) -> Tensor:
    """The same, 1.5 times as fast for the matrices of a UNet1D: the factors of X are polynomials in the first G, as are
    the later G, so all products but two are of square matrices. G squares the singular values, so not in bfloat16."""
    a, b, c = QUINTIC
    gram, factors = x @ x.T, torch.eye(len(x), dtype=x.dtype)
    for iterations_left in reversed(range(NEWTON_SCHULZ_STEPS)):
        rest = torch.addmm(gram, gram, gram, beta=b, alpha=c)  # the factor is a I + rest
        factors = torch.addmm(factors, rest, factors, beta=a)
        if iterations_left:
            half = torch.addmm(gram, rest, gram, beta=a)
            gram = torch.addmm(half, half, rest, beta=a)
    return factors @ x
