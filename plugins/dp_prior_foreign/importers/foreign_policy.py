"""A published policy in our terms, and its conversion to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.networks.backbones.transformer import rename_published as rename_transformer
from dp_prior.networks.backbones.unet1d import PUBLISHED_HEAD_GROUPS
from dp_prior.networks.backbones.unet1d import rename_published as rename_unet
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.networks.encoders.resnet import rename_published as rename_encoder
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior_foreign.importers.foreign_model import WEIGHTS, created, floats, under
from dp_prior_foreign.importers.scaling import Scaling

_RENAMERS = {"unet1d": rename_unet, "transformer": rename_transformer}
_READS_TOKENS = ("film.linear.weight", "cond_in.weight")


@dataclass(frozen=True)
class Observation:
    """One observation.

    Attributes:
        key: name in the source's data.
        shape: of one step: (D,), or (height, width, 3) of a camera.
        scaling: the normalisation.
        encoder: the camera's encoder without mean and std, as JSON; None for a vector.
        prefix: prefix of the names of the encoder's weights.
        recorded: height and width of a camera's frames before any resize; None where unknown.
    """

    key: str
    shape: tuple[int, ...]
    scaling: Scaling
    encoder: dict[str, Any] | None = None
    prefix: str = ""
    recorded: tuple[int, int] | None = None


@dataclass(frozen=True)
class Published:
    """A published policy.

    Attributes:
        library: name of the library, for messages.
        origin: the original checkpoint; empty if the converted files do not name it.
        place: directory or repository.
        tensors: content of model.safetensors.
        prefix: prefix of the names of the backbone's weights.
        others: prefixes of tensors that are no weights.
        task: the policy without observations and normalizers, as JSON.
        action_dim: length of an action.
        action: normalisation of the action.
        observations: by our names, in the order of their features in the source's condition.
        data, train: settings for fine-tuning that the source states.
        ignored: keys of the source's configuration that no action depends on, by the reason.
        fps: control steps per second of the training; None where unknown.
        names: the data set's names of the numbers of vectors and of the action, by key in the source's data.
        trained_on: the data set, in the form of `data.episodes`; None where unknown.
    """

    library: str
    origin: dict[str, str]
    place: str
    tensors: dict[str, Tensor]
    prefix: str
    others: tuple[str, ...]
    task: dict[str, Any]
    action_dim: int
    action: Scaling
    observations: dict[str, Observation]
    data: dict[str, Any]
    train: dict[str, Any]
    ignored: dict[str, list[str]] = field(default_factory=dict)
    fps: float | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trained_on: dict[str, Any] | None = None

    kind = "policy"
    action_key = "action"
    to_fill_in = ("data.episodes.path",)

    def renamed(self, names: Mapping[str, str]) -> Published:
        """The same policy with new names for observations; `names` maps keys in the source's data to names.

        Raises:
            ConfigError: an observation does not exist, or two would have the same name.
        """
        keys = [observation.key for observation in self.observations.values()]
        unknown = sorted(names.keys() - set(keys))
        observations = {
            names.get(observation.key, name): observation for name, observation in self.observations.items()
        }
        if unknown or len(observations) < len(self.observations):
            problem = f"there is no {unknown[0]!r}" if unknown else "two would have the same name"
            raise ConfigError("--rename", [f"{problem}; observations of {self.place} are {', '.join(keys)}"])
        return replace(self, observations=observations)

    @property
    def cameras(self) -> dict[str, Observation]:
        """The observations that are camera frames."""
        return {name: observation for name, observation in self.observations.items() if observation.encoder is not None}

    @property
    def vectors(self) -> dict[str, Observation]:
        """The observations that are vectors."""
        return {name: observation for name, observation in self.observations.items() if observation.encoder is None}

    def configuration(self) -> dict[str, Any]:
        """A configuration that fine-tunes the policy, as JSON; the path of its data set is to be filled in."""
        encoders = {}
        for name, camera in self.cameras.items():
            encoders[name] = {"type": "resnet", **camera.encoder, **camera.scaling.camera()}
            if camera.encoder["norm"] == "frozen_batch":  # needs a source; fine-tuning takes the weights of the import
                encoders[name] |= {"weights": f"{self.place}/{WEIGHTS}", "weights_prefix": camera.prefix}
        normalizer = {name: vector.scaling.record() for name, vector in self.vectors.items()}
        data = {
            "obs": {name: {"key": vector.key} for name, vector in self.vectors.items()},
            "images": {name: {"key": camera.key, "size": camera.shape[:2]} for name, camera in self.cameras.items()},
            "action": {"key": "action"},
            "batch_size": 64,
            **self.data,
        }
        data["episodes"] = {**data["episodes"], "path": "data"}
        task = {**self.task, "encoders": encoders, "normalizer": {**normalizer, "action": self.action.record()}}
        return {"task": task, "data": data, "train": self.train}

    def create(self) -> DiffusionPolicy:
        """The policy with its weights and normalizer.

        Raises:
            ConfigError: the configuration is invalid here, or the tensors do not fit. Names each tensor that is
                missing, unknown, of another shape, not floating-point or not finite.
        """
        task, spec = self.configuration()["task"], self._spec()

        def adapt(model: DiffusionPolicy, tensors: dict[str, Tensor]) -> None:
            self._permute(tensors, model.encoder, model.record)

        return created(self.place, PolicyConfig, task, spec, self._converted(), adapt=adapt)

    def _spec(self) -> dict[str, Any]:
        steps = self.task["n_obs_steps"]
        return {
            "x_shape": (self.task["horizon"], self.action_dim),
            "cond_shapes": {name: (steps, *observation.shape) for name, observation in self.observations.items()},
            "kinds": dict.fromkeys(self.cameras, "image"),
            "fits": {name: {"size": observation.shape[:2]} for name, observation in self.cameras.items()},
            "fps": self.fps,
            "names": self._names(),
        }

    def _names(self) -> dict[str, Sequence[str]]:
        """The names of the numbers of each vector, and of the action as `x`, that has as many names as numbers."""
        widths = {name: (vector.key, vector.shape[0]) for name, vector in self.vectors.items()}
        widths["x"] = (self.action_key, self.action_dim)
        recorded_names = {name: self.names.get(key, ()) for name, (key, _) in widths.items()}
        return {name: names for name, names in recorded_names.items() if len(names) == widths[name][1]}

    def origins(self) -> dict[str, Any]:
        """The entries of source.json beside the place: first checkpoint, data set, and sizes of frames by key."""
        trained_on = {} if self.trained_on is None else {"trained_on": self.trained_on}
        frames = {camera.key: list(camera.recorded) for camera in self.cameras.values() if camera.recorded is not None}
        origins = {**self.origin, **trained_on}
        return {**origins, "frames": frames} if frames else origins

    def _converted(self) -> dict[str, Tensor]:
        """All weights by our names, float32, and the normalizer."""
        used = (self.prefix, *self.others, *(observation.prefix for observation in self.cameras.values()))
        weights = {name: value for name, value in self.tensors.items() if not name.startswith(used) and value.numel()}
        rename = _RENAMERS[self.task["backbone"]["type"]]
        weights |= {f"backbone.{name}": value for name, value in rename(under(self.prefix, self.tensors)).items()}
        for index, (_, observation) in enumerate(sorted(self.observations.items())):
            renamed = {} if observation.encoder is None else rename_encoder(under(observation.prefix, self.tensors))
            weights |= {f"encoder.encoders.{index}.{name}": value for name, value in renamed.items()}
        converted = floats(weights, self.place)
        scalings = {name: observation.scaling for name, observation in self.vectors.items()}
        for key, scaling in {**scalings, "x": self.action}.items():
            converted |= {f"normalizer.{name}": value for name, value in scaling.buffers(key).items()}
        return converted

    def _permute(self, tensors: dict[str, Tensor], encoder: ObservationEncoder, record: PolicyConfig) -> None:
        """Permute the columns that read the condition into the alphabetical order of our keys."""
        widths = {key: encoder.encoder_of(key).output_dim for key in encoder.keys}
        starts, total = {}, 0
        for key in self.observations:
            starts[key], total = total, total + widths[key]
        token = torch.cat([torch.arange(starts[key], starts[key] + widths[key]) for key in encoder.keys])
        if torch.equal(token, torch.arange(total)):
            return
        columns = token
        if record.backbone.type == "unet1d":  # the timestep's features, then the tokens of all observation steps
            first = record.backbone.step_embed_dim
            steps = first + total * torch.arange(record.n_obs_steps)
            columns = torch.cat([torch.arange(first), (steps[:, None] + token).flatten()])
        for name, value in tensors.items():
            if name.endswith(_READS_TOKENS) and value.shape[1:] == columns.shape:  # `load_weights` reports other shapes
                tensors[name] = value[:, columns]


def unet(
    down_dims: tuple[int, ...], kernel_size: int, n_groups: int, step_embed_dim: int, film_scale: bool
) -> dict[str, Any]:
    """The published UNet as our backbone, as JSON."""
    return {
        "type": "unet1d",
        "down_dims": down_dims,
        "kernel_size": kernel_size,
        "n_groups": n_groups,
        "head_groups": PUBLISHED_HEAD_GROUPS,
        "step_embed_dim": step_embed_dim,
        "film_scale": film_scale,
    }
