"""Several recorded data sets as one: windows of all of them, each set with a share of the samples of an epoch.

Every set is opened, checked and split by itself, as if it were alone; the windows are then joined, set after set in the
order of their names.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field

from dp_prior.config import Change, ConfigError
from dp_prior.data.columns.joined import join
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.errors import DataError, MissingError, first_few
from dp_prior.data.integrity import DATA_MANIFEST, JointIntegrity
from dp_prior.data.recorded.demonstrations import Demonstrations
from dp_prior.data.recorded.language import MOST_LISTED
from dp_prior.data.recorded.records import RecordedConfig, WindowsConfig, good_key
from dp_prior.data.recorded.selection import ACTION
from dp_prior.data.recorded.split import SplitConfig
from dp_prior.data.recorded.trajectories import Trajectories, TrajectoriesConfig
from dp_prior.data.recorded.windows import WindowRows
from dp_prior.data.samples.order import Successes
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.samples.weighted_order import Share, shares
from dp_prior.data.split_data import PARTS
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec, X

if TYPE_CHECKING:
    from dp_prior.data.recorded.shown import Shown

_NO_PREVIOUS_ACTION = "A mixture does not offer it; record it as an observation of each set."


class SetConfig(RecordedConfig):
    """A data set of the mixture, and the keys that are read, by the policy's names."""

    weight: Annotated[float | None, Change("schedule-changing")] = Field(default=None, gt=0)
    """Its share of the samples is this over the sum of all weights, exact in every epoch. null in all sets: every
    window comes once per epoch."""

    fps: Annotated[float | None, Change("harmless")] = Field(default=None, gt=0)
    """Control steps per second, where the files do not say it or are wrong. Sets of different rates are refused."""

    action_names: Annotated[tuple[str, ...] | None, Change("harmless")] = None
    """Names of the action's dimensions, where the files do not have them or have others. Sets whose names differ are
    refused."""

    split: SplitConfig | None = None
    """Split of its episodes, such as `{"train": 1, "val": 0}` for a set that is trained on as a whole. null: as `split`
    of the mixture says."""


