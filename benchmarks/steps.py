"""Training steps of one policy in a process of its own, whose peak memory is then that policy's.

    python -m benchmarks.steps ours --precision bf16 --compile reduce-overhead --device cuda

prints one line of JSON: milliseconds of each step, the kernels that a step asks for (on a CPU the operators of torch),
the peak memory in MB, and the choice of "auto". `--compile auto` is the default of `train.compile` where much training
is left, and that of an agent; on a CPU it is rehearsed with a backend that compiles nothing. `acting` draws a chunk in
ten steps of DDIM for every row.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import click
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import bounded, memory

Step = Callable[[], Any]
Choice = Callable[[], str]
"""Describes what "auto" has chosen; an empty string for another mode."""

RECIPES = {"image": "pusht_image_paper", "fast": "pusht_image_gpu", "state": "pusht_state_paper"}


def ours(kind: str, widths: tuple[int, ...], batch_size: int, precision: str, compile_mode: str) -> tuple[Step, Choice]:
    """Our trainer's whole step of a recipe: metrics and moving average included."""
    from benchmarks import image_policy

    settings = (f"train.precision={precision}", f"train.compile={compile_mode}", f"data.global_batch_size={batch_size}")
    spec = image_policy.STATE_SPEC if kind == "state" else image_policy.SPEC
    trainer = image_policy.trainer(image_policy.record(widths, settings, RECIPES[kind]), spec)
    batch = image_policy.batch(batch_size, trainer.device, spec)
    choice = ""
    if compile_mode == "auto":
        from dp_prior.run import compile_choice

        if trainer.device.type == "cpu":
            _rehearse_the_compiler(compile_choice)
        compile_choice.WORTH_S = 0.0  # as if much training were left
        trainer.loader.global_batch = lambda samples_seen: [batch]
        choice = compile_choice.choose(trainer)
    return lambda: trainer.step([batch]), lambda: choice


def _rehearse_the_compiler(module: ModuleType) -> None:
    """Trace and run torch's own kernels instead of compiling, and let the module measure them as faster: its clock
    counts, and slows down."""
    compile_function, readings = torch.compile, itertools.count(1)
    torch.compile = lambda function, options, dynamic: compile_function(function, backend="aot_eager")
    module.now = lambda device: math.log(next(readings))


def acting(
    kind: str, widths: tuple[int, ...], batch_size: int, precision: str, compile_mode: str, device: str
) -> tuple[Step, Choice]:
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
            _rehearse_the_compiler(compiled_network)
    agent = plans.Plans(policy, sampler=sampler)

    def choice() -> str:
        """Of the policy's region, which compiles in the first step."""
        return "" if policy.region is None else policy.region.reason or "compiled"

    return lambda: agent.draw(batch.cond, batch.ids, 0, None, 0, None), choice


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


def _kernels(step: Step, device: str) -> int | None:
    """Kernels that a step asks the GPU for, those inside of CUDA graphs included; on a CPU operators of torch. None
    where the profiler fails."""
    from torch.profiler import ProfilerActivity, profile

    is_gpu = device == "cuda"
    try:
        with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * is_gpu]) as profiler:
            step()
            if is_gpu:
                torch.cuda.synchronize()
    except RuntimeError as error:  # the times are measured already
        print(f"the kernels could not be counted: {error}", file=sys.stderr)
        return None
    return _asked_of(torch.autograd.DeviceType.CUDA if is_gpu else torch.autograd.DeviceType.CPU, profiler.events())


def _asked_of(device_type: Any, events: Iterable[Any]) -> int:
    """Count the kernels, or on a CPU the operators, among profiled events. Types of devices are equal, not the same
    object; a GPU also has events for ranges of the program, such as a step of the optimizer."""
    asked = [event for event in events if event.device_type == device_type]
    if device_type == torch.autograd.DeviceType.CPU:
        return sum(event.name.startswith("aten::") for event in asked)
    return sum(not getattr(event, "is_user_annotation", False) for event in asked)


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
    from dp_prior.job.launcher import end_with_parent

    os.environ["ACCELERATE_USE_CPU"] = str(device == "cpu").lower()
    channels, choice = tuple(map(int, widths.split(","))), lambda: ""
    arguments = (channels, batch_size, precision, compile_mode)
    with end_with_parent(lambda: None, 0.0, os.getppid()):
        if variant == "ours":
            step, choice = ours(kind, *arguments)
        elif variant == "acting":
            step, choice = acting(kind, *arguments, device)
        elif variant == "products":
            step = products(kind, channels, batch_size, precision, device)
        else:
            step = {"lerobot": lerobot, "stanford": stanford}[variant](*arguments, device)
        result = _timed(step, device, steps, warm_up) | {"choice": choice(), "kernels": _kernels(step, device)}
        print(json.dumps(result), flush=True)


def _timed(step: Step, device: str, steps: int, warm_up: int) -> dict[str, Any]:
    """Milliseconds of each step after the first ones, and the peak memory."""
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
    return {"ms": times, "peak_mb": peak / 1e6, "warm_up_s": first_s}


def measure(arguments: Sequence[str], timeout_s: float = 600.0) -> dict[str, Any]:
    """Measure in a separate process, and read its result.

    Raises:
        RuntimeError: the process failed or printed no result; with the last lines of its output.
        subprocess.TimeoutExpired: it was stopped, with all that it started.
    """
    command = [sys.executable, "-m", "benchmarks.steps", *arguments]
    done = bounded.run(command, timeout_s)
    results = [line for line in done.stdout.splitlines() if line.startswith('{"ms"')]  # libraries print lines too
    if done.returncode or not results:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(results[-1])


if __name__ == "__main__":
    main()
