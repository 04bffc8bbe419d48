"""Recorded episodes as training samples: an action chunk, given the observations before it.

A data set is columns plus windows. In a column the steps of all episodes follow one another with each episode's edges
repeated, so that every window is one contiguous run (see `windows.py`) and a batch is one gather of runs per column.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from dp_prior.batch import Batch, Spec
from dp_prior.config import Change, Config
from dp_prior.data.columns import Column
from dp_prior.data.columns.embedding import EmbeddingColumn
from dp_prior.data.columns.joined import join
from dp_prior.data.columns.lookup import LookupColumn
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.embeddings.observations import FrameEmbeddings, ObservationEmbeddingsConfig
from dp_prior.data.episodes import EpisodeStore, EpisodeStoreConfig
from dp_prior.data.episodes.lerobot import LeRobotStoreConfig
from dp_prior.data.images import USER_CACHE, ImageColumn, ImageConfig, build_caches, open_images
from dp_prior.data.integrity import MANIFEST, Integrity, Verify
from dp_prior.data.language import FrameTexts, LanguageConfig
from dp_prior.data.loader import Loader
from dp_prior.data.order import BlockOrder, Share, WeightedOrder
from dp_prior.data.previous import central_action, previous_actions
from dp_prior.data.selection import ACTION, KeyConfig, read_selected
from dp_prior.data.split import PARTS, SplitConfig
from dp_prior.data.windows import Windows, make_windows
from dp_prior.normalizer import Limits, Statistics, varies_in
from dp_prior.rich_text import facts_table

HUGE = 1e6
"""Larger magnitudes are worth a warning: they are more often a sentinel or a broken sensor than a measurement."""

OUTLIER_WIDTHS = 100.0
"""A value this many times the 1 %..99 % width away from it is worth a warning."""


MOST_EMBEDDINGS_FITTED = 4096


def good_key(value: str) -> str:
    """The name of an observation or data set, or ValueError."""
    if value == ACTION or not value.replace("_", "a").replace("-", "a").isalnum():
        raise ValueError(
            f"name {value!r} cannot be used; take letters, digits, _ and -, and not {ACTION!r} (the action). "
            f'The name is yours: the name in the data set goes into "key"'
        )
    return value


class RecordedConfig(Config):
    """Recorded episodes, and what is read of them by which name."""

    episodes: Annotated[EpisodeStoreConfig, Change("harmless")]
    """The recorded data set."""

    obs: dict[Annotated[str, AfterValidator(good_key)], KeyConfig] = {}
    """Observations: the policy's name of each one, and its key in the data set."""

    embeddings: dict[Annotated[str, AfterValidator(good_key)], ObservationEmbeddingsConfig] = {}
    """Further observations from folders of embeddings, by the policy's name. They are read from disk during training,
    which then shuffles its windows in blocks."""

    images: dict[Annotated[str, AfterValidator(good_key)], ImageConfig] = {}
    """Further observations that are camera frames, by the policy's name. They are decoded and resized once, into the
    frame cache, and read from there during training."""

    language: dict[Annotated[str, AfterValidator(good_key)], LanguageConfig] = {}
    """Further observations that are instructions, by the policy's name: embeddings of texts."""

    action: KeyConfig
    """The action: one vector per step."""

    def faults(self) -> Iterator[str]:
        names = [*self.obs, *self.embeddings, *self.images]
        both = [*names, *self.language]
        repeated = sorted({name for name in both if both.count(name) > 1})
        if repeated or not names:
            found = f"name {repeated} twice" if repeated else "are empty"
            where = "obs, embeddings, images and language" if repeated else "obs, embeddings and images"
            yield f"{where} {found}; a policy needs observations with different names"
        weighted = [name for name, record in self.language.items() if record.weights is not None]
        if len(weighted) > 1:
            yield f"language {weighted} all have weights; a window has one share, so give them to one of these"
        if weighted and self.embeddings:
            yield (
                f"language.{weighted[0]} has weights, but embeddings are shuffled in blocks of neighbours; "
                f"remove the weights"
            )

    def downloaded(self, pinned: Mapping[str, str]) -> Self:
        """The record with the episodes on this machine, those of the Hub at one commit; see `pinned_commits`.

        Raises:
            DataError, UnreadableError: they cannot be downloaded.
        """
        if not isinstance(self.episodes, LeRobotStoreConfig):
            return self
        cameras = [image.key for image in self.images.values() if image.key is not None]
        episodes = self.episodes.resolve(pinned.get(str(self.episodes.repo)), cameras)
        return self.model_copy(update={"episodes": episodes})


