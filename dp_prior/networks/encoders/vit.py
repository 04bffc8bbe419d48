"""Vision transformer encoder of camera frames: a pretrained model of transformers, pooled to one or several tokens.

A downloaded file is data here, never code: `resolve` reads the sizes of a listed architecture from its config.json into
the record, the class comes from the list below, and the weights must be safetensors. Loading a policy needs only the
resolved record and the run's own checkpoint, and no network access.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Outside, an
from dp_prior.embedders.model_folder import check_model_folder
from dp_prior.files.entry_points import needing
from dp_prior.files.hub_files import HubError, HubRepository, is_offline, locate
from dp_prior.files.regular_files import SMALL, read_small
from dp_prior.networks.encoders.camera_encoder import Camera, CameraEncoderConfig, PositiveRgb, Rgb
from dp_prior.networks.encoders.encoder import Encoder, FineTuned, PretrainedModule
from dp_prior.networks.encoders.published_weights import IMAGENET_MEAN, IMAGENET_STD
from dp_prior.networks.layers import KernelLinear, compute_dtype
from dp_prior.tensors.randomness import Randomness

_CONFIG_FILE = "config.json"


class Family(NamedTuple):
    """One architecture of transformers: the usual normalisation, and whether there is a class token."""

    mean: Rgb
    std: Rgb
    has_cls: bool


_CLIP_MEAN_STD = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF_MEAN_STD = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
FAMILIES = {
    "dinov2": Family(IMAGENET_MEAN, IMAGENET_STD, has_cls=True),
    "dinov2_with_registers": Family(IMAGENET_MEAN, IMAGENET_STD, has_cls=True),
    "dinov3_vit": Family(IMAGENET_MEAN, IMAGENET_STD, has_cls=True),
    "clip_vision_model": Family(*_CLIP_MEAN_STD, has_cls=True),
    "siglip_vision_model": Family(*_HALF_MEAN_STD, has_cls=False),
}
"""Architectures by `model_type`. SigLIP 2 models of a fixed resolution also have the type siglip."""

_VISION_TYPES = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}
"""Type of the `vision_config` inside the config.json of a model of pictures and text."""

_MODEL_KEYS = (  # permitted keys of a model's configuration; none can name code, as attn_implementation could
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "mlp_ratio", "hidden_act"),
    *("layer_norm_eps", "image_size", "patch_size", "num_channels", "num_register_tokens", "layerscale_value"),
    *("qkv_bias", "query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "use_swiglu_ffn", "use_gated_mlp"),
    "rope_theta",
)
_REQUIRED_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
_FIXED = {  # no draws from torch's generator, no parameters without gradient
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_dropout": 0.0,
    "drop_path_rate": 0.0,
    "pos_embed_shift": None,
    "pos_embed_jitter": None,
    "pos_embed_rescale": None,
    "use_mask_token": False,
    "vision_use_head": False,
}


class VitEncoderConfig(CameraEncoderConfig):
    """A pretrained vision transformer of one camera, fine-tuned at a tenth of the learning rate; frozen features are
    worse (Chi et al. 2024, table 5)."""

    type: Literal["vit"] = "vit"

    weights: Annotated[str, Outside()]
    """Folder as written by `save_pretrained`, or Hub id with an optional @revision; DINOv2, DINOv3, CLIP or SigLIP.
    Read when training starts, not needed to act."""

    architecture: dict[str, bool | int | float | str | list[int] | None] | None = None
    """model_type and sizes of the model; null: taken from `weights` when a run is created."""

    image_size: int | None = Field(default=None, ge=1)
    """Height and width that images are resized to, a multiple of the model's patch size; null: the model's own."""

    pool: Literal["cls", "mean", "attention"] = "attention"
    """cls: the class token; mean: the mean over patches; attention: learned queries attend to all tokens."""

    tokens: int = Field(default=1, ge=1)
    """Queries of the attention pooling, one token each."""

    output_dim: int | None = Field(default=None, ge=1)
    """Features of each token, through a linear layer; null: the model's features, without such a layer."""

    mean: Rgb | None = None
    """Mean of RGB in [0, 1], which is subtracted; null: the model's own."""

    std: PositiveRgb | None = None
    """Standard deviation of RGB in [0, 1], the divisor; null: the model's own."""

    lr_scale: float = Field(default=0.1, gt=0)
    """Learning rate of the backbone as a multiple of the optimizer's."""

    def faults(self) -> Iterator[str]:
        if self.tokens > 1 and self.pool != "attention":
            yield f"tokens is {self.tokens}, but pool {self.pool!r} gives one; use pool 'attention'"
        if self.architecture is None:
            return
        family = self.architecture.get("model_type")
        if family not in FAMILIES:
            yield f"architecture.model_type is {family!r}; expected one of {', '.join(FAMILIES)}"
            return
        unknown = sorted(set(self.architecture) - {"model_type", *_MODEL_KEYS})
        missing = [name for name in _REQUIRED_KEYS if name not in self.architecture]
        if unknown or missing:
            yield f"architecture has unknown keys {unknown} and lacks {missing}; known: {', '.join(_MODEL_KEYS)}"
            return
        if self.pool == "cls" and not FAMILIES[family].has_cls:
            yield f"pool is 'cls', but {family} has no class token; use 'mean' or 'attention'"
        if self.architecture.get("num_channels", 3) != 3:
            yield f"architecture has num_channels {self.architecture['num_channels']}; expected 3, RGB"
        size, patch = self.image_size or self.architecture["image_size"], self.architecture["patch_size"]
        if not isinstance(size, int) or not isinstance(patch, int) or min(size, patch) < 1:
            yield f"architecture has image_size {size} and patch_size {patch}; expected square ones of a pixel or more"
        elif size % patch:
            below = size - size % patch
            nearest = f"{below} or {below + patch}" if below else f"{patch}"
            yield f"image_size is {size}, no multiple of the model's patch size {patch}. Take {nearest}"

    def resolve(self) -> VitEncoderConfig:
        """The record with `architecture`, `mean` and `std` read from `weights`; unchanged if already resolved.

        Raises:
            FileNotFoundError: the model does not exist, or is not cached and the Hub is out of reach.
            ValueError: the architecture is not listed, or the files are damaged.
        """
        if self.architecture is not None:
            return self
        source = locate(self.weights, "weights:")
        architecture = _architecture(source)
        family = FAMILIES[architecture["model_type"]]
        processor = _read_object(source, "preprocessor_config.json") or {}
        resolved = {
            "architecture": architecture,
            "mean": self.mean or processor.get("image_mean") or family.mean,
            "std": self.std or processor.get("image_std") or family.std,
        }
        return type(self).from_json(
            json.dumps(self.model_dump(mode="json") | resolved), source=f"encoder of {self.weights}"
        )

    def create(self, shape: tuple[int, ...]) -> VitEncoder:
        """The encoder of frames of `shape` (height, width, 3), with random weights; see `PretrainedModule`.

        Raises:
            ValueError: the architecture contradicts itself.
        """
        if self.architecture is None:
            raise RuntimeError("the architecture of a vit encoder is not known yet; create it from record.resolve()")
        family = FAMILIES[self.architecture["model_type"]]
        camera = self.camera(shape, mean=self.mean or family.mean, std=self.std or family.std)
        try:
            return VitEncoder(self, camera)
        except (ImportError, ValueError):
            raise
        except Exception as error:  # each model of transformers has its own for sizes that do not fit
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"architecture: no model can be built of it: {problem}") from error


