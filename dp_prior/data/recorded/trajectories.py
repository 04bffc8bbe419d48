"""Recorded episodes as training samples: an action chunk, given the observations before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from pydantic import AfterValidator

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.errors import DataError, first_few
from dp_prior.data.files import memory_bytes
from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior.data.formats.store_record import RolloutNeeds
from dp_prior.data.recorded.demonstrations import Demonstrations
from dp_prior.data.recorded.episodes import EpisodeParts, FrameCaches, OpenedEpisodes
from dp_prior.data.recorded.extra import Extra
from dp_prior.data.recorded.motion import motion_of
from dp_prior.data.recorded.records import RecordedConfig, WindowsConfig, good_key
from dp_prior.data.recorded.selection import ACTION, read_selected
from dp_prior.data.recorded.windows import WindowRows, make_windows
from dp_prior.data.samples.order import Successes
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import PARTS
from dp_prior.files.entry_points import entry_points, imported
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.batch import Kind, Spec

if TYPE_CHECKING:
    from dp_prior.data.formats.chosen import Chosen
    from dp_prior.data.recorded.shown import Shown
    from dp_prior.data.recorded.split import Split
    from dp_prior.data.samples.weighted_order import Share
    from dp_prior.tensors.action_motion import ActionMotion

EXTRAS = {
    "points": "dp_prior.data.recorded.points:PointClouds",
    "embeddings": "dp_prior.data.recorded.frame_embeddings:Embeddings",
    "cameras": "dp_prior.data.recorded.camera:Cameras",
    "language": "dp_prior.data.recorded.language:InstructionTexts",
    "mirror": "dp_prior.data.recorded.mirror:MirrorImages",
    "previous_action": "dp_prior.data.recorded.previous:PreviousAction",
    "weights": "dp_prior.data.recorded.weights:Weights",
}
"""Module and class of the extra of each field, in the order of opening, columns, digests and entries of the spec."""

KINDS: tuple[Kind, ...] = get_args(Kind)


class TrajectoriesConfig(RecordedConfig, WindowsConfig):
    """Windows over recorded episodes: observations as condition, an action chunk as the diffused variable."""

    type: Literal["trajectories"] = "trajectories"

    provides: ClassVar = "trajectories"

    previous_action: Annotated[str, AfterValidator(good_key)] | None = None
    """Name of a further observation: the action of the step before, in data units, which agents fill in themselves. At
    the first step of an episode it is the training action nearest to their mean. null: past actions are not seen."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.previous_action in ("action", *self.observations):
            yield (
                f"previous_action is {self.previous_action!r}, the name of the action or of another observation; take "
                f"another name, such as 'previous_action'"
            )

    def root(self) -> Path:
        return expanded(self.episodes.path)

    def places(self) -> dict[str, tuple[str, ...]]:
        """See `DataRecord`: those of embeddings."""
        places: dict[str, tuple[str, ...]] = {}
        for record in (*self.embeddings.values(), *self.language.values()):
            places |= record.folder.places()
        return places

    def recorded_sets(self) -> dict[str, TrajectoriesConfig]:
        return {"data": self}

    def rollout_gaps(self, names: Mapping[str, Sequence[str]], n_obs_steps: int) -> list[str]:
        """See `EpisodeStoreRecord`, of a policy of these data.

        Args:
            names: of the numbers taken, by observation and `ACTION`; missing where nothing names them.
            n_obs_steps: observations that the policy reads at a time.
        """
        obs: dict[str, list[str]] = {}
        for key, selection in self.obs.items():
            obs.setdefault(" + ".join(selection.stored_keys), []).extend(names.get(key, ()))
        obs |= {points.key: [] for points in self.points.values()} | {key: [] for key in self.embeddings}
        return self.episodes.rollout_gaps(RolloutNeeds(obs, names.get(ACTION, ()), n_obs_steps, self.previous_action))

    @property
    def frame_caches(self) -> FrameCaches:
        """Where the frame caches of these data are kept."""
        return FrameCaches(self.episodes.path, self.episodes.is_remote, self.frame_cache, self.verify)

    def extras(self, places: Mapping[str, str] = EXTRAS) -> Iterator[tuple[type[Extra], Any]]:
        """The extras that are configured, each with the value of its field; imports no other extra."""
        for field, place in places.items():
            if record := getattr(self, field):
                yield imported(place), record

    def create(
        self, horizon: int, n_obs_steps: int, n_action_steps: int, *, all_obs: bool = False, in_memory: bool = False
    ) -> Trajectories:
        """Open, check and read the data set. Numbers that take much of the memory are mapped from a file, by the entry
        point `mapped` of the group `dp_prior.data_sets`, if a package offers one.

        Args:
            all_obs: give each sample the observations of the whole horizon, of which a policy sees the first
                n_obs_steps; otherwise these alone.
            in_memory: never map numbers.

        Raises:
            DataError: the data set cannot be trained on; all problems in one report.
        """
        config = self.downloaded({})
        store, place = config.episodes.create(), config.episodes.data_set
        if not (in_memory or config.episodes.in_parts) and config.fills_memory(store):
            place = next((entry.value for entry in entry_points("data_sets", name="mapped")), place)
        return imported(place)(config, store, horizon, n_obs_steps, n_action_steps, all_obs=all_obs)

    def fills_memory(self, store: EpisodeStore) -> bool:
        """Whether the numbers of all steps, as float32 in each process of this machine, take more than a quarter of its
        memory: a process that reads holds up to three copies."""
        shapes, (ends, _) = store.keys(), store.checked_ends()
        keys = chain.from_iterable(selection.stored_keys for selection in (*self.obs.values(), self.action))
        n_bytes = 4 * int(ends[-1] if len(ends) else 0) * sum(int(np.prod(shapes.get(key, ()))) for key in keys)
        return 4 * n_bytes * self._n_processes > memory_bytes()


