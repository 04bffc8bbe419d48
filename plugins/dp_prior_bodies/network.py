"""One network for robots of many bodies, whose joints and cameras differ.

Each body is an ordinary policy with its own normalizer, transforms and shapes (`BodyPolicy`). Their encoders and
network are shared, as wide as the widest body. A batch is divided by body, and each body's samples are normalised,
noised and measured as that body has them. Numbers that a body does not have are zeros where the shared network reads
them, whatever the batch holds there, and its predictions of them are dropped: no loss, statistic or sample depends on
padding. Learnt features of the body tell the network which observations are absent.

`BodiesPolicy.body` cuts the weights of one body out of the shared ones. What acts is that smaller policy, which
computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import ConfigError
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.process import Loss
from dp_prior.networks.encoders.encoder import Encoder, EncoderRecord
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tasks.policy_faults import data_faults, observation_faults, unknown_keys
from dp_prior.tasks.policy_record import PolicyRecord
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tensors.batch import NORMALISED, Batch, Kind, Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.randomness import Randomness
from dp_prior_bodies.body_policy import BodyPolicy, BodyPolicyConfig
from dp_prior_bodies.union import BODY, joint_spec, narrowed, narrowed_obs, widened

if TYPE_CHECKING:
    from dp_prior.data.samples.over_columns import Samples
    from dp_prior.tasks.transfer import Transfer
    from dp_prior.tasks.weights import TransferConfig


class BodiesPolicyConfig(PolicyConfig):
    """One diffusion policy for robots of several bodies, each a data set of `data.sets`. Settings of an observation
    hold for every body that has it; the normalizer of each body is its own."""

    type: Literal["bodies"] = "bodies"

    kind: ClassVar = "bodies"

    data_types: ClassVar = ("bodies",)

    embedding_dim: int = Field(default=16, ge=1)
    """Number of learnt features of each body, which the network reads beside the observations."""

    def create(self, spec: Spec) -> BodiesPolicy:
        """An untrained policy for data of these bodies; see `PolicyConfig.create`."""
        if not spec.bodies:
            raise ConfigError("task", ['type is "bodies", which learns from data.type "bodies"'])
        records = {name: self.of_body(name, body) for name, body in spec.bodies.items()}
        inside = joint_spec({name: _inside(records[name], body) for name, body in spec.bodies.items()})
        if problems := [*self._problems(spec, inside, records)]:
            raise ConfigError("task", problems)
        embedding = BodyEmbeddingConfig(bodies=len(records), dim=self.embedding_dim)
        with_body = self.model_copy(update={"encoders": {**self.encoders, BODY: embedding}})
        network = PolicyConfig.create(with_body, inside)
        if not hasattr(network.backbone, "named_axes"):
            finding = f"backbone {self.backbone.type!r} does not say which of its weights belong to which numbers"
            raise ConfigError("task", [f"{finding}, so no body can be cut out; give its network `named_axes`"])
        return BodiesPolicy(self, records, network, spec)

    def _check(self, spec: Spec, n_obs_steps: int) -> None:
        """Nothing: `create` has checked each body."""

    def of_body(self, name: str, spec: Spec) -> BodyPolicyConfig:
        """The settings of one body's policy. Args: spec: of the body."""
        keys = {*spec.cond_shapes}
        shared = {key: owner for key, owner in self.shared_encoders.items() if {key, owner} <= keys}
        owners = {key: self.shared_encoders.get(key, key) for key in spec.cond_shapes if key not in shared}
        settings = {field: getattr(self, field) for field in PolicyRecord.model_fields if field != "type"}
        settings["shared_encoders"] = shared
        settings["encoders"] = {key: self.encoders[owner] for key, owner in owners.items() if owner in self.encoders}
        settings["normalizer"] = _restricted(self.normalizer, {"action", *keys})
        settings["cond_dropout"] = _restricted(self.cond_dropout, keys)
        return BodyPolicyConfig(**settings, body=name, embedding_dim=self.embedding_dim)

    def _problems(self, spec: Spec, inside: Spec, records: Mapping[str, BodyPolicyConfig]) -> Iterable[str]:
        """Why these bodies cannot be learnt. Args: inside: as the network reads them."""
        yield from unknown_keys(self, spec)
        for name, body in spec.bodies.items():
            faults = [*data_faults(records[name], body, self.n_obs_steps), *observation_faults(records[name], body)]
            yield from (f"body {name!r}: {fault}" for fault in faults)
        for key in (key for key in spec.cond_shapes if spec.kind(key) == "vector"):
            widths = {
                name: body.cond_shapes[key][1:] for name, body in inside.bodies.items() if key in body.cond_shapes
            }
            encoder = self.encoder_of(key, "vector")
            if len({*widths.values()}) > 1 and encoder.type != "state":
                yield (
                    f"encoders.{key} is {encoder.type!r}, but {key!r} has the shapes {widths}; only the state encoder "
                    f"reads vectors of several widths. Give the observations of different bodies different names"
                )


