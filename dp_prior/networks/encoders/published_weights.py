"""Weights of published networks: reading them from files, under our names, into parts of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

Renaming = tuple[tuple[str, str | None], ...]
"""Pairs (pattern, replacement), applied to a name in this order; the replacement None drops the tensor."""


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colours from 0 to 1, by which networks trained on it normalise pictures."""


def read_weights(path: str | Path, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of a safetensors file whose names begin with `prefix`, by the rest of the name.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a safetensors file, or no name begins with the prefix.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"weights: {path} is not a file; expected the path of a safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensors = {name.removeprefix(prefix): file.get_tensor(name) for name in names if name.startswith(prefix)}
    except SafetensorError as error:
        raise ValueError(f"weights: {path} is not a safetensors file ({error}); pickles are never read") from None
    if not tensors:
        raise ValueError(f"weights: no tensor of {path} has a name that begins with {prefix!r}; it has {_some(names)}")
    return tensors


def rename(weights: Mapping[str, Tensor], renaming: Renaming) -> dict[str, Tensor]:
    """The tensors under other names.

    Raises:
        ValueError: two different tensors would get the same name.
    """
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        new: str | None = name
        for pattern, replacement in renaming:
            if replacement is None:
                if re.search(pattern, new):
                    new = None
                    break
            else:
                new = re.sub(pattern, replacement, new)
        if new is None:
            continue
        if new in renamed and not torch.equal(renamed[new], value):
            raise ValueError(f"weights: {name!r} and another tensor that differs from it are both named {new!r} here")
        renamed[new] = value
    return renamed


def load_parts(module: nn.Module, weights: Mapping[str, Tensor], parts: Iterable[str], *, source: str) -> None:
    """Copy weights into some children of `module`; other children are unchanged.

    Args:
        weights: tensors by their names in `module`, for all of `parts` and nothing else.
        parts: names of the children.
        source: where the weights come from, for the error.

    Raises:
        ValueError: a tensor is missing, unknown or has another shape; lists all faults and copies nothing.
    """
    parts = set(parts)
    current = module.state_dict()
    expected = {name: value for name, value in current.items() if name.partition(".")[0] in parts}
    both = expected.keys() & weights.keys()
    faults = {
        "missing": [name for name in expected if name not in both],
        "unknown here": [name for name in weights if name not in both],
        "of another shape": [
            f"{name} {tuple(weights[name].shape)} for {tuple(expected[name].shape)}"
            for name in expected
            if name in both and weights[name].shape != expected[name].shape
        ],
    }
    if any(faults.values()):
        listed = "; ".join(f"{fault}: {', '.join(names)}" for fault, names in faults.items() if names)
        raise ValueError(f"weights: {source} does not fit {', '.join(sorted(parts))}: {listed}")
    module.load_state_dict({**current, **weights})


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