class Trajectories(Demonstrations):
    """A checked data set, split by episode.

    Attributes:
        described: see `EpisodeStore.describe`.
        highest_id: largest number of an episode, used or not.
    """

    extra_places: ClassVar[Mapping[str, str]] = EXTRAS
    """See `EXTRAS`."""

    def __init__(
        self,
        config: TrajectoriesConfig,
        store: EpisodeStore,
        horizon: int,
        n_obs_steps: int,
        n_action_steps: int,
        *,
        all_obs: bool,
    ):
        """See `TrajectoriesConfig.create`."""
        super().__init__(config)
        opened, warnings = self._read(config, store)
        extras = []
        for extra_class, record in config.extras(self.extra_places):
            extra, opened = extra_class.open(record, opened)
            extras.append(extra)
        metadata, metadata_warnings = _metadata(store, config.stride)
        self.recorded = config
        self._horizon, self._extras, self._episodes = horizon, extras, opened.episodes
        self.described, self.files = store.describe(), self._files(opened)
        self.split_ids, self.highest_id = opened.episodes.ids(), int(opened.chosen.names.max())
        self.images = dict(chain.from_iterable(extra.images.items() for extra in extras))
        self.has_embeddings = any(extra.in_blocks for extra in extras)
        self.follows = dict(chain.from_iterable(extra.follows.items() for extra in extras))
        self._digest = self._content_digest(opened)
        shape = _WindowShape(horizon, n_obs_steps, n_action_steps, horizon if all_obs else n_obs_steps)
        self.spec = self._with_content(self._spec(opened, shape.read_steps, metadata), opened)
        parts = {part: self._windows(part, opened, shape) for part in PARTS}
        self.train, self.val, self.test = (parts[part].samples for part in PARTS)
        self.counts = {part: windows.counts for part, windows in parts.items()}
        self._newest = {part: windows.newest for part, windows in parts.items()}
        self.is_train_step = parts["train"].is_real
        self.shortage, is_short = self._shortage()
        self.file_warnings = [*warnings, *metadata_warnings, *([self.shortage] if is_short else [])]
        self.shares = self._weighted_shares(len(self.train), {})

    def _read(self, config: TrajectoriesConfig, store: EpisodeStore) -> tuple[OpenedEpisodes, list[str]]:
        """Read the vectors of the chosen episodes and divide these into parts; with warnings about the files."""
        keys = {**config.obs, ACTION: config.action}
        arrays, chosen, warnings = read_selected(store, keys, config.choice, config.stride, config.split.max_rows)
        opened = opened_episodes(config, store, chosen, config.split.of(store, chosen), arrays)
        return opened, [*warnings, *file_warnings(config, opened), *copied_numbers(arrays)]

    def _files(self, opened: OpenedEpisodes) -> list[Path]:
        """The files that training reads, except those of embeddings."""
        keys = {*self._config.choice.where}
        keys.update(*(selection.stored_keys for selection in opened.keys.values()))
        keys.update(*(extra.keys for extra in self._extras))
        return list(dict.fromkeys(chain(opened.store.files(keys), *(extra.files for extra in self._extras))))

    def _content_digest(self, opened: OpenedEpisodes) -> Any:
        """SHA-256 of everything but frames."""
        digest = hashlib.sha256(np.ascontiguousarray(opened.episodes.ends, dtype="<i8").tobytes())
        for key in sorted(opened.arrays):
            array = np.ascontiguousarray(opened.arrays[key], dtype="<f4")
            digest.update(f"{key}{array.shape}".encode())
            digest.update(array.data)
        for extra in self._extras:
            digest.update(extra.digest())
        return digest

    def _windows(self, part: str, opened: OpenedEpisodes, shape: _WindowShape) -> _PartWindows:
        """The windows of a part, over columns of their own."""
        steps, lengths = self._episodes.steps(part, self._config.stride)
        windows = make_windows(lengths, shape.horizon, shape.n_obs_steps - 1, shape.n_action_steps - 1)
        source = steps[windows.source]
        rows = WindowRows.of(windows, shape.read_steps, self._config.mask_padding)
        columns = self._vectors(opened, source)
        for extra in self._extras:
            columns |= extra.columns(source)
            if part == "train" and (has_loss := extra.has_loss(source)) is not None:
                rows = rows.masked(has_loss)
        recorded = self._episodes.lengths(part)
        counts = {
            "episodes": len(recorded),
            "steps": int(recorded.sum()),
            "windows": len(windows),
            "padded_positions": int(len(windows) * shape.horizon - windows.valid_counts.sum()),
            "short_episodes": int((-(-recorded // self._config.stride) < shape.horizon).sum()),
        }
        newest = source[windows.first + shape.n_obs_steps - 1]
        return _PartWindows(Samples(columns, rows), counts, newest, windows.is_real)

    def _vectors(self, opened: OpenedEpisodes, source: np.ndarray) -> dict[str, Column]:
        """The columns of everything in memory. Args: source: (m,) row of the data set for each row of the columns."""
        return {key: MemoryColumn(torch.from_numpy(array[source])) for key, array in opened.values.items()}

    def _spec(self, opened: OpenedEpisodes, steps: int, metadata: Mapping[str, Any]) -> Spec:
        """Shapes and kinds of observations and actions. Args: steps: number of steps of an observation."""
        arrays, keys = opened.values, opened.keys
        fields: dict[str, dict[str, Any]] = {
            "cond_shapes": {key: (steps, *arrays[key].shape[1:]) for key in keys if key != ACTION},
            "kinds": {},
            "rotations": {key: selection.rotations for key, selection in keys.items() if selection.rotations},
            "names": _dimensions(opened, metadata["names"]),
        }
        for extra in self._extras:
            for field, entries in extra.spec(opened, steps).items():
                fields.setdefault(field, {}).update(entries)
        fields["kinds"] = dict(sorted(fields["kinds"].items(), key=lambda entry: KINDS.index(entry[1])))
        fps = metadata["fps"] and metadata["fps"] / self._config.stride
        return Spec(x_shape=(self._horizon, *arrays[ACTION].shape[1:]), fps=fps, **fields)

    def _with_content(self, spec: Spec, opened: OpenedEpisodes) -> Spec:
        """Add the description of the training data to the spec."""
        rows, lengths = self._episodes.steps("train", self._config.stride)
        content = {"motion": self._motion(spec, opened, rows, lengths), "instructions": {}}
        for extra in self._extras:
            content |= extra.training_spec(rows)
        return spec.model_copy(update=content)

    def _motion(self, spec: Spec, opened: OpenedEpisodes, rows: np.ndarray, lengths: np.ndarray) -> ActionMotion:
        """The motion of the actions. Args: rows, lengths: (n,) and (E,) of the steps to train on."""
        values = opened.values
        return motion_of(spec, {key: values[key][rows] for key in opened.keys}, lengths)

    def _shortage(self) -> tuple[str, bool]:
        """Warn if most training episodes are shorter than a window. Returns the warning, or "", and whether all are."""
        short, n = self.counts["train"]["short_episodes"], self.counts["train"]["episodes"]
        if 2 * short <= n:
            return "", False
        longest = int((-(-self._episodes.lengths("train") // self._config.stride)).max())
        shortage = (
            f"task.horizon is {self._horizon}, but {short:,} of {n:,} train episodes are shorter (the longest has "
            f"{longest} steps), so they give few windows, mostly padding; lower task.horizon"
        )
        return shortage, short == n

    def over(self, samples: Mapping[str, Samples]) -> Self:
        """The same data set with other samples of equal values, by part."""
        data = copy(self)
        data.train, data.val, data.test = (samples.get(part, getattr(self, part)) for part in PARTS)
        return data

    def shown(self) -> dict[str, list[Shown]]:
        """See `Demonstrations`; mirror images are left out, which no robot sees."""
        steps = self._episodes.steps("train", 1)[0]
        steps = steps[steps < self._episodes.chosen.ends[-1]]
        cameras = chain.from_iterable(extra.shown(steps).items() for extra in self._extras)
        return {key: [camera] for key, camera in cameras}

    def divided(self, count: int, successes: Successes) -> list[Share]:
        """See `Demonstrations`: by weights of rows or instructions, of a window's newest observation.

        Raises:
            ConfigError: a weight or an instruction would have no sample.
        """
        weighted = self._weighted_shares(count, successes)
        if weighted is not None:
            return weighted
        from dp_prior.data.samples.weighted_order import Share

        return [Share(np.arange(len(self.train)), count)]

    def _weighted_shares(self, count: int, successes: Successes) -> list[Share] | None:
        """The shares of the extra that has weights; None if every window comes once."""
        for extra in self._extras:
            weighted = extra.shares(self._newest["train"], count, successes)
            if weighted is not None:
                return weighted
        return None

    def recorded_at(self, part: str, sample: int) -> tuple[int, int]:
        """See `SplitData`; a mirror image is the moment of its original."""
        chosen = self._episodes.chosen
        return chosen.place(int(self._newest[part][sample]) % int(chosen.ends[-1]))

    def summary(self) -> str:
        """See `Demonstrations.summary`; with chosen episodes, stride and extras."""
        lines, chosen = [super().summary()], self._episodes.chosen
        if count := len(chosen.recorded) - len(chosen.numbers):
            by = "choice leaves" if self._config.split.max_rows is None else "choice and split.max_rows leave"
            lines.append(f"{by} out {count} episode{'s' if count > 1 else ''}")
        if self._config.stride > 1:
            rate = "" if self.spec.fps is None else f", {self.spec.fps:g} steps per second"
            lines.append(f"one row of {self._config.stride}{rate}")
        for extra in self._extras:
            lines += extra.summary(len(self.train), self.shares)
        return "; ".join(lines)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the selected arrays, the episode ends and the pixels; equal for equal content in any file format.

        With images it needs the frame caches, which are built if they are not complete.
        """
        digest = self._digest.copy()
        for extra in self._extras:
            digest.update(extra.cached_digest())
        return digest.hexdigest()

    def report(self) -> dict[str, Any]:
        """See `Demonstrations.report`; with lengths of episodes."""
        recorded = self._episodes.chosen.lengths
        return {
            **self.described,
            "episodes": len(recorded),
            "steps": int(recorded.sum()),
            "episode_lengths": {"min": int(recorded.min()), "max": int(recorded.max())},
            "horizon": self._horizon,
            **super().report(),
        }

    def warnings(self) -> list[str]:
        """See `Demonstrations`; with those of extras."""
        lines = [*super().warnings(), *self.mixture_warnings()]
        for extra in self._extras:
            lines += extra.warnings()
        return lines

    def mixture_warnings(self) -> list[str]:
        """Warnings of extras that also hold in a mixture."""
        return [*chain.from_iterable(extra.mixture_warnings() for extra in self._extras)]


@dataclass(frozen=True)
class _WindowShape:
    """Steps of a window. Attributes: read_steps: those of an observation that samples hold."""

    horizon: int
    n_obs_steps: int
    n_action_steps: int
    read_steps: int


@dataclass(frozen=True)
class _PartWindows:
    """The windows of a part of the episodes.

    Attributes:
        counts: see `Demonstrations`.
        newest: (n,) row of the newest observation of each window.
        is_real: (m,) bool, False where a padded row is a repeated edge.
    """

    samples: Samples
    counts: dict[str, int]
    newest: np.ndarray
    is_real: np.ndarray


def opened_episodes(
    config: TrajectoriesConfig, store: EpisodeStore, chosen: Chosen, split: Split, arrays: Mapping[str, np.ndarray]
) -> OpenedEpisodes:
    """The chosen episodes, divided into the parts of a split."""
    numbers = {part: np.searchsorted(chosen.numbers, episodes) for part, episodes in split.ids().items()}
    episodes = EpisodeParts(chosen, chosen.ends, numbers, config.stride)
    return OpenedEpisodes(store, episodes, config.frame_caches, {**config.obs, ACTION: config.action}, arrays)


def file_warnings(config: TrajectoriesConfig, opened: OpenedEpisodes) -> list[str]:
    """Warnings about parts, cameras and instructions of the data set that no setting names."""
    return [*config.split.unused_parts(opened.store), *_unnamed(config, opened)]


def copied_numbers(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """A line if most numbers of the action, at least two, equal observations of the same step, by some of the rows."""
    if not len(arrays[ACTION]):
        return
    rows = np.unique(np.linspace(0, len(arrays[ACTION]) - 1, 1024).astype(np.int64))
    observed = [array[rows].reshape(len(rows), -1) for key, array in arrays.items() if key != ACTION]

    def is_observed(column: np.ndarray) -> bool:
        return any((vectors == column[:, None]).all(0).any() for vectors in observed)

    moving = [column for column in arrays[ACTION][rows].T if np.ptp(column) > 0]
    same = sum(map(is_observed, moving))
    if same > 1 and 2 * same >= len(moving):
        finding = f"{same} of {len(moving)} numbers of the action equal observations of the same step"
        yield f'{finding}, which a policy learns to repeat; if these are positions, write "ahead": 1 into data.action'


def _unnamed(config: TrajectoriesConfig, opened: OpenedEpisodes) -> Iterator[str]:
    """A line for the cameras and depths of a data set that no setting names, and one for its instructions."""
    store, chosen = opened.store, opened.chosen
    keys = {entry.key for entry in (*config.images.values(), *config.depth.values(), *config.points.values())}
    keys.update(*(selection.stored_keys for selection in opened.keys.values()))
    unseen = [key for key in {**store.cameras(), **store.depths()} if key not in keys and not key.startswith("next")]
    if unseen and not config.embeddings:
        yield f"the policy does not see {first_few(unseen)} of the data set; name these in data.images or data.depth"
    task = store.text_key or TASK
    if not config.language and store.keys().get(task) in ((), (1,)) and len(store.texts()) > 1:
        count = len(np.unique(store.episodes(task, chosen.recorded, chosen.numbers)))
        if count > 1:
            yield f"the episodes have {count} instructions, which the policy does not read; name them in data.language"


def _metadata(store: EpisodeStore, stride: int) -> tuple[Mapping[str, Any], list[str]]:
    """`EpisodeStore.metadata` and warnings; training needs no metadata, so an error of reading them is a warning."""
    metadata, warnings = {"fps": None, "names": {}}, []
    try:
        if fault := store.rate_fault():
            warnings.append(fault)
        metadata = store.metadata()
    except DataError as error:
        warnings.append(str(error))
    if metadata["fps"] is None and stride > 1:
        warnings.append("stride: the data set does not say its steps per second, so the policy has no rate")
    return metadata, warnings


def _dimensions(opened: OpenedEpisodes, names: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    """The data set's names of the numbers of each vector that has some."""
    dimensions = {key: tuple(selection.dimensions(names)) for key, selection in opened.keys.items()}
    shapes = {key: array.shape[1:] for key, array in opened.values.items()}
    return {key: listed for key, listed in dimensions.items() if listed and shapes[key] == (len(listed),)}