class WindowsConfig(Config):
    """How windows are made of recorded episodes, divided, stored and shuffled."""

    frame_cache: Annotated[Path | None, Change("harmless")] = None
    """Directory of the frame caches, which runs share; null is `.dp_prior_frames` beside the data set, or below
    ~/.cache where that is read-only."""

    split: SplitConfig = SplitConfig()
    """Split of the episodes into training, validation and test parts."""

    batch_size: Annotated[int, Change("harmless")] = Field(default=256, ge=1)
    """Samples per rank and micro-batch."""

    mask_padding: bool = True
    """Repeated actions before and after an episode carry no loss; false trains on them, as Diffusion Policy does."""

    device: Annotated[Literal["auto", "cpu"], Change("harmless")] = "auto"
    """Device of the data: auto moves columns to the training device, smallest first, into half its free memory."""

    verify: Annotated[Verify, Change("harmless")] = "sizes"
    """What each start compares with the manifest: names and sizes of the files, with "hashes" also every byte of local
    files and frame caches. Embeddings are hashed only if their first start asked for it."""

    manifest: Annotated[Path | None, Change("harmless")] = None
    """Manifest of the data set: names, sizes and hashes of its files, which several runs may share. null puts it in the
    run directory."""

    block_rows: int = Field(default=2048, ge=1)
    """With embeddings: windows are shuffled in blocks of this many neighbours, and rows are read this many at once."""

    shuffle_blocks: int = Field(default=16, ge=1)
    """With embeddings: number of blocks of windows that are mixed."""


