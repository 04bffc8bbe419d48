"""How near the step and acting come to what the machine allows, and where the rest of the time goes.

The limit of a training step is its arithmetic in products of matrices alone, then the bytes that AdamW and the average
must move; that of acting at batch 1 is the larger of its products and of reading the weights once. All of it is done in
the same run, in turns with the work itself, so a busy machine bends both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import setting
from benchmarks.arithmetic import products
from benchmarks.kinds_of_work import shares, traffic
from benchmarks.measure import Case, Options, compare
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.networks.kernels.products import product
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
    cases = []
    for name, subject in _subjects(options).items():
        for is_training in (True, False):
            cases.append(_case(name, subject, is_training, options))
    return cases


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


def _case(name: str, subject: Subject, is_training: bool, options: Options) -> Case:
    """One network at training, or acting with one sample."""
    network = subject.network.train(is_training)
    n_weights = sum(parameter.numel() for parameter in network.parameters())
    batch_size = subject.batch_size if is_training else 1
    inputs = subject.inputs(batch_size)
    flops = batch_size * _flops(subject, is_training)
    if is_training:
        parts = _training_parts(network, inputs)
        limits = [products(flops), traffic(4 * STEP_FLOATS * n_weights)]
    else:
        parts = {"network": torch.no_grad()(lambda: network(*_acting(inputs)))}
        limits = [max((_few_products(flops), _reading(n_weights)), key=_seconds)]
    variants = {"limit": lambda: [limit() for limit in limits], "dp_prior": lambda: [part() for part in parts.values()]}
    timings = compare(variants, options.times(5 if is_training else 15))
    divided = shares(parts, options.times(3))
    lines = ", ".join(f"{kind} {share:.0%}" for kind, share in divided.items())
    about = f"{n_weights / 1e6:.1f} M weights, {flops / 1e9:.3g} GFLOP, batch {batch_size}"
    fraction = timings["limit"].median / timings["dp_prior"].median
    work = "training step" if is_training else "acting"
    return Case(f"{name}, {work}", "ms", timings, note=f"{fraction:.3f} of the limit; {about}; {lines}")


def _acting(inputs: tuple) -> tuple:
    """The inputs without the random numbers of training."""
    return tuple(value for value in inputs if not isinstance(value, Randomness))


def _flops(subject: Subject, is_training: bool) -> int:
    """Of one sample; in bfloat16, where the counter knows every product."""
    network, inputs = subject.network, subject.inputs(1)
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        output = network(*(inputs if is_training else _acting(inputs)))
        if is_training:
            output.float().square().mean().backward()
    network.zero_grad()
    return counter.get_total_flops()


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


def _reading(n_weights: int) -> Callable[[], None]:
    """The sum of as many numbers; a product with one row reads them more slowly."""
    weights = torch.randn(n_weights)
    return lambda: weights.sum()


def _few_products(flops: int) -> Callable[[], None]:
    """One product of square matrices with so much arithmetic, or several of 1,024."""
    side = round((flops / 2) ** (1 / 3))
    if side >= 1024:
        return products(flops)
    a, b = torch.randn(2, max(1, side), max(1, side)).unbind()
    return torch.no_grad()(lambda: product(a, b))


def _seconds(work: Callable[[], object]) -> float:
    """Of the fastest of a few calls."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)