class MixtureConfig(WindowsConfig):
    """Windows over several recorded data sets with the same observations and the same action."""

    type: Literal["mixture"] = "mixture"

    provides: ClassVar = "trajectories"

    sets: dict[Annotated[str, AfterValidator(good_key)], SetConfig] = Field(min_length=1)
    """The data sets by a name of your choice. Each has the same names of observations, which its own `obs`,
    `embeddings`, `images` and `language` map to its keys."""

    @classmethod
    def hint(cls, path: Sequence[str | int]) -> str | None:
        return _NO_PREVIOUS_ACTION if path[-1] == "previous_action" else None

    def faults(self) -> Iterator[str]:
        yield from self.name_faults()
        unweighted = [name for name, record in self.sets.items() if record.weight is None]
        if 0 < len(unweighted) < len(self.sets):
            yield f"sets {unweighted} have no weight, but others have; give all of them a weight, or none"
        has_weights = any(record.has_weights for record in self.sets.values())
        if (not unweighted or has_weights) and any(record.embeddings for record in self.sets.values()):
            yield "sets have weights and embeddings, which are shuffled in blocks of neighbours; remove the weights"

        streamed = [name for name, record in self.sets.items() if record.episodes.in_parts]
        if streamed:
            yield f"sets {streamed} are streamed in parts, which a mixture cannot shuffle; train on one such set alone"

    def name_faults(self) -> Iterator[str]:
        """Observations that not all sets have."""
        observations = {name: sorted(record.observations) for name, record in self.sets.items()}
        first, expected = next(iter(observations.items()))
        for name, names in observations.items():
            if names != expected:
                yield (
                    f"sets.{name} has the observations {names}, sets.{first} has {expected}; give each set the same "
                    f"names, or leave out the observations that not all of them have. Robots of several bodies are "
                    f'data.type and task.type "bodies"'
                )

    def downloaded(self, pinned: Mapping[str, str]) -> Self:
        """See `RecordedConfig.downloaded`."""
        return self.model_copy(update={"sets": {name: record.downloaded(pinned) for name, record in self.sets.items()}})

    def followed(self) -> frozenset[str]:
        return frozenset().union(*(record.followed() for record in self.sets.values()))

    def recorded_sets(self) -> dict[str, TrajectoriesConfig]:
        return {name: self.set_config(name) for name in self.sets}

    def set_config(self, name: str) -> TrajectoriesConfig:
        """One of the sets as a data set of its own."""
        of_set = {field: getattr(self.sets[name], field) for field in RecordedConfig.model_fields}
        shared = {field: getattr(self, field) for field in WindowsConfig.model_fields}
        shared["split"] = self.sets[name].split or self.split
        return TrajectoriesConfig.model_construct(**of_set, **shared)

    def integrity(self, directory: Path) -> JointIntegrity:
        """Compares the files of all sets with their manifests, each named after its set."""
        manifest = directory / DATA_MANIFEST if self.manifest is None else self.manifest
        parts = []
        for name, record in self.recorded_sets().items():
            path = manifest.with_name(f"{manifest.stem}_{name}{manifest.suffix}")
            parts.append(record.model_copy(update={"manifest": path}).integrity(directory))
        return JointIntegrity(parts)

    def create(self, horizon: int, n_obs_steps: int, n_action_steps: int, *, all_obs: bool = False) -> Mixture:
        """Open, check and read the data sets; see `TrajectoriesConfig.create`.

        Raises:
            DataError: a set cannot be trained on; the problems of all sets in one report. `MissingError` if all these
                sets are missing.
            ConfigError: the sets differ in the shape of an observation or in shape, rate or meaning of the action.
        """
        sets, problems, kinds = {}, [], set()
        for name in sorted(self.sets):
            try:
                sets[name] = self.set_config(name).create(
                    horizon, n_obs_steps, n_action_steps, all_obs=all_obs, in_memory=True
                )
            except DataError as error:
                problems += [f"sets.{name}: {error.source}: {problem}" for problem in error.problems]
                kinds.add(type(error))
        if problems:
            raise MissingError("data", problems) if kinds == {MissingError} else DataError("data", problems)
        if differences := [*self.differences(sets)]:
            raise ConfigError("data", differences)
        return self.joined(sets, self._counts({name: len(data.train) for name, data in sets.items()}))

    def differences(self, sets: Mapping[str, Trajectories]) -> Iterator[str]:
        """A line for each difference between the sets that no policy can learn."""
        yield from _different_specs(sets)
        yield from _different_actions(self, sets)

    def joined(self, sets: Mapping[str, Trajectories], counts: Sequence[int]) -> Mixture:
        """The checked sets as one. Args: counts: samples of each set in an epoch."""
        samples = {}
        for part in PARTS:  # after each part, the columns that were joined are freed
            samples[part], sets = _joined(part, sets)
        return Mixture(self, sets, samples, counts, _joint_spec(self, sets))

    def _counts(self, sizes: Mapping[str, int]) -> list[int]:
        """Samples of each set in an epoch. Args: sizes: windows of each set.

        Raises:
            ConfigError: a set would have no sample.
        """
        if any(self.sets[name].weight is None for name in sizes):
            return [*sizes.values()]
        total = sum(sizes.values())
        counts = shares(total, [self.sets[name].weight for name in sizes])
        empty_sets = [name for name, count in zip(sizes, counts, strict=True) if not count]
        problems = [
            f"sets.{name}.weight {self.sets[name].weight:g} gives it none of the {total} samples of an epoch; "
            f"raise it, or leave the set out"
            for name in empty_sets
        ]
        if problems:
            raise ConfigError("data", problems)
        return counts