def _read_object(source: Path | HubRepository, file: str) -> dict[str, Any] | None:
    """The contents of a JSON file of a model; None if the model has no such file, or in offline mode the cache.

    Raises:
        FileNotFoundError: the repository does not exist, or the Hub does not answer and the file is not cached.
        ValueError: the file does not hold a JSON object.
    """
    try:
        path = source / file if isinstance(source, Path) else source.file(file, SMALL)
        content = json.loads(read_small(path))
    except HubError as error:
        if error.reason == "no file" or (error.reason == "uncached" and is_offline() and file != _CONFIG_FILE):
            return None
        raise FileNotFoundError(f"weights: {error}{source.remedy(error)}") from error
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"weights: {path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"weights: {path} holds {an(type(content).__name__)}; expected an object {{...}}")
    return content


def _architecture(source: Path | HubRepository) -> dict[str, Any]:
    """model_type and sizes of a published model."""
    config = _read_object(source, _CONFIG_FILE)
    if config is None:
        raise FileNotFoundError(f"weights: {source} has no {_CONFIG_FILE}; expected a model as save_pretrained does")
    model_type = config.get("model_type")
    if model_type in _VISION_TYPES:
        model_type, config = _VISION_TYPES[model_type], config.get("vision_config") or {}
    if model_type not in FAMILIES:
        supported = ", ".join([*FAMILIES, *_VISION_TYPES])
        raise ValueError(f"weights: {source} is of model type {model_type!r}; expected one of {supported}")
    defaults = _transformers().CONFIG_MAPPING[model_type]().to_dict()
    architecture = {name: config.get(name, defaults[name]) for name in _MODEL_KEYS if name in defaults}
    return {"model_type": model_type, **architecture}


def _transformers() -> Any:
    with needing("clip", "vit encoders need transformers"):
        import transformers
    return transformers