class TrajectoriesConfig(RecordedConfig, WindowsConfig):
    """Windows over recorded episodes: observations as condition, an action chunk as the diffused variable."""

    replaced: ClassVar = {
        **dict.fromkeys(("abs_action", "rotation_rep"), "Name rotations in data.action.rotations."),
        **dict.fromkeys(("pad_before", "pad_after"), "They follow from task.n_obs_steps and task.n_action_steps."),
    }  # Diffusion Policy

    type: Literal["trajectories"] = "trajectories"

    provides: ClassVar = "trajectories"

    previous_action: Annotated[str, AfterValidator(good_key)] | None = None
    """Name of a further observation: the action of the step before, in data units, which agents fill in themselves. At
    the first step of an episode it is the training action nearest to their mean. null: past actions are not seen."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.previous_action in {"action", *self.obs, *self.embeddings, *self.images, *self.language}:
            yield (
                f"previous_action is {self.previous_action!r}, the name of the action or of another observation; take "
                f"another name, such as 'previous_action'"
            )

    def integrity(self, directory: Path) -> Integrity:
        """Compares the files of the data set with the manifest of the run in `directory`."""
        manifest = directory / MANIFEST if self.manifest is None else self.manifest.expanduser()
        folders = [record.folder for record in (*self.embeddings.values(), *self.language.values())]
        places = {place: endings for folder in folders for place, endings in folder.places().items()}
        return Integrity(manifest, self.episodes.path.expanduser(), self.verify, places)

    def frames(
        self, store: EpisodeStore, ends: np.ndarray, images: Mapping[str, ImageConfig]
    ) -> dict[str, ImageColumn]:
        """The frames of some cameras; see `open_images`. Caches of data on the Hub lie apart from its client's files.

        Args:
            store, ends: the episodes, which are on this machine, and the exclusive end row of each.
        """
        is_hub = isinstance(self.episodes, LeRobotStoreConfig) and self.episodes.repo is not None
        cache = self.frame_cache or (USER_CACHE / "dp_prior" / "frames" if is_hub else None)
        return open_images(images, store, ends, cache, self.episodes.path, self.verify)

    def create(self, horizon: int, n_obs_steps: int, n_action_steps: int, *, all_obs: bool = False) -> Trajectories:
        """Open, check and read the data set.

        Args:
            all_obs: give each sample the observations of the whole horizon, of which a policy sees the first
                n_obs_steps; otherwise these alone.

        Raises:
            DataError: the data set cannot be trained on; all problems in one report.
        """
        return Trajectories(self.downloaded({}), horizon, n_obs_steps, n_action_steps, all_obs=all_obs)


class WindowSet:
    """The windows of some episodes over columns: n samples, fetched by index a batch at a time.

    Each column is gathered once per batch, on its own device. Where columns lie on several devices, ids are expected
    on the CPU, so that columns on disk are read without waiting for an accelerator.
    """

    def __init__(
        self,
        columns: dict[str, Column],
        is_valid: Tensor,
        first: Tensor,
        counts: Tensor,
        horizon: int,
        n_obs_steps: int,
    ):
        """Args:
        columns: m padded rows by key, the action as "x".
        is_valid: (m,) bool, what the mask says of each padded row; batches are made on its device.
        first: (n,) int64 padded row where each window begins.
        counts: (n,) int64 on the CPU, number of True in each window's mask.
        """
        self.columns = columns
        self.valid_counts = counts
        self._target = is_valid.device  # not the device asked for: "cuda" is not equal to "cuda:0"
        self._is_together = {column.device for column in columns.values()} == {self._target}
        self.device = self._target if self._is_together else torch.device("cpu")
        self._is_valid, self._first = is_valid, first.to(self.device)
        self._horizon, self._n_obs_steps = horizon, n_obs_steps
        self._x = columns[ACTION].runs(horizon)
        self._mask = MemoryColumn(is_valid).runs(horizon)
        self._cond = {key: column.runs(n_obs_steps) for key, column in columns.items() if key != ACTION}
        self.reads_disk = any(column.on_disk for column in (self._x, *self._cond.values()))

    @classmethod
    def of(cls, columns: dict[str, Column], windows: Windows, n_obs_steps: int, mask_padding: bool = True) -> WindowSet:
        """The given windows over their padded rows; the mask is True everywhere unless padding is to be masked."""
        is_valid, counts = windows.is_real, windows.valid_counts
        if not mask_padding:
            is_valid, counts = np.ones_like(is_valid), np.full_like(counts, windows.horizon)
        tensors = [torch.from_numpy(array) for array in (is_valid, windows.first, counts)]
        return cls(columns, *tensors, windows.horizon, n_obs_steps)

    @classmethod
    def joined(cls, sets: Sequence[WindowSet]) -> WindowSet:
        """The windows of several sets, one set after another, as one set; all of them on the CPU."""
        rows = np.cumsum([0, *(each.n_rows for each in sets)])
        return cls(
            columns={key: join([each.columns[key] for each in sets]) for key in sets[0].columns},
            is_valid=torch.cat([each._is_valid for each in sets]),
            first=torch.cat([each._first + int(begin) for each, begin in zip(sets, rows, strict=False)]),
            counts=torch.cat([each.valid_counts for each in sets]),
            horizon=sets[0]._horizon,
            n_obs_steps=sets[0]._n_obs_steps,
        )

    def __len__(self) -> int:
        return len(self._first)

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids (B,) int64, which lie on the CPU."""
        return int(self.valid_counts[ids].sum())

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Dataset`: the rows of the columns on disk, the action as "x"."""
        first = self._first.index_select(0, ids)
        columns = {ACTION: self._x, **self._cond}
        return {key: column.rows(first) for key, column in columns.items() if column.on_disk}

    def fetch(self, ids: Tensor, read: Mapping[str, Tensor] | None = None) -> Batch:
        """The samples at ids, (B,) int64 on `device`, in data units; the loader adds positions and denominator.

        Args:
            read: what `read` found for them; None to read it now.
        """
        first = self._first.index_select(0, ids)
        if self._is_together and not self.reads_disk:
            cond = {key: column.rows(first) for key, column in self._cond.items()}
            return Batch(x=self._x.rows(first), cond=cond, mask=self._mask.rows(first), ids=ids)
        found = self.read(ids) if read is None else read
        there = {self.device: first, self._target: first.to(self._target, non_blocking=True)}

        def rows(key: str, column: Column) -> Tensor:
            return found[key] if column.on_disk else column.rows(there[column.device])

        batch = Batch(
            x=rows(ACTION, self._x),
            cond={key: rows(key, column) for key, column in self._cond.items()},
            mask=self._mask.rows(there[self._target]),
            ids=ids,
        )
        return batch.to(self._target)

    def seeing(self, keys: Collection[str]) -> WindowSet:
        """The same samples with these observations only, for readers that need no others."""
        columns = {key: column for key, column in self.columns.items() if key == ACTION or key in keys}
        return self.over(columns)

    def cached(self, block_rows: int, n_blocks: int) -> WindowSet:
        """The same samples, with blocks of the columns on disk cached in memory."""
        columns = {key: column.cached(block_rows, n_blocks) for key, column in self.columns.items()}
        return self.over(columns)

    def to(self, device: torch.device | str, keys: Collection[str] | None = None) -> WindowSet:
        """The same samples, batches of which are wanted on another device.

        Args:
            keys: columns that may move there, of which embeddings stay on disk all the same; None for all.
        """
        moved = self.columns.keys() if keys is None else keys
        columns = {key: column.to(device) if key in moved else column for key, column in self.columns.items()}
        return self._with(columns, self._is_valid.to(device))

    @property
    def n_rows(self) -> int:
        """m, padded rows."""
        return len(self._is_valid)

    def over(self, columns: dict[str, Column]) -> WindowSet:
        """The same windows over other columns of the same rows."""
        return self._with(columns, self._is_valid)

    def _with(self, columns: dict[str, Column], is_valid: Tensor) -> WindowSet:
        return WindowSet(columns, is_valid, self._first, self.valid_counts, self._horizon, self._n_obs_steps)


class SplitTrajectories:
    """Windows in three parts: what one data set and several of them have in common.

    Attributes:
        spec: shapes of one sample.
        train, val, test: WindowSets; val and test may be empty.
        split_ids: episodes of each part by name, to be stored with a run.
        files: of the episodes that the samples were read from.
        images: the column of each camera; see `build_caches`.
        counts: numbers of episodes, steps, windows and padded positions of each part.
        is_train_step: (m,) bool, True where a padded row of `train` is no repeated edge.
        has_embeddings: whether observations are read from disk in blocks.
        shares: groups of the windows of `train`, with fixed shares of an epoch; None if each comes once per epoch.
        warnings: about the files.
        fingerprint: SHA-256 of the content.
    """

    spec: Spec
    train: WindowSet
    val: WindowSet
    test: WindowSet
    split_ids: dict[str, list[Any]]
    files: list[Path]
    images: dict[str, ImageColumn]
    counts: dict[str, dict[str, int]]
    is_train_step: np.ndarray
    has_embeddings: bool
    shares: list[Share] | None
    warnings: list[str]
    fingerprint: str

    def __init__(self, config: WindowsConfig):
        self._config = config
        self._statistics: dict[str, Statistics] | None = None

    def build_caches(
        self, report: Callable[[str], None], check: Callable[[], None] = lambda: None, workers: int | None = None
    ) -> None:
        """Build the frame caches that are not complete; see `dp_prior.data.images.build_caches`.

        Args:
            workers: threads; None for one per core.
        """
        build_caches(self.images, workers or os.cpu_count() or 1, report, check)

    def cache_directories(self) -> set[Path]:
        """Where the frame caches lie, built or not."""
        return {column.cache.directory for column in self.images.values()}

    def statistics(self) -> dict[str, Statistics]:
        """Statistics over the frames of train episodes, by observation key, and of the action as "x"; none of images.

        Those of embeddings and instructions are over `MOST_EMBEDDINGS_FITTED` frames at most, evenly spread.
        """
        if self._statistics is None:
            steps = torch.from_numpy(np.flatnonzero(self.is_train_step))
            self._statistics = {}
            for key, column in self.train.columns.items():
                if self.spec.kind(key) == "image":
                    continue
                is_long = column.on_disk or self.spec.kind(key) == "text"
                most = MOST_EMBEDDINGS_FITTED if is_long else len(steps)
                count = min(len(steps), most)
                seen = steps[torch.arange(count) * len(steps) // count]
                self._statistics[key] = Statistics.of(column.to("cpu").rows(seen).numpy())
        return self._statistics

    def loader(self, *, seed: int, **how: Any) -> Loader:
        """The batches of training; see `Loader` for the arguments."""
        if self.shares is not None:
            return Loader(self.train, order=WeightedOrder(seed, self.shares), seed=seed, **how)
        if not self.has_embeddings:
            return Loader(self.train, seed=seed, **how)
        config = self._config
        order = BlockOrder(seed, len(self.train), block_rows=config.block_rows, shuffle_blocks=config.shuffle_blocks)
        # A block of windows touches a few blocks of rows: validation episodes lie between those of training.
        return Loader(self.train.cached(config.block_rows, 4 * config.shuffle_blocks), order=order, seed=seed, **how)

    def document(self) -> dict[str, Any]:
        """What identifies these data, to be stored with a run."""
        return {"fingerprint": self.fingerprint, "episodes": self.split_ids}

    def summary(self) -> str:
        """Counts of episodes and windows, in one line."""
        episodes = {name: counts["episodes"] for name, counts in self.counts.items()}
        return (
            f"{episodes['train']} train episodes, {len(self.train):,} windows; "
            f"{episodes['val']} val, {episodes['test']} test episodes"
        )

    def _repr_html_(self) -> str:
        observations = {key: f"{self.spec.kind(key)} {shape[1:]}" for key, shape in self.spec.cond_shapes.items()}
        parts = {f"{name} episodes": f"{counts['episodes']:,}" for name, counts in self.counts.items()}
        action = {"action": f"{self.spec.x_shape[0]} steps of {self.spec.x_shape[1:]}"}
        warnings = {f"warning {number}": line for number, line in enumerate(self.report()["warnings"], 1)}
        return facts_table("recorded episodes", parts | observations | action | warnings)

    def to(self, device: torch.device | str) -> Self:
        """Have batches made for the training device; columns move there if the config lets them, frames included.

        Columns move from the smallest up while they take at most half of the device's free memory. Frames that move
        are read here.
        """
        device = torch.device(device)
        if self._config.device == "auto":
            room, moved = _free_bytes(device) // 2, []
            for key, size in sorted(self._column_bytes().items(), key=lambda item: item[1]):
                room -= size
                if room >= 0:
                    moved.append(key)
            self.train, self.val, self.test = (part.to(device, moved) for part in (self.train, self.val, self.test))
        return self

    def report(self) -> dict[str, Any]:
        """Counts per part, padding, ranges and warnings; JSON-able."""
        statistics = self.statistics()
        keys = {key: _describe_key(value) for key, value in statistics.items()}
        warnings = [*self.warnings]
        if not self.split_ids["val"]:
            warnings.append("no episode is left to validate on: val metrics will be missing")
        return {
            "dropped_train_episodes": len(self.split_ids["dropped"]),
            "parts": self.counts,
            "keys": keys,
            "fingerprint": self.fingerprint,
            "warnings": [
                *warnings,
                *_constant_warnings({key: keys[key] for key in keys if self.spec.kind(key) != "text"}),
                *_range_warnings(statistics),
            ],
        }

    def _column_bytes(self) -> dict[str, int]:
        """Memory that the column of each key would take on another device, over all parts."""
        parts = (self.train, self.val, self.test)
        return {key: sum(part.columns[key].n_bytes for part in parts) for key in self.train.columns}


class Trajectories(SplitTrajectories):
    """A checked data set, split by episode.

    Attributes:
        described: format, place and whatever else the episode store says about itself.
    """

    def __init__(
        self, config: TrajectoriesConfig, horizon: int, n_obs_steps: int, n_action_steps: int, *, all_obs: bool
    ):
        """See `TrajectoriesConfig.create`."""
        super().__init__(config)
        self._horizon = horizon
        store, wanted = config.episodes.create(), {**config.obs, ACTION: config.action}
        self.described = store.describe()
        keys = {each.key for each in wanted.values()}
        self.files = store.files(keys.union(*(record.keys() for record in config.language.values())))
        arrays, ends, self.warnings = read_selected(store, wanted)
        self._embeddings = {key: record.create(ends) for key, record in config.embeddings.items()}
        self._language = {key: record.create(store, ends) for key, record in config.language.items()}
        self.files = [*self.files, *(path for found in self._language.values() for path in found.files)]
        self.images = config.frames(store, ends, config.images)
        self._lengths = np.diff(ends, prepend=0)
        self.split_ids = config.split.assign(len(ends)).ids()
        self._digest = _digest(arrays, ends, self._embeddings, self._language)
        starts: dict[str, tuple[float, ...]] = {}
        if config.previous_action is not None:
            name, episodes = config.previous_action, np.array(self.split_ids["train"])
            recorded = arrays[ACTION][_rows_of(ends[episodes], self._lengths[episodes])]
            start = central_action(recorded, config.action.rotations)
            wanted[name], arrays[name] = config.action, previous_actions(arrays[ACTION], ends, start)
            starts[name] = tuple(start.tolist())
        steps = horizon if all_obs else n_obs_steps
        self.spec = Spec(
            x_shape=(horizon, *arrays[ACTION].shape[1:]),
            cond_shapes={key: (steps, *arrays[key].shape[1:]) for key in wanted if key != ACTION}
            | {key: (steps, *found.folder.shape) for key, found in self._embeddings.items()}
            | {key: (steps, *column.shape) for key, column in self.images.items()}
            | {key: (steps, *found.table.shape[1:]) for key, found in self._language.items()},
            kinds={key: "image" for key in config.images} | {key: "text" for key in config.language},
            fits={key: image.resize for key, image in config.images.items()},
            rotations={key: each.rotations for key, each in wanted.items() if each.rotations},
            embedders={key: found.embedder for key, found in self._language.items() if found.embedder is not None},
            previous_actions=starts,
        )
        self.has_embeddings, self.counts = bool(self._embeddings), {}
        stored = {key: EmbeddingColumn(found.folder) for key, found in self._embeddings.items()}
        sets = {}
        for name in PARTS:
            episodes = np.array(self.split_ids[name], dtype=np.int64)
            lengths = self._lengths[episodes]
            windows = make_windows(lengths, horizon, n_obs_steps - 1, n_action_steps - 1)
            source = _rows_of(ends[episodes], lengths)[windows.source]
            columns: dict[str, Column] = {
                key: MemoryColumn(torch.from_numpy(array[source])) for key, array in arrays.items()
            }
            for key, found in self._embeddings.items():
                columns[key] = stored[key].taking(torch.from_numpy(found.row_of[source]))
            for key, column in self.images.items():
                columns[key] = column.taking(torch.from_numpy(source))
            for key, found in self._language.items():
                index = MemoryColumn(torch.from_numpy(found.index[source]))
                columns[key] = LookupColumn(torch.from_numpy(found.table), index)
            sets[name] = WindowSet.of(columns, windows, steps, config.mask_padding)
            self.counts[name] = {
                "episodes": len(lengths),
                "steps": int(lengths.sum()),
                "windows": len(windows),
                "padded_positions": int(len(windows) * horizon - windows.valid_counts.sum()),
                "short_episodes": int((lengths < horizon).sum()),
            }
            if name == "train":
                self.is_train_step = windows.is_real
                newest = source[windows.first + n_obs_steps - 1]
        self.train, self.val, self.test = (sets[name] for name in PARTS)
        weighted = next((found for found in self._language.values() if found.weights is not None), None)
        self._weighted, self._newest = weighted, newest
        self.shares = None if weighted is None else self.divided(len(self.train))

    def divided(self, count: int) -> list[Share]:
        """`count` samples of an epoch, divided by the weights of instructions: of the newest observation of a window.

        Raises:
            ConfigError: an instruction would have no sample.
        """
        if self._weighted is None:
            return [Share(np.arange(len(self.train)), count)]
        return self._weighted.shares(self._weighted.index[self._newest], count)

    def summary(self) -> str:
        """See `SplitTrajectories.summary`; with the shares of instructions that have weights."""
        if self.shares is None:
            return super().summary()
        counts = sorted(share.count / len(self.train) for share in self.shares)
        return f"{super().summary()}; {len(counts)} instructions, shares {counts[0]:.3g} to {counts[-1]:.3g}"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the selected arrays, the episode ends and the pixels; equal for equal content in any file format.

        With images it needs the frame caches, which are built if they are not complete.
        """
        digest = self._digest.copy()
        for key in sorted(self.images):
            index = self.images[key].frames.index
            text = f"{key}{index.fit.model_dump_json()}{index.encoding.model_dump_json()}{''.join(index.digests)}"
            digest.update(text.encode())
        return digest.hexdigest()

    def report(self) -> dict[str, Any]:
        """See `SplitTrajectories.report`; with lengths of episodes."""
        found = super().report()
        found["warnings"] += [
            f"{key!r} is {language.texts[0]!r} in every frame, so it tells the policy nothing"
            for key, language in self._language.items()
            if len(language.texts) == 1
        ]
        return {
            **self.described,
            "episodes": len(self._lengths),
            "steps": int(self._lengths.sum()),
            "episode_lengths": {"min": int(self._lengths.min()), "max": int(self._lengths.max())},
            "horizon": self._horizon,
            **found,
        }


def pinned_commits(data: Any) -> dict[str, str]:
    """The commits of data sets on the Hub, by repository, in the JSON of the data of a stored configuration."""
    given = data if isinstance(data, dict) else {}
    sets = [given, *(given["sets"].values() if isinstance(given.get("sets"), dict) else ())]
    records = [one["episodes"] for one in sets if isinstance(one, dict) and isinstance(one.get("episodes"), dict)]
    return {record["repo"]: record["revision"] for record in records if record.get("repo") and record.get("revision")}


def _rows_of(ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows of the episodes with these end rows and lengths, one episode after another."""
    starts_here = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(ends - lengths - starts_here, lengths)


def _free_bytes(device: torch.device) -> int:
    """Free memory of an accelerator; the CPU's own memory holds the arrays already."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 1 << 62


def _digest(
    arrays: dict[str, np.ndarray],
    ends: np.ndarray,
    embeddings: dict[str, FrameEmbeddings],
    language: dict[str, FrameTexts],
) -> Any:
    """SHA-256 of everything but images."""
    digest = hashlib.sha256(np.ascontiguousarray(ends, dtype="<i8").tobytes())
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key], dtype="<f4")
        digest.update(f"{key}{array.shape}".encode())
        digest.update(array.data)
    for key in sorted(embeddings):
        digest.update(f"{key}{embeddings[key].folder.fingerprint()}".encode())
        rows = embeddings[key].row_of
        if (np.diff(rows, prepend=-1) != 1).any():  # in recorded order the folder's fingerprint says it all
            digest.update(rows.astype("<i8").tobytes())
    for key in sorted(language):
        digest.update(f"{key}".encode() + language[key].digest())
    return digest


def _describe_key(statistics: Statistics) -> dict[str, Any]:
    constant = np.flatnonzero(~varies_in(statistics.min, statistics.max, Limits().range_eps)).tolist()
    low, high = statistics.min.ravel().tolist(), statistics.max.ravel().tolist()
    return {"shape": list(statistics.min.shape), "min": low, "max": high, "constant_dimensions": constant}


def _called(key: str) -> str:
    return "action" if key == ACTION else f"{key!r}"


def _constant_warnings(keys: dict[str, dict[str, Any]]) -> list[str]:
    warnings = []
    for key, found in keys.items():
        constant, count = found["constant_dimensions"], len(found["min"])
        if constant:
            listed = ", ".join(map(str, constant[:20])) + (", ..." if len(constant) > 20 else "")
            effect = "the policy always gives these values" if key == ACTION else "they tell the policy nothing"
            warnings.append(
                f"{_called(key)}, dimensions {listed} ({len(constant)} of {count}): constant over the train episodes, "
                f"or within a millionth of their size; {effect}"
            )
    return warnings


def _range_warnings(statistics: dict[str, Statistics]) -> list[str]:
    warnings = []
    for key, value in statistics.items():
        ends = (array.ravel() for array in (value.min, value.max, value.q01, value.q99))
        for i, (low, high, q01, q99) in enumerate(zip(*ends, strict=True)):
            width = q99 - q01
            far = width > 0 and max(high - q99, q01 - low) > OUTLIER_WIDTHS * width
            if far or max(abs(low), abs(high)) > HUGE:
                warnings.append(
                    f"{_called(key)}, dimension {i}: values reach from {low:g} to {high:g}, but 98 % of them lie in "
                    f"[{q01:g}, {q99:g}]; look for sentinels or outliers, or use the quantile normalizer"
                )
    return warnings
