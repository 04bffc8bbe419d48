"""`python -m benchmarks.samplers`: how far samplers are from the truth, by network evaluations, and what a step costs.

The truth is a mixture of two Gaussians, whose denoiser is known exactly; so this is the error of the sampler alone.
"""

from __future__ import annotations

import time

import click
import torch
from torch import Tensor

from dp_prior.diffusion.process import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, DDPM, DPMSolver, Heun, UniPC
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.diffusion.table import NoiseTable
from dp_prior.randomness import Randomness

EVALUATIONS = (4, 8, 16, 32, 100)
SAMPLERS = {
    "ddpm": DDPM(),
    "ddim": DDIM(),
    "heun": Heun(),
    "dpm_solver": DPMSolver(),
    "dpm_solver stochastic": DPMSolver(stochastic=True),
    "unipc": UniPC(),
    "unipc order 3": UniPC(order=3),
}
SPACINGS = ("trailing", "linspace", "quadratic", "karras")
MEANS, STDS, SHARES = torch.tensor([-0.7, 0.6]), torch.tensor([0.2, 0.3]), torch.tensor([0.3, 0.7])
COUNT = 4096


def denoiser(table: NoiseTable):
    """E[x_0 | x_t] of the mixture."""

    def denoise(x_t: Tensor, t: int) -> Tensor:
        alpha, sigma = table.levels[t]
        variances = alpha**2 * STDS**2 + sigma**2
        offset = x_t[..., None] - alpha * MEANS
        share = torch.softmax(SHARES.log() - offset**2 / variances / 2 - variances.log() / 2, -1)
        return (share * (MEANS + alpha * STDS**2 / variances * offset)).sum(-1)

    return denoise


def quantiles() -> Tensor:
    """(COUNT,) of the mixture, by bisection."""
    wanted = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT
    low, high = torch.full_like(wanted, -4.0), torch.full_like(wanted, 4.0)
    for _ in range(60):
        middle = (low + high) / 2
        is_below = (SHARES * torch.special.ndtr((middle[:, None] - MEANS) / STDS)).sum(-1) < wanted
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return low


def distance(sampler, table: NoiseTable, truth: Tensor) -> float:
    """Wasserstein-1 distance of samples to the mixture, started from the quantiles of the noise."""
    random = Randomness.from_counts(0, "benchmark", torch.arange(COUNT))
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    noise = torch.special.ndtri((order + 0.5) / COUNT)[:, None]
    x_0 = sampler(denoiser(table), noise, table, random).flatten().sort().values
    return (x_0 - truth).abs().mean().item()


def microseconds(sampler) -> float:
    """Of one step beside a network that costs nothing: the slope between 20 and 100 steps, batch 1, best of 200."""
    process, answer = DiffusionConfig().create(), torch.randn(1, 16, 2)
    random = Randomness.from_counts(0, "benchmark", torch.arange(1))

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        process.sample(lambda x_t, t: answer, (16, 2), random, sampler.model_copy(update={"steps": steps}))
        return time.perf_counter() - start

    with torch.inference_mode():
        return (min(seconds(100) for _ in range(200)) - min(seconds(20) for _ in range(200))) / 80 * 1e6


@click.command(help=__doc__)
def main() -> None:
    torch.set_num_threads(1)
    truth = quantiles()
    for schedule in (Cosine(), Flow()):
        click.echo(f"\n{schedule.type}, {schedule.steps} timesteps: Wasserstein-1 distance by network evaluations\n")
        click.echo("| sampler | spacing | " + " | ".join(map(str, EVALUATIONS)) + " |")
        click.echo("|---|---|" + "---|" * len(EVALUATIONS))
        for name, sampler in SAMPLERS.items():
            for spacing in SPACINGS:
                found = []
                for evaluations in EVALUATIONS:
                    steps = (evaluations + 1) // 2 if isinstance(sampler, Heun) else evaluations
                    exact = sampler.model_copy(update={"steps": steps, "spacing": spacing})
                    found.append(f"{distance(exact, schedule.table(), truth):.4f}")
                click.echo(f"| {name} | {spacing} | " + " | ".join(found) + " |")
    click.echo("\n| sampler | microseconds a step beside the network |\n|---|---|")
    for name, sampler in SAMPLERS.items():
        click.echo(f"| {name} | {microseconds(sampler):.1f} |")


if __name__ == "__main__":
    main()
