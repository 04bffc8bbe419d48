"""Training steps of one policy in a process of its own, whose peak memory is then that policy's.

    python -m benchmarks.steps ours --precision bf16 --compile reduce-overhead --device cuda

prints one line of JSON: milliseconds of each step, the kernels that a step asks for (on a CPU the operators of torch)
and the peak memory in MB. `--compile auto` is the default of `train.compile` where much training is left, and that of
an agent; on a CPU it is rehearsed with a backend that compiles nothing. `acting` draws a chunk in ten steps of DDIM for
every row.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import memory

Step = Callable[[], Any]

RECIPES = {"image": "pusht_image_paper", "fast": "pusht_image_gpu", "state": "pusht_state_paper"}


def ours(kind: str, widths: tuple[int, ...], batch_size: int, precision: str, compile_mode: str) -> Step:
    """Our trainer's whole step of a recipe: metrics and moving average included."""
    from benchmarks import image_policy

    settings = (f"train.precision={precision}", f"train.compile={compile_mode}", f"data.global_batch_size={batch_size}")
    spec = image_policy.STATE_SPEC if kind == "state" else image_policy.SPEC
    trainer = image_policy.trainer(image_policy.record(widths, settings, RECIPES[kind]), spec)
    batch = image_policy.batch(batch_size, trainer.device, spec)
    if compile_mode == "auto":
        from dp_prior.run.compile_choice import choose

        if trainer.device.type == "cpu":
            _rehearse_the_compiler()
        trainer.loader.global_batch = lambda samples_seen: [batch]
        print(f"train.compile auto: {choose(trainer)}", file=sys.stderr)
    return lambda: trainer.step([batch])


def _rehearse_the_compiler() -> None:
    """Trace and run torch's own kernels instead of compiling."""
    compile_function = torch.compile
    torch.compile = lambda function, options, dynamic: compile_function(function, backend="aot_eager")


def acting(kind: str, widths: tuple[int, ...], batch_size: int, precision: str, compile_mode: str, device: str) -> Step:
    """A chunk for every row of a batch, drawn in ten steps of DDIM as an agent draws it."""
    from benchmarks import image_policy
    from dp_prior.diffusion.sampler import DDIM
    from dp_prior.inference import plans
    from dp_prior_robot import compiled_network

    spec = image_policy.STATE_SPEC if kind == "state" else image_policy.SPEC
    policy = image_policy.policy(image_policy.record(widths, (), RECIPES[kind]), spec).eval().to(device)
    if precision == "bf16":
        policy.cast_weights(torch.bfloat16)
    batch, sampler = image_policy.batch(batch_size, device, spec), DDIM(steps=10, compile=compile_mode)
    if compile_mode == "auto":
        compiled_network.WORTH_EVALUATIONS = 0
        logging.basicConfig(level=logging.INFO, format="%(message)s")  # on stderr
        if device == "cpu":
            plans.COMPILED = {"cpu"}
            _rehearse_the_compiler()
    agent = plans.Plans(policy, sampler=sampler)
    return lambda: agent.draw(batch.cond, batch.ids, 0, None, 0, None)


def lerobot(widths: tuple[int, ...], batch_size: int, precision: str, compile_mode: str, device: str) -> Step:
    """LeRobot's policy with its optimizer and clipping; it is given normalised float pixels, and has no average."""
    from benchmarks import image_policy, peers

    policy = peers.lerobot_policy(widths).to(device).train()
    batch = image_policy.batch(batch_size, device)
    inputs = {
        "observation.state": batch.cond["agent_pos"],
        "observation.image": image_policy.pixels(batch),
        "action": batch.x,
        "action_is_pad": ~batch.mask,
    }
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
    loss = _as_compiled(lambda: policy(inputs)[0], compile_mode)
    return _plain_step(loss, policy, optimizer, precision, device, max_norm=10.0)


