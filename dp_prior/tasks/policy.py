"""The policy task: diffuses an action chunk, conditioned on observations (Chi et al. 2023, arXiv:2303.04137)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dp_prior.config import Config, ConfigError
from dp_prior.diffusion.denoiser import Network
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.diffusion.target import Target
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.observations import check_obs
from dp_prior.tensors.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.data.samples.over_columns import Samples

MOST_WINDOWS_FITTED = 200_000
"""Maximum number of windows, evenly spread over the training set, for the statistics of transformed values."""

WINDOWS_AT_ONCE = 8192
"""Number of windows that are transformed together for these statistics; bounds their memory."""


class DiffusionPolicy(Pretrained, DiffusionModel):
    """Action chunks from observations. Its record is a `PolicyConfig`, which creates it."""

    task = "policy"
    has_named_numbers: ClassVar = True

    def __init__(self, *, record: Config, **parts: Any):
        super().__init__(**parts)
        self.record = record
        self.horizon = record.horizon
        self.n_obs_steps = record.n_obs_steps
        self.n_action_steps = record.n_action_steps
        self.max_delay = None if record.prefix is None else record.prefix.max_delay
        self.transforms = record.transforms(self.spec)

    def _repr_html_(self) -> str:
        observations = {key: f"{self.spec.kind(key)} {shape[1:]}" for key, shape in self.spec.cond_shapes.items()}
        facts = {
            **observations,
            "action": f"{self.spec.x_shape[1:]}",
            "horizon": f"{self.horizon}, of which {self.n_action_steps} are executed",
        }
        return self.table("diffusion policy", facts, self.record.backbone.type)

    def fit(self, statistics: Mapping[str, Statistics], samples: Samples) -> None:
        """Fit the normalizer; values that a transform changes are normalised by the statistics of the changed values.

        Raises:
            ConfigError: a rotation is not written in the form that the data name; see `Transforms.form_faults`.
        """
        if self.transforms.changes_x or self.transforms.keys:
            statistics = {**statistics, **self._transformed_statistics(samples)}
        super().fit(statistics, samples)

    def _transformed_statistics(self, samples: Samples) -> dict[str, Statistics]:
        """Statistics of encoded actions and observations by key, over the training windows; see `fit` for errors."""
        transforms = self.transforms
        samples = samples.seeing(transforms.keys | transforms.references)  # no camera frame is read
        encoded: dict[str, list[Tensor]] = defaultdict(list)
        references: dict[str, list[Tensor]] = defaultdict(list)
        newest_actions: list[Tensor] = []
        count = min(len(samples), MOST_WINDOWS_FITTED)
        for ids in (torch.arange(count) * len(samples) // count).split(WINDOWS_AT_ONCE):
            batch = samples.fetch(ids.to(samples.device))
            if transforms.changes_x:
                encoded["x"].append(transforms.encode(batch.x, batch.cond)[batch.mask])  # (valid positions, A)
            observations = transforms.encode_obs(batch.cond)
            for key in transforms.keys:
                encoded[key].append(observations[key].flatten(0, 1))
            newest_actions.append(batch.x[:, self.n_obs_steps - 1])
            for key in transforms.references:
                references[key].append(batch.cond[key])
        observed = {key: torch.cat(parts) for key, parts in references.items()}
        if problems := list(transforms.form_faults(torch.cat(newest_actions), observed)):
            raise ConfigError("task", problems)
        return {key: Statistics.of(torch.cat(parts).cpu().numpy()) for key, parts in encoded.items()}

    def warnings(self) -> list[str]:
        """See `DiffusionModel.warnings`; depth that shows other pixels than its camera where both are cropped."""
        lines = super().warnings()
        for place, (value, left) in self.normalizer.cuts("x").items():
            finding = f"action, dimension {place}: the clip of task.normalizer turns {value:.3g} into {left:.3g}"
            lines.append(f"{finding}; if that is a command, set clip to null or use the limits normalizer")
        for key, depth in self.spec.depths.items():
            encoders = [] if depth.camera is None else [self.encoder.encoder_of(name) for name in (key, depth.camera)]
            crops = [encoder.camera.crop for encoder in encoders if hasattr(encoder, "camera")]
            if len(crops) == 2 and crops[0] != crops[1] and any(crop.size != crop.frame for crop in crops):
                of_depth, of_camera = (f"{crop.size} of {crop.frame}" for crop in crops)
                lines.append(
                    f"data.depth.{key}.camera is {depth.camera!r}, but random crops show different pixels of both: "
                    f"{of_depth} of the depth and {of_camera} of the camera (height, width); give both the same size "
                    f"in data and the same crop in task.encoders"
                )
        return lines

    def noise_free(self, mask: Tensor, random: Randomness) -> Tensor | None:
        """See `DiffusionModel.noise_free` and `PrefixConfig`."""
        prefix = self.record.prefix
        return super().noise_free(mask, random) if prefix is None else prefix.draw(mask, self.n_obs_steps - 1, random)

    def with_mask(self, network: Network, is_noise_free: Tensor | None) -> Network:
        prefix = self.record.prefix
        return network if prefix is None else prefix.with_mask(network, self.x_shape[-1], is_noise_free)

    def encode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """See `Transforms.encode`."""
        return self.transforms.encode(x, cond)

    def decode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """See `Transforms.decode`."""
        return self.transforms.decode(x, cond)

    def encode_cond(self, cond: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Transforms.encode_obs`."""
        return self.transforms.encode_obs(cond)

    def diffused_weights(self, weights: Tensor) -> Tensor:
        """See `Transforms.weights`; a rotation or the position of a pose is known if all its numbers are."""
        return self.transforms.weights(weights)

    def predict(
        self,
        obs: dict[str, Tensor],
        random: Randomness,
        sampler: SamplerConfig | None = None,
        *,
        previous: Tensor | None = None,
        known: tuple[Tensor, Tensor] | None = None,
        prefix: Tensor | None = None,
        target: Target | None = None,
        guidance_scale: float | None = None,
    ) -> Tensor:
        """Predict action chunks.

        Args:
            obs: (B, n_obs_steps, ...) by key, data units, newest last; keys the policy does not know are ignored.
                Frames of the network's size are taken as fitted, and not cut or turned; agents fit all frames.
            random: B rows.
            sampler, previous, known, prefix, target, guidance_scale: see `Draw`.

        Returns:
            (B, horizon, action_dim) in data units; the executed slice starts at index n_obs_steps - 1.

        Raises:
            ValueError: an observation is missing, has another shape or type, or is not finite, see `check_obs`; or the
                policy was not trained for such a prefix, or for guidance.
        """
        how = Draw(sampler, previous, known, prefix=prefix, target=target, guidance_scale=guidance_scale)
        return self.draw(obs, random, how)

    def draw(self, cond: dict[str, Tensor], random: Randomness, how: Draw = AS_CONFIGURED) -> Tensor:
        """See `predict`."""
        if how.prefix is not None:
            how = self._continuing(how)
        steps = {self.n_obs_steps, *(shape[0] for shape in self.spec.cond_shapes.values())}
        return self.sample(check_obs(cond, self.spec, rows=len(random), steps=steps, fitted=True), random, how)

    def _continuing(self, how: Draw) -> Draw:
        """The draw with its prefix as known elements, which the network sees without noise."""
        prefix = how.prefix
        if how.known is not None:
            raise ValueError("both prefix and known were passed; pass one of them")
        self._check_prefix(prefix)
        values = F.pad(prefix, (0, 0, 0, self.horizon - prefix.shape[1]))
        is_prefix = (torch.arange(self.horizon, device=prefix.device) < prefix.shape[1])[None, :, None]
        return how._replace(prefix=None, known=(values, is_prefix), shown=is_prefix)

    def _check_prefix(self, prefix: Tensor) -> None:
        """Raises ValueError for a prefix that the policy was not trained to continue."""
        if self.max_delay is None:
            raise ValueError(
                "the policy was trained without task.prefix, so it cannot be given a prefix; use merge 'guided', or "
                "train it with task.prefix"
            )
        past = self.n_obs_steps - 1
        if not past < prefix.shape[1] <= past + self.max_delay:
            raise ValueError(
                f"the prefix has {prefix.shape[1]} actions, which is a delay of {prefix.shape[1] - past} steps; the "
                f"policy was trained for delays from 1 to {self.max_delay} (task.prefix.max_delay)"
            )
