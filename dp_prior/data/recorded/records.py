"""The common base of records of recorded data: which values of the episodes are read, and how windows are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field

from dp_prior.config import Change, Config, late
from dp_prior.data.data_record import (
    BatchSize,
    DataDevice,
    DataRecord,
    FrameCachePlace,
    GlobalBatchSize,
    ManifestPlace,
    Verified,
)
from dp_prior.data.formats import EpisodeStoreConfig
from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior.data.recorded.selection import ACTION, ActionConfig, KeyConfig
from dp_prior.data.recorded.split import SplitConfig

if TYPE_CHECKING:
    from dp_prior.data.recorded.camera import FramesConfig


def good_key(value: str) -> str:
    """The name of an observation or data set, or ValueError."""
    if value == ACTION or not value.replace("_", "a").replace("-", "a").isalnum():
        raise ValueError(
            f"name {value!r} cannot be used; take letters, digits, _ and -, and not {ACTION!r} (the action). "
            f'The name is yours: the name in the data set goes into "key"'
        )
    return value


# Each is imported when a configuration has such an observation.
ObservationEmbeddingsConfig = late("dp_prior.data.recorded.frame_embeddings:ObservationEmbeddingsConfig")
ImageConfig = late("dp_prior.data.recorded.camera:ImageConfig")
DepthConfig = late("dp_prior.data.recorded.camera:DepthConfig")
PointsConfig = late("dp_prior.data.recorded.points:PointsConfig")
LanguageConfig = late("dp_prior.data.recorded.language:LanguageConfig")
MirrorConfig = late("dp_prior.data.recorded.mirror:MirrorConfig")
WeightsConfig = late("dp_prior.data.recorded.weights:WeightsConfig")


class RecordedConfig(Config):
    """Recorded episodes, and the keys that are read, by the policy's names."""

    episodes: Annotated[EpisodeStoreConfig, Change("harmless")]
    """The recorded data set."""

    choice: ChoiceConfig = ChoiceConfig()
    """Which of its episodes are used; by default all. Split, statistics, fingerprint and frame caches ignore the
    others."""

    stride: int = Field(default=1, ge=1)
    """Train on every Nth row: 3 makes a policy of 10 steps per second from a recording at 30. Windows begin at every
    row, so all rows are used. Only for absolute actions; differences between rows would miss the skipped ones."""

    obs: dict[Annotated[str, AfterValidator(good_key)], KeyConfig] = {}
    """Observations: the policy's name for each, and its key in the data set."""

    embeddings: dict[Annotated[str, AfterValidator(good_key)], ObservationEmbeddingsConfig] = {}
    """Further observations from folders of embeddings, by the policy's name. They are read from disk during training,
    which then shuffles its windows in blocks."""

    images: dict[Annotated[str, AfterValidator(good_key)], ImageConfig] = {}
    """Further observations that are camera frames, by the policy's name. They are decoded and resized once, into the
    frame cache, and read from there during training."""

    depth: dict[Annotated[str, AfterValidator(good_key)], DepthConfig] = {}
    """Further observations that are depth, by the policy's name, through the frame cache too."""

    points: dict[Annotated[str, AfterValidator(good_key)], PointsConfig] = {}
    """Further observations that are point clouds, by the policy's name."""

    language: dict[Annotated[str, AfterValidator(good_key)], LanguageConfig] = {}
    """Further observations that are instructions, by the policy's name: embeddings of texts."""

    action: ActionConfig
    """The action: one vector per step."""

    mirror: dict[str, MirrorConfig] = {}
    """Also train on mirrored copies of the training episodes: how to mirror each observation of `obs`, by the policy's
    name, and the action, as `action`; cameras have a `mirror` of their own. Empty: no copies."""

    weights: Annotated[WeightsConfig | None, Change("schedule-changing", {"mask": "data"})] = None
    """How often windows are drawn, for example corrections more often. null: each window once per epoch."""

    def faults(self) -> Iterator[str]:
        names = self.observations
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated or len(names) == len(self.language):
            finding = f"name {repeated} twice" if repeated else "are empty"
            where = "obs, embeddings, images, depth" + (", points and language" if repeated else " and points")
            yield f"{where} {finding}; a policy needs observations with different names"
        if self.cameras or self.mirror:
            from dp_prior.data.recorded.camera_faults import depth_faults, mirror_faults

            yield from depth_faults(self)
            yield from mirror_faults(self)
        weighted = [name for name, record in self.language.items() if record.weights is not None]
        if len(weighted) > 1:
            yield f"language {weighted} all have weights; a window has one share, so give them to one of these"
        if weighted and self.weights is not None:
            yield f"weights is given, but language.{weighted[0]} has weights too; a window has one share, so remove one"
        if self.embeddings and self.has_weights:
            finding = f"language.{weighted[0]} has weights" if weighted else "weights is given"
            yield f"{finding}, but embeddings are shuffled in blocks of neighbours; remove the weights"

    def followed(self) -> frozenset[str]:
        """See `DataRecord`."""
        return frozenset(record.success_of for record in self.language.values() if record.weights == "by_success")

    @property
    def has_weights(self) -> bool:
        """Whether windows or instructions have weights."""
        return self.weights is not None or any(record.weights is not None for record in self.language.values())

    @property
    def observations(self) -> list[str]:
        """Names of all observations."""
        return [*self.obs, *self.embeddings, *self.images, *self.depth, *self.points, *self.language]

    @property
    def cameras(self) -> dict[str, FramesConfig]:
        """Images and depth by name."""
        return {**self.images, **self.depth}

    def downloaded(self, pinned: Mapping[str, str]) -> Self:
        """The record with the episodes on this machine, those of the Hub at one commit; see `pinned_commits`.

        Raises:
            DataError, UnreadableError: they cannot be downloaded.
        """
        cameras = [image.key for image in self.cameras.values() if image.key is not None]
        episodes = self.episodes.local(pinned, cameras, self.choice)
        return self if episodes is self.episodes else self.model_copy(update={"episodes": episodes})


