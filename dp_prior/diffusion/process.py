"""DiffusionProcess: the training loss and the sampling of a diffusion model, for any network and task.

Values are in normalised units. The noise, the loss and everything between network and sampler is float32, whatever
precision the network computes in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dp_prior.diffusion.criterion import VLB, ElementMean
from dp_prior.diffusion.denoiser import Denoise, Denoiser, Estimate, Network, SelfCondition, seeing
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.guidance import Bounds, Guidance, Stage, fixed_values
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import States, last_state
from dp_prior.diffusion.variance import Learned, LearnedRange
from dp_prior.tensors.randomness import Randomness, derive_seed


class Loss(NamedTuple):
    """The training loss of B samples.

    Attributes:
        total: () weighted cost over the valid elements, divided by the denominator; the loss to differentiate.
        per_sample: (B,) mean weighted cost over each sample's valid elements, without the factors of importance
            sampling; 0 for a sample without any.
        t: (B,) int64 timesteps.
        terms: (B,) parts of `per_sample` by name, where it has several: `simple`, and `vb` in bits per dimension; a
            task may add its own. Each is logged and evaluated.
        valid: (B,) number of valid positions of each sample.
        factor: (B,) the factors of importance sampling, which make the mean equal to the mean over uniform timesteps;
            None where all are 1.
    """

    total: Tensor
    per_sample: Tensor
    t: Tensor
    terms: dict[str, Tensor]
    valid: Tensor
    factor: Tensor | None = None


class DiffusionProcess(nn.Module):
    """Adds noise, measures the prediction, and samples.

    The last dimension of x holds its channels: of a chunk (B, horizon, action_dim), of a picture (B, H, W, C).

    Attributes:
        steps: number T of timesteps.
        config: the record; with its `draws` above 1 the caller of `loss` repeats the rows.
        input_factor: how many times the channels of x the network is given; 2 with self-conditioning.
        output_factor: how many times the channels of x the network has to return; 2 where the variance is learned.
    """

    def __init__(self, config: DiffusionConfig):
        super().__init__()
        self.config = config
        self.table = config.schedule.table()
        self.steps = len(self.table)
        self.objective = config.objective
        self.timesteps = config.timesteps.create(self.steps)
        self.output_factor = 2 if isinstance(config.variance, Learned | LearnedRange) else 1
        self.input_factor = 2 if config.self_condition else 1
        self._reverse_step_bits: Callable[..., Tensor] | None = None
        if self.output_factor == 2 or isinstance(config.criterion, VLB):
            from dp_prior.diffusion.variational_bound import reverse_step_bits

            self._reverse_step_bits = reverse_step_bits
        alpha, sigma = self.table.alpha, self.table.sigma
        weight = config.weighting.weight(self.table.snr, self.objective.error_scale(alpha, sigma))
        noise_std = sigma.clone()  # of the noise in x_t
        if config.start == "zeros":
            noise_std[-1] = 0.0
        self._exact = {"levels": torch.stack([alpha, sigma, noise_std, weight, *self.table.reverse_steps()])}
        for name, weights in (("dim_weights", config.dim_weights), ("horizon_weights", config.horizon_weights)):
            self._exact[name] = None if weights is None else torch.tensor(weights)
        for name, values in self._exact.items():
            self.register_buffer(name, None if values is None else values.float(), persistent=False)
        self.register_buffer("indices", torch.arange(self.steps), persistent=False)
        self._inversions: dict[int, tuple[float, Tensor]] = {}
        self._kept_indices: tuple[Tensor, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DiffusionProcess:
        """Move to another device with the module, but keep levels and weights float32 when it is cast."""
        super()._apply(fn, recurse)
        for name, values in self._exact.items():
            setattr(self, name, None if values is None else values.to(self.levels.device, torch.float32))
        self._kept_indices = ()
        return self

    @property
    def learns_timesteps(self) -> bool:
        """Whether `observe` must be given the losses of all ranks after each step."""
        return self.timesteps.learns

    def observe(self, t: Tensor, per_sample: Tensor, valid: Tensor) -> None:
        """Tell the timestep sampler the (N,) losses of all ranks, in the same order on each; see `LossAwareSampler`."""
        self.timesteps.update(t, per_sample, valid)

    def self_conditions(self, seed: int, samples_seen: int) -> bool:
        """Whether the training step at this point of the run is self-conditioned; the same on every rank."""
        return derive_seed(seed, "self_condition", samples_seen) < self.config.self_condition * 2.0**63

    def loss(
        self,
        network: Network,
        x_0: Tensor,
        mask: Tensor | None,
        random: Randomness,
        denominator: Tensor | None = None,
        *,
        eps: Tensor | None = None,
        positions: Tensor | None = None,
        self_condition: bool = False,
        bounds: Bounds | None = None,
        known: Tensor | None = None,
    ) -> Loss:
        """The denoising loss.

        Args:
            network: (x_t (B, *x_shape), t (B,) int64) -> output (B, *x_shape); channels times `input_factor` and
                `output_factor`.
            x_0: (B, *x_shape) float32, normalised.
            mask: (B, *x_shape[:-1]) bool, True where x_0 is real; None if everywhere.
            random: B rows; timestep and noise of a sample are functions of its row.
            denominator: () valid positions that the sum is divided by; None counts those of this batch.
            eps: (B, *x_shape) noise that belongs to x_0; None draws it.
            positions: (B,) int64 of the samples in the order of the run, for stratified timesteps.
            self_condition: show the network its own estimate; `self_conditions` decides it in training, and sampling is
                like True.
            bounds: normalised range of the data, where `clip` wants it.
            known: bool, broadcasts against x_0; elements that the network sees without noise and that have no cost.
        """
        t, factor = self.timesteps.draw(random.stream("timestep"), positions)
        eps = random.stream("noise").normal(*x_0.shape[1:]) if eps is None else eps
        levels = self.levels[:, t].view(len(self.levels), -1, *[1] * (x_0.dim() - 1))
        alpha, sigma, noise_std, weight, *reverse_step = levels
        x_t = alpha * x_0 + noise_std * eps
        if known is not None:
            x_t = torch.where(known, x_0, x_t)
        if self.config.self_condition:
            memory = SelfCondition()
            network = memory.widen(network)
            if self_condition:
                before_clip, from_clip = self._stages(bounds, None if known is None else (x_0, known))
                memory.store(self._first_estimate(network, x_t, t, (alpha, sigma), [*before_clip, *from_clip]))
        output, raw_variance = self._split(network(x_t, t), x_t)
        mean = ElementMean(x_0, mask, self.dim_weights, self.horizon_weights, known)

        def bound(output: Tensor) -> Tensor:
            """(B,) this timestep's term of the variational bound, in bits per dimension."""
            difference = x_0 - self.objective.to_x0(x_t, output, alpha, sigma)
            variance, data_step = self.config.variance, self.config.data_step
            return mean(self._reverse_step_bits(variance, difference, x_0, t, raw_variance, reverse_step, data_step))

        if isinstance(self.config.criterion, VLB):
            terms = {"vb": bound(output)}
            per_sample = self.steps * terms["vb"]
        else:
            target = self.objective.target(x_0, eps, alpha, sigma)
            per_sample = weight.flatten() * mean(self.config.criterion.error(output, target))
            terms = {}
            if raw_variance is not None:
                terms = {"simple": per_sample, "vb": bound(output.detach())}
                per_sample = per_sample + self.config.variance.vlb_weight * self.steps * terms["vb"]
        corrected = per_sample if factor is None else per_sample * factor
        denominator = mean.valid.sum() if denominator is None else denominator
        return Loss(
            total=(corrected * mean.valid).sum() / denominator.clamp(min=1e-6),
            per_sample=per_sample,
            t=t,
            terms=terms,
            valid=mean.valid,
            factor=factor,
        )

    def guidance(self, scale: float | None = None) -> Guidance | None:
        """The configured guidance, or the same with another scale; None for no guidance."""
        configured = self.config.guidance
        if scale is None:
            return configured
        return Guidance(scale=scale) if configured is None else configured.model_copy(update={"scale": float(scale)})

    def noise(self, x_shape: tuple[int, ...], random: Randomness) -> Tensor:
        """(B, *x_shape) what sampling starts from: standard normal, or zeros with `start` zeros."""
        noise = random.stream("start").normal(*x_shape)
        return torch.zeros_like(noise) if self.config.start == "zeros" else noise

    def denoiser(
        self,
        network: Network,
        draw: Draw = AS_CONFIGURED,
        *,
        unconditional: Network | None = None,
        bounds: Bounds | None = None,
    ) -> Denoiser:
        """The network as samplers see it: (x_t, t) -> estimate of x_0, guided, clipped and with known values in place.

        Args:
            network: see `loss`.
            draw: what is known, shown and guided toward.
            unconditional: the network without its condition, where guidance is wanted; a scale of 1 needs none.
            bounds: normalised range of the data, where `clip` wants it; see `Normalizer.bounds`.

        Raises:
            ValueError: an argument that the configuration needs is missing.
        """
        guidance, known, shown, target = self.guidance(draw.guidance_scale), draw.known, draw.shown, draw.target
        if guidance is not None and guidance.is_neutral:
            guidance = None
        if guidance is not None and unconditional is None:
            raise ValueError("guidance is configured, but there is no unconditional network; pass unconditional=...")
        indices_for = functools.cache(self._indices_for)
        before_clip, from_clip = self._stages(bounds, known)
        if self.config.self_condition:
            memory = SelfCondition()
            network = memory.widen(network)
            unconditional = unconditional and memory.widen(unconditional)
            from_clip.append(memory.store)
        if shown is not None:
            network = seeing(network, known[0], shown)
            unconditional = unconditional and seeing(unconditional, known[0], shown)

        def predicted(network: Network, x_t: Tensor, t: int) -> tuple[Tensor, Tensor | None]:
            """x_0 by one network, and the raw variance."""
            a, b = self._inversion(t)
            output, raw_variance = self._split(network(x_t, indices_for(len(x_t))[t]), x_t)
            x_0 = torch.mul(output, b)
            return x_0.add_(x_t, alpha=a) if a else x_0, raw_variance

        def mixed(x_t: Tensor, t: int) -> tuple[Tensor, Tensor | None]:
            """x_0 with and without the condition, mixed by the guidance."""
            x_0, raw_variance = predicted(network, x_t, t)
            return x_0 if guidance is None else guidance.mix(x_0, predicted(unconditional, x_t, t)[0]), raw_variance

        def estimate(x_t: Tensor, t: int) -> Estimate:
            if target is None:
                x_0, raw_variance = mixed(x_t, t)
            else:
                x_0, raw_variance = target.guided(lambda x_t: mixed(x_t, t), x_t, self.table.levels[t])
            for stage in before_clip:
                x_0 = stage(x_0)
            unclipped = x_0
            for stage in from_clip:
                x_0 = stage(x_0)
            return Estimate(x_0, raw_variance, unclipped)

        return Denoiser(estimate, self.config.variance)

    def sample(self, denoise: Denoise, noise: Tensor, random: Randomness, draw: Draw) -> Tensor:
        """Draw one sample for each row of `random`; see `progressive` for the arguments.

        Returns:
            (B, *x_shape) float32, normalised. A row does not depend on its neighbours.
        """
        return last_state(self.progressive(denoise, noise, random, draw))

    def progressive(self, denoise: Denoise, noise: Tensor, random: Randomness, draw: Draw) -> States:
        """Draw samples, and yield (x after the step, estimate of x_0 before it) at every step.

        Args:
            denoise: see `denoiser`, or a plain function.
            noise: (B, *x_shape) what sampling starts from, see `noise`.
            random: B rows, for the noise of the steps.
            draw: with a sampler; its `previous` is noised by `noise`.
        """
        timesteps = draw.sampler.timesteps(self.table)
        if draw.previous is not None:
            timesteps = timesteps[-max(1, round(draw.sampler.renoise * len(timesteps))) :]
            alpha, sigma = self.table.levels[timesteps[0]]
            noise = alpha * draw.previous + sigma * noise
        return draw.sampler.progressive(denoise, noise, self.table, random, timesteps)

    def _inversion(self, t: int) -> tuple[float, Tensor]:
        """(a, b) of x_0 = a x_t + b output; b as a tensor, see `NoiseTable.step`."""
        pair = self._inversions.get(t)
        if pair is None:
            a, b = self.objective.inversion(*self.table.levels[t])
            with torch.inference_mode(False):  # the cached tensor outlives the mode of its first caller
                pair = self._inversions[t] = a, torch.tensor(b, device="cpu")
        return pair

    def _indices_for(self, batch: int) -> tuple[Tensor, ...]:
        """(B,) int64 for every timestep; kept for the last B, since taking a view costs a fifth of a sampling step."""
        views = self._kept_indices  # read once: another thread may sample with another B meanwhile
        if not views or len(views[0]) != batch:
            views = self._kept_indices = self.indices[:, None].expand(-1, batch).unbind()
        return views

    def _split(self, output: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor | None]:
        """The prediction and the raw variance, float32."""
        expected = (*x_t.shape[:-1], x_t.shape[-1] * self.output_factor)
        if not isinstance(output, Tensor):
            raise ValueError(f"the network returned a {type(output).__name__}; expected a tensor of shape {expected}")
        if output.shape != expected:
            raise ValueError(
                f"the network returned shape {tuple(output.shape)} for x of shape {tuple(x_t.shape)}, but variance "
                f"{self.config.variance.type!r} needs {expected}; build it with output factor {self.output_factor}"
            )
        return (output.float(), None) if self.output_factor == 1 else output.float().chunk(2, -1)

    @torch.no_grad()
    def _first_estimate(
        self, network: Network, x_t: Tensor, t: Tensor, level: tuple[Tensor, Tensor], stages: list[Stage]
    ) -> Tensor:
        """The network's estimate of x_0, as samplers see it."""
        x_0 = self.objective.to_x0(x_t, self._split(network(x_t, t), x_t)[0], *level)
        for stage in stages:
            x_0 = stage(x_0)
        return x_0

    def _stages(self, bounds: Bounds | None, known: tuple[Tensor, Tensor] | None) -> tuple[list[Stage], list[Stage]]:
        """The stages that an estimate of x_0 passes before the clip, and from the clip on.

        Known values are put in before the clip too, since a clip may look at all elements of a sample.
        """
        fixed = [] if known is None else [fixed_values(*known)]
        clip = self.config.clip
        return fixed, [] if clip is None else [clip.stage(bounds), *fixed]