class Mixture(Demonstrations):
    """Checked data sets, joined.

    Attributes:
        sets: each of them by itself, in the order of their windows.
    """

    def __init__(
        self,
        config: MixtureConfig,
        sets: Mapping[str, Trajectories],
        samples: Mapping[str, Samples],
        counts: Sequence[int],
        spec: Spec,
    ):
        """
        Args:
            samples: of each part, joined.
            counts: samples of each set in an epoch.
            spec: of the joined samples.
        """
        super().__init__(config)
        self.sets, self._counts, data_sets = sets, counts, [*sets.values()]
        self.train, self.val, self.test = (samples[part] for part in PARTS)
        self.spec = spec
        self.files = [*chain.from_iterable(data.files for data in data_sets)]
        self.images = {}
        for name, data in sets.items():
            self.images |= {f"{name}/{key}": column for key, column in data.images.items()}
        # episodes are numbered through, set after set
        self._first_episodes = np.cumsum([0, *(data.highest_id + 1 for data in data_sets)]).tolist()
        self.split_ids = {part: self._numbered_through(part) for part in (*PARTS, "dropped")}
        self.counts = {part: self._summed(part) for part in PARTS}
        self.is_train_step = np.concatenate([data.is_train_step for data in data_sets])
        self.file_warnings = self.of_sets(lambda data: data.file_warnings)
        self.has_embeddings = any(data.has_embeddings for data in data_sets)
        self.follows = {evaluator: self._followed_texts(evaluator) for evaluator in config.followed()}
        has_weights = all(record.weight is not None for record in config.sets.values())
        is_weighted = has_weights or any(data.shares is not None for data in data_sets)
        self.shares = self.divided(len(self.train), {}) if is_weighted else None

    def _numbered_through(self, part: str) -> list[int]:
        """Numbers of the episodes of a part."""
        numbers = []
        for first, data in zip(self._first_episodes, self.sets.values(), strict=False):
            numbers += [first + episode for episode in data.split_ids[part]]
        return numbers

    def _summed(self, part: str) -> dict[str, int]:
        """The counts of a part over all sets."""
        counts = Counter()
        for data in self.sets.values():
            counts.update(data.counts[part])
        return dict(counts)

    def of_sets(self, lines: Callable[[Trajectories], Iterable[str]]) -> list[str]:
        """The lines about each set, after its name."""
        named_lines = []
        for name, data in self.sets.items():
            named_lines += [f"{name}: {line}" for line in lines(data)]
        return named_lines

    def _followed_texts(self, evaluator: str) -> list[str]:
        """See `follows`."""
        return [*chain.from_iterable(data.follows.get(evaluator, ()) for data in self.sets.values())]

    def shown(self) -> dict[str, list[Shown]]:
        """See `Demonstrations`."""
        cameras: dict[str, list[Shown]] = {}
        for data in self.sets.values():
            for key, shown_by_set in data.shown().items():
                cameras.setdefault(key, []).extend(shown_by_set)
        return cameras

    def divided(self, count: int, successes: Successes) -> list[Share]:
        """See `Demonstrations`: by the weights of the sets, and within each by its own."""
        begin, divided = 0, []
        for data, samples in zip(self.sets.values(), self._counts, strict=True):
            divided += [Share(begin + share.ids, share.count) for share in data.divided(samples, successes)]
            begin += len(data.train)
        return divided

    def recorded_at(self, part: str, sample: int) -> tuple[int, int]:
        """See `SplitData`; episodes are numbered through, set after set."""
        before = 0
        for first, data in zip(self._first_episodes, self.sets.values(), strict=False):
            count = len(getattr(data, part))
            if sample < before + count:
                episode, step = data.recorded_at(part, sample - before)
                return first + episode, step
            before += count
        raise IndexError(f"{part} has no sample {sample}")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the names and fingerprints of the sets; see `Trajectories.fingerprint`."""
        prints = {name: data.fingerprint for name, data in self.sets.items()}
        return hashlib.sha256(json.dumps(prints).encode()).hexdigest()

    def summary(self) -> str:
        """See `Demonstrations.summary`; with the share of each set in the samples of an epoch, and the memory that
        they take, since the numbers of a mixture are never mapped from a file."""
        drawn = zip(self.sets, self._counts, strict=True)
        listed = ", ".join(f"{name} {count / sum(self._counts):.3g}" for name, count in drawn)
        n_bytes = sum(column.n_bytes for column in self.train.columns.values() if not column.on_disk)
        return f"{super().summary()}; shares: {listed}; {n_bytes:,} bytes to train on in the memory of each process"

    def report(self) -> dict[str, Any]:
        """See `Demonstrations.report`; with the format and place of each set."""
        return {"sets": {name: data.described for name, data in self.sets.items()}, **super().report()}

    def warnings(self) -> list[str]:
        """See `Demonstrations`; with the warnings of each set, and episodes that one set holds out and another not."""
        set_warnings = self.of_sets(lambda data: data.mixture_warnings())
        return [*super().warnings(), *set_warnings, *leaks(self.sets), *_turned_otherwise(self.sets)]


def _joined(part: str, sets: Mapping[str, Trajectories]) -> tuple[Samples, dict[str, Trajectories]]:
    """Join a part of all sets. Also returns the sets with views of the joined columns for their columns in memory."""
    separate, begin = [getattr(data, part) for data in sets.values()], 0
    columns = {}
    for key in separate[0].columns:
        columns[key] = join([samples.columns[key] for samples in separate])
    in_memory = {key: column.values for key, column in columns.items() if isinstance(column, MemoryColumn)}
    sets_over_views = {}
    for (name, data), samples in zip(sets.items(), separate, strict=True):
        end = begin + samples.rows.n_rows
        views = {key: MemoryColumn(values[begin:end]) for key, values in in_memory.items()}
        sets_over_views[name] = data.over({part: Samples({**samples.columns, **views}, samples.rows)})
        begin = end
    return Samples(columns, WindowRows.joined([samples.rows for samples in separate])), sets_over_views


def _joint_spec(config: MixtureConfig, sets: Mapping[str, Trajectories]) -> Spec:
    """The spec of the first set, with what holds for all of them."""
    specs = [data.spec for data in sets.values()]
    rates = {rate for name, data in sets.items() if (rate := stated_rate(config.sets[name], data))}
    joint = {
        "fps": rates.pop() if len(rates) == 1 else None,
        "names": _dimensions(config, sets),
        "motion": ActionMotion.joined([spec.motion for spec in specs]),
        "instructions": _instructions(specs),
    }
    return specs[0].model_copy(update=joint)


def leaks(sets: Mapping[str, Trajectories]) -> Iterator[str]:
    """A line for every two sets of the same recording of which one trains on episodes that the other holds out."""
    for (name, data), (other_name, other) in permutations(sets.items(), 2):
        if Path(data.described["path"]).resolve() != Path(other.described["path"]).resolve():
            continue
        held_out = {*other.split_ids["val"], *other.split_ids["test"]}
        if leaked := sorted(held_out.intersection(data.split_ids["train"])):
            finding = f"sets.{name} trains on the episodes {first_few(leaked)} of {data.described['path']}"
            why = f"sets.{other_name} holds them out, whose losses are then too low"
            yield f"{finding}, and {why}; list the episodes of each part in their split.parts"


def _turned_otherwise(sets: Mapping[str, Trajectories]) -> Iterator[str]:
    """A line for each camera of which a set turns the frames, or exchanges colours, otherwise than the first set."""
    (first, data), *others = sets.items()
    for name, other in others:
        for key, fit in other.spec.fits.items():
            if (fit.turn, fit.bgr) != (data.spec.fits[key].turn, data.spec.fits[key].bgr):
                finding = f"turn or bgr of {key!r} differ in sets.{name} and sets.{first}"
                yield f"{finding}; robots give frames as sets.{first}, the first by name; rename sets if yours does not"


def _different_specs(sets: Mapping[str, Trajectories]) -> Iterator[str]:
    """A line for each shape, kind or fit in which a set differs from the first one."""
    layouts = {name: _layout(data.spec) for name, data in sets.items()}
    first, expected = next(iter(layouts.items()))
    for name, layout in layouts.items():
        for key in expected:
            if layout[key] != expected[key]:
                yield (
                    f"{key} of sets.{name} is {layout[key]}, of sets.{first} {expected[key]}; map both to the same "
                    f'numbers, for example with "names" or "slice", or train on them apart'
                )


def _layout(spec: Spec) -> dict[str, str]:
    """The layout in which all sets must agree, in words: shapes per step, since the horizon is the same."""

    layouts = {"action": f"of shape {spec.x_shape[1:]}{_rotations(spec, ACTION)}"}
    for key, shape in sorted(spec.cond_shapes.items()):
        words = [f"{spec.kind(key)} of shape {shape[1:]}{_rotations(spec, key)}"]
        fit, depth = spec.fits.get(key), spec.depths.get(key)
        if fit is not None:
            words.append(f", fitted by {fit.how}")
            words += [f" from region {list(fit.region)}"] if fit.region else []
        if depth is not None:
            words.append(f" from {depth.near:g} to {depth.far:g} m")
            words += [f" beside camera {depth.camera!r}"] if depth.camera else []
        if key in spec.embedders:
            words.append(f", embedded by {spec.embedders[key].model_dump()}")
        layouts[f"observation {key!r}"] = "".join(words)
    return layouts


def _rotations(spec: Spec, key: str) -> str:
    """The rotations of a vector, as the end of its layout; empty without rotations."""
    listed = [f"{rotation.form} at {list(rotation.slice)}" for rotation in spec.rotations.get(key, ())]
    return f", with rotations {', '.join(listed)}" if listed else ""


def stated_rate(stated: SetConfig, data: Trajectories) -> float | None:
    """Control steps per second of a set as it is trained on; None if neither record nor files state a rate."""
    return data.spec.fps if stated.fps is None else stated.fps / stated.stride


def _dimensions(config: MixtureConfig, sets: Mapping[str, Trajectories]) -> dict[str, tuple[str, ...]]:
    """Names of the numbers of each vector, where no two sets name them differently."""
    names_by_key: dict[str, set[tuple[str, ...]]] = {}
    for name, data in sets.items():
        stated = config.sets[name].action_names
        for key, names in {**data.spec.names, **({X: tuple(stated)} if stated else {})}.items():
            names_by_key.setdefault(key, set()).add(tuple(names))
    return {key: names.pop() for key, names in names_by_key.items() if len(names) == 1}


def _instructions(specs: Sequence[Spec]) -> dict[str, tuple[str, ...]]:
    """The instructions of training, for keys of which every set lists its own, at most `MOST_LISTED` in all."""
    if not specs[0].instructions:
        return {}
    instructions = {}
    for key in specs[0].instructions:
        texts = set().union(*(spec.instructions.get(key, ()) for spec in specs))
        if all(key in spec.instructions for spec in specs) and len(texts) <= MOST_LISTED:
            instructions[key] = tuple(sorted(texts))
    return instructions


def _different_actions(config: MixtureConfig, sets: Mapping[str, Trajectories]) -> Iterator[str]:
    """A line for each rate, or order of named dimensions, in which a set differs from the first that states one."""
    rates, names = {}, {}
    for name, data in sets.items():
        stated = config.sets[name]
        rates[name] = stated_rate(stated, data)
        names[name] = stated.action_names or data.spec.names.get(X)
    yield from wrong_action_names(config, sets)
    for field, noun, values in (("fps", "a rate of", rates), ("action_names", "dimensions named", names)):
        stated = {name: value for name, value in values.items() if value}
        first = next(iter(stated), None)
        for name, value in stated.items():
            if value != stated[first]:
                yield (
                    f"the action of sets.{name} has {noun} {value}, that of sets.{first} {stated[first]}; a policy has "
                    f"one action. If its files are wrong, say what is true with sets.{name}.{field}"
                )


def wrong_action_names(config: MixtureConfig, sets: Mapping[str, Trajectories]) -> Iterator[str]:
    """A line for each set whose stated names of the action are more or fewer than its dimensions."""
    for name, data in sets.items():
        names, width = config.sets[name].action_names, data.spec.x_shape[1]
        if names and len(names) != width:
            yield f"sets.{name}.action_names has {len(names)} names for an action of {width} dimensions"
