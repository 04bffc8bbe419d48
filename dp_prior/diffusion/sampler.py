"""Samplers: from noise to x_0, given a denoiser `denoise(x_t, t) -> x_0` and the noise table it was trained on.

Samplers do not know what the network predicts. Every step is linear in x_t, the estimates of x_0 and fresh noise; its
coefficients are Python floats from the table.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config, family
from dp_prior.diffusion.denoiser import Denoise, Denoiser
from dp_prior.diffusion.spacing import Spacing, spaced_timesteps
from dp_prior.diffusion.table import NoiseTable
from dp_prior.tensors.compilation import Compile
from dp_prior.tensors.randomness import Randomness

Path = list[tuple[int, int]]
States = Iterator[tuple[Tensor, Tensor]]


def step_noise(random: Randomness, shape: tuple[int, ...], count: int) -> Iterator[Tensor]:
    """`count` draws (B, *shape) of standard normal noise; short rows are drawn for several steps at once."""
    together = max(1, 4096 // math.prod(shape))
    for start in range(0, count, together):
        block = random.stream("step", start).normal(min(together, count - start), *shape)
        yield from block.unbind(1)


def last_state(states: States) -> Tensor:
    """The x after the last step."""
    for x_t, _ in states:  # noqa: B007
        pass
    return x_t


class Sampler(Config):
    """A sampler. A subclass has a `type` and `walk`, the way from timestep to timestep."""

    steps: int | None = Field(default=None, ge=1)
    """Number of sampling steps; null visits every timestep trained, or as many as `spacing` says."""

    spacing: Spacing = "trailing"
    """Which timesteps are visited, beginning with the noisiest. `trailing`: equal strides down from the last.
    `linspace`: the last to the first. `leading`: equal strides up from the first. `ddim`: the same, for a stride that
    gives exactly this many steps. `quadratic`: dense at the clean end. `karras`: even in sigma^(1/7). A list of counts,
    clean end first: that many from each of as many equal sections. `diffusers`: as leading, but begins below the
    noisiest, for the same actions as a policy of another library."""

    renoise: float = Field(default=0.5, gt=0, le=1)
    """Share of the steps that is redone, on a noised copy, where a previous sample is given to start from."""

    compile: Compile = "auto"
    """How torch compiles an evaluation of the network while sampling: off, or a mode of `torch.compile`. auto: for
    agents, servers and long rollouts on a GPU, if the first observation then has the same chunk up to 1e-5 in less
    time; off otherwise."""

    def faults(self) -> Iterator[str]:
        if isinstance(self.spacing, tuple) and self.steps not in (None, sum(self.spacing)):
            yield (
                f"steps is {self.steps}, but the sections of spacing add up to {sum(self.spacing)}; "
                f"make them agree, or name a spacing such as 'trailing'"
            )

    def timesteps(self, table: NoiseTable) -> tuple[int, ...]:
        """The timesteps to visit, noisiest first.

        Raises:
            ValueError: the table does not have as many, or they cannot be spaced like this.
        """
        return spaced_timesteps(table, self.steps, self.spacing)

    def __call__(self, denoise: Denoise, noise: Tensor, table: NoiseTable, random: Randomness) -> Tensor:
        """Draw x_0, (B, ...); see `progressive` for the arguments."""
        return last_state(self.progressive(denoise, noise, table, random))

    def progressive(
        self,
        denoise: Denoise,
        noise: Tensor,
        table: NoiseTable,
        random: Randomness,
        timesteps: Sequence[int] | None = None,
    ) -> States:
        """Draw x_0, and yield (x after the step, estimate of x_0 before it) at every step.

        Args:
            denoise: (x_t (B, ...), t) -> estimate of x_0 (B, ...); a plain function or a `Denoiser`.
            noise: (B, ...) x at the first timestep; standard normal where that is the noisiest.
            table: levels of all timesteps trained.
            random: B rows, for samplers that add noise on the way.
            timesteps: those to visit instead of the sampler's own, noisiest first.
        """
        path = list(pairwise([*(timesteps or self.timesteps(table)), -1]))
        return self.walk(Denoiser.of(denoise), noise, table, path, random)

    @abstractmethod
    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        """Yield (x after the step, estimate of x_0 before it) for every step along `path`.

        Args:
            denoise: (x_t (B, ...), t) -> estimate of x_0 (B, ...).
            x_t: (B, ...) at the first timestep of `path`; not to be modified.
            path: (t, s) of each step, from timestep t to the less noisy s; the last s is -1, the sample.
            random: B rows; `step_noise` draws the fresh noise of all steps.
        """


class DDIM(Sampler):
    """Denoising diffusion implicit models (Song et al. 2021)."""

    type: Literal["ddim"] = "ddim"

    steps: int | None = Field(default=16, ge=1)
    """Number of sampling steps; null visits every timestep trained, or as many as `spacing` says."""

    eta: float = Field(default=0.0, ge=0, le=1)
    """Share of fresh noise: 0 is deterministic given the starting noise, 1 is DDPM on the visited timesteps."""

    use_clipped_model_output: bool = True
    """Recompute eps from the clipped x_0 at every step; false keeps the eps of the network's own output, which is the
    default of diffusers. Without a clip both are the same."""

    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        noise = step_noise(random, x_t.shape[1:], len(path))
        for t, s in path:
            x_t, x_0, std = self._step(denoise, x_t, table, t, s, self.eta)
            if std:
                x_t.add_(next(noise), alpha=std)
            yield x_t, x_0

    def encode(self, denoise: Denoise, x_0: Tensor, table: NoiseTable) -> Tensor:
        """The noise from which the deterministic sampler (eta 0) draws `x_0`, the more exactly the more steps it takes.

        Walks the probability-flow ODE upwards; as in IDDPM, the clean x_0 stands in for x at the first timestep.

        Args:
            x_0: (B, ...) normalised samples.

        Returns:
            (B, ...) x at the noisiest timestep.
        """
        x_t, denoise = x_0, Denoiser.of(denoise)
        for t, s in pairwise(reversed(self.timesteps(table))):
            x_t, _, _ = self._step(denoise, x_t, table, t, s, 0.0)
        return x_t

    def lead(self, denoise: Denoise, x_t: Tensor, t: Tensor, table: NoiseTable) -> Tensor:
        """Where the deterministic sampler (eta 0) leads rows that start at different timesteps.

        Args:
            x_t: (B, ...), each row at its own timestep.
            t: (B,) int64, each one that the sampler visits.

        Returns:
            (B, ...) samples.
        """
        denoise = Denoiser.of(denoise)
        for here, s in pairwise([*self.timesteps(table), -1]):
            x_s, _, _ = self._step(denoise, x_t, table, here, s, 0.0)
            x_t = torch.where((t >= here).view(-1, *[1] * (x_t.dim() - 1)), x_s, x_t)
        return x_t

    def _step(
        self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, t: int, s: int, eta: float
    ) -> tuple[Tensor, Tensor, float]:
        """(x_s without its fresh noise, estimate of x_0, std of the noise) of `NoiseTable.step`, with
        eps = (x_t - alpha_t x_0) / sigma_t from the clipped or the unclipped x_0."""
        x_0, _, unclipped = denoise.estimate(x_t, t)
        x_s, std = table.step(x_t, x_0, t, s, eta)
        if not self.use_clipped_model_output and unclipped is not x_0:
            x_s.add_(x_0 - unclipped, alpha=table.transition(t, s, eta)[0] * table.levels[t][0])
        return x_s, x_0, std


class DDPM(Sampler):
    """Ancestral sampling (Ho et al. 2020) with the variance the model was trained with.

    On fewer steps it samples the shortened chain, variances included, as IDDPM's respacing does.
    """

    type: Literal["ddpm"] = "ddpm"

    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        noise = step_noise(random, x_t.shape[1:], len(path))
        for t, s in path:
            x_0, raw, _ = denoise.estimate(x_t, t)
            x_t, _ = table.step(x_t, x_0, t, s, 1.0)
            if s != -1:
                log_std = denoise.variance.log_std(raw, *table.log_stds(t, s))
                if isinstance(log_std, float):
                    x_t.add_(next(noise), alpha=math.exp(log_std))
                else:
                    x_t.addcmul_(next(noise), log_std.exp())
            yield x_t, x_0


class Euler(Sampler):
    """Euler's method for the probability-flow ODE along the straight path x_0 to eps; the same as DDIM with eta 0.

    Divided by alpha + sigma, every table is a flow table, on which dx / dsigma = eps - x_0.
    """

    type: Literal["euler"] = "euler"

    steps: int | None = Field(default=16, ge=1)
    """Number of sampling steps; null visits every timestep trained, or as many as `spacing` says."""

    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        return DDIM(eta=0.0).walk(denoise, x_t, table, path, random)


class Heun(Sampler):
    """Heun's method of second order for the same ODE (Karras et al. 2022, algorithm 1); all but the last step take two
    network evaluations."""

    type: Literal["heun"] = "heun"

    steps: int | None = Field(default=8, ge=1)
    """Number of sampling steps; null visits every timestep trained, or as many as `spacing` says."""

    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        for t, s in path:
            x_0 = denoise(x_t, t)
            x_s, _ = table.step(x_t, x_0, t, s, 0.0)
            if s != -1:
                (alpha_t, sigma_t), (alpha_s, sigma_s) = table.levels[t], table.levels[s]
                norm_t, norm_s = alpha_t + sigma_t, alpha_s + sigma_s
                stride = sigma_s / norm_s - sigma_t / norm_t
                velocity = (x_s - norm_s * denoise(x_s, s)) / sigma_s
                x_s = (x_s + norm_s * (x_t / norm_t + stride * velocity)) / 2
            x_t = x_s
            yield x_t, x_0


class DPMSolver(Sampler):
    """DPM-Solver++ (2M) of second order, one network evaluation a step (Lu et al. 2022, arXiv:2211.01095).

    A DDIM or DDPM step whose x_0 is extrapolated in log(alpha / sigma) from the last two estimates; the first and the
    last step are of first order.
    """

    type: Literal["dpm_solver"] = "dpm_solver"

    steps: int | None = Field(default=10, ge=1)
    """Number of sampling steps; null visits every timestep trained, or as many as `spacing` says."""

    stochastic: bool = False
    """Solve the reverse SDE, with fresh noise at every step (SDE-DPM-Solver++), rather than the ODE."""

    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        noise = step_noise(random, x_t.shape[1:], len(path))
        before = None  # the previous timestep and its estimate
        for t, s in path:
            x_0 = denoise(x_t, t)
            middle = x_0
            if before is not None and s != -1:
                r, x_0_r = before
                lambda_r, lambda_t, lambda_s = (table.half_log_snr[i] for i in (r, t, s))
                middle = torch.lerp(x_0_r, x_0, 1 + (lambda_s - lambda_t) / (lambda_t - lambda_r) / 2)
            x_t, std = table.step(x_t, middle, t, s, float(self.stochastic))
            if std:
                x_t.add_(next(noise), alpha=std)
            before = t, x_0
            yield x_t, x_0


class UniPC(Sampler):
    """Unified predictor-corrector with varying coefficients, one network evaluation a step (Zhao et al. 2023,
    arXiv:2302.04867).

    The estimate of x_0 at a predicted point also corrects that point, which raises the order by one.
    """

    type: Literal["unipc"] = "unipc"

    steps: int | None = Field(default=10, ge=1)
    """Number of sampling steps; null visits every timestep trained, or as many as `spacing` says."""

    order: int = Field(default=2, ge=1, le=3)
    """Number of estimates of x_0 that predict the next point; with 1 and no corrector it would be DDIM."""

    def walk(self, denoise: Denoiser, x_t: Tensor, table: NoiseTable, path: Path, random: Randomness) -> States:
        estimates: dict[int, Tensor] = {}  # by timestep, oldest first

        def step(x_t: Tensor, t: int, s: int) -> Tensor:
            c_x, *weights = table.multistep(t, s, tuple(estimates))
            x_s = torch.mul(x_t, c_x)
            for weight, x_0 in zip(weights, estimates.values(), strict=True):
                x_s.add_(x_0, alpha=weight)
            return x_s

        before = None  # the previous timestep and its corrected point
        for t, s in path:
            x_0 = estimates[t] = denoise(x_t, t)
            if before is not None:
                r, x_r = before
                x_t = step(x_r, r, t)
            before = t, x_t
            while len(estimates) > (1 if s == -1 else self.order):
                del estimates[next(iter(estimates))]
            x_t = step(x_t, t, s)
            yield x_t, x_0


SamplerConfig = family(
    "samplers",
    *(DDPM, DDIM, DPMSolver, UniPC, Euler, Heun),
    needs=("steps", "renoise", "compile", "timesteps", "progressive", "walk"),
)