class BodyEmbeddingConfig(EncoderRecord):
    """Learnt features of each body."""

    type: Literal["body"] = "body"

    reads: ClassVar[tuple[Kind, ...]] = ("label",)

    needs_data_units: ClassVar[bool] = False

    bodies: int = Field(ge=1)
    """Number of bodies."""

    dim: int = Field(ge=1)
    """Number of features."""

    def create(self, shape: tuple[int, ...]) -> BodyEmbedding:
        """The encoder of the numbers of bodies."""
        return BodyEmbedding(self)


class BodyEmbedding(Encoder):
    """See `BodyEmbeddingConfig`."""

    def __init__(self, config: BodyEmbeddingConfig):
        super().__init__()
        self.output_dim = config.dim
        self.weight = nn.Parameter(torch.randn(config.bodies, config.dim))

    def forward(self, value: Tensor, random: Randomness | None = None) -> Tensor:
        """(B, n_obs_steps) numbers of bodies -> (B, n_obs_steps, output_dim)."""
        return self.weight[value]


class BodiesPolicy(Pretrained, DiffusionModel):
    """Trains one network for several bodies. It does not act; `body` returns the policy of one body, which does."""

    task = "bodies"

    def __init__(
        self,
        record: BodiesPolicyConfig,
        records: Mapping[str, BodyPolicyConfig],
        network: DiffusionPolicy,
        spec: Spec,
    ):
        """
        Args:
            records: settings of each body's policy.
            network: whose encoders and backbone are shared, for the bodies as the network reads them.
        """
        super().__init__(
            spec=spec,
            normalizer=nn.ModuleList(),
            encoder=network.encoder,
            backbone=network.backbone,
            process=network.process,
            sampler=record.sampler,
            cond_dropout=record.cond_dropout,
            x_shape=network.x_shape,
        )
        self.record, self.records, self.inside_spec = record, dict(records), network.spec
        self.bodies = tuple(spec.bodies)
        self.horizon, self.n_obs_steps, self.n_action_steps = record.horizon, record.n_obs_steps, record.n_action_steps
        self._views = {name: self._view(name) for name in self.bodies}  # not registered: no tensor comes twice
        self.normalizer.extend(view.normalizer for view in self._views.values())

    def _view(self, name: str) -> BodyPolicy:
        """The policy of a body with the modules of this network, which are as wide as the widest body."""
        wide, inside, number = self.inside_spec, self.inside_spec.bodies[name], self.bodies.index(name)
        backbone = _SharedBackbone(self.backbone, inside.x_shape[-1], self.x_shape[-1])
        record = self.records[name].model_copy(update={"backbone": _SharedBackboneConfig(backbone)})
        encoder = _SharedEncoder(self.encoder, wide, inside, record.depths_beside(), number)
        view = PolicyConfig._build(record, BodyPolicy, self.spec.bodies[name], inside.x_shape, encoder)
        view.process = self.process
        return view

    def forward(self, batch: Batch, random: Randomness, self_condition: bool = True) -> Loss:
        """See `DiffusionModel.forward`: the mean over the samples of all bodies, each as its own policy has it."""
        if torch.compiler.is_compiling():
            from dp_prior_bodies.regions import loss_by_regions

            return loss_by_regions(self, batch, random, self_condition)
        parts = self.divided(batch, random)
        losses = [part.view(part.batch, part.random, self_condition) for part in parts]
        return self.rejoined(losses, parts, len(batch))

    def divided(self, batch: Batch, random: Randomness) -> list[BodyPart]:
        """The samples of each body in a batch."""
        numbers = batch.cond[BODY][:, 0]
        batch = replace(batch, denominator=batch.mask.sum() if batch.denominator is None else batch.denominator)
        parts = []
        for number, view in enumerate(self._views.values()):
            (rows,) = torch.where(numbers == number)
            if len(rows):
                view.training = self.training
                parts.append(BodyPart(view, rows, narrowed(batch[rows], view.spec), random[rows]))
        return parts

    def rejoined(self, losses: Sequence[Loss], parts: Sequence[BodyPart], size: int) -> Loss:
        """The loss of a batch of `size` samples. Args: losses: of its parts."""
        places = []
        for loss, part in zip(losses, parts, strict=True):
            draws = torch.arange(len(loss.t) // len(part.rows), device=part.rows.device)
            places.append((draws[:, None] * size + part.rows).flatten())
        # Ranks exchange the gradients of all parameters, those of bodies and observations absent from a batch too.
        absent = sum(0.0 * parameter.sum() for parameter in self.encoder.parameters())
        loss = _merged(losses, torch.cat(places).argsort())
        return loss._replace(total=loss.total + absent)

    def fit(self, statistics: Mapping[str, Statistics], samples: Samples) -> None:
        """Fit the normalizer of each body to the windows of that body.

        Args:
            statistics: by `<body>/<key>`.
        """
        numbers = samples.columns[BODY].to("cpu").rows(samples.rows.begins.cpu())
        for number, (name, view) in enumerate(self._views.items()):
            (ids,) = torch.where(numbers == number)
            of_body = {key: statistics[f"{name}/{key}"] for key in view.normalizer.shapes}
            view.fit(of_body, BodyWindows(samples, ids, view.spec))

    def warnings(self) -> list[str]:
        """See `DiffusionModel.warnings`; of each body."""
        lines: list[str] = []
        for name, view in self._views.items():
            lines += [f"{name}: {line}" for line in view.warnings()]
        return lines

    @property
    def guidance_keys(self) -> tuple[str, ...]:
        """See `DiffusionModel`; the body itself is never dropped."""
        return tuple(key for key in self.spec.cond_shapes if key != BODY)

    def body(self, name: str | None) -> BodyPolicy:
        """The policy of one body, in the shapes and units of that body, with a copy of its part of the weights.

        Raises:
            ValueError: the network knows no body of this name.
        """
        if name not in self.bodies:
            self._refuse(name)
        record = self.records[name].model_copy(update={"diffusion": self.record.diffusion})
        with torch.random.fork_rng(devices=[]):
            policy = record.create(self.spec.bodies[name])
        dtype = next(self.backbone.parameters()).dtype
        policy.load_state_dict(self.cut(name, self.state_dict()))
        policy.requires_grad_(False).eval().to(self.process.levels.device)
        if dtype != torch.float32:
            policy.cast_weights(dtype)
        policy.is_loaded = self.is_loaded
        return policy

    def cut(self, name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of the tensors that belongs to one body, by their names in the policy of that body.

        Args:
            tensors: weights of this network, or other tensors of their names and shapes, such as gradients.
        """
        cut = {}
        for stored_name, name_of_body, axis, places in self.shares(name):
            tensor = tensors[stored_name]
            cut[name_of_body] = tensor if places is None else tensor.index_select(axis, places.to(tensor.device))
        cut["encoder.body"] = cut["encoder.body"][0]
        return cut

    def shares(self, name: str) -> Iterator[tuple[str, str, int, Tensor | None]]:
        """The tensors of which one body has a part: the name of the tensor, its name in the policy of the body, and the
        axis and the places of the part; None for the whole tensor. The row of a body's features is a vector there."""
        number, keys = self.bodies.index(name), self.encoder.keys
        parts = [(f"normalizer.{number}.", "normalizer."), ("backbone.", "backbone."), ("process.", "process.")]
        inside, shared = self.inside_spec.bodies[name], self.records[name].shared_encoders
        axes = self._cut_axes(inside)
        for place, key in enumerate(sorted(inside.cond_shapes)):
            if key not in shared:
                owner = keys.index(self.record.shared_encoders.get(key, key))
                parts.append((f"encoder.encoders.{owner}.", f"encoder.encoders.{place}."))
        yield f"encoder.encoders.{keys.index(BODY)}.weight", "encoder.body", 0, torch.tensor([number])
        for stored_name in self.state_dict():
            for prefix, prefix_of_body in parts:
                if stored_name.startswith(prefix):
                    axis, places = axes.get(stored_name, (0, None))
                    yield stored_name, prefix_of_body + stored_name.removeprefix(prefix), axis, places

    def transfer_of(self, source: Pretrained, record: TransferConfig) -> Transfer:
        """What this network takes of the model of a checkpoint, see `dp_prior_bodies.joint_transfer`."""
        from dp_prior_bodies.joint_transfer import transfer

        return transfer(self, source, record)

    def _cut_axes(self, inside: Spec) -> dict[str, tuple[int, Tensor]]:
        """By tensor, the axis along which a body has a part of it, and the places of this part.

        Args:
            inside: the body as the network reads it.
        """
        features, own_features = self._features(self.inside_spec), self._features(inside)
        token = [features.index(feature) for feature in own_features]
        axes = {}
        for number, key in enumerate(self.encoder.keys):
            if key in inside.cond_shapes:
                width = torch.arange(math.prod(inside.cond_shapes[key][1:]))
                for name, axis in self.encoder.encoder_of(key).number_axes.items():
                    axes[f"encoder.encoders.{number}.{name}"] = axis, width
        shapes = {name: tensor.shape for name, tensor in self.backbone.state_dict().items()}
        for pattern, (axis, kind) in self.backbone.named_axes.items():
            for name in [name for name in shapes if fnmatchcase(name, pattern)]:
                size = shapes[name][axis]
                before = size - self.n_obs_steps * len(features) if kind == "cond" else 0
                if kind in ("token", "cond"):
                    starts = range(before, size, len(features))
                    places = [*range(before), *(start + place for start in starts for place in token)]
                else:
                    places = [place for place in range(size) if place % self.x_shape[-1] < inside.x_shape[-1]]
                axes[f"backbone.{name}"] = axis, torch.tensor(places)
        return axes

    def _features(self, inside: Spec) -> list[tuple[str, Any]]:
        """Names of the features of a token, in order; those of the body come last in the policy of one body."""
        keys = sorted(inside.cond_shapes) if BODY in inside.cond_shapes else [*sorted(inside.cond_shapes), BODY]
        features = []
        for key in keys:
            is_numbers = key != BODY and inside.kind(key) in NORMALISED
            width = math.prod(inside.cond_shapes[key][1:]) if is_numbers else 0
            features += [(key, feature) for feature in self.encoder.encoder_of(key).features(tuple(range(width)))]
        return features

    @property
    def reads(self) -> NoReturn:
        """Raises ValueError: no robot has the observations of all bodies; see `policy_reads`."""
        self._refuse(None)

    def sample(self, cond: dict[str, Tensor], random: Randomness, draw: Draw = AS_CONFIGURED) -> Tensor:
        """Samples for the rows of a joint batch, each of its own body, for checks of a run; `body` returns what acts.

        Args:
            cond: of a batch; its observation `BODY` names the body of each row.
            draw: a sampler and a guidance scale alone; other fields have the shapes of one body.

        Returns:
            (B, *spec.x_shape) in data units, with zeros behind the numbers of narrower bodies.

        Raises:
            ValueError: `cond` names no bodies, or `draw` has other fields.
        """
        settings = Draw(sampler=draw.sampler or self.sampler, guidance_scale=draw.guidance_scale)
        if BODY not in cond or any(value is None and draw[place] is not None for place, value in enumerate(settings)):
            self._refuse(None)
        first = cond[BODY]
        samples = torch.zeros(len(first), *self.spec.x_shape, device=first.device)
        for number, view in enumerate(self._views.values()):
            (rows,) = torch.where(first[:, 0] == number)
            if len(rows):
                view.training = self.training
                of_rows = {key: value[rows] for key, value in cond.items()}
                chunks = view.sample(narrowed_obs(of_rows, view.spec), random[rows], settings)
                samples[rows] = widened(chunks, samples.shape[-1])
        return samples

    def bits_per_dim(self, batch: Batch, random: Randomness) -> NoReturn:
        """Raises ValueError; see `body`."""
        self._refuse(None)

    def _refuse(self, name: str | None) -> NoReturn:
        """Raises ValueError: a body that acts must be one of the network's."""
        finding = "no body is named" if name is None else f"it knows no body {name!r}"
        loading = f"load_policy(path, body={self.bodies[0]!r})"
        raise ValueError(
            f"this network was trained for the bodies {', '.join(map(repr, self.bodies))}, and {finding}; name one of "
            f"them, as in {loading}; commands take the folder that {loading}.save_pretrained(folder) writes"
        )


@dataclass(frozen=True)
class BodyPart:
    """The samples of one body in a joint batch.

    Attributes:
        view: the policy of the body with the shared modules.
        rows: (n,) int64, their places in the joint batch.
        batch: as the body has them.
        random: a row for each.
    """

    view: BodyPolicy
    rows: Tensor
    batch: Batch
    random: Randomness

    def tensors(self) -> Iterator[Tensor]:
        """The tensors with a row for each sample."""
        yield from (self.batch.x, self.batch.mask, self.batch.ids, self.random.keys, *self.batch.cond.values())
        if self.batch.positions is not None:
            yield self.batch.positions


class _SharedEncoder(ObservationEncoder):
    """Reads the observations of one body with the encoders of all, in the tokens of all: zeros stand for the features
    of observations that the body does not have."""

    def __init__(self, encoder: ObservationEncoder, wide: Spec, inside: Spec, beside: Mapping[str, str], number: int):
        """
        Args:
            encoder: of all bodies.
            wide, inside: all bodies, and this body, as the network reads them.
            beside: see `ObservationEncoder`.
            number: of the body.
        """
        shapes = {**inside.cond_shapes, BODY: wide.cond_shapes[BODY]}
        alike = {key: depth.camera for key, depth in inside.depths.items() if depth.camera is not None}
        encoders = {key: encoder.encoder_of(key) for key in shapes}
        super().__init__(encoders, shapes, {key: beside[key] for key in beside if key in shapes}, alike)
        sizes = {key: encoder.encoder_of(key).output_dim for key in encoder.keys}
        self.cond_shape = encoder.cond_shape
        self._number, self._sizes = number, sizes
        vectors = [key for key in inside.cond_shapes if inside.kind(key) == "vector" and len(shapes[key]) == 2]
        self._widths = {key: wide.cond_shapes[key][-1] for key in vectors}

    def forward(
        self,
        observations: Mapping[str, Tensor],
        keep: Mapping[str, Tensor] | None = None,
        random: Randomness | None = None,
    ) -> Tensor:
        first = next(iter(observations.values()))
        padded = {key: widened(observations[key], width) for key, width in self._widths.items()}
        padded[BODY] = torch.full(first.shape[:2], self._number, device=first.device)
        features = super().forward({**observations, **padded}, keep, random)
        pieces = dict(zip(self.keys, features.split([self._sizes[key] for key in self.keys], dim=-1), strict=True))
        absent = {key: features.new_zeros(*features.shape[:2], size) for key, size in self._sizes.items()}
        return torch.cat([*({**absent, **pieces}.values())], dim=-1)


@dataclass(frozen=True)
class _SharedBackboneConfig:
    """Stands in the settings of a body for a network that exists."""

    network: nn.Module

    def create(self, *sizes: Any) -> nn.Module:
        """The network."""
        return self.network


class _SharedBackbone(nn.Module):
    """The network of all bodies, for the chunks of a single body: zeros stand in the place of the numbers that the
    body does not have, whose predictions are dropped."""

    def __init__(self, network: nn.Module, width: int, joint_width: int):
        """Args: width: numbers of an action of the body; joint_width: of the network."""
        super().__init__()
        self.network, self._width, self._joint_width = network, width, joint_width

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, H, groups * width), (B,), (B, N, D) -> (B, H, groups * width); see `BackboneRecord`."""
        groups = widened(x_t.unflatten(-1, (-1, self._width)), self._joint_width)
        output = self.network(groups.flatten(-2), t, cond)
        return output.unflatten(-1, (-1, self._joint_width))[..., : self._width].flatten(-2)


class BodyWindows:
    """The windows of one body among those of all, without padding; see `Samples`."""

    def __init__(self, samples: Samples, ids: Tensor, spec: Spec):
        """Args: ids: (n,) int64 on the CPU, the windows of the body; spec: of the body."""
        self._samples, self._ids, self._spec = samples, ids, spec
        self.device = samples.device

    def __len__(self) -> int:
        return len(self._ids)

    def fetch(self, ids: Tensor) -> Batch:
        """See `Samples.fetch`."""
        return narrowed(self._samples.fetch(self._ids[ids.cpu()].to(self.device)), self._spec)

    def seeing(self, keys: Collection[str]) -> BodyWindows:
        """See `Samples.seeing`."""
        return BodyWindows(self._samples.seeing(keys), self._ids, self._spec)


def _merged(losses: Sequence[Loss], order: Tensor) -> Loss:
    """The loss of the samples of all bodies. Args: order: of the samples in the batch, as indices into the losses."""

    def joined(values: Iterable[Tensor]) -> Tensor:
        return torch.cat([*values])[order]

    terms = {}
    for term in losses[0].terms:
        terms[term] = joined(loss.terms[term] for loss in losses)
    return Loss(
        total=sum(loss.total for loss in losses),
        per_sample=joined(loss.per_sample for loss in losses),
        t=joined(loss.t for loss in losses),
        terms=terms,
        valid=joined(loss.valid for loss in losses),
        factor=None if losses[0].factor is None else joined(loss.factor for loss in losses),
    )


def _inside(record: BodyPolicyConfig, spec: Spec) -> Spec:
    """A body as the network reads it, with rotations as 6D."""
    transforms = record.transforms(spec)
    return Spec(
        x_shape=(spec.x_shape[0], *transforms.shape("x")),
        cond_shapes={key: (shape[0], *transforms.shape(key)) for key, shape in spec.cond_shapes.items()},
        kinds=spec.kinds,
        depths=spec.depths,
    )


def _restricted(settings: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The settings of some observations."""
    return {key: setting for key, setting in settings.items() if key in keys}
