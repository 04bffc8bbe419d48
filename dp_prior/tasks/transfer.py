"""Takes from a checkpoint the weights that fit a model of other shapes: other actions, cameras, networks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dp_prior.config import Config
from dp_prior.tasks.named_axes import differing_names, misplaced, named_axes
from dp_prior.tasks.part_names import check_parts, is_in, part_name
from dp_prior.tasks.pretrained import Pretrained

_MOST_NAMED = 6


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
    def of(cls, given: str | TransferConfig | None) -> TransferConfig | None:
        """The record of a setting, where a path alone stands for all of a checkpoint."""
        return cls(path=given) if isinstance(given, str) else given


@dataclass(frozen=True)
class Transfer:
    """What a model takes of a checkpoint.

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

    def misfit(self, theirs: _Part) -> str | None:
        """Why the tensor of a checkpoint cannot be taken whole; None if nothing hinders."""
        found, expected = tuple(theirs.value.shape), tuple(self.value.shape)
        if found != expected:
            return f"has shape {found} in the checkpoint, {expected} here"
        return None if theirs.names == self.names else "has other numbers in the checkpoint, or in another order"

    def joined(self, theirs: _Part) -> Tensor | None:
        """This tensor with the rows of the checkpoint that have names of ours; None if none fits."""
        pairs = [(place, theirs.names.index(name)) for place, name in enumerate(self.names) if name in theirs.names]
        if not pairs or self.axis != theirs.axis or not self._has_sides_of(theirs):
            return None
        here, there = (torch.tensor(places) for places in zip(*pairs, strict=True))
        return self.value.index_copy(self.axis, here, theirs.value.index_select(self.axis, there))

    def _has_sides_of(self, theirs: _Part) -> bool:
        """Whether the axes without names are equally long."""
        ours, others = ([*one.value.shape] for one in (self, theirs))
        del ours[self.axis], others[self.axis]
        return ours == others


def choose(model: Pretrained, source: Pretrained, record: TransferConfig) -> Transfer:
    """Choose what `model` takes of the model of a checkpoint. Both stay unchanged.

    A tensor of a part that may differ is taken for the names along its axes that both have, see `named_axes`.

    Raises:
        ValueError: a tensor outside `may_differ` does not fit, an entry of the record names no part, or nothing fits.
    """
    are_named = model.has_named_numbers and source.has_named_numbers
    by_name = are_named and record.is_partial
    ours, theirs = (_parts(*two, by_name) for two in ((model, source), (source, model)))
    every = [*ours, *(part for part in theirs if part not in ours)]
    check_parts([*record.only, *record.may_differ], every)
    wanted = [part for part in every if not record.only or is_in(part, record.only)]
    problems = {part: problem for part in wanted if (problem := _misfit(part, ours, theirs))}
    if refused := [part for part in problems if not is_in(part, record.may_differ)]:
        listed = "; ".join(f"{part} {problems[part]}" for part in refused[:_MOST_NAMED])
        more = f"; and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
        matched = f"{len(wanted) - len(problems)} of {len(wanted)} tensors match"
        advice = f"What may differ is named in may_differ: {', '.join(covering(refused))}"
        raise ValueError(f"{listed}{more}. {matched}. {advice}")
    taken = {part: theirs[part].value for part in wanted if part not in problems}
    both = [part for part in problems if part in ours and part in theirs]
    partly = {part: value for part in both if (value := ours[part].joined(theirs[part])) is not None}
    taken |= partly
    if not taken:
        raise ValueError(f"none of its {len(theirs)} tensors fits. Is it of another architecture?")
    return Transfer(
        taken={ours[part].name: value for part, value in taken.items()},
        partly=tuple(partly),
        fresh=tuple(part for part in ours if part not in taken),
        unused=tuple(part for part in theirs if part not in taken),
        names=tuple(differing_names(model, source)) if both and by_name else (),
        warnings=tuple(misplaced(model, source, by_name)) if are_named and not record.only else (),
    )


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
    more = [f"and {len(modules) - _MOST_NAMED} more"] if len(modules) > _MOST_NAMED else []
    return ", ".join(modules[:_MOST_NAMED] + more)


def _parts(model: Pretrained, other: Pretrained, by_name: bool) -> dict[str, _Part]:
    """The tensors of a model by part, with names that are comparable with those of `other` if asked for."""
    axes = named_axes(model, other) if by_name else {}
    return {
        part_name(name, model.spec): _Part(name, value, *axes.get(name, ()))
        for name, value in model.state_dict().items()
    }


def _misfit(part: str, ours: dict[str, _Part], theirs: dict[str, _Part]) -> str | None:
    """Why the model cannot take a tensor whole; None if the tensor fits."""
    if part not in theirs:
        return "is missing in the checkpoint"
    return ours[part].misfit(theirs[part]) if part in ours else "is in the checkpoint alone"
