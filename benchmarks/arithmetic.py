"""Products of matrices alone: about the fastest arithmetic of a training step that a machine allows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dp_prior.networks.kernels.products import product

SIDE = 1024


def products(flops: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Callable[[], None]:
    """As much arithmetic in products of square matrices, by the faster library; at least one product."""
    a, b = (torch.randn(SIDE, SIDE, dtype=dtype, device=device) for _ in range(2))

    @torch.no_grad()
    def work() -> None:
        for _ in range(max(1, round(flops / (2 * SIDE**3)))):
            product(a, b)

    return work


def one_product(flops: int, dtype: torch.dtype = torch.float32) -> Callable[[], object]:
    """As much arithmetic in one product: rows times a square matrix that a cache holds; at least one row."""
    side = SIDE if flops >= 2 * SIDE**3 else 256
    a = torch.randn(max(1, round(flops / (2 * side**2))), side, dtype=dtype)
    b = torch.randn(side, side, dtype=dtype)
    return torch.no_grad()(lambda: product(a, b))
