"""Weights of a model: the files that hold them, loading them strictly, and parts of a model, named as its tensors are.

The key of an observation stands for the number of its encoder: `normalizer.x`, `encoder.camera`, `backbone.down.0`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from torch import Tensor, nn

from dp_prior.config import Config
from dp_prior.tensors.batch import Spec

_NUMBERED = re.compile(r"^encoder\.encoders\.(\d+)\.")


class TransferConfig(Config):
    """A checkpoint to start from, and which parts of it. A part is the beginning of names of tensors, such as
    `encoder.camera`, `normalizer.x` or `backbone.down.0`."""

    path: str
    """Checkpoint: a path, `hf://...`, or another reference that `load_policy` reads."""

    only: tuple[str, ...] = ()
    """Parts that are taken; all others begin anew. Empty for every part."""

    may_differ: tuple[str, ...] = ()
    """Parts whose tensors may differ; tensors elsewhere must fit. Numbers of actions and observations and features of
    cameras are taken by name where both policies have them; everything else begins anew."""

    @property
    def is_partial(self) -> bool:
        """Whether the model may keep first values of its own."""
        return bool(self.only or self.may_differ)

    @classmethod
    def of(cls, setting: str | TransferConfig | None) -> TransferConfig | None:
        """The record of a setting, where a path alone stands for all of a checkpoint."""
        return cls(path=setting) if isinstance(setting, str) else setting


def part_name(name: str, spec: Spec) -> str:
    """The name of a tensor with the key of its encoder, which other observations do not change."""
    keys = sorted(spec.cond_shapes)
    name = _NUMBERED.sub(lambda match: f"encoder.{keys[int(match[1])]}.", name)
    return name.replace("/", ".")


def is_in(part: str, entries: Iterable[str]) -> bool:
    """Whether a part is an entry, or is below one."""
    return any(part == entry or part.startswith(f"{entry}.") for entry in entries)


def check_parts(entries: Iterable[str], parts: Collection[str]) -> None:
    """Raises ValueError if an entry contains none of the parts; names those that exist."""
    for entry in entries:
        if not any(is_in(part, [entry]) for part in parts):
            top_parts = dict.fromkeys(".".join(part.split(".")[:2]) for part in parts)
            raise ValueError(f"{entry!r} names no part; they are {', '.join(top_parts)}, and what is below them")


def weights_file(name: str, averages: Sequence[str]) -> str:
    """The file of an average: `model.safetensors` for the first, `model_NAME.safetensors` for the others."""
    return "model.safetensors" if name == averages[0] else f"model_{name}.safetensors"


def load_weights(model: nn.Module, tensors: dict[str, Tensor], problem: str, hint: str) -> None:
    """Load strictly: every tensor must be present with its shape, and no other one.

    Args:
        problem, hint: start and end of the error message.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape; the model is unchanged.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    problems = [f"{name} is missing" for name in expected if name not in shapes]
    problems += [f"{name} is unknown" for name in shapes if name not in expected]
    problems += [
        f"{name} has shape {shapes[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if problems:
        listed = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        matched = sum(shape == expected.get(name) for name, shape in shapes.items())
        raise ValueError(f"{problem}: {listed}. {hint} {matched} of {len(expected)} tensors match.")
    model.load_state_dict(tensors)
