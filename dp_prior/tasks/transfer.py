"""Takes from a checkpoint the weights that fit a model of other shapes: other actions, cameras, networks.

Settings choose tensors by the parts of a model, see `model_parts`.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dp_prior.files.entry_points import ask
from dp_prior.tasks.model_parts import check_parts, is_in, part_name
from dp_prior.tasks.named_axes import differing_names, misplaced, named_axes
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.weights import TransferConfig

_MOST_NAMED = 6


@dataclass(frozen=True)
class Transfer:
    """The tensors that a model takes from a checkpoint.

    Attributes:
        taken: tensors by their names in the model.
        partly: parts of the model of whose tensors some rows or columns are taken.
        fresh: parts of the model that keep their first values.
        unused: parts of the checkpoint that the model does not take.
        names: lines about the numbers of vectors whose names differ.
        warnings: lines about numbers that are taken for numbers of another meaning.
    """

    taken: dict[str, Tensor]
    partly: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    names: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def has_normalizer(self) -> bool:
        """Whether a normalizer of the checkpoint is used."""
        return any(name.startswith("normalizer.") for name in self.taken)

    def __str__(self) -> str:
        total, numbers = len(self.taken) + len(self.fresh), sum(tensor.numel() for tensor in self.taken.values())
        line = f"{len(self.taken)} of {total} tensors matched, {numbers / 1e6:.2f} M numbers"
        if self.partly:
            line += f"; {len(self.partly)} of these in part: {named(self.partly)}"
        if self.fresh:
            line += f"; {len(self.fresh)} begin anew: {named(self.fresh)}"
        if self.unused:
            line += f"; {len(self.unused)} of the checkpoint are not used: {named(self.unused)}"
        return line


@dataclass(frozen=True)
class _Part:
    """A tensor, its name in the model, and the names along one of its axes."""

    name: str
    value: Tensor
    axis: int | None = None
    names: tuple[Hashable, ...] = ()

    def misfit(self, source: _Part) -> str | None:
        """Why the tensor of a checkpoint cannot be taken whole; None if nothing hinders."""
        shape, expected = tuple(source.value.shape), tuple(self.value.shape)
        if shape != expected:
            return f"has shape {shape} in the checkpoint, {expected} here"
        return None if source.names == self.names else "has other numbers in the checkpoint, or in another order"

    def joined(self, source: _Part) -> Tensor | None:
        """This tensor with the rows of the checkpoint that have names of ours; None if none fits."""
        pairs = [(place, source.names.index(name)) for place, name in enumerate(self.names) if name in source.names]
        if not pairs or self.axis != source.axis or not self._has_sides_of(source):
            return None
        here, there = (torch.tensor(places) for places in zip(*pairs, strict=True))
        return self.value.index_copy(self.axis, here, source.value.index_select(self.axis, there))

    def _has_sides_of(self, source: _Part) -> bool:
        """Whether the axes without names are equally long."""
        sides, source_sides = ([*part.value.shape] for part in (self, source))
        del sides[self.axis], source_sides[self.axis]
        return sides == source_sides


def choose(model: Pretrained, source: Pretrained, record: TransferConfig) -> Transfer:
    """Choose what `model` takes of the model of a checkpoint. Both stay unchanged.

    Of a tensor in a part that may differ, the entries are copied whose names along the axes occur in both models, see
    `named_axes`.

    Raises:
        ValueError: a tensor outside `may_differ` does not fit, an entry of the record names no part, nothing fits, or
            the checkpoint is a network for many bodies without that of the model.
    """
    if model.transfer_of is not None:
        return model.transfer_of(source, record)
    if source.bodies and not isinstance(model, type(source)):
        source = source.body(getattr(model.record, "body", None))
    are_named = model.has_named_numbers and source.has_named_numbers
    by_name = are_named and record.is_partial
    parts, source_parts = _parts(model, source, by_name), _parts(source, model, by_name)
    all_parts = list(parts | source_parts)
    check_parts([*record.only, *record.may_differ], all_parts)
    chosen = [part for part in all_parts if not record.only or is_in(part, record.only)]
    misfits = {part: _misfit(part, parts, source_parts) for part in chosen}
    problems = {part: problem for part, problem in misfits.items() if problem is not None}
    refused = {part: problem for part, problem in problems.items() if not is_in(part, record.may_differ)}
    if refused:
        sizes = ask("differing_sizes", source.spec.model_dump(), model.spec.model_dump()) or ""
        raise ValueError(sizes + _refusal(refused, len(chosen) - len(problems), len(chosen)))
    taken = {part: source_parts[part].value for part in chosen if part not in problems}
    differing = [part for part in problems if part in parts and part in source_parts]
    joined = {part: parts[part].joined(source_parts[part]) for part in differing}
    partly = {part: value for part, value in joined.items() if value is not None}
    taken |= partly
    if not taken:
        raise ValueError(f"none of its {len(source_parts)} tensors fits. Is it of another architecture?")
    return Transfer(
        taken={parts[part].name: value for part, value in taken.items()},
        partly=tuple(partly),
        fresh=tuple(part for part in parts if part not in taken),
        unused=tuple(part for part in source_parts if part not in taken),
        names=tuple(differing_names(model, source)) if differing and by_name else (),
        warnings=tuple(misplaced(model, source, by_name)) if are_named and not record.only else (),
    )


def _refusal(refused: dict[str, str], matching: int, chosen: int) -> str:
    """Tensors that do not fit, why, and which entries of `may_differ` would leave them out."""
    listed = "; ".join(f"{part} {problem}" for part, problem in itertools.islice(refused.items(), _MOST_NAMED))
    rest = f"; and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
    advice = f"What may differ is named in may_differ: {', '.join(covering([*refused]))}"
    return f"{listed}{rest}. {matching} of {chosen} tensors match. {advice}"


def covering(parts: Sequence[str]) -> list[str]:
    """At most `_MOST_NAMED` modules that hold all of some tensors, as far in as so few can be; more if already the
    outermost modules are more."""
    modules = list(dict.fromkeys(part.rpartition(".")[0] or part for part in parts))
    depth = max(module.count(".") for module in modules) + 1
    while len(modules) > _MOST_NAMED and depth > 1:
        depth -= 1
        modules = list(dict.fromkeys(".".join(module.split(".")[:depth]) for module in modules))
    return modules


def named(parts: Iterable[str]) -> str:
    """The modules of some tensors, the first few by name."""
    modules = list(dict.fromkeys(part.rpartition(".")[0] or part for part in parts))
    rest = [f"and {len(modules) - _MOST_NAMED} more"] if len(modules) > _MOST_NAMED else []
    return ", ".join(modules[:_MOST_NAMED] + rest)


def _parts(model: Pretrained, other: Pretrained, by_name: bool) -> dict[str, _Part]:
    """The tensors of a model by part, with names that are comparable with those of `other` if asked for."""
    axes = named_axes(model, other) if by_name else {}
    return {
        part_name(name, model.spec): _Part(name, value, *axes.get(name, ()))
        for name, value in model.state_dict().items()
    }


def _misfit(part: str, parts: dict[str, _Part], source_parts: dict[str, _Part]) -> str | None:
    """Why the model cannot take a tensor whole; None if the tensor fits."""
    if part not in source_parts:
        return "is missing in the checkpoint"
    return parts[part].misfit(source_parts[part]) if part in parts else "is in the checkpoint alone"
