"""Activation checkpointing: intermediate values are computed again in the backward pass instead of kept in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dp_prior.networks.dropout import Dropout


def recomputed(module: nn.Module, *inputs: object) -> Tensor:
    """`module(*inputs)`, of which only the inputs are kept for the backward pass; masks of dropout are the same.

    Compiled code is left alone: torch.compile chooses itself what it computes again, and cannot trace `context_fn`.
    """
    if torch.compiler.is_compiling():
        return module(*inputs)
    layers = [layer for layer in module.modules() if isinstance(layer, Dropout)]
    rows = [layer.rows for layer in layers]  # `dropout_rows` has taken them back before the backward pass

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        for layer, own in zip(layers, rows, strict=True):
            layer.rows = own
        try:
            yield
        finally:
            for layer in layers:
                layer.rows = None

    contexts = contextlib.nullcontext, again
    return checkpoint(
        module,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: tuple(context() for context in contexts),
    )
