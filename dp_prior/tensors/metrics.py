"""Reductions over batches and ranks that equal NumPy's on the concatenated data.

Sums travel between ranks with their counts, never as means, so ragged last batches, ranks without data and values that
are zero come out right. Sums are 64-bit and stay on the device until the result is read.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}
"""Devices that have no numbers of 64 bits with a fraction; reductions then are computed on the CPU, or in 32 bits."""

_REDUCTIONS = ("mean", "sum", "max", "min")
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_REDUCED_DTYPES = (*_INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NAMES_PER_BLOCK = 64  # names in a message before it grows, so that ranks with different names still send equal lengths


class ReducingRanks(Protocol):
    """The interface to the ranks that reductions use; an `accelerate.Accelerator` implements it."""

    num_processes: int
    process_index: int
    device: torch.device

    def gather(self, tensor: Tensor) -> Tensor:
        """(n, ...) on every rank -> (ranks * n, ...) on every rank, in order of rank."""


def pad_gather_reduce(
    trainer_or_accelerator: ReducingRanks | Any | None,
    x: Tensor | float | None,
    method: str = "mean",
    weight: Tensor | None = None,
    *,
    dim: int | None = None,
    names: Sequence[str] | None = None,
) -> Tensor:
    """Reduce `x` over all ranks, as NumPy would reduce the concatenation of all parts.

    A collective: every rank calls it and every rank gets the result. The parts may differ in length, be empty and
    hold zeros. Each rank reduces its own part first, so padding never travels: one gather of 40 bytes per number.

    Args:
        trainer_or_accelerator: an accelerator, an object with an attribute `accelerator`, or None for one process.
        x: any shape; a Python number is one float64 element and None is no element.
        method: "mean", "sum", "max" or "min".
        weight: broadcastable to `x`; only with "mean", which is then sum(weight * x) / sum(weight).
        dim: None reduces all elements; 0 reduces the rows of x (n, *shape), where only n may differ between ranks.
        names: of the numbers in a result (k,); ranks whose names differ raise instead of adding different quantities.

    Returns:
        () or, with `dim` 0, (*shape) tensor on the accelerator's device; float64 on the CPU for mps, which has none.
        Floating dtypes are kept. For integers, max and min keep the dtype, the sum is int64 and the mean float64. NaN
        propagates. Without elements the sum is 0 and the mean NaN.

    Raises:
        ValueError: on every rank, for the max or min of no elements.
        RuntimeError: on every rank, for names that differ.
    """
    if method not in _REDUCTIONS:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(_REDUCTIONS)}")
    if weight is not None and method != "mean":
        raise ValueError(f"weight was given with method {method!r}; only the mean can be weighted")
    if dim not in (None, 0) or (dim == 0 and (not isinstance(x, Tensor) or not x.ndim)):
        raise ValueError(f"dim is {dim}; expected None, or 0 for a tensor with rows")
    owner = trainer_or_accelerator
    ranks = owner if owner is None or hasattr(owner, "gather") else owner.accelerator
    if not isinstance(x, Tensor):
        x = torch.tensor([] if x is None else [float(x)], dtype=torch.float64)
    if x.dtype not in _REDUCED_DTYPES:
        raise ValueError(f"x is {x.dtype}; expected a real number type")
    shape = x.shape[1:] if dim == 0 else torch.Size()
    size = (len(x) if dim == 0 else x.numel(), shape.numel())
    weights = None if weight is None else weight.detach().to(x.device).expand_as(x).reshape(size)
    result = _reduce(ranks, x.detach().reshape(size), method, weights, names)
    device = x.device if ranks is None else ranks.device
    if device.type in WITHOUT_FLOAT64 and result.dtype == torch.float64:
        device = result.device
    return result.to(device).view(shape)


def _reduce(
    ranks: ReducingRanks | None, x: Tensor, method: str, weight: Tensor | None, names: Sequence[str] | None
) -> Tensor:
    """(k,) in host memory from x (n, k) and weights (n, k) of every rank, in one gather."""
    message = _message(x, method, weight, names)
    rows = _gather(ranks, message)  # (ranks, 5, room)
    if (rows[:, 0] != message[:, 0].cpu()).any():
        raise RuntimeError(_disagreement(list(names or ()), rows[:, 0].tolist(), ranks.process_index))
    sources = [_REDUCED_DTYPES[code] for code in rows[:, 1, 0].tolist()]  # by rank
    values, weights = (rows[:, i, : x.shape[1]].contiguous() for i in (3, 4))
    is_filled = rows[:, 2, 0] > 0  # by rank
    deciding = [source for source, decides in zip(sources, is_filled.tolist(), strict=True) if decides]
    dtype = functools.reduce(torch.promote_types, deciding or [x.dtype])  # a rank without elements does not decide
    if method == "mean":
        mean = values.view(torch.float64).sum(0) / weights.view(torch.float64).sum(0)
        return mean.to(dtype if dtype.is_floating_point else torch.float64)
    if dtype.is_floating_point:
        is_float = torch.tensor([source.is_floating_point for source in sources])[:, None]
        values = torch.where(is_float, values.view(torch.float64), values.to(torch.float64))
    if method == "sum":
        return values.sum(0).to(dtype if dtype.is_floating_point else torch.int64)
    if not is_filled.any():
        raise ValueError(f"{method} of no elements: x is empty on every rank; check that the data set is not empty")
    values = values[is_filled]
    return (values.amax(0) if method == "max" else values.amin(0)).to(dtype)


def _message(x: Tensor, method: str, weight: Tensor | None, names: Sequence[str] | None) -> Tensor:
    """(1, 5, room) int64: hash of the name, dtype code, count, and the bits of the partial result and of the weight."""
    if x.device.type in WITHOUT_FLOAT64:
        x, weight = x.cpu(), None if weight is None else weight.cpu()
    n, k = x.shape
    wide = x.to(torch.float64 if x.is_floating_point() or method == "mean" else torch.int64)
    weights = torch.ones_like(wide) if weight is None else weight.to(wide.dtype)
    if n and method in ("max", "min"):
        value = wide.amax(0) if method == "max" else wide.amin(0)
    else:
        value = (wide if weight is None else wide * weights).sum(0)
    room = max(1, k) if names is None else max(1, -(-k // _NAMES_PER_BLOCK)) * _NAMES_PER_BLOCK
    message = torch.zeros(1, 5, room, dtype=torch.int64, device=x.device)
    if names is not None:
        message[0, 0, :k] = torch.tensor([_name_hash(name) for name in names], dtype=torch.int64, device=x.device)
    message[0, 1] = _REDUCED_DTYPES.index(x.dtype)
    message[0, 2] = n
    message[0, 3, :k] = value.view(torch.int64)
    message[0, 4, :k] = weights.sum(0).double().view(torch.int64)
    return message


def _gather(ranks: ReducingRanks | None, message: Tensor) -> Tensor:
    """(1, ...) on every rank -> (ranks, ...) in host memory."""
    if ranks is None or ranks.num_processes == 1:
        return message.cpu()
    return ranks.gather(message.to(ranks.device)).cpu()


class Means:
    """Sums and counts by name, accumulated on the device and read once per log.

    Adding never waits for the device. All ranks add the same names; a rank without values for a name adds a count of
    zero.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._counts: dict[str, Tensor | float] = {}

    def add(self, name: str, value_sum: Tensor | float, count: Tensor | float) -> None:
        """Add a sum of values and their count, or the sum of their weights.

        Args:
            value_sum: number, () or (k,) tensor. Element i of (k,) is reported as `name` with i appended:
                `add("loss_q", *by_quartile(loss, t, steps, valid))` gives loss_q0 to loss_q3.
            count: as `value_sum`.
        """
        for totals, value in ((self._sums, value_sum), (self._counts, count)):
            if isinstance(value, Tensor):
                value = value.detach().to(widest(value.device), copy=True)  # an alias would follow the caller's edits
                if value.ndim > 1:
                    raise ValueError(f"{name} has shape {tuple(value.shape)}; expected () or (k,)")
                if isinstance(totals.get(name), Tensor):
                    totals[name] = totals[name].to(value)  # a loaded state may lie elsewhere
            totals[name] = totals[name] + value if name in totals else value

    def add_batch(self, name: str, values: Tensor, weight: Tensor) -> None:
        """Add every element of `values`; `weight`, of the same shape, is the number of elements each one represents."""
        wide = widest(values.device)
        self.add(name, (values.detach() * weight).sum(dtype=wide), weight.sum(dtype=wide))

    def state(self) -> dict[str, Tensor]:
        """(2,) or (2, k) sums and counts by name, as added by this rank since the last `reduce`."""
        tensors = [value for value in (*self._sums.values(), *self._counts.values()) if isinstance(value, Tensor)]
        device = tensors[0].device if tensors else torch.device("cpu")
        sums_and_counts = {}
        for name in sorted(self._sums):
            pair = (self._sums[name], self._counts[name])
            pair = [torch.as_tensor(part, device=device, dtype=widest(device)) for part in pair]
            sums_and_counts[name] = torch.stack(torch.broadcast_tensors(*pair))
        return sums_and_counts

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state`."""
        self._sums = {name: pair[0].clone() for name, pair in state.items()}
        self._counts = {name: pair[1].clone() for name, pair in state.items()}

    def collect(self, accelerator: ReducingRanks) -> None:
        """Move the totals of all ranks to the main rank, whose `state` then covers the whole run. A collective."""
        if accelerator.num_processes > 1:
            totals = _total(accelerator, self.state())
            is_main = accelerator.process_index == 0
            self.load({name: pair if is_main else torch.zeros_like(pair) for name, pair in totals.items()})

    def reduce(self, accelerator: ReducingRanks | None = None) -> dict[str, float]:
        """The mean of each name over all ranks; resets the totals. One collective, and the only wait for the device.

        Leaves out names whose count is zero on all ranks.

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


def _total(ranks: ReducingRanks | None, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The (2, ...) pairs of `state` added up over the ranks, float64 in host memory, in one collective."""
    names = [*itertools.chain.from_iterable([name] * pair.numel() for name, pair in state.items())]
    flat = torch.cat([pair.reshape(-1) for pair in state.values()] or [torch.zeros(0)])
    flat = flat.cpu().double()  # one copy from the device, and the only one
    totals = pad_gather_reduce(ranks, flat[None], "sum", dim=0, names=names).cpu().double()
    parts = totals.split([pair.numel() for pair in state.values()])
    return {name: total.view_as(pair) for (name, pair), total in zip(state.items(), parts, strict=True)}


def by_quartile(values: Tensor, t: Tensor, steps: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and counts of `values` by quarter of the timestep range, least noisy first; for `Means.add`.

    Args:
        values: (B,).
        t: (B,) int64 in [0, steps).
        weight: (B,) number of elements that each value represents.

    Returns:
        (4,) sums and (4,) counts, float64 if the device supports float64.
    """
    inside = (t * 4 // steps)[:, None] == torch.arange(4, device=t.device)  # (B, 4)
    sums = torch.where(inside, (values * weight)[:, None], 0)  # no product: a NaN stays in its own quarter
    return sums.sum(0, dtype=widest(t.device)), (inside * weight[:, None]).sum(0, dtype=widest(t.device))


def widest(device: torch.device) -> torch.dtype:
    """The floating type of most bits that a device has."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def _name_hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1 | 1  # 0 means no name


def _disagreement(names: list[str], hashes: list[list[int]], rank: int) -> str:
    """An error message listing the ranks whose names differ from this rank's, and the names."""
    mine = {_name_hash(name): name for name in names}
    lines = ["the ranks reduce different metrics:"]
    for other, rank_hashes in enumerate(hashes):
        lacking = [repr(name) for value, name in mine.items() if value not in rank_hashes]
        surplus = len(set(rank_hashes) - set(mine) - {0})
        if lacking or surplus:
            lacks = f"lacks {', '.join(lacking)}" if lacking else "lacks none"
            lines.append(f"  rank {other} {lacks} of rank {rank}, which lacks {surplus} of rank {other}")
    return "\n".join([*lines, "Add every name on every rank; a rank without data adds a count of zero."])
