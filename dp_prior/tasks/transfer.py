"""Takes from a checkpoint the weights that fit a model of other shapes: other actions, cameras, networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from dp_prior.config import Config
from dp_prior.tasks.part_names import check_parts, is_in, part_name
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tensors.batch import Spec

_MOST_NAMED = 6


class TransferConfig(Config):
    """A checkpoint to start from, and which parts of it. A part is the beginning of names of tensors, such as
    `encoder.camera`, `normalizer.x` or `backbone.down.0`."""

    path: str
    """Checkpoint: a path, `hf://...`, or another reference that `load_policy` reads."""

    only: tuple[str, ...] = ()
    """Parts that are taken; all others begin anew. Empty for every part."""

    may_differ: tuple[str, ...] = ()
    """Parts whose tensors begin anew where the checkpoint has none of that shape; tensors elsewhere must fit."""

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
        fresh: parts of the model that keep their first values.
        unused: parts of the checkpoint that the model does not take.
    """

    taken: dict[str, Tensor]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def has_normalizer(self) -> bool:
        """Whether a normalizer of the checkpoint is used."""
        return any(name.startswith("normalizer.") for name in self.taken)

    def __str__(self) -> str:
        total, numbers = len(self.taken) + len(self.fresh), sum(tensor.numel() for tensor in self.taken.values())
        line = f"{len(self.taken)} of {total} tensors matched, {numbers / 1e6:.2f} M numbers"
        if self.fresh:
            line += f"; {len(self.fresh)} begin anew: {named(self.fresh)}"
        if self.unused:
            line += f"; {len(self.unused)} of the checkpoint are not used: {named(self.unused)}"
        return line


def choose(model: Pretrained, tensors: dict[str, Tensor], spec: Spec, record: TransferConfig) -> Transfer:
    """Choose what `model` takes of the tensors of a checkpoint whose shapes `spec` holds. The model stays unchanged.

    Raises:
        ValueError: a tensor outside `may_differ` does not fit, an entry of the record names no part, or nothing fits.
    """
    ours = {part_name(name, model.spec): (name, value) for name, value in model.state_dict().items()}
    theirs = {part_name(name, spec): value for name, value in tensors.items()}
    every = [*ours, *(part for part in theirs if part not in ours)]
    check_parts([*record.only, *record.may_differ], every)
    wanted = [part for part in every if not record.only or is_in(part, record.only)]
    problems = {part: problem for part in wanted if (problem := _misfit(part, ours, theirs))}
    if refused := [part for part in problems if not is_in(part, record.may_differ)]:
        listed = "; ".join(f"{part} {problems[part]}" for part in refused[:_MOST_NAMED])
        more = f"; and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
        matched = f"{len(wanted) - len(problems)} of {len(wanted)} tensors match"
        raise ValueError(f"{listed}{more}. {matched}. What may begin anew is named in may_differ: {named(refused)}")
    fitting = [part for part in wanted if part not in problems]
    if not fitting:
        raise ValueError(f"none of its {len(theirs)} tensors fits. Is it of another architecture?")
    return Transfer(
        taken={ours[part][0]: theirs[part] for part in fitting},
        fresh=tuple(part for part in ours if part not in fitting),
        unused=tuple(part for part in theirs if part not in fitting),
    )


def named(parts: Iterable[str]) -> str:
    """The modules of some tensors, the first few by name."""
    modules = list(dict.fromkeys(part.rpartition(".")[0] or part for part in parts))
    more = [f"and {len(modules) - _MOST_NAMED} more"] if len(modules) > _MOST_NAMED else []
    return ", ".join(modules[:_MOST_NAMED] + more)


def _misfit(part: str, ours: dict[str, tuple[str, Tensor]], theirs: dict[str, Tensor]) -> str | None:
    """Why the model cannot take a tensor; None if the tensor fits."""
    if part not in theirs:
        return "is missing in the checkpoint"
    if part not in ours:
        return "is in the checkpoint alone"
    found, expected = tuple(theirs[part].shape), tuple(ours[part][1].shape)
    return None if found == expected else f"has shape {found} in the checkpoint, {expected} here"
