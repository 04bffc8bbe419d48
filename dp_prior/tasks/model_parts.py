"""Parts of a model, named as its tensors are, for fine-tuning and for learning rates of their own.

The key of an observation stands for the number of its encoder: `normalizer.x`, `encoder.camera`, `backbone.down.0`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from dp_prior.tensors.batch import Spec

_NUMBERED = re.compile(r"^encoder\.encoders\.(\d+)\.")


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
