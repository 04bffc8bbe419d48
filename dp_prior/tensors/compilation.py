"""torch.compile as a setting: off, or a mode of torch.compile.

Compiled code computes the same numbers up to rounding. No name of a weight and no state of a run changes, so a run may
be compiled from one start to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dp_prior.config import ConfigError
from dp_prior.tensors.randomness import derive_seed

Mode = Literal["off", "default", "reduce-overhead", "max-autotune"]
Compile = Literal["auto", Mode]

COMPILED = {"cuda"}
"""Devices on which "auto" may compile; on a CPU torch's compiler takes a minute and gains nothing."""

CUDA_GRAPHS: tuple[Mode, ...] = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs on a GPU. A graph writes its results to the same memory every time."""


def compiled(function: Callable[..., Any], mode: Compile, setting: str, *, dynamic: bool | None = None) -> Callable:
    """The function, compiled at the first call; unchanged if `mode` is "off", or "auto", which is chosen elsewhere.

    Args:
        setting: path of the setting that requests compilation, for the error.
        dynamic: as in `torch.compile`; False compiles again for every shape.

    Raises:
        ConfigError: at the first call, where there is no compiler or it fails.
    """
    if mode in ("off", "auto"):
        return function
    torch.compiler.assume_constant_result(derive_seed)  # a hash of names
    fast = torch.compile(function, options=_options(mode), dynamic=dynamic)
    from torch._dynamo.exc import BackendCompilerFailed

    def call(*arguments: Any) -> Any:
        try:
            results = fast(*arguments)
        except BackendCompilerFailed as error:
            inner = error.inner_exception
            cause = f"{type(inner).__name__}: {inner}".partition("\n")[0].rstrip(".: ")
            problem = f"is {mode!r}, but torch cannot compile: {cause}. It needs a C++ compiler, and Triton on a GPU"
            raise ConfigError(setting, [f"{problem}; install them, or set it to 'off'"]) from error
        return tree_map_only(Tensor, torch.clone, results) if mode in CUDA_GRAPHS else results

    return call


def _options(mode: Mode) -> dict[str, Any]:
    """The options of torch's compiler for a mode.

    Where there is a GPU, without its choice of memory layouts: torch 2.11 predicts another layout for the gradient of a
    convolution's weights in bfloat16 than the library returns, and stops.
    """
    options = dict(torch._inductor.list_mode_options(mode))
    return options | {"layout_optimization": False} if torch.cuda.is_available() else options


def now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done all that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def fault_line(error: Exception) -> str:
    """Why compiled code is not used, in one short line. Args: error: of the compiler, the driver or a module."""
    problem = " ".join(str(getattr(error, "problems", [error])[0]).split())
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return kind + shorten(problem, 300, placeholder=" ...")