class VisionTransformer(FineTuned):
    """A model of transformers as a function from images to tokens; a class token comes first."""

    def __init__(self, architecture: dict[str, Any], *, image_size: int):
        super().__init__()
        transformers, model_type = _transformers(), architecture["model_type"]
        config_class = transformers.CONFIG_MAPPING[model_type]
        fields = config_class().to_dict().keys() - {"model_type"}  # the class has it
        config = config_class(**{name: value for name, value in (architecture | _FIXED).items() if name in fields})
        self.model = transformers.AutoModel.from_config(config)
        stack = next((module for module in self.model.modules() if isinstance(module, nn.ModuleList)), ())
        self.shard_units = tuple({type(layer) for layer in stack})
        self.is_clip = model_type == "clip_vision_model"
        is_other_size = image_size != architecture["image_size"] and model_type in _VISION_TYPES.values()
        self.options = {"interpolate_pos_encoding": True} if is_other_size else {}
        self.dim = architecture["hidden_size"]
        self.n_special = int(FAMILIES[model_type].has_cls) + architecture.get("num_register_tokens", 0)
        """Number of tokens before the patches: class token and registers."""

    def requires_grad_(self, requires_grad: bool = True) -> VisionTransformer:
        """All parameters but the token of masked patches, which is unused here and would never get a gradient."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(requires_grad and not name.endswith("mask_token"))
        return self

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, image_size, image_size) -> (N, n_special + patches, dim), after the model's last norm."""
        tokens = self.model(pixel_values=images, **self.options).last_hidden_state
        return self.model.post_layernorm(tokens) if self.is_clip else tokens  # CLIP itself norms only the class token

    def load(self, source: Path | HubRepository) -> None:
        """Take the weights of a published model of this architecture.

        Raises:
            FileNotFoundError: the weights cannot be found or are not safetensors.
            ValueError: the weights do not fit the architecture, or the folder names files outside of it.
        """
        from safetensors import SafetensorError

        name, revision = (str(source), None) if isinstance(source, Path) else (source.name, source.revision)
        if isinstance(source, Path):
            check_model_folder(source)

        def read() -> tuple[nn.Module, dict[str, Any]]:
            return type(self.model).from_pretrained(
                name,
                **({} if revision is None else {"revision": revision}),
                config=self.model.config,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )

        try:
            published, report = read() if isinstance(source, Path) else source.asked(read)
        except (OSError, SafetensorError) as error:
            raise FileNotFoundError(f"weights: {source} cannot be read as safetensors: {error}") from error
        missing = sorted(report["missing_keys"])
        mismatched = [str(name) for name in report["mismatched_keys"]]
        if missing or mismatched:
            raise ValueError(
                f"weights: {source} does not fit the architecture of the record: missing: {missing}; of another "
                f"shape: {mismatched}"
            )
        self.model.load_state_dict(published.state_dict())


class AttentionPool(nn.Module):
    """Learned queries that attend to all tokens of an image."""

    def __init__(self, *, dim: int, heads: int, tokens: int):
        super().__init__()
        self.queries = nn.Parameter(0.02 * torch.randn(tokens, dim))
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, n, dim) -> (N, tokens, dim)."""
        queries = self.queries.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return self.attention(queries, tokens, tokens, need_weights=False)[0]


class VitEncoder(PretrainedModule, Encoder):
    """Camera, backbone, pooling, projection; see `VitEncoderConfig`.

    Attributes:
        n_tokens: tokens of each observation step, which `forward` concatenates in the last axis.
    """

    draws: ClassVar[bool] = True

    def __init__(self, config: VitEncoderConfig, camera: Camera):
        super().__init__()
        architecture, tokens = config.architecture, config.tokens
        self.camera = camera
        self.weights = config.weights
        self.image_size = config.image_size or architecture["image_size"]
        self.backbone = VisionTransformer(architecture, image_size=self.image_size)
        self.backbone.lr_scale = config.lr_scale
        self.backbone.requires_grad_(not config.freeze)
        self.pool = config.pool
        dim, heads = self.backbone.dim, architecture["num_attention_heads"]
        self.attention = AttentionPool(dim=dim, heads=heads, tokens=tokens) if self.pool == "attention" else None
        self.project = nn.Identity() if config.output_dim is None else KernelLinear(dim, config.output_dim)
        self.n_tokens = tokens
        self.output_dim = tokens * (config.output_dim or dim)

    def forward(self, frames: Tensor, random: Randomness | None = None) -> Tensor:
        """(B, n_obs_steps, height, width, 3) uint8 -> (B, n_obs_steps, output_dim).

        Args:
            random: B rows in training, for crop and jitter; None when acting.
        """
        images = self.camera(frames, random)
        size = (self.image_size, self.image_size)
        if images.shape[2:] != size:
            images = F.interpolate(images, size, mode="bilinear", antialias=True)
        tokens = self.backbone(images.to(compute_dtype(next(self.backbone.parameters()))))
        if self.attention is not None:
            pooled = self.attention(tokens)
        elif self.pool == "cls":
            pooled = tokens[:, :1]
        else:
            pooled = tokens[:, self.backbone.n_special :].mean(dim=1, keepdim=True)
        return self.project(pooled).reshape(*frames.shape[:2], self.output_dim)

    def load_pretrained(self) -> None:
        """See `PretrainedModule`. Pooling and projection stay random."""
        self.backbone.load(locate(self.weights, "weights:"))
