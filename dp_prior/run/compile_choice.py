"""`train.compile` "auto" on a GPU: a step is compiled where enough training is left, if it then computes the same in
less time. Each reason against it is one line; training goes on with plain steps, and no setting is to blame."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from dp_prior.tensors.batch import Batch
from dp_prior.tensors.compilation import Mode, compiled, fault_line, now
from dp_prior.tensors.randomness import Randomness, derive_seed, seed_torch
from dp_prior.training.trainer import PolicyTrainer

T = TypeVar("T")
Variant = tuple[Batch, bool]

WORTH_S = 600.0
"""Seconds of plain steps from which compiling pays: the compiler takes a minute or two and saves a third of a step."""

REPEATS = 3
"""Of each measured step: kernels are selected in the first, and a CUDA graph is recorded in the second."""

BOUNDS = {"fp32": (1e-3, 2e-2), "bf16": (2e-2, 0.1), "fp16": (2e-2, 0.1)}
"""Largest relative differences of the loss, and of all gradients together, by `train.precision`."""

MOST_MEMORY = 1 / 3
"""Share of the GPU that plain steps may have reserved where CUDA graphs, with memory of their own, are recorded."""

log = logging.getLogger(__name__)


class MeasuredGradient(NamedTuple):
    """The loss, the gradients by name, on the host, and the seconds of one micro-batch."""

    loss: float
    gradients: dict[str, Tensor]
    seconds: float


def choose(trainer: PolicyTrainer) -> str:
    """Compile the trainer's step if that pays, and describe the choice in one line. A collective."""
    progress, ranks = trainer.progress, trainer.ranks
    if trainer.config.shard == "model" and ranks.num_processes > 1:
        return "off, as the ranks divide the model"
    micro_batches = trainer.loader.global_batch(progress.samples_seen)
    steps_left = max(0, trainer.total_samples - progress.samples_seen) / trainer.loader.global_batch_size
    if not steps_left:
        return "off, nothing is left to train"
    variants = _variants(trainer, micro_batches)
    plain_s, reason = _on_all_ranks(trainer, lambda: _measured(trainer, trainer.online.forward, variants[0]).seconds)
    seconds = ranks.exchange((plain_s or 0.0) * len(micro_batches))[:, 0].max().item()
    if not reason and steps_left * seconds < WORTH_S:
        return f"off, about {steps_left * seconds:.3g} s of training are left and compiling takes a minute or more"
    mode = _mode(trainer, micro_batches)
    if not reason:
        faster, reason = _on_all_ranks(trainer, lambda: _compiled(trainer, variants, mode))
    if reason:
        if ranks.is_main_process:
            log.warning("train.compile: steps are not compiled, %s", reason)
        return f"off, {reason}"
    trainer.loss_module.loss_of, saved = faster
    return f"{mode}, {saved}"


def _variants(trainer: PolicyTrainer, micro_batches: list[Batch]) -> list[Variant]:
    """A micro-batch of every size, with and without the network's own estimate where steps have both."""
    sizes = {len(batch): batch for batch in micro_batches}
    step_size = trainer.loader.global_batch_size
    conditions = {trainer.process.self_conditions(trainer.seed, step_size * step) for step in range(100)}
    return [*product(sizes.values(), sorted(conditions))]


def _mode(trainer: PolicyTrainer, micro_batches: list[Batch]) -> Mode:
    """CUDA graphs for one rank and one micro-batch, where the GPU has memory for them."""
    device, has_room = trainer.device, True
    if device.type == "cuda":
        has_room = torch.cuda.max_memory_reserved(device) < MOST_MEMORY * torch.cuda.mem_get_info(device)[1]
    is_alone = trainer.ranks.num_processes == len(micro_batches) == 1
    return "reduce-overhead" if is_alone and has_room else "default"


def _compiled(trainer: PolicyTrainer, variants: list[Variant], mode: Mode) -> tuple[Callable[..., Any], str]:
    """The compiled loss of micro-batches, and by how much it is faster.

    Raises:
        ValueError: it computes something else, or is no faster.
        ConfigError: there is no compiler or it fails.
    """
    begun, plain_loss = time.perf_counter(), trainer.online.forward
    fast = compiled(plain_loss, mode, "train.compile", dynamic=False)
    for variant in variants:
        expected, trial = (_measured(trainer, loss_of, variant) for loss_of in (plain_loss, fast))
        _check(trial, expected, *BOUNDS[trainer.config.precision])
        for measured in (expected, trial):
            measured.gradients.clear()  # a large model has no room for those of the next variant

    def call(*arguments: Any) -> Any:
        with torch.compiler.set_stance("eager_on_recompile"):  # another shape is computed without the compiler
            return fast(*arguments)

    steps = f"{1e3 * trial.seconds:.3g} ms in place of {1e3 * expected.seconds:.3g}"
    return call, f"a micro-batch takes {steps}, after {time.perf_counter() - begun:.0f} s"