class WindowsConfig(DataRecord):
    """How windows are made of recorded episodes, divided, stored and shuffled."""

    frame_cache: FrameCachePlace = None

    split: SplitConfig = SplitConfig()
    """Split of the episodes into training, validation and test parts."""

    batch_size: BatchSize = 256

    global_batch_size: GlobalBatchSize = None

    mask_padding: bool = True
    """Repeated actions before and after an episode carry no loss; false trains on them, as Diffusion Policy does."""

    device: DataDevice = "auto"
    """Device of the data: auto moves columns to the training device, smallest first, into half its free memory."""

    verify: Verified = "sizes"

    manifest: ManifestPlace = None

    block_rows: int = Field(default=2048, ge=1)
    """With embeddings: windows are shuffled in blocks of this many neighbours, and rows are read in such blocks."""

    shuffle_blocks: int = Field(default=16, ge=1)
    """With embeddings: number of blocks of windows that are mixed."""


def pinned_commits(data: Any, configured: Any = None) -> dict[str, str]:
    """Read the commits of data sets on the Hub, by repository, from the data of a stored configuration.

    Args:
        data: stored, as JSON.
        configured: JSON of the present configuration; a set that names a revision there pins no other set.
    """
    configured_records, commits = _episode_records(configured), {}
    for name, record in _episode_records(data).items():
        has_own_revision = configured_records.get(name, {}).get("revision")
        if record.get("repo") and record.get("revision") and not has_own_revision:
            commits[record["repo"]] = record["revision"]
    return commits


def _episode_records(data: Any) -> dict[Any, dict[str, Any]]:
    """The JSON of `episodes` by the name of the set, None for data that are no mixture."""
    document = data if isinstance(data, dict) else {}
    sets = {None: document, **(document["sets"] if isinstance(document.get("sets"), dict) else {})}
    records = {name: record.get("episodes") for name, record in sets.items() if isinstance(record, dict)}
    return {name: record for name, record in records.items() if isinstance(record, dict)}
