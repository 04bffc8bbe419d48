"""`from_pretrained`, `save_pretrained` and `push_to_hub`, with the signatures of ModelHubMixin.

Loading needs torch, numpy, pydantic and safetensors; huggingface_hub is imported only for references to the Hub.
Nothing that is loaded is executed: it is JSON, validated by the records of a configuration file, and hashed tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from dp_prior.config import Config
from dp_prior.tensors.batch import Spec


class Pretrained(nn.Module):
    """A model that can be saved, loaded and uploaded by itself; its record and spec describe how to build it."""

    record: Config
    spec: Spec

    tasks: ClassVar[Any]
    """The family of all tasks, set by the package: the files of its members import this one."""

    task: ClassVar[str | None] = None
    """The `type` of the record whose `create(spec)` builds this model; the record of a subclass extends it. None for
    `Pretrained` itself, which loads a model of any task."""

    is_loaded: bool = False
    """Whether its weights are those of a checkpoint, so that a runtime of another package may compute with them."""

    is_eager: bool = False
    """Whether the caller of `from_pretrained` asked for eager mode, which no agent then changes."""

    has_named_numbers: ClassVar[bool] = False
    """Whether `named_axes` describes its tensors."""

    transfer_of: ClassVar[Any] = None
    """A method with the arguments of `tasks.transfer.choose` after the first, for a model with rules of its own."""

    bodies: tuple[str, ...] = ()
    """Names of the robots' bodies that it was trained for; empty for other models."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        weights: str | None = None,
        guidance_scale: float | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        runtime: Literal["auto", "eager"] = "auto",
    ) -> Self:
        """Load a model in evaluation mode. The caller's random state is left as it was.

        Args:
            pretrained_model_name_or_path: path of a checkpoint, an export or a run; a repository of the Hub,
                `user/name`, if there is no such path; or another reference, see `dp_prior.places.reference`.
            weights: name of an average of the run (`train.ema`), or `online` for the trained weights themselves, which
                only whole checkpoints have; None for the first average, which is the one exported.
            guidance_scale: of classifier-free guidance, instead of the configured one; see `guide`.
            revision: branch, tag or commit on the Hub.
            token, cache_dir, force_download, local_files_only: for the Hub's client.
            dtype: of the network's weights, for example torch.bfloat16; None keeps float32. The normalizer, the noise
                levels and the sampler stay float32, and so do observations and actions.
            runtime: `eager` keeps the network in torch's eager mode where agents would run it faster, compiled or in an
                installed runtime.

        Raises:
            FileNotFoundError: there is no such place, or config.json, spec.json or model.safetensors is missing.
            CheckpointError: there is no usable checkpoint, the download fails, or a file does not match the manifest.
            ConfigError: the configuration or the shapes do not describe such a model, or it cannot be guided.
            ValueError: it holds a model of another task, there is no average of that name, the weights do not fit
                the configuration, the device cannot be used, or dtype is not a floating-point type.
        """
        from dp_prior.tasks.loading import check_placement, load_model

        if runtime not in ("auto", "eager"):
            raise ValueError(f"runtime is {runtime!r}; expected 'auto' or 'eager'")
        check_placement(device, dtype)
        hub = {"token": token, "cache_dir": cache_dir, "force_download": force_download}
        hub["local_files_only"] = local_files_only
        model = load_model(cls, str(pretrained_model_name_or_path), weights, revision, hub)
        if guidance_scale is not None:
            model.guide(guidance_scale)
        model.requires_grad_(False).eval().to(device)
        if dtype is not None:
            model.cast_weights(dtype)
        model.is_loaded, model.is_eager = runtime == "auto", runtime == "eager"
        return model

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Cast the network's weights; the normalizer, the noise levels and the sampler stay float32."""
        for parameter in [*self.encoder.parameters(), *self.backbone.parameters()]:
            parameter.data = parameter.data.to(dtype)  # not `.to`: buffers such as frequencies keep their precision

    def guide(self, scale: float) -> None:
        """Set the guidance scale as if configured: for every sample and likelihood from now on, and in the files that
        `save_pretrained` and an export write.

        Raises:
            ConfigError: the model cannot be guided, see `DiffusionModel.guidance`.
        """
        diffusion = self.process.config.model_copy(update={"guidance": self.guidance(scale)})
        self.process.config, self.record = diffusion, self.record.model_copy(update={"diffusion": diffusion})

    def save_pretrained(self, save_directory: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False,
                        **push: Any) -> Path:  # fmt: skip
        """Write `model.safetensors`, `config.json`, `spec.json` and their manifest, for `from_pretrained`.

        Args:
            save_directory: must be missing or empty; appears only when it is complete.
            push_to_hub: also upload it, to `repo_id` or else the directory's name, with the other arguments.

        Raises:
            FileExistsError: `save_directory` is not empty.
            ValueError: a weight is not finite.
        """
        from dp_prior.tasks.saving import save_model

        directory = save_model(self, save_directory)
        if push_to_hub:
            self.push_to_hub(repo_id or directory.name, **push)
        return directory

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model",
        private: bool = True,
        token: str | None = None,
        branch: str | None = None,
        license: str | None = None,
    ) -> str:
        """Upload the model, with a card, to the root of a repository of the Hub in one commit.

        Args:
            private: whether a repository that does not exist is created as private.
            license: the Hub's name of it, for the card.

        Returns:
            URL of the commit.
        """
        from dp_prior.tasks.saving import upload_model

        return upload_model(self, repo_id, commit_message, license, private=private, token=token, branch=branch)
