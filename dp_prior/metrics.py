"""Means over batches and ranks that equal the mean over the concatenated data.

What travels between ranks is a sum with its count, never a mean, so ragged last batches, empty ranks and values that
are zero come out right. Sums are kept in 64 bits and stay on the device until somebody asks for the result.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Protocol

import torch
from torch import Tensor

_METHODS = ("mean", "sum", "max", "min")
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = (*_INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BLOCK = 64  # names a message has room for before it grows; all but absurd disagreements fit and can be reported


class Ranks(Protocol):
    """What is needed of an `accelerate.Accelerator`."""

    num_processes: int
    process_index: int
    device: torch.device

    def gather(self, tensor: Tensor) -> Tensor:
        """(n, ...) on every rank -> (ranks * n, ...) on every rank, in order of rank."""


def pad_gather_reduce(
    trainer_or_accelerator: Any, x: Tensor | float | None, method: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """Reduce all elements of `x` on all ranks to one number, as NumPy would reduce their concatenation.

    A collective: every rank calls it and every rank gets the result. The parts may differ in length, be empty and
    hold zeros. Each rank reduces its own part first, so padding never travels: 32 bytes a rank, in one gather.

    Args:
        trainer_or_accelerator: an accelerator, anything that has one as `.accelerator`, or None for one process.
        x: any shape; a Python number is one float64 element and None is no element.
        method: "mean", "sum", "max" or "min".
        weight: broadcastable to `x`; only with "mean", which is then sum(weight * x) / sum(weight).

    Returns:
        () tensor on the accelerator's device. Floating dtypes are kept. Integers keep theirs under max and min; their
        sum is int64 and their mean float64. NaN propagates. Of no elements the sum is 0 and the mean NaN.

    Raises:
        ValueError: on every rank, for the max or min of no elements.
    """
    if method not in _METHODS:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(_METHODS)}")
    if weight is not None and method != "mean":
        raise ValueError(f"weight was given with method {method!r}; only the mean can be weighted")
    ranks = getattr(trainer_or_accelerator, "accelerator", trainer_or_accelerator)
    if not isinstance(x, Tensor):
        x = torch.tensor([] if x is None else [float(x)], dtype=torch.float64)
    if x.dtype not in _DTYPES:
        raise ValueError(f"x is {x.dtype}; expected a real number type")

    rows = _gather(ranks, _part(x.detach(), method, weight))  # (ranks, 4)
    filled = rows[rows[:, 1] > 0]
    sources = [_DTYPES[code] for code in filled[:, 0].tolist()] or [x.dtype]
    dtype = functools.reduce(torch.promote_types, sources)
    device = x.device if ranks is None else ranks.device
    if method == "mean":
        mean = filled[:, 2].view(torch.float64).sum() / filled[:, 3].view(torch.float64).sum()
        return mean.to(device, dtype if dtype.is_floating_point else torch.float64)

    values = filled[:, 2]
    if dtype.is_floating_point:
        is_float = torch.tensor([source.is_floating_point for source in sources])
        values = torch.where(is_float[: len(values)], values.view(torch.float64), values.to(torch.float64))
    if method == "sum":
        return values.sum().to(device, dtype if dtype.is_floating_point else torch.int64)
    if not len(values):
        raise ValueError(f"{method} of no elements: x is empty on every rank; check that the data set is not empty")
    return (values.amax() if method == "max" else values.amin()).to(device, dtype)


def _part(x: Tensor, method: str, weight: Tensor | None) -> Tensor:
    """(1, 4) int64: dtype code, element count, bits of the 64-bit partial result, bits of the sum of weights."""
    if x.device.type == "mps":  # has no float64
        x = x.cpu()
    wide = x.to(torch.float64 if x.is_floating_point() or method == "mean" else torch.int64)
    weights = torch.ones_like(wide) if weight is None else weight.detach().to(wide.device, wide.dtype).expand_as(wide)
    if not x.numel():
        value = wide.sum()
    elif method in ("max", "min"):
        value = wide.amax() if method == "max" else wide.amin()
    else:
        value = (wide if weight is None else wide * weights).sum()
    header = torch.tensor([_DTYPES.index(x.dtype), x.numel()], device=x.device)
    bits = [part.reshape(1).view(torch.int64) for part in (value, weights.double().sum())]
    return torch.cat([header, *bits])[None]


def _gather(ranks: Ranks | None, message: Tensor) -> Tensor:
    """(1, ...) on every rank -> (ranks, ...) in host memory."""
    if ranks is None or ranks.num_processes == 1:
        return message.cpu()
    return ranks.gather(message.to(ranks.device)).cpu()


class Means:
    """Sums and counts by name, added up on the device and read once per log.

    Adding never waits for the device. All ranks add the same names; a rank that has nothing to say about one adds a
    count of zero.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._counts: dict[str, Tensor | float] = {}

    def add(self, name: str, value_sum: Tensor | float, count: Tensor | float) -> None:
        """Add a sum of values and how many (or how much weight) they were.

        Args:
            value_sum: number, () or (k,) tensor. Of k values, number i is reported as `name` with i appended, so
                that `add("loss_q", *by_quartile(loss, t, steps))` gives loss_q0 to loss_q3.
            count: as `value_sum`.
        """
        for totals, value in ((self._sums, value_sum), (self._counts, count)):
            if isinstance(value, Tensor):
                value = value.detach().to(_wide(value.device), copy=True)  # an alias would follow the caller's edits
                if value.ndim > 1:
                    raise ValueError(f"{name} has shape {tuple(value.shape)}; expected () or (k,)")
                if isinstance(totals.get(name), Tensor):
                    totals[name] = totals[name].to(value.device)  # where a loaded state came from is forgotten
            totals[name] = totals[name] + value if name in totals else value

    def add_batch(self, name: str, values: Tensor, weight: Tensor | None = None) -> None:
        """Add every element of `values`; `weight`, of the same shape, counts for how many each stands."""
        values = values.detach()
        if weight is None:
            self.add(name, values.sum(dtype=_wide(values.device)), values.numel())
        else:
            self.add(name, (values * weight).sum(dtype=_wide(values.device)), weight.sum(dtype=_wide(values.device)))

    def state(self) -> dict[str, Tensor]:
        """(2,) or (2, k) sums and counts by name: what this rank has added since the last `reduce`."""
        tensors = [value for value in (*self._sums.values(), *self._counts.values()) if isinstance(value, Tensor)]
        device = tensors[0].device if tensors else torch.device("cpu")
        found = {}
        for name in sorted(self._sums):
            pair = (self._sums[name], self._counts[name])
            pair = [torch.as_tensor(part, device=device, dtype=_wide(device)) for part in pair]
            found[name] = torch.stack(torch.broadcast_tensors(*pair))
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state`."""
        self._sums = {name: pair[0].clone() for name, pair in state.items()}
        self._counts = {name: pair[1].clone() for name, pair in state.items()}

    def collect(self, accelerator: Ranks) -> None:
        """Bring what all ranks have added to the main one, so that its `state` is that of the run. A collective."""
        if accelerator.num_processes > 1:
            totals = _total(accelerator, self.state())
            is_main = accelerator.process_index == 0
            self.load({name: pair if is_main else torch.zeros_like(pair) for name, pair in totals.items()})

    def reduce(self, accelerator: Ranks | None = None) -> dict[str, float]:
        """The mean by name over all ranks, and start again. One collective, and the only wait for the device.

        Names whose count is zero on all ranks have no mean and are left out.

        Raises:
            RuntimeError: ranks hold different names.
        """
        state = self.state()
        self.load({})
        means = {}
        for name, (sums, counts) in _total(accelerator, state).items():
            keys = [f"{name}{i}" for i in range(len(sums))] if sums.ndim else [name]
            parts = zip(keys, sums.reshape(-1).tolist(), counts.reshape(-1).tolist(), strict=True)
            means |= {key: value / count for key, value, count in parts if count != 0}
        return means


def _total(ranks: Ranks | None, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The (2, ...) pairs of `state` added up over the ranks, float64 in host memory.

    The names travel as hashes beside the numbers, so that ranks which disagree find out instead of adding up apples
    and pears.
    """
    lengths = [pair.numel() for pair in state.values()]
    flat = torch.cat([pair.reshape(-1) for pair in state.values()] or [torch.zeros(0)]).cpu().double()
    message = torch.zeros(1, 2, max(1, -(-len(flat) // _BLOCK)) * _BLOCK, dtype=torch.int64)
    hashes = torch.tensor([_name_hash(name) for name in state], dtype=torch.int64)
    message[0, 0, : len(flat)] = hashes.repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    message[0, 1, : len(flat)] = flat.view(torch.int64)
    rows = _gather(ranks, message)  # (ranks, 2, room)
    if (rows[:, 0] != message[:, 0]).any():
        raise RuntimeError(_disagreement(list(state), rows[:, 0].tolist(), ranks.process_index))
    totals = rows[:, 1, : len(flat)].contiguous().view(torch.float64).sum(0).split(lengths)
    return {name: total.view_as(pair) for (name, pair), total in zip(state.items(), totals, strict=True)}


def by_quartile(values: Tensor, t: Tensor, steps: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sums and counts of `values` by quarter of the timestep range, least noisy first; for `Means.add`.

    Args:
        values: (B,).
        t: (B,) int64 in [0, steps).
        weight: (B,) how many elements each value stands for; 1 each if None.

    Returns:
        (4,) sums and (4,) counts, float64 where the device has it.
    """
    inside = (t * 4 // steps)[:, None] == torch.arange(4, device=t.device)  # (B, 4)
    counts = inside if weight is None else inside * weight[:, None]
    # where, not a product: a NaN stays in its own quarter
    sums = torch.where(inside, (values if weight is None else values * weight)[:, None], 0)
    return sums.sum(0, dtype=_wide(t.device)), counts.sum(0, dtype=_wide(t.device))


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # mps has no float64


def _name_hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1 | 1  # zero is an empty place


def _disagreement(names: list[str], hashes: list[list[int]], rank: int) -> str:
    """Which ranks differ from this one, and in what."""
    mine = {_name_hash(name): name for name in names}
    lines = ["ranks added different metrics, so there is nothing to average:"]
    for other, theirs in enumerate(hashes):
        lacking = [repr(name) for value, name in mine.items() if value not in theirs]
        more = len(set(theirs) - set(mine) - {0})
        if lacking or more:
            lacks = f"lacks {', '.join(lacking)}" if lacking else "lacks none"
            lines.append(f"  rank {other} {lacks} of those of rank {rank}, which lacks {more} of those of rank {other}")
    return "\n".join([*lines, "Add every name on every rank; a rank without data adds a count of zero."])
