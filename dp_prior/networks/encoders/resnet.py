"""ResNet encoder of camera frames, of depth, or of both, with group norm and spatial softmax, as in Diffusion Policy
(Chi et al. 2023).

Function and parameter names of the backbone are torchvision's (and timm's), so published weights load: weights for
ImageNet, and the encoders of Stanford's and LeRobot's image policies; see `rename_published`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Outside
from dp_prior.networks.encoders.camera_encoder import Camera, CameraEncoderConfig, DepthView, PositiveRgb, Rgb
from dp_prior.networks.encoders.encoder import Encoder, FineTuned, PretrainedModule
from dp_prior.networks.encoders.published_weights import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Renaming,
    load_parts,
    read_weights,
    rename,
)
from dp_prior.networks.encoders.spatial_softmax import MeanPool, SpatialSoftmax
from dp_prior.networks.layers import KernelLinear, compute_dtype, is_channels_first
from dp_prior.tensors.batch import Kind
from dp_prior.tensors.crop import Crop
from dp_prior.tensors.randomness import Randomness

CHANNELS_PER_GROUP = 16  # of the group norm, as in Diffusion Policy
_EXPANSION = 4  # channels of a bottleneck's output, as a multiple of its middle

Norm = Literal["group", "frozen_batch"]


class ResNetEncoderConfig(CameraEncoderConfig):
    """ResNet of one camera (He et al. 2016). The defaults are the ResNet-18 of Diffusion Policy.

    On two CPU cores take width 32, blocks [1, 1, 1] and stem patch: a tenth of the time. On small frames a fourth level
    hurts: it leaves 3x3 positions of an 84x84 crop to the spatial softmax, the third 6x6.
    """

    type: Literal["resnet"] = "resnet"

    reads: ClassVar[tuple[Kind, ...]] = ("image", "depth")

    depth: str | None = None
    """Of colours: the observation of kind depth that is read beside them as a fourth channel, of the same size and with
    the same crops, and then has no encoder of its own. null: colours alone, or depth alone."""

    width: int = Field(default=64, ge=1)
    """Channels of the first level; each further level has twice as many."""

    blocks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(2, 2, 2, 2), min_length=1)
    """Residual blocks of each level; every level after the first has half the resolution of the previous level.
    [2, 2, 2, 2] is ResNet-18, [3, 4, 6, 3] is ResNet-34, or ResNet-50 with bottleneck."""

    bottleneck: bool = False
    """Whether a block has three convolutions around a narrow middle and four times the channels, as in ResNet-50."""

    stem: Literal["conv", "patch"] = "conv"
    """conv: 7x7 convolution and max-pooling, as in the paper. patch: one 4x4 convolution of stride 4, which costs less;
    up to 3 pixels at the right and lower edge are ignored."""

    norm: Norm = "group"
    """group: group norm with 16 channels per group. frozen_batch: batch norm with the fixed statistics of `weights`."""

    pool: Literal["spatial_softmax", "mean"] = "spatial_softmax"
    """spatial_softmax: positions of keypoints; mean: the mean of each feature map."""

    keypoints: int = Field(default=32, ge=1)
    """Keypoints of the spatial softmax."""

    sharpness: float | None = Field(default=None, gt=0)
    """Standard deviation that each keypoint's map is scaled to before its softmax; 4 is good. null, as in the paper: a
    keypoint begins as the mean of all places, and takes the longer to find one the larger the map."""

    output_dim: int | None = Field(default=64, ge=1)
    """Number of output features, through a linear layer and ReLU; null: the pooled features unchanged."""

    mean: Rgb | None = None
    """Mean of RGB in [0, 1], which is subtracted; null: 0.5 each, with frozen_batch ImageNet's."""

    std: PositiveRgb | None = None
    """Standard deviation of RGB in [0, 1], the divisor; null: 0.5 each, with frozen_batch ImageNet's."""

    weights: Annotated[str | None, Outside()] = None
    """Path of a safetensors file to start from: a torchvision or timm ResNet, or an image policy of Stanford's or
    LeRobot's. Read when a run is created; not needed later."""

    weights_prefix: str = ""
    """Only tensors of `weights` whose names begin with this are read, for example "diffusion.rgb_encoder."."""

    @property
    def depth_beside(self) -> str | None:
        return self.depth

    def faults(self) -> Iterator[str]:
        if self.norm == "group" and self.width % CHANNELS_PER_GROUP:
            below = self.width - self.width % CHANNELS_PER_GROUP
            nearest = f"{below} or {below + CHANNELS_PER_GROUP}" if below else f"{CHANNELS_PER_GROUP}"
            yield f"width is {self.width}, but group norm has {CHANNELS_PER_GROUP} channels per group. Take {nearest}"
        if self.sharpness is not None and self.pool == "mean":
            yield f"sharpness is {self.sharpness:g}, but pool is 'mean'. Remove it, or set pool to 'spatial_softmax'"
        if self.weights is None:
            for field, is_set in (
                ("norm 'frozen_batch'", self.norm == "frozen_batch"),
                ("freeze", self.freeze),
                ("weights_prefix", self.weights_prefix != ""),
            ):
                if is_set:
                    yield f"{field} needs pretrained weights, but weights is null. Give a safetensors file"

    def create(self, shape: tuple[int, ...]) -> ResNetEncoder:
        """The encoder of frames of `shape` (height, width, 3), with random weights; see `PretrainedModule`."""
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if self.norm == "frozen_batch" else ((0.5,) * 3, (0.5,) * 3)
        camera = self.camera(shape, mean=self.mean or mean, std=self.std or std)
        return ResNetEncoder(self, camera, 3 if self.depth is None else 4)

    def create_depth(self, shape: tuple[int, ...]) -> ResNetEncoder:
        """The encoder of depth of `shape` (height, width, 1), with random weights.

        Raises:
            ValueError: a setting of colours is given.
        """
        colour_settings = [name for name in ("depth", "jitter", "mean", "std") if getattr(self, name) is not None]
        if colour_settings:
            names = ", ".join(colour_settings)
            raise ValueError(f"{names} is given, but depth of shape {shape} has no colours; remove it")
        return ResNetEncoder(self, DepthView(Crop.of(shape[:2], self.crop)), 1)


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics from the pretrained weights; scale and bias are learned."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, height, width), the same."""
        wide = torch.promote_types(x.dtype, torch.float32)  # torch has no kernel for float64 beside float32
        values = self.running_mean, self.running_var, self.weight, self.bias
        return F.batch_norm(x, *(value.to(wide) for value in values), training=False)