def stanford(widths: tuple[int, ...], batch_size: int, precision: str, compile_mode: str, device: str) -> Step:
    """Stanford's policy with its optimizer and moving average; it is given normalised float pixels."""
    from benchmarks import image_policy, peers

    policy = peers.stanford_policy(widths).to(device).train()
    from diffusion_policy.model.common.normalizer import SingleFieldLinearNormalizer
    from diffusion_policy.model.diffusion.ema_model import EMAModel

    for key in ("action", "agent_pos", "image"):
        policy.normalizer[key] = SingleFieldLinearNormalizer.create_identity()
    policy.normalizer.to(device)
    batch = image_policy.batch(batch_size, device)
    inputs = {
        "obs": {"image": image_policy.pixels(batch), "agent_pos": batch.cond["agent_pos"]},
        "action": batch.x,
    }
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
    average = EMAModel(copy.deepcopy(policy), power=0.75, max_value=0.9999)
    after = lambda: average.step(policy)  # noqa: E731
    loss = _as_compiled(lambda: policy.compute_loss(inputs), compile_mode)
    return _plain_step(loss, policy, optimizer, precision, device, after=after)


def _as_compiled(loss: Callable[[], torch.Tensor], mode: str) -> Callable[[], torch.Tensor]:
    """The loss of other code by torch's compiler, as its users would call it."""
    return loss if mode == "off" else torch.compile(loss, mode=mode)


def _kernels(step: Step, device: str) -> int:
    """Kernels that a step asks the GPU for, those inside of CUDA graphs included; on a CPU operators of torch."""
    from torch.profiler import ProfilerActivity, profile

    is_gpu = device == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * is_gpu]) as profiler:
        step()
        if is_gpu:
            torch.cuda.synchronize()
    if is_gpu:
        return sum(event.device_type is torch.autograd.DeviceType.CUDA for event in profiler.events())
    return sum(event.name.startswith("aten::") for event in profiler.events())


def _plain_step(
    loss: Callable[[], torch.Tensor],
    policy: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    precision: str,
    device: str,
    max_norm: float | None = None,
    after: Step = lambda: None,
) -> Step:
    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        after()

    return step


def products(kind: str, widths: tuple[int, ...], batch_size: int, precision: str, device: str) -> Step:
    """As much arithmetic as our step has, in products of matrices alone."""
    from benchmarks import arithmetic, image_policy
    from dp_prior.tensors.randomness import Randomness

    spec = image_policy.STATE_SPEC if kind == "state" else image_policy.SPEC
    policy = image_policy.policy(image_policy.record(widths, (), RECIPES[kind]), spec).train()
    batch = image_policy.batch(1, spec=spec)
    random = Randomness.from_counts(0, "training", batch.positions)
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        policy(batch, random, False).total.backward()  # in bfloat16 the counter knows every product
    del policy
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return arithmetic.products(batch_size * counter.get_total_flops(), dtype, device)


@click.command(help=__doc__)
@click.argument("variant", type=click.Choice(["ours", "acting", "lerobot", "stanford", "products"]))
@click.option("--kind", type=click.Choice(list(RECIPES)), default="image")
@click.option("--widths", default="512,1024,2048")
@click.option("--batch-size", default=64)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32")
@click.option("--compile", "compile_mode", default="off")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--steps", default=5)
@click.option("--warm-up", default=1)
def main(
    variant: str,
    kind: str,
    widths: str,
    batch_size: int,
    precision: str,
    compile_mode: str,
    device: str,
    steps: int,
    warm_up: int,
) -> None:
    os.environ["ACCELERATE_USE_CPU"] = str(device == "cpu").lower()
    channels = tuple(map(int, widths.split(",")))
    if variant == "ours":
        step = ours(kind, channels, batch_size, precision, compile_mode)
    elif variant == "products":
        step = products(kind, channels, batch_size, precision, device)
    else:
        peer = {"lerobot": lerobot, "stanford": stanford}.get(variant)
        arguments = (channels, batch_size, precision, compile_mode, device)
        step = acting(kind, *arguments) if peer is None else peer(*arguments)
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    begun = time.perf_counter()
    for _ in range(warm_up):
        step()
    settle()
    first_s = time.perf_counter() - begun
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        settle()
        times.append(1e3 * (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else memory.peak()
    result = {"ms": times, "peak_mb": peak / 1e6, "warm_up_s": first_s}
    print(json.dumps(result | {"kernels": _kernels(step, device)}))


def measure(arguments: Sequence[str], timeout_s: float = 600.0) -> dict[str, Any]:
    """Measure in a separate process, and read its result.

    Raises:
        RuntimeError: the process failed; with the last lines of its output.
    """
    command = [sys.executable, "-m", "benchmarks.steps", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
