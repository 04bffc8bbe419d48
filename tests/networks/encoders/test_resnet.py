"""The ResNet against torch.nn's layers and transformers' ResNet, published weights by name, and every field."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dp_prior.networks.encoders.color_jitter import ColorJitterConfig
from dp_prior.networks.encoders.encoder import FineTuned, load_pretrained
from dp_prior.networks.encoders.resnet import ResNet, ResNetEncoderConfig, load_published, rename_published
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming, told

TINY = {"width": 16, "blocks": (1, 1), "keypoints": 4, "output_dim": 6}
SHAPE = (32, 40, 3)


def record(**changes):
    return ResNetEncoderConfig(**{**TINY, **changes})


def build(shape=SHAPE, seed=0, **changes):
    torch.manual_seed(seed)
    return record(**changes).create(shape)


def rows(count=3):
    return Randomness.from_counts(0, "batch", torch.arange(count))


def frames(count=3, steps=2, shape=SHAPE):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, steps, *shape), dtype=torch.uint8, generator=generator)


class PlainBlock(nn.Module):
    """A block of torchvision's ResNet, of plain layers and torchvision's names."""

    def __init__(self, channels_in, channels, stride, norm, bottleneck):
        super().__init__()
        out = channels * 4 if bottleneck else channels
        sizes = [(channels_in, channels, 1, 1), (channels, channels, 3, stride), (channels, out, 1, 1)]
        if not bottleneck:
            sizes = [(channels_in, channels, 3, stride), (channels, channels, 3, 1)]
        self.n = len(sizes)
        for i, (a, b, kernel, step) in enumerate(sizes, start=1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i}", norm(b))
        self.downsample = None
        if stride != 1 or channels_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride, bias=False), norm(out))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        for i in range(1, self.n + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            if i < self.n:
                x = torch.relu(x)
        return torch.relu(x + shortcut)


class PlainResNet(nn.Module):
    """torchvision's ResNet with its names, a classifier included."""

    def __init__(self, width, blocks, *, norm, bottleneck=False, patch=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 4, 4, bias=False) if patch else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.n = norm(width), len(blocks)
        self.maxpool = nn.Identity() if patch else nn.MaxPool2d(3, 2, 1)
        channels = width
        for level, count in enumerate(blocks):
            layer = []
            for i in range(count):
                layer.append(PlainBlock(channels, width * 2**level, 2 if level and not i else 1, norm, bottleneck))
                channels = width * 2**level * (4 if bottleneck else 1)
            setattr(self, f"layer{level + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for level in range(self.n):
            x = getattr(self, f"layer{level + 1}")(x)
        return x


def group_norm(channels):
    return nn.GroupNorm(channels // 16, channels)


def disturbed(module, seed=1):
    """Weights, biases and statistics away from what they are initialised with."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=generator)
            value.copy_(0.5 + noise if "var" in name or (value.ndim == 1 and "weight" in name) else 0.2 * (noise - 0.5))
    return module.eval()


@pytest.mark.parametrize(
    ("width", "blocks", "bottleneck", "patch"),
    [(16, (1, 1, 1, 1), False, False), (32, (2, 1), False, True), (16, (2, 3), True, False), (48, (1,), True, True)],
)
def test_the_network_is_torchvisions_with_group_norm_and_loads_by_its_names(width, blocks, bottleneck, patch):
    plain = disturbed(PlainResNet(width, blocks, norm=group_norm, bottleneck=bottleneck, patch=patch))
    stem = "patch" if patch else "conv"
    ours = ResNet(ResNetEncoderConfig(width=width, blocks=blocks, bottleneck=bottleneck, stem=stem))
    weights = {name: value for name, value in plain.state_dict().items() if not name.startswith("fc.")}
    ours.load_state_dict(weights)
    images = torch.randn(2, 3, 44, 61)
    found = ours(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found, plain(images), rtol=0, atol=1e-5 * plain(images).abs().max().item())
    assert found.shape[1:] == (ours.channels, *ours.output_size((44, 61)))
    loss, expected = found.square().mean(), plain(images).square().mean()
    loss.backward(), expected.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    for name, parameter in ours.named_parameters():
        scale = gradients[name].abs().max().item()
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=1e-4 * scale + 1e-9)


@every(stem=["conv", "patch"], size=[(84, 84), (33, 50), (4, 4), (7, 9), (97, 64)])
def test_the_size_of_the_feature_maps_is_known_before_they_are(size, stem):
    network = ResNet(ResNetEncoderConfig(width=16, blocks=(1, 1, 1), stem=stem))
    assert network(torch.zeros(1, 3, *size)).shape[2:] == network.output_size(size)


def huggingface(layer_type, depths, width):
    from transformers import ResNetConfig, ResNetModel

    expansion = 4 if layer_type == "bottleneck" else 1
    config = ResNetConfig(
        embedding_size=width,
        hidden_sizes=[expansion * width * 2**level for level in range(len(depths))],
        depths=depths,
        layer_type=layer_type,
    )
    return disturbed(ResNetModel(config))


def torchvision_name(name):
    """A tensor's name in transformers' ResNet -> in torchvision's."""
    part, kind = name.split(".")[:-1], name.split(".")[-1]
    norm = part[-1] == "normalization"
    if part[0] == "embedder":
        return f"{'bn1' if norm else 'conv1'}.{kind}"
    block = f"layer{int(part[2]) + 1}.{part[4]}"
    if part[5] == "shortcut":
        return f"{block}.downsample.{int(norm)}.{kind}"
    return f"{block}.{'bn' if norm else 'conv'}{int(part[6]) + 1}.{kind}"


@pytest.mark.parametrize(
    ("layer_type", "depths", "width"),
    [("basic", [2, 2, 2, 2], 64), ("bottleneck", [3, 4, 6, 3], 16), ("bottleneck", [1, 2], 24), ("basic", [1, 1], 40)],
    ids=["resnet-18", "resnet-50 layout", "narrow bottleneck", "no multiple of 16"],
)
def test_frozen_batch_norm_gives_the_features_of_transformers_with_its_weights(tmp_path, layer_type, depths, width):
    theirs = huggingface(layer_type, depths, width)
    weights = {torchvision_name(name): value for name, value in theirs.state_dict().items()}
    save_file(weights | {"fc.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    encoder = ResNetEncoderConfig(
        width=width,
        blocks=tuple(depths),
        bottleneck=layer_type == "bottleneck",
        norm="frozen_batch",
        weights=str(tmp_path / "w.safetensors"),
        crop=None,
    ).create((70, 52, 3))
    load_pretrained(encoder)
    encoder.train()  # the statistics stay
    images = encoder.camera(frames(1, 2, (70, 52, 3)), None)
    expected = theirs(images).last_hidden_state
    torch.testing.assert_close(encoder.backbone(images), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    normalised = (
        frames(1, 2, (70, 52, 3))[0].permute(0, 3, 1, 2) / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    )
    normalised = normalised / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    torch.testing.assert_close(images, normalised, rtol=0, atol=1e-5)


def test_statistics_of_frozen_batch_norm_stay_and_its_scales_learn(tmp_path):
    weights = disturbed(PlainResNet(16, (1, 1), norm=nn.BatchNorm2d)).state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    encoder = build(norm="frozen_batch", weights=str(tmp_path / "w.safetensors"))
    load_pretrained(encoder)
    encoder.train()
    encoder(frames(), rows()).sum().backward()
    assert torch.equal(encoder.backbone.bn1.running_mean, weights["bn1.running_mean"])
    assert encoder.backbone.bn1.weight.grad is not None
    assert not {name for name, _ in encoder.named_parameters() if "running" in name}


def published(layout):
    """The state dict that an image policy of the layout would have, and the encoder whose weights they are."""
    encoder = build(blocks=(1, 1, 1, 1), shape=(64, 64, 3), seed=3)
    numbers = {"conv1": "0", "bn1": "1", **{f"layer{level}": str(level + 3) for level in range(1, 5)}}
    weights = {}
    for name, value in encoder.state_dict().items():
        part, _, rest = name.partition(".")
        if part == "backbone":
            first, _, rest = rest.partition(".")
            plain, numbered = f"{first}.{rest}", f"{numbers[first]}.{rest}"
        else:
            kind = rest.split(".")[-1]
        if layout == "torchvision" and part == "backbone":
            weights[plain] = value
        elif layout == "lerobot":
            weights[
                f"backbone.{numbered}" if part == "backbone" else {"pool": "pool.nets.", "project": "out."}[part] + kind
            ] = value
        elif layout == "robomimic":
            name = {"pool": "nets.1.nets.", "project": "nets.3."}
            weights[f"nets.0.nets.{numbered}" if part == "backbone" else name[part] + kind] = value
            if part == "backbone":
                weights[f"backbone.nets.{numbered}"] = value
            elif part == "pool":
                weights[f"pool.nets.{kind}"] = value
    if layout == "lerobot":
        weights["pool.pos_grid"] = torch.zeros(4, 2)
    if layout == "robomimic":
        weights |= {
            f"{where}.{name}": torch.ones(1)
            for where in ("nets.1", "pool")
            for name in ("pos_x", "pos_y", "temperature")
        }
    return encoder, weights


@pytest.mark.parametrize(
    ("layout", "prefix"),
    [
        ("lerobot", "diffusion.rgb_encoder."),
        ("lerobot", "diffusion.rgb_encoder.1."),
        ("robomimic", "obs_encoder.obs_nets.image."),
        ("torchvision", "obs_encoder.key_model_map.rgb."),
        ("torchvision", ""),
    ],
)
def test_encoders_of_published_policies_load_by_name(tmp_path, layout, prefix):
    source, weights = published(layout)
    save_file({prefix + name: value.clone() for name, value in weights.items()}, tmp_path / "w.safetensors")
    fields = {"blocks": (1, 1, 1, 1), "weights": str(tmp_path / "w.safetensors"), "weights_prefix": prefix}
    encoder = build(shape=(64, 64, 3), seed=4, **fields)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    load_pretrained(encoder)
    given = frames(shape=(64, 64, 3))
    if layout == "torchvision":
        images = encoder.camera(given, None)
        assert torch.equal(encoder.backbone(images), source.backbone(images))
        assert torch.equal(encoder.pool.conv.weight, before["pool.conv.weight"])
    else:
        assert torch.equal(encoder(given), source(given))


def test_published_weights_begin_as_without_depth_and_read_depth_alone_as_grey():
    source, weights = published("torchvision")
    given = frames(shape=(64, 64, 3))
    depth = torch.rand(*given.shape[:4], 1)
    encoder = build(shape=(64, 64, 3), blocks=(1, 1, 1, 1), depth="front_depth")
    load_published(encoder, weights, source="w")
    images = encoder.camera(given, None)
    beside = torch.cat([images, encoder.beside(depth, None)], 1)
    torch.testing.assert_close(encoder.backbone(beside), source.backbone(images), atol=1e-5, rtol=1e-4)
    alone = ResNetEncoderConfig(width=16, blocks=(1, 1, 1, 1)).create_depth((64, 64, 1)).eval()
    load_published(alone, weights, source="w")
    grey = alone.camera(depth, None)
    torch.testing.assert_close(alone.backbone(grey), source.backbone(grey.expand(-1, 3, -1, -1)), atol=1e-5, rtol=1e-4)


def test_a_learned_temperature_is_refused_rather_than_dropped():
    _, weights = published("robomimic")
    with pytest.raises(ValueError, match=naming("nets.1.temperature", 1)):
        rename_published({**weights, "nets.1.temperature": torch.tensor([0.7])})


def test_names_that_are_ours_stay():
    weights = build().state_dict()
    assert rename_published(weights).keys() == weights.keys()


def test_batch_norm_weights_are_refused_by_group_norm_and_the_other_way_round():
    batch = PlainResNet(16, (1, 1), norm=nn.BatchNorm2d).state_dict()
    with pytest.raises(ValueError, match=naming("weights", "w", "'frozen_batch'")):
        load_published(build(), batch, source="w")
    group = PlainResNet(16, (1, 1), norm=group_norm).state_dict()
    with pytest.raises(ValueError, match=naming("weights", "w", "running_mean", "running_var", "'group'")):
        load_published(build(norm="frozen_batch", weights="w"), group, source="w")


def test_weights_of_another_size_are_refused_with_every_tensor():
    weights = PlainResNet(32, (1, 2), norm=group_norm).state_dict()
    with pytest.raises(ValueError) as error:
        load_published(build(), weights, source="w.safetensors")
    message = str(error.value)
    assert told(message, "weights", "w.safetensors", "backbone", "unknown here", "backbone.layer2.1.conv1.weight")
    assert told(message, "backbone.conv1.weight", "(32, 3, 7, 7)", "(16, 3, 7, 7)")
    assert told(message, "backbone.layer2.0.downsample.0.weight", "(64, 32, 1, 1)", "(32, 16, 1, 1)")


def test_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=naming("weights", "nowhere.safetensors")):
        load_pretrained(build(weights="nowhere.safetensors"))


def test_building_reads_no_file_and_without_weights_loading_keeps_the_random_ones():
    build(weights="nowhere.safetensors")
    encoder = build()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    load_pretrained(encoder)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize("steps", [1, 3])
def test_features_of_a_step_depend_on_its_own_frame_alone(steps):
    encoder, given = build(), frames(steps=steps)
    found = encoder(given)
    assert found.shape == (3, steps, encoder.output_dim) == (3, steps, 6)
    torch.testing.assert_close(found[1:2, -1:], encoder(given[1:2, -1:]), rtol=0, atol=1e-5)


def test_a_sample_is_encoded_alike_in_any_batch_while_training():
    encoder = build(jitter=ColorJitterConfig())
    whole = encoder(frames(), rows())
    torch.testing.assert_close(whole[1:2], encoder(frames()[1:2], rows()[1:2]), rtol=0, atol=1e-5)
    assert torch.equal(whole, encoder(frames(), rows()))


def test_every_parameter_gets_a_gradient():
    encoder = build(pool="mean", output_dim=None)
    encoder(frames(), rows()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
    encoder = build()
    encoder(frames(), rows()).square().sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


def test_autocast_computes_in_its_dtype_and_stays_close():
    encoder, given = build(width=32), frames()
    expected = encoder(given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = encoder(given)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.1)
    keypoints = build(width=32, output_dim=None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert keypoints(given).dtype is torch.float32


@every(changes=[{}, {"pool": "mean"}, {"norm": "frozen_batch", "weights": "w"}], dtype=[torch.bfloat16, torch.float64])
def test_weights_of_any_precision_take_frames(changes, dtype):
    encoder = build(**changes)
    expected = encoder(frames())
    for parameter in encoder.parameters():  # buffers stay, as `from_pretrained` leaves them
        parameter.data = parameter.data.to(dtype)
    found = encoder(frames())
    assert found.dtype is dtype
    tolerance = 0.1 if dtype is torch.bfloat16 else 1e-3
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


def test_parameters_are_contiguous_as_safetensors_wants_them():
    encoder = build()
    encoder(frames(), rows()).sum().backward()
    assert all(value.is_contiguous() for value in encoder.state_dict().values())


@pytest.mark.parametrize(
    "change",
    [
        {"width": 32},
        {"blocks": (1, 2)},
        {"bottleneck": True},
        {"stem": "patch"},
        {"norm": "frozen_batch", "weights": "w"},
        {"pool": "mean"},
        {"keypoints": 5},
        {"sharpness": 4.0},
        {"output_dim": 7},
        {"output_dim": None},
        {"mean": (0.1, 0.2, 0.3)},
        {"std": (0.1, 0.2, 0.3)},
        {"crop": (20, 20)},
        {"crop": None},
        {"jitter": ColorJitterConfig()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_the_features(change):
    before, after = build()(frames(), rows()), build(**change)(frames(), rows())
    assert before.shape != after.shape or not torch.equal(before, after)


def test_learning_rate_and_freezing_concern_the_backbone(tmp_path):
    encoder = build(lr_scale=0.25)
    assert [m.lr_scale for m in encoder.modules() if isinstance(m, FineTuned)] == [0.25]
    assert all(p.requires_grad for p in encoder.parameters())
    frozen = build(freeze=True, weights="w")
    assert {name.partition(".")[0] for name, p in frozen.named_parameters() if p.requires_grad} == {"pool", "project"}
    frozen(frames(), rows()).sum().backward()
    assert all(p.grad is None for p in frozen.backbone.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 24}, ("width", 24, 16, 32)),
        ({"width": 8}, ("width", 8, 16)),
        ({"norm": "frozen_batch"}, ("'frozen_batch'", "weights", "null")),
        ({"freeze": True}, ("freeze", "weights", "null")),
        ({"weights_prefix": "a."}, ("weights_prefix", "weights", "null")),
        ({"blocks": ()}, ("blocks", "[]")),
        ({"blocks": (0,)}, ("blocks.0", 0)),
        ({"keypoints": 0}, ("keypoints", 0)),
        ({"sharpness": 0.0}, ("sharpness", "0.0")),
        ({"sharpness": 4.0, "pool": "mean"}, ("sharpness", 4, "'spatial_softmax'")),
        ({"std": (0.0, 1.0, 1.0)}, ("std.0", "0.0")),
        ({"lr_scale": 0.0}, ("lr_scale", "0.0")),
        ({"stem": "7x7"}, ("stem", "'7x7'")),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=naming(*message)):
        record(**fields)


def test_frames_too_small_for_the_levels_are_refused():
    with pytest.raises(ValueError, match=naming("1x1", "'mean'")):
        build(shape=(8, 8, 3), blocks=(1, 1, 1, 1))
    with pytest.raises(ValueError, match=naming("4x4", "'patch'", "crop")):
        build(shape=(3, 40, 3), stem="patch", crop=None, pool="mean")


def test_a_record_survives_json_and_rebuilds_the_same_module():
    given = record(jitter=ColorJitterConfig(hue=0.0), crop=(20, 24), mean=(0.1, 0.2, 0.3))
    again = ResNetEncoderConfig.from_json(given.to_json())
    assert again == given and json.loads(given.to_json())["crop"] == [20, 24]
    assert again.create(SHAPE).state_dict().keys() == given.create(SHAPE).state_dict().keys()


@pytest.mark.parametrize(
    "blocks", [*[pytest.param(blocks, marks=pytest.mark.slow) for blocks in ([1], [1, 1])], [2, 1, 1]]
)
@pytest.mark.parametrize("stem", [pytest.param("conv", marks=pytest.mark.slow), "patch"])
def test_the_pixel_of_a_cell_is_the_middle_of_all_it_sees(stem, blocks):
    """By brute force: a column of pixels that is far too bright changes the cells that see it."""
    side = 256
    record = ResNetEncoderConfig(width=16, blocks=blocks, stem=stem, crop=None)
    backbone = record.create((side, side, 3)).backbone
    for module in backbone.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.GroupNorm):
                setattr(module, name, torch.nn.Identity())  # or every cell would see everything
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.fill_(0.01)
        dark = backbone(torch.ones(1, 3, 64, side))[0, 0, 8 // 2 ** len(blocks)]
        seen = []
        for column in range(side):
            image = torch.ones(1, 3, 64, side)
            image[..., column] = 1e3
            seen.append((backbone(image)[0, 0, 8 // 2 ** len(blocks)] - dark).abs() > 1e-4 * dark.abs())
    seen = torch.stack(seen, dim=1)  # (cells, pixels)
    inside = [cell for cell in range(len(seen)) if not seen[cell, 0] and not seen[cell, -1]]
    assert inside
    for cell in inside:
        first, last = seen[cell].nonzero().flatten()[[0, -1]].tolist()
        assert float(backbone.pixels(torch.tensor(cell))) == (first + last) / 2


@pytest.mark.parametrize("stem", ["conv", "patch"])
def test_keypoints_lie_at_the_cells_where_the_maps_are_bright(stem):
    encoder = ResNetEncoderConfig(width=16, blocks=[1, 1], stem=stem, keypoints=1, crop=(64, 80)).create((72, 96, 3))
    height, width = encoder.backbone.output_size((64, 80))
    for row, column in ((0, 0), (height - 1, width - 1), (2, 5)):
        maps = torch.zeros(2, 1, height, width)
        maps[:, 0, row, column] = 1e4
        encoder.backbone.forward = lambda _, maps=maps: maps
        encoder.pool.conv = torch.nn.Identity()
        offset = 1.5 if stem == "patch" else 0.0
        expected = torch.tensor([8 * column + offset + 8, 8 * row + offset + 4])  # the crop begins at (4, 8)
        found = encoder.keypoints(torch.zeros(1, 2, 72, 96, 3, dtype=torch.uint8))
        torch.testing.assert_close(found, expected.expand(1, 2, 1, 2))


def test_convolutions_begin_with_the_spread_of_he_over_their_outputs():
    torch.manual_seed(0)
    backbone = ResNet(record(width=64, blocks=(1, 1)))
    for conv in (backbone.conv1, backbone.layer1[0].conv1, backbone.layer2[0].conv1, backbone.layer2[0].downsample[0]):
        fan_out = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