def _norm(norm: Norm, channels: int) -> nn.Module:
    return nn.GroupNorm(channels // CHANNELS_PER_GROUP, channels) if norm == "group" else FrozenBatchNorm(channels)


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


class ResNetBlock(nn.Module):
    """A residual block of two 3x3 convolutions or, as a bottleneck, of 1x1, 3x3 and 1x1.

    In a bottleneck the middle convolution has the stride, as in torchvision.
    """

    def __init__(self, config: ResNetEncoderConfig, in_channels: int, out_channels: int, *, stride: int):
        super().__init__()
        norm, narrow = config.norm, out_channels // _EXPANSION
        sizes = (
            ((in_channels, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, out_channels, 1, 1))
            if config.bottleneck
            else ((in_channels, out_channels, 3, stride), (out_channels, out_channels, 3, 1))
        )
        self.n_convs = len(sizes)
        for number, (dim_in, dim, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{number}", _conv(dim_in, dim, kernel, step))
            self.add_module(f"bn{number}", _norm(norm, dim))
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(_conv(in_channels, out_channels, 1, stride), _norm(norm, out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)."""
        hidden = x
        for number in range(1, self.n_convs + 1):
            hidden = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(hidden))
            if number < self.n_convs:
                hidden = F.relu(hidden, inplace=True)
        return F.relu(hidden + self.downsample(x), inplace=True)


class ResNet(FineTuned):
    """torchvision's ResNet without its classifier; see `ResNetEncoderConfig`."""

    shard_units = (ResNetBlock,)

    def __init__(self, config: ResNetEncoderConfig, in_channels: int = 3):
        super().__init__()
        width, expansion = config.width, _EXPANSION if config.bottleneck else 1
        self.is_patch = config.stem == "patch"
        self.conv1 = (
            nn.Conv2d(in_channels, width, 4, 4, bias=False) if self.is_patch else _conv(in_channels, width, 7, 2)
        )
        self.bn1 = _norm(config.norm, width)
        self.maxpool = nn.Identity() if self.is_patch else nn.MaxPool2d(3, 2, padding=1)
        self.n_levels = len(config.blocks)
        channels = [width, *(expansion * width * 2**level for level in range(self.n_levels))]
        for level, ((dim_in, dim), count) in enumerate(zip(pairwise(channels), config.blocks, strict=True)):
            sizes = [(dim_in, 1 if level == 0 else 2), *[(dim, 1)] * (count - 1)]
            blocks = (ResNetBlock(config, size, dim, stride=stride) for size, stride in sizes)
            self.add_module(f"layer{level + 1}", nn.Sequential(*blocks))
        self.channels = channels[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(N, in_channels, H, W) -> (N, channels, *output_size((H, W)))."""
        images = images.to(compute_dtype(self.conv1.weight))
        if is_channels_first(images) and isinstance(self.bn1, nn.GroupNorm):
            images = images.contiguous()
        x = self.maxpool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        for level in range(self.n_levels):
            x = self.get_submodule(f"layer{level + 1}")(x)
        return x

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the feature maps of images of this size."""
        factor = 2 ** (self.n_levels - 1)
        height, width = (math.ceil((n // 4 if self.is_patch else math.ceil(n / 4)) / factor) for n in size)
        return height, width

    def pixels(self, cells: Tensor) -> Tensor:
        """Index of a cell of the feature maps -> centre of its receptive field, in pixels along the same axis."""
        stride = 4 * 2 ** (self.n_levels - 1)
        return stride * cells + (1.5 if self.is_patch else 0.0)


class ResNetEncoder(PretrainedModule, Encoder):
    """Camera, backbone, pooling, projection; see `ResNetEncoderConfig`."""

    draws: ClassVar[bool] = True

    def __init__(self, config: ResNetEncoderConfig, camera: Camera | DepthView, channels: int):
        """Args: channels: 3 of colours, 1 of depth, 4 of both."""
        super().__init__()
        self.camera, self.channels = camera, channels
        self.beside = DepthView(camera.crop)
        self.backbone = ResNet(config, channels)
        self.backbone.lr_scale = config.lr_scale
        self.backbone.requires_grad_(not config.freeze)
        size = self.backbone.output_size(camera.crop.size)
        if 0 in size:
            raise ValueError(f"stem 'patch' needs images of at least 4x4 pixels; the crop is {camera.crop.size}")
        channels = self.backbone.channels
        self.pool = (
            MeanPool(channels=channels)
            if config.pool == "mean"
            else SpatialSoftmax(channels=channels, size=size, keypoints=config.keypoints, sharpness=config.sharpness)
        )
        self.output_dim = config.output_dim or self.pool.output_dim
        self.project = None if config.output_dim is None else KernelLinear(self.pool.output_dim, self.output_dim)
        self.weights, self.weights_prefix = config.weights, config.weights_prefix

    def forward(self, frames: Tensor, random: Randomness | None = None, depth: Tensor | None = None) -> Tensor:
        """(B, n_obs_steps, height, width, 3) uint8, or scaled depth -> (B, n_obs_steps, output_dim).

        Args:
            random: B rows in training, for crop and jitter; None when acting.
            depth: (B, n_obs_steps, height, width, 1) scaled, where it is read beside colours.
        """
        images = self.camera(frames, random)
        if depth is not None:
            images = torch.cat([images, self.beside(depth, random)], dim=1)
        features = self.pool(self.backbone(images))
        if self.project is not None:
            features = F.relu(self.project(features.to(compute_dtype(self.project.weight))))
        return features.view(*frames.shape[:2], self.output_dim)

    def keypoints(self, frames: Tensor) -> Tensor:
        """The positions that the spatial softmax finds when acting, in pixels of the frames.

        Returns:
            (B, n_obs_steps, keypoints, 2): x and y, from (B, n_obs_steps, height, width, 3) uint8.
        """
        maps = self.backbone(self.camera(frames, None))
        sides = torch.tensor([maps.shape[3], maps.shape[2]], device=maps.device)
        cells = (self.pool(maps).view(*frames.shape[:2], -1, 2) + 1) / 2 * (sides - 1)
        top, left = self.camera.crop.centre
        return self.backbone.pixels(cells) + torch.tensor([left, top], device=maps.device)

    def load_pretrained(self) -> None:
        """See `PretrainedModule`. Pooling and projection stay random if the file does not have them."""
        if self.weights is not None:
            load_published(self, read_weights(self.weights, self.weights_prefix), source=self.weights)


_RESNET_NAMES: Renaming = (
    (r"^fc\.|num_batches_tracked$|(^|\.)(pos_grid|pos_x|pos_y|temperature)$", None),
    # robomimic's VisualCore, whose state dict holds every tensor under two names
    (r"^(nets\.0|backbone)\.nets\.", "backbone."),
    (r"^nets\.1\.nets\.", "pool.conv."),
    (r"^nets\.3\.", "project."),
    # LeRobot's DiffusionRgbEncoder, with a backbone numbered like robomimic's
    (r"^pool\.nets\.", "pool.conv."),
    (r"^out\.", "project."),
    (r"^backbone\.0\.", "backbone.conv1."),
    (r"^backbone\.1\.", "backbone.bn1."),
    *((rf"^backbone\.{level + 3}\.", f"backbone.layer{level}.") for level in range(1, 5)),
    # torchvision and timm
    (r"^(conv1|bn1|layer\d+)\.", r"backbone.\1."),
)


def rename_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a published encoder under our names; the tensors are unchanged.

    Args:
        weights: state dict, without a prefix, of a torchvision or timm ResNet (also Stanford's `MultiImageObsEncoder`,
            under `obs_encoder.key_model_map.KEY.`), of Stanford's hybrid image policy
            (`obs_encoder.obs_nets.KEY.`), or of LeRobot's `DiffusionRgbEncoder` (`diffusion.rgb_encoder.`).

    Raises:
        ValueError: the spatial softmax has a learned temperature, which is not supported here.
    """
    learned = [name for name, value in weights.items() if name.endswith("temperature") and bool((value != 1).any())]
    if learned:
        raise ValueError(f"weights: {learned[0]} is not 1; a spatial softmax with a temperature is not supported")
    return rename(weights, _RESNET_NAMES)


def load_published(encoder: ResNetEncoder, weights: Mapping[str, Tensor], *, source: str) -> None:
    """Start the encoder from published weights; see `rename_published`.

    The backbone must be complete; pooling and projection are optional.

    Raises:
        ValueError: the weights do not fit; lists every faulty tensor.
    """
    renamed = rename_published(weights)
    has_statistics = any(name.endswith("running_var") for name in renamed)
    is_group = isinstance(encoder.backbone.bn1, nn.GroupNorm)
    if has_statistics and is_group:
        raise ValueError(
            f"weights: {source} was trained with batch norm, and group norm would compute something else from it. "
            f"Use norm 'frozen_batch', or weights that were trained with group norm"
        )
    if not has_statistics and not is_group:
        raise ValueError(
            f"weights: {source} has no batch-norm statistics (running_mean, running_var). Use norm 'group' for weights "
            f"that were trained with group norm"
        )
    first = "backbone.conv1.weight"
    if first in renamed:
        renamed[first] = _for_channels(renamed[first], encoder.channels)
    parts = {"backbone"} | ({name.partition(".")[0] for name in renamed} & {"pool", "project"})
    load_parts(encoder, renamed, parts, source=source)


def _for_channels(weight: Tensor, channels: int) -> Tensor:
    """The first convolution (width, 3, k, k) of published weights for so many channels: depth alone is read as grey,
    depth beside colours begins without effect."""
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return F.pad(weight, (0, 0, 0, 0, 0, channels - weight.shape[1]))
