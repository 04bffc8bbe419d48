"""Counts the kernels that a part of a step asks a GPU for: operators of torch, without views and allocations."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dp_prior.networks import layers
from dp_prior.tensors import randomness

FREE = (
    "view _unsafe_view as_strided expand permute transpose t slice select unsqueeze squeeze detach alias split unbind "
    "split_with_sizes chunk lift_fresh _reshape_alias reshape diagonal unfold narrow movedim view_as_real is_same_size "
    "empty empty_like new_empty empty_strided new_empty_strided set_ resize_ prim _local_scalar_dense"
)
"""Operators that start no kernel."""


class Calls(TorchDispatchMode):
    """Counts operators by name while it is entered."""

    def __init__(self):
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[-1]
        if name not in FREE.split():
            self.names[name] += 1
        return function(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.names.total()


class _Mish(torch.autograd.Function):
    """One kernel forward and one backward, as on a GPU; `meta` composes the second of five."""

    @staticmethod
    def forward(ctx, x):
        return x.mul(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul(1)


@contextlib.contextmanager
def like_a_gpu() -> Iterator[None]:
    """Inside, torch's `meta` device has the operators of a GPU that it would compose of others, and no autocast."""
    is_enabled, autocast = torch.is_autocast_enabled, torch.autocast

    def entered(device, **options):
        return contextlib.nullcontext() if device == "meta" else autocast(device, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "CHANNELS_FIRST", {*layers.CHANNELS_FIRST, "meta"})
        patch.setattr(torch.nn.functional, "mish", _Mish.apply)
        patch.setattr(torch, "is_autocast_enabled", lambda device="cpu": device != "meta" and is_enabled(device))
        patch.setattr(torch, "autocast", entered)
        yield


@contextlib.contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls inside; a draw of random numbers counts as what it costs on a GPU, with the kernel for it."""

    def draw(keys, path, count, cuts):
        calls.names["random numbers"] += len(cuts)
        shape = keys.shape if count is None else (len(keys), count)
        return [torch.empty(shape, dtype=torch.int64, device=keys.device) for _ in cuts]

    with Calls() as calls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "_drawn", draw)
        yield calls


@contextlib.contextmanager
def counted_in(kind: type, names: list[str]) -> Iterator[Calls]:
    """Count the calls inside that the methods of a class make."""
    outer, calls = [], Calls()
    with counted() as everything, pytest.MonkeyPatch.context() as patch:

        def counting(method):
            def call(*arguments, **options):
                before = everything.names.copy()
                outer.append(method)
                try:
                    return method(*arguments, **options)
                finally:
                    outer.pop()
                    if not outer:
                        calls.names += everything.names - before

            return call

        for name in names:
            method = vars(kind)[name]
            is_of_class = isinstance(method, classmethod)
            wrapped = counting(method.__func__ if is_of_class else method)
            patch.setattr(kind, name, classmethod(wrapped) if is_of_class else wrapped)
        yield calls


def elsewhere(model: nn.Module) -> nn.Module:
    """The model on a device without values, which takes the ways of a GPU."""
    return model.to("meta")
