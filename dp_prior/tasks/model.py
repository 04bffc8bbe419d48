"""DiffusionModel: normalizer, encoder, backbone and diffusion process as one module.

It knows `x` and `cond` but not their meaning, which the tasks beside this file define. Arguments and results are in
data units; values inside are normalised.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dp_prior.config import ConfigError, errors_of
from dp_prior.diffusion.criterion import ElementMean
from dp_prior.diffusion.denoiser import Denoiser, Network
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.guidance import Guidance
from dp_prior.diffusion.process import DiffusionProcess, Loss
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.files.printable import facts_table
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.compilation import compiled
from dp_prior.tensors.normalizer import Normalizer, Statistics
from dp_prior.tensors.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.data.samples.over_columns import Samples
    from dp_prior.diffusion.bits_per_dim import BitsPerDim


class DiffusionModel(nn.Module):
    """A conditional diffusion model of `x` given `cond`.

    Attributes:
        runtime: maps the tokens of a condition to a faster network than the backbone for sampling, or to None where it
            has none; None for none at all. Installed packages set it on a model that acts, see `Plans`.
        encoding: maps normalised observations by key to their tokens as the encoder does, but faster, or to None.
        sampling: draws the normalised x_0 faster than evaluation by evaluation, from the arguments cond, noise, random
            and draw of `sample`, normalised; or None.
        region: as `runtime` in compiled code, for samplers whose `compile` is "auto"; `Plans` sets it on a GPU.
    """

    runtime: Callable[[Tensor], Network | None] | None = None
    encoding: Callable[[dict[str, Tensor]], Tensor | None] | None = None
    sampling: Callable[[dict[str, Tensor], Tensor, Randomness, Draw], Tensor | None] | None = None
    region: Callable[[Tensor], Network | None] | None = None

    def __init__(
        self,
        *,
        spec: Spec,
        normalizer: Normalizer,
        encoder: nn.Module,
        backbone: nn.Module,
        process: DiffusionProcess,
        sampler: SamplerConfig,
        cond_dropout: dict[str, float],
        x_shape: tuple[int, ...] | None = None,
        shown: Tensor | None = None,
    ):
        """Args:
        x_shape: of the diffused variable, if `encode_x` changes the shape; None for the shape of the data.
        shown: (*x_shape) bool, elements that the network sees without noise and does not predict; None for none.

        Raises:
            ConfigError: `dim_weights` or `horizon_weights` of the process do not fit x.
        """
        super().__init__()
        self.spec = spec
        self.normalizer = normalizer
        self.encoder = encoder
        self.backbone = backbone
        self.process = process
        self.sampler = sampler
        self.cond_dropout = cond_dropout
        self.x_shape = spec.x_shape if x_shape is None else x_shape
        self.register_buffer("shown", shown, persistent=False)
        with errors_of("task"):
            ElementMean(torch.empty(0, *self.x_shape), None, process.dim_weights, process.horizon_weights)

    def forward(self, batch: Batch, random: Randomness, self_condition: bool = True) -> Loss:
        """The denoising loss of a batch in data units.

        Args:
            random: one row per sample; its timestep, noise, dropped conditions, crop and dropout are functions of it.
            self_condition: whether a network with an input for its own estimate receives one, as in sampling.
        """
        cond_random = random.stream("condition") if self.training else None
        with dropout_rows(self, random.stream("dropout")):
            tokens = self.encode(batch.cond, cond_random)
            x_0, eps = self.training_target(batch, random)
            mask, denominator, positions = batch.mask, batch.denominator, batch.positions
            draws = self.process.config.draws if self.training else 1
            if draws > 1:  # each encoded sample comes several times, with a timestep, noise and dropout for each
                tokens, x_0, mask = (torch.cat([value] * draws) for value in (tokens, x_0, mask))
                random, cond_random = random.repeated(draws), Randomness(torch.cat([cond_random.keys] * draws))
                denominator = None if denominator is None else draws * denominator
                if positions is not None:
                    positions = torch.cat([draws * positions + draw for draw in range(draws)])
            is_noise_free = self.noise_free(mask, random)
            with dropout_rows(self, random.stream("dropout")) if draws > 1 else contextlib.nullcontext():
                return self.process.loss(
                    self.with_mask(self.network(tokens, cond_random, in_loss=True), is_noise_free),
                    x_0,
                    mask,
                    random,
                    denominator,
                    eps=eps,
                    positions=positions,
                    self_condition=self_condition,
                    bounds=self.normalizer.bounds("x"),
                    known=is_noise_free,
                )

    @torch.no_grad()
    def sample(self, cond: dict[str, Tensor], random: Randomness, draw: Draw = AS_CONFIGURED) -> Tensor:
        """Draw x given cond.

        Args:
            cond: (B, *shape) by key, data units.
            random: one row per sample; a row's result does not depend on its neighbours.
            draw: in data units; without `shown` the elements that the model always shows.

        Returns:
            (B, *x_shape) float32 in data units.

        Raises:
            ConfigError: the model cannot be guided, see `guidance`.
        """
        noise = self.start(self.process.noise(self.x_shape, random))
        noise = noise if draw.noise is None else draw.noise.to(noise)
        diffused_draw = self._diffused_draw(draw, cond)
        x_0 = None if self.sampling is None else self.sampling(cond, noise, random, diffused_draw)
        if x_0 is None:
            x_0 = self.process.sample(self.denoiser(cond, diffused_draw), noise, random, diffused_draw)
        x = self.decode_x(self.normalizer.unnormalize("x", x_0), cond)
        return x if draw.known is None else torch.where(draw.known[1], draw.known[0].to(x), x)

    def _diffused_draw(self, draw: Draw, cond: dict[str, Tensor]) -> Draw:
        """Convert a draw from data units to the diffused, normalised variable, with the configured sampler."""
        previous, target = draw.previous, draw.target
        if target is not None:
            weights = self.diffused_weights(target.weights.expand(target.values.shape))
            target = target._replace(values=self.diffused(target.values, cond), weights=weights)
        return draw._replace(
            sampler=draw.sampler or self.sampler,
            previous=None if previous is None else self.diffused(previous, cond),
            known=self.diffused_known(draw.known, cond),
            shown=self.shown if draw.shown is None else draw.shown,
            target=target,
        )

    @torch.no_grad()
    def invert(
        self, x: Tensor, cond: dict[str, Tensor], sampler: DDIM, *, guidance_scale: float | None = None
    ) -> Tensor:
        """The noise from which `sampler`, without fresh noise (eta 0), leads back to x; see `DDIM.encode`.

        `sample(..., noise=...)` returns x up to the error of both walks, which shrinks as the steps grow. It does not
        where the clip changes an estimate, or under guidance much above 1.

        Args:
            x: (B, *spec.x_shape) in data units.
            cond: (B, *shape) by key, data units.
            guidance_scale: see `sample`.

        Returns:
            (B, *x_shape) about standard normal, where the model fits the data.
        """
        x_0 = self.diffused(x, cond)
        draw = Draw.of_known(x_0, self.shown)._replace(guidance_scale=guidance_scale)
        return sampler.encode(self.denoiser(cond, draw), x_0, self.process.table)

    def draw(self, cond: dict[str, Tensor], random: Randomness, how: Draw = AS_CONFIGURED) -> Tensor:
        """Samples as the task's `predict` returns them, from conditions by key; see `sample`."""
        return self.sample(cond, random, how)

    def bits_per_dim(self, batch: Batch, random: Randomness) -> BitsPerDim:
        """The variational bound of a batch, on its normalised values; see `bits_per_dim`.

        Args:
            random: one row per sample.
        """
        from dp_prior.diffusion.bits_per_dim import bits_per_dim

        x_0 = self.diffused(batch.x, batch.cond)
        denoiser = self.denoiser(batch.cond, Draw.of_known(x_0, self.shown))
        return bits_per_dim(self.process, denoiser, x_0, batch.mask, random, known=self.shown)

    def training_target(self, batch: Batch, random: Randomness) -> tuple[Tensor, Tensor | None]:
        """The x_0 to predict, (B, *x_shape) normalised, by default the sample itself, and the noise paired with x_0;
        None draws noise."""
        return self.diffused(batch.x, batch.cond), None

    def diffused(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """Encode and normalise x: (B, *spec.x_shape) in data units -> (B, *x_shape)."""
        return self.normalizer.normalize("x", self.encode_x(x, cond))

    def diffused_known(
        self, known: tuple[Tensor, Tensor] | None, cond: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Encode and normalise the known elements of a draw; they include all of `shown`."""
        if known is None:
            return None
        values, is_known = known
        return self.diffused(values, cond), self.diffused_weights(is_known.expand(values.shape))

    def denoiser(self, cond: dict[str, Tensor], draw: Draw = AS_CONFIGURED) -> Denoiser:
        """The model as samplers see it, in normalised units, compiled if a sampler of `draw` says so.

        Args:
            cond: (B, *shape) by key, data units.
            draw: normalised.
        """
        guidance = self.guidance(draw.guidance_scale)
        is_guided = guidance is not None and not guidance.is_neutral
        mode = "off" if draw.sampler is None else draw.sampler.compile

        def network(keep: bool) -> Network:
            tokens = self.encode(cond, keep=keep)
            fast = self.region(tokens) if mode == "auto" and self.region is not None else None
            return compiled(self.with_mask(fast or self.network(tokens), draw.shown), mode, "sampler.compile")

        return self.process.denoiser(
            network(keep=True),
            draw,
            unconditional=network(keep=False) if is_guided else None,
            bounds=self.normalizer.bounds("x"),
        )

    def noise_free(self, mask: Tensor, random: Randomness) -> Tensor | None:
        """Choose the elements that the network sees without noise in a loss: bool, broadcasts against x; None for none.

        Args:
            mask: (B, *x_shape[:-1]) bool, True where x is real.
            random: B rows.
        """
        return self.shown

    def with_mask(self, network: Network, is_noise_free: Tensor | None) -> Network:
        """Append the mask of the noise-free elements to a network with an input for it; others stay unchanged."""
        return network

    def diffused_weights(self, weights: Tensor) -> Tensor:
        """Convert weights or bools of x, (B, *spec.x_shape), to the diffused variable; by default unchanged."""
        return weights

    @property
    def guidance_keys(self) -> tuple[str, ...]:
        """Conditions that guidance amplifies, which training must drop; by default all."""
        return tuple(self.spec.cond_shapes)

    def guidance(self, scale: float | None = None) -> Guidance | None:
        """The guidance of samples: the configured one, or the same with another scale.

        Raises:
            ConfigError: the scale is not finite; or it is not 1, and training never dropped a condition.
        """
        if scale is None:
            return self.process.guidance()
        never_dropped = [key for key in self.guidance_keys if not self.cond_dropout.get(key)]
        if not math.isfinite(scale):
            raise ConfigError("guidance_scale", [f"is {scale}; expected a finite number, such as 3"])
        if scale != 1 and (never_dropped or not self.guidance_keys):
            finding = f"its training never dropped {never_dropped}" if never_dropped else "this one has none to drop"
            problem = f"is {scale:g}, which needs a model trained with and without its condition, but {finding}"
            fields = "task.cond_dropout of a policy, text_dropout of a prior, label_dropout of images"
            remedy = f"train with dropout of each condition ({fields}), or use 1, which guides nothing"
            raise ConfigError("guidance_scale", [f"{problem}; {remedy}"])
        return self.process.guidance(scale)

    def fit(self, statistics: Mapping[str, Statistics], samples: Samples) -> None:
        """Fit the normalizer, once, before training.

        Args:
            statistics: of x and of every conditioning key, over the training data.
            samples: the training data, for models that diffuse a transformed x.
        """
        self.normalizer.fit(statistics)

    def table(self, title: str, facts: Mapping[str, str], backbone: str) -> str:
        """HTML for notebooks: `facts` of the task, the kind of network and its size, and the sampler."""
        weights = sum(parameter.numel() for parameter in self.parameters())
        network = {"backbone": f"{backbone}, {weights:,} weights", "sampler": self.sampler.model_dump_json()}
        return facts_table(title, {**facts, **network})

    def warnings(self) -> list[str]:
        """Warnings about a fitted model, to be shown before training."""
        ends, bound = self.normalizer.bounds("x", "q01", "q99"), getattr(self.process.config.clip, "bound", None)
        if ends is None or bound is None:
            return []
        reach = max(-ends[0].min().item(), ends[1].max().item())
        if reach <= 1.01 * bound:
            return []
        return [
            f"task.diffusion.clip keeps samples within +-{bound:g} in normalised units, but the data reach to "
            f"{reach:.3g} and beyond, which can never be drawn; use clip 'bounds', or a bound of {math.ceil(reach + 1)}"
        ]

    def network(self, cond: Tensor, random: Randomness | None = None, *, in_loss: bool = False) -> Network:
        """The backbone with its condition bound, as a function (x_t, t) for the process.

        Args:
            cond: (B, n_tokens, cond_dim) tokens.
            random: B rows, in training, for tasks that drop further inputs of the network.
            in_loss: True for a loss, False for sampling.
        """
        faster = None if in_loss or self.runtime is None else self.runtime(cond)
        return (lambda x_t, t: self.backbone(x_t, t, cond)) if faster is None else faster

    def start(self, noise: Tensor) -> Tensor:
        """Convert (B, *x_shape) standard normal noise to the start of sampling; by default unchanged."""
        return noise

    def encode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """Convert x, (B, *spec.x_shape) in data units, to the diffused variable (B, *x_shape); by default unchanged."""
        return x

    def encode_cond(self, cond: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert conditions, (B, *shape) by key in data units, for the normalizer; by default unchanged."""
        return cond

    def decode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """The inverse of `encode_x`."""
        return x

    def encode(self, cond: dict[str, Tensor], random: Randomness | None = None, *, keep: bool = True) -> Tensor:
        """(B, n_tokens, cond_dim) tokens from conditioning in data units.

        Args:
            random: B rows; each drops each key with its probability in `cond_dropout`, and encoders with augmentation
                get the stream of their key. None in evaluation and inference: no dropout, no augmentation.
            keep: False drops every key, for the unconditional side of guidance.
        """
        keep_rows = None
        if not keep:
            keep_rows = {key: torch.zeros(len(value), device=value.device) for key, value in cond.items()}
        elif random is not None and self.cond_dropout:
            keep_rows = {key: random.stream(key).uniform() >= share for key, share in self.cond_dropout.items()}
        values = {key: self.normalizer.normalize(key, value) for key, value in self.encode_cond(cond).items()}
        is_plain = self.encoding is not None and random is None and keep_rows is None
        tokens = self.encoding(values) if is_plain else None
        return self.encoder(values, keep_rows, random) if tokens is None else tokens
