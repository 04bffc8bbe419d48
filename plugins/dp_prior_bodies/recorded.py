"""Recorded data sets of robots of several bodies, which one network learns: joints and cameras may differ.

Each set is a body. Batches hold the union of all observations and the number of each sample's body; what a body does
not have is padding, which `dp_prior_bodies.union.narrowed` takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.recorded.mixture import Mixture, MixtureConfig, leaks, stated_rate, wrong_action_names
from dp_prior.data.recorded.trajectories import Trajectories
from dp_prior.data.recorded.windows import WindowRows
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import PARTS
from dp_prior.tensors.batch import Spec, X
from dp_prior.tensors.normalizer import Statistics
from dp_prior_bodies.padded_column import PaddedColumn
from dp_prior_bodies.union import BODY, joint_spec


class BodiesConfig(MixtureConfig):
    """Windows over recorded data sets of robots that differ in joints and cameras, one set for each body. Observations
    of one name share an encoder; vectors of one name, and actions, may differ in width."""

    type: Literal["bodies"] = "bodies"

    provides: ClassVar = "bodies"

    def name_faults(self) -> Iterator[str]:
        """Observations whose name is that of the number of a body."""
        for name, record in self.sets.items():
            if BODY in record.observations:
                yield f"sets.{name} has an observation {BODY!r}, the name of the number of a body; rename it"

    def differences(self, sets: Mapping[str, Trajectories]) -> Iterator[str]:
        """See `MixtureConfig.differences`: observations of one name that one encoder cannot read."""
        yield from wrong_action_names(self, sets)
        first: dict[str, tuple[str, str]] = {}
        for name, data in sets.items():
            for key in data.spec.cond_shapes:
                layout = _layout(data.spec, key)
                owner, expected = first.setdefault(key, (name, layout))
                if layout != expected:
                    yield (
                        f"observation {key!r} of sets.{name} is {layout}, of sets.{owner} {expected}; one encoder "
                        f"reads all observations of a name, and only vectors may differ in width. Give these two "
                        f"names, or make them alike"
                    )

    def joined(self, sets: Mapping[str, Trajectories], counts: Sequence[int]) -> Bodies:
        bodies = {name: self._spec_of(name, data) for name, data in sets.items()}
        spec = joint_spec(bodies)
        samples = {}
        for part in PARTS:
            samples[part] = _joined([getattr(data, part) for data in sets.values()], spec)
        padded = {}
        for number, (name, data) in enumerate(sets.items()):
            padded[name] = data.over({part: _joined([getattr(data, part)], spec, number) for part in PARTS})
        return Bodies(self, padded, samples, counts, spec, sets)

    def _spec_of(self, name: str, data: Trajectories) -> Spec:
        """The spec of a body, with the rate and names that its settings state."""
        names, stated = data.spec.names, self.sets[name]
        if stated.action_names:
            names = {**names, X: tuple(stated.action_names)}
        return data.spec.model_copy(update={"fps": stated_rate(stated, data), "names": names})


class Bodies(Mixture):
    """Checked data sets of several bodies, joined.

    Attributes:
        sets: the windows of each body as the joined batches hold them, padded.
    """

    def __init__(
        self,
        config: BodiesConfig,
        sets: Mapping[str, Trajectories],
        samples: Mapping[str, Samples],
        counts: Sequence[int],
        spec: Spec,
        alone: Mapping[str, Trajectories],
    ):
        """Args: alone: each data set by itself, without padding; for the others see `Mixture`."""
        super().__init__(config, sets, samples, counts, spec)
        self._alone = alone

    def statistics(self) -> dict[str, Statistics]:
        """Statistics of each set alone, by `<set>/<key>`."""
        if self._statistics is None:
            self._statistics = {}
            for name, data in self._alone.items():
                self._statistics |= {f"{name}/{key}": value for key, value in data.statistics().items()}
        return self._statistics

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """See `Demonstrations`; the spec of each body then says what its own cameras showed."""
        bodies = {}
        for name, data in self._alone.items():
            data.build_caches(report, check)
            bodies[name] = self.spec.bodies[name].model_copy(update={"scenes": data.spec.scenes})
        self.spec = self.spec.model_copy(update={"bodies": bodies})

    def warnings(self) -> list[str]:
        """The warnings about each set, episodes that one set holds out and another not, and names that differ."""
        lines: list[str] = []
        for name, data in self._alone.items():
            lines += [f"{name}: {line}" for line in data.warnings()]
        return [*lines, *leaks(self.sets), *_renamed(self.spec.bodies)]

    def facts(self) -> dict[str, str]:
        """See `SplitData`; of each body."""
        lines: dict[str, str] = {}
        for name, data in self._alone.items():
            lines |= {f"{name}: {fact}": text for fact, text in data.facts().items()}
        return lines


def _joined(separate: Sequence[Samples], spec: Spec, first: int = 0) -> Samples:
    """The windows of a part of several sets, padded to the union of their columns.

    Args:
        separate: of each set.
        spec: of the union.
        first: number of the first body.
    """
    counts = [samples.rows.n_rows for samples in separate]
    columns: dict[str, Column] = {}
    for key, shape in {X: spec.x_shape, **spec.cond_shapes}.items():
        dtype = torch.float32 if key == X else spec.dtype(key)
        columns[key] = PaddedColumn([samples.columns.get(key) for samples in separate], counts, shape[1:], dtype)
    numbers = [torch.full((count,), first + place) for place, count in enumerate(counts)]
    columns[BODY] = MemoryColumn(torch.cat(numbers))
    return Samples(columns, WindowRows.joined([samples.rows for samples in separate]))


def _layout(spec: Spec, key: str) -> str:
    """Properties in which bodies with an observation of one name must agree, in words."""
    shape, kind = spec.cond_shapes[key][1:], spec.kind(key)
    if kind == "vector" and len(shape) == 1:
        return "a vector"
    words = [f"{kind} of shape {shape}"]
    if key in spec.depths:
        words.append(f" from {spec.depths[key].near:g} to {spec.depths[key].far:g} m")
    if key in spec.embedders:
        words.append(f", embedded by {spec.embedders[key].model_dump()}")
    return "".join(words)


def _renamed(bodies: Mapping[str, Spec]) -> Iterator[str]:
    """A line for each vector whose numbers two bodies name differently, in the places that both have."""
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, spec in bodies.items():
        for key, names in spec.names.items():
            owner, expected = first.setdefault(key, (name, names))
            common = min(len(names), len(expected))
            if names[:common] != expected[:common]:
                label = "action" if key == X else f"observation {key!r}"
                what_to_do = "order them alike" if key == X else "order them alike, or give these two names"
                yield (
                    f"{label} of {name} is {', '.join(names)}, of {owner} {', '.join(expected)}; the same weights read "
                    f"numbers in the same place, so {what_to_do}"
                )