def _check(trial: MeasuredGradient, expected: MeasuredGradient, loss_bound: float, gradient_bound: float) -> None:
    """Raises ValueError if a compiled trial differs from a plain one, or takes no less time."""
    error = abs(trial.loss - expected.loss)
    if not error <= loss_bound * abs(expected.loss):  # so for NaN, too
        losses = f"{trial.loss:.6g} compiled and {expected.loss:.6g} plain"
        raise ValueError(f"the first loss is {losses}; expected a relative difference of at most {loss_bound:g}")
    if changed := trial.gradients.keys() ^ expected.gradients.keys():
        raise ValueError(f"only the plain or the compiled code has a gradient of {', '.join(sorted(changed))}")
    norm = nn.utils.get_total_norm(list(expected.gradients.values())).item()
    lengths = [(trial.gradients[name] - value).norm().item() for name, value in expected.gradients.items()]
    if not math.hypot(*lengths) <= gradient_bound * norm:
        share = f"{math.hypot(*lengths) / (norm or 1):.2g} of its norm; expected at most {gradient_bound:g}"
        raise ValueError(f"the first gradient differs from the plain one by {share}")
    if trial.seconds >= expected.seconds:
        raise ValueError(f"a compiled micro-batch takes {trial.seconds:.2g} s and a plain one {expected.seconds:.2g}")


def _measured(trainer: PolicyTrainer, loss_of: Callable[..., Any], variant: Variant) -> MeasuredGradient:
    """The last of several losses and gradients of one micro-batch; the trainer and its model stay as they are.

    Raises:
        ValueError: a stop was requested.
    """
    model, loss_module, (batch, condition) = trainer.online, trainer.loss_module, variant
    restore, plain_loss = _restoring(model), loss_module.loss_of
    loss_module.loss_of = loss_of
    try:
        with torch.random.fork_rng([trainer.device] if trainer.device.type == "cuda" else []):
            for _ in range(REPEATS):
                if trainer.stop.is_asked():
                    raise ValueError("a stop was requested")
                trainer.optimizer.zero_grad()
                restore()
                model.train()
                seed_torch(derive_seed(trainer.seed, "torch", trainer.ranks.process_index, 0), trainer.device)
                begun = now(trainer.device)
                random = Randomness.from_counts(trainer.seed, "training", batch.positions)
                total = loss_module(batch, random, condition).total
                total.backward()
                seconds = now(trainer.device) - begun
        parameters = [(name, value.grad) for name, value in model.named_parameters() if value.grad is not None]
        return MeasuredGradient(total.item(), {name: gradient.float().cpu() for name, gradient in parameters}, seconds)
    finally:
        restore()
        loss_module.loss_of = plain_loss
        trainer.optimizer.zero_grad()


def _restoring(model: nn.Module) -> Callable[[], None]:
    """A function that undoes what a module changes in a forward pass: tensors, such as statistics of batches, the
    training mode, counters and new buffers."""
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    tables = [table for module in model.modules() for table in (vars(module), module._buffers)]
    contents = [dict(table) for table in tables]

    @torch.no_grad()
    def restore() -> None:
        for table, content in zip(tables, contents, strict=True):
            for name in table.keys() - content.keys():
                del table[name]
            table.update(content)
        for tensor, value in tensors:
            tensor.copy_(value)

    return restore


def _on_all_ranks(trainer: PolicyTrainer, work: Callable[[], T]) -> tuple[T | None, str]:
    """The result of work, and why a rank has failed in it: empty if none has. A collective."""
    result, reason = None, ""
    try:
        result = work()
    except Exception as error:  # of the compiler, the driver or a module: the reason is told, and nothing depends on it
        reason = fault_line(error)
        if trainer.device.type == "cuda":
            torch.compiler.reset()
            torch.cuda.empty_cache()
    trainer.ranks.meet()
    return result, next(filter(None, trainer.ranks.tell_all(reason)), "")
