"""How near the step and acting come to what the machine allows, and where the rest of the time goes.

The limit of a training step is its arithmetic in products of matrices alone, then the bytes that AdamW and the average
must move; for that of acting see `benchmarks.acting`. All of it is done in the same run, in turns with the work itself,
so a busy machine bends both; with `--threads 1` the time is that of the processor, which other processes hardly bend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import acting, setting
from benchmarks.arithmetic import products
from benchmarks.kinds_of_work import shares, traffic
from benchmarks.measure import Case, Options, compare, cpu_seconds
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.ema import EMA, PowerDecay
from dp_prior.training.optimizer import AdamWConfig, update

STEP_FLOATS = 10
"""Numbers moved for each weight: AdamW reads four and writes three, the average reads two and writes one."""


class Subject(NamedTuple):
    """A network, and a function from a number of samples to its inputs."""

    network: nn.Module
    inputs: Callable[[int], tuple]
    batch_size: int


def run(options: Options) -> list[Case]:
    return [case for measure in parts(options).values() for case in measure()]


def parts(options: Options) -> dict[str, Callable[[], list[Case]]]:
    """Each network at training, then at acting."""
    training = {f"{name}, training step": subject for name, subject in _subjects(options).items()}
    return {name: partial(_cases, name, subject, options) for name, subject in training.items()} | acting.parts(options)


def _subjects(options: Options) -> dict[str, Subject]:
    torch.manual_seed(0)
    x_shape, cond_shape = (setting.HORIZON, setting.ACTION_DIM), (setting.N_OBS_STEPS, setting.STATE_DIM)

    def samples(count: int) -> tuple[Tensor, ...]:
        return torch.randn(count, *x_shape), torch.arange(count) % 100, torch.randn(count, *cond_shape)

    def frames(count: int) -> tuple[Tensor, Randomness]:
        pictures = torch.randint(0, 256, (count, setting.N_OBS_STEPS, 96, 96, 3), dtype=torch.uint8)
        return pictures, Randomness.from_counts(0, "frames", torch.arange(count))

    unet = UNet1DConfig(down_dims=options.widths).create(x_shape, cond_shape)
    dit = DiTConfig(**({"embed_dim": 32, "n_layers": 1} if options.quick else {})).create(x_shape, cond_shape)
    encoder = ResNetEncoderConfig(**({"width": 16, "blocks": (1, 1)} if options.quick else {})).create((96, 96, 3))
    image_batch = 4 if options.quick else options.image_batch
    return {
        "UNet": Subject(unet, samples, options.batch_size),
        "DiT": Subject(dit, samples, options.batch_size),
        "encoder of images": Subject(encoder, frames, image_batch),
    }


def _cases(name: str, subject: Subject, options: Options) -> list[Case]:
    """One network at training."""
    network, batch_size = subject.network.train(), subject.batch_size
    n_weights = sum(parameter.numel() for parameter in network.parameters())
    flops = batch_size * _flops(subject)
    parts = _training_parts(network, subject.inputs(batch_size))
    limits = [products(flops), traffic(4 * STEP_FLOATS * n_weights)]
    variants = {"limit": lambda: [limit() for limit in limits], "dp_prior": lambda: [part() for part in parts.values()]}
    is_alone = torch.get_num_threads() == 1
    timings = compare(variants, options.times(5), clock=cpu_seconds if is_alone else None)
    lines = ", ".join(f"{kind} {share:.0%}" for kind, share in shares(parts, options.times(3)).items())
    about = f"{n_weights / 1e6:.1f} M weights, {flops / 1e9:.3g} GFLOP, batch {batch_size}"
    fraction = timings["limit"].median / timings["dp_prior"].median
    note = f"{fraction:.3f} of the limit; {about}; {lines}"
    return [Case(name, "CPU ms" if is_alone else "ms", timings, note=note)]


def _flops(subject: Subject) -> int:
    """Of one sample, forward and backward."""
    network, inputs = subject.network, subject.inputs(1)
    count = acting.flops(lambda: network(*inputs).float().square().mean().backward())
    network.zero_grad()
    return count


def _training_parts(network: nn.Module, inputs: tuple) -> dict[str, Callable[[], object]]:
    """Forward and backward, then the passes over all weights."""
    optimizer, average = AdamWConfig().create(network), EMA(network, PowerDecay())
    finite = torch.tensor(True)

    def forward_and_backward() -> None:
        network(*inputs).square().mean().backward()

    return {
        "forward and backward": forward_and_backward,
        "optimizer": lambda: update(optimizer, 1.0),
        "averages": lambda: average.update(1000, finite),
    }
