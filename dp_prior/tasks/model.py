"""DiffusionModel: normalizer, encoder, backbone and diffusion process as one module.

It knows `x` and `cond`, not what they mean; the tasks beside this file give the meaning. Everything that crosses its
border is in data units, everything inside is normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from dp_prior.batch import Batch, Spec
from dp_prior.diffusion.process import DiffusionProcess, Loss
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.normalizer import Normalizer, Statistics
from dp_prior.randomness import Randomness


class Samples(Protocol):
    """A data set, fetched by index a batch at a time."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def fetch(self, ids: Tensor) -> Batch: ...


class DiffusionModel(nn.Module):
    """A conditional diffusion model of `x` given `cond`."""

    def __init__(
        self,
        *,
        spec: Spec,
        normalizer: Normalizer,
        encoder: nn.Module,
        backbone: nn.Module,
        process: DiffusionProcess,
        sampler: SamplerConfig,
    ):
        super().__init__()
        self.spec = spec
        self.normalizer = normalizer
        self.encoder = encoder
        self.backbone = backbone
        self.process = process
        self.sampler = sampler

    def forward(self, batch: Batch, random: Randomness) -> Loss:
        """The denoising loss of a batch in data units.

        Args:
            random: one row per sample; timestep and noise of a sample are functions of its row.
        """
        cond = self.encode(batch.cond)

        def network(x_t: Tensor, t: Tensor) -> Tensor:
            return self.backbone(x_t, t, cond)

        x_0 = self.normalizer.normalize("x", self.encode_x(batch.x, batch.cond))
        return self.process.loss(network, x_0, batch.mask, random, batch.denominator)

    @torch.no_grad()
    def sample(self, cond: dict[str, Tensor], random: Randomness, sampler: SamplerConfig | None = None) -> Tensor:
        """Draw x given cond.

        Args:
            cond: (B, *shape) by key, data units.
            random: one row per sample; a row's result does not depend on its neighbours.
            sampler: replaces the configured one.

        Returns:
            (B, *x_shape) float32 in data units.
        """
        tokens = self.encode(cond)

        def network(x_t: Tensor, t: Tensor) -> Tensor:
            return self.backbone(x_t, t, tokens)

        x_0 = self.process.sample(network, self.spec.x_shape, random, sampler or self.sampler)
        return self.decode_x(self.normalizer.unnormalize("x", x_0), cond)

    def fit(self, statistics: Mapping[str, Statistics], samples: Samples) -> None:
        """Fit the normalizer, once, before training.

        Args:
            statistics: of x and of every conditioning key, over the training data.
            samples: the training data, for models that diffuse something else than x as it is.
        """
        self.normalizer.fit(statistics)

    def encode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """(B, *x_shape) in data units -> what is diffused, in data units; x itself unless a task says otherwise."""
        return x

    def decode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """The inverse of `encode_x`."""
        return x

    def encode(self, cond: dict[str, Tensor]) -> Tensor:
        """(B, n_tokens, cond_dim) tokens from conditioning in data units."""
        return self.encoder({key: self.normalizer.normalize(key, value) for key, value in cond.items()})
