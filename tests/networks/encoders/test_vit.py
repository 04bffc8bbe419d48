"""Vision transformers of transformers, tiny and random, from folders and from a cache of the Hub that is offline."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dp_prior.files.hub_files import HubRepository
from dp_prior.networks.encoders.color_jitter import ColorJitterConfig
from dp_prior.networks.encoders.encoder import FineTuned, load_pretrained
from dp_prior.networks.encoders.vit import FAMILIES, VitEncoderConfig
from dp_prior.tensors.randomness import Randomness
from tests.extras import needs
from tests.messages import naming, told

needs("transformers", "clip")

SHAPE = (40, 48, 3)
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
    "intermediate_size": 20,
    "mlp_ratio": 2,
    "num_register_tokens": 3,
}
SPECIAL = {"dinov2": 1, "dinov2_with_registers": 4, "dinov3_vit": 4, "clip_vision_model": 1, "siglip_vision_model": 0}


CLASSES = {
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "dinov3_vit": "DINOv3ViT",
    "clip_vision_model": "CLIPVision",
    "siglip_vision_model": "SiglipVision",
}


def published(folder, family="dinov2", seed=0, std=0.3, **changes):
    """A random model of the family, saved as a publisher would; and the model."""
    import transformers

    config_class = getattr(transformers, f"{CLASSES[family]}Config")
    fields = {name: value for name, value in {**TINY, **changes}.items() if name in config_class().to_dict()}
    torch.manual_seed(seed)
    model = getattr(transformers, f"{CLASSES[family]}Model")(config_class(**fields)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    model.save_pretrained(folder)
    return model


@pytest.fixture
def folder(tmp_path):
    published(tmp_path / "model")
    return tmp_path / "model"


def record(folder, **changes):
    return VitEncoderConfig(**{"weights": str(folder), "crop": None, **changes}).resolve()


def build(folder, seed=0, **changes):
    torch.manual_seed(seed)
    encoder = record(folder, **changes).create(SHAPE)
    load_pretrained(encoder)
    return encoder


def frames(count=2, steps=2, shape=SHAPE):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, steps, *shape), dtype=torch.uint8, generator=generator)


def rows(count=2):
    return Randomness.from_counts(0, "batch", torch.arange(count))


def prepared(given, family, size=28):
    """What a processor of the family makes of the frames."""
    mean, std = (torch.tensor(value)[:, None, None] for value in (FAMILIES[family].mean, FAMILIES[family].std))
    images = (given.flatten(0, 1).permute(0, 3, 1, 2) / 255 - mean) / std
    return F.interpolate(images, (size, size), mode="bilinear", antialias=True)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_features_are_those_of_the_published_model(tmp_path, family, pool):
    if pool == "cls" and not FAMILIES[family].has_cls:
        return
    model = published(tmp_path, family)
    found = build(tmp_path, pool=pool).eval()(frames())
    if family == "dinov3_vit":
        model.config.pos_embed_rescale = None
    output = model(pixel_values=prepared(frames(), family))
    if pool == "cls":
        expected = output.pooler_output  # the normed class token
    elif family == "clip_vision_model":
        expected = model.post_layernorm(output.last_hidden_state)[:, 1:].mean(1)
    else:
        expected = output.last_hidden_state[:, SPECIAL[family] :].mean(1)
    torch.testing.assert_close(found.flatten(0, 1), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("dinov2", {"qkv_bias": False, "layerscale_value": 0.3, "hidden_act": "relu", "mlp_ratio": 3}),
        ("dinov2_with_registers", {"use_swiglu_ffn": True, "num_register_tokens": 2, "layer_norm_eps": 0.1}),
        ("dinov3_vit", {"rope_theta": 3.0, "key_bias": True, "query_bias": False, "value_bias": False}),
        ("dinov3_vit", {"use_gated_mlp": True, "mlp_bias": False, "proj_bias": False, "num_register_tokens": 0}),
        ("clip_vision_model", {"hidden_act": "gelu", "layer_norm_eps": 0.1, "patch_size": 14}),
        ("siglip_vision_model", {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 7}),
    ],
)
def test_everything_that_a_config_says_of_a_model_is_taken(tmp_path, family, changes):
    model = published(tmp_path, family, **changes)
    found = build(tmp_path, pool="mean").eval()
    if family == "dinov3_vit":
        model.config.pos_embed_rescale = None
    expected = model(pixel_values=prepared(frames(), family)).last_hidden_state
    if family == "clip_vision_model":
        expected = model.post_layernorm(expected)
    tokens = found.backbone(prepared(frames(), family))
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert found.backbone.n_special + (28 // changes.get("patch_size", 7)) ** 2 == tokens.shape[1]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_another_image_size_interpolates_the_positions(tmp_path, family):
    model = published(tmp_path, family)
    found = build(tmp_path, pool="mean", image_size=42).eval()(frames())
    extra = {"interpolate_pos_encoding": True} if family.endswith("vision_model") else {}
    output = model(pixel_values=prepared(frames(), family, 42), **extra).last_hidden_state
    if family == "clip_vision_model":
        output = model.post_layernorm(output)
    expected = output[:, SPECIAL[family] :].mean(1)
    assert output.shape[1] == SPECIAL[family] + 36
    torch.testing.assert_close(found.flatten(0, 1), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_training_draws_nothing_from_torch_and_every_parameter_learns(tmp_path, family):
    published(tmp_path, family, hidden_dropout_prob=0.5, attention_dropout=0.5, drop_path_rate=0.5)
    encoder = build(tmp_path, tokens=2, output_dim=5).train()
    before = torch.get_rng_state()
    first = encoder(frames(), rows())
    assert torch.equal(first, encoder(frames(), rows())) and torch.equal(torch.get_rng_state(), before)
    first.square().sum().backward()
    without = {name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None}
    assert without == set()
    frozen = {name for name, p in encoder.named_parameters() if not p.requires_grad}
    assert all(name.endswith("mask_token") for name in frozen)


def test_a_record_is_resolved_once_and_then_needs_neither_file_nor_network(tmp_path, folder):
    given = VitEncoderConfig(weights=str(folder), crop=None)
    resolved = given.resolve()
    assert resolved.architecture["model_type"] == "dinov2" and resolved.architecture["hidden_size"] == 16
    assert resolved.mean == FAMILIES["dinov2"].mean and resolved.std == FAMILIES["dinov2"].std
    encoder = resolved.create(SHAPE)
    load_pretrained(encoder)
    folder.rename(tmp_path / "gone")
    again = VitEncoderConfig.from_json(resolved.to_json())
    assert again == resolved and again.resolve() is again
    loaded = again.create(SHAPE)
    loaded.load_state_dict(encoder.state_dict())
    assert torch.equal(loaded.eval()(frames()), encoder.eval()(frames()))


def test_creating_before_resolving_is_an_error_of_the_caller(folder):
    with pytest.raises(RuntimeError, match=naming("record.resolve()")):
        VitEncoderConfig(weights=str(folder)).create(SHAPE)


def test_the_models_own_normalisation_wins_over_its_familys_and_the_records_over_both(folder):
    own = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (folder / "preprocessor_config.json").write_text(json.dumps(own))
    assert (record(folder).mean, record(folder).std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert record(folder, mean=(0.0, 0.0, 0.0)).mean == (0.0, 0.0, 0.0)
    images = record(folder).create(SHAPE).camera(frames(), None)
    expected = (frames().flatten(0, 1) / 255 - torch.tensor(own["image_mean"])) / torch.tensor(own["image_std"])
    torch.testing.assert_close(images, expected.permute(0, 3, 1, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_the_vision_tower_is_taken_from_a_model_with_text(tmp_path, family):
    import transformers

    classes = {"clip": (transformers.CLIPConfig, transformers.CLIPModel)}
    classes["siglip"] = (transformers.SiglipConfig, transformers.SiglipModel)
    config_class, model_class = classes[family]
    tower = {name: TINY[name] for name in TINY if name not in ("mlp_ratio", "num_register_tokens")}
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
    torch.manual_seed(0)
    model = model_class(config_class(vision_config=tower, text_config=text)).eval()
    model.save_pretrained(tmp_path)
    found = build(tmp_path, pool="mean").eval()(frames()).flatten(0, 1)
    tokens = model.vision_model(pixel_values=prepared(frames(), f"{family}_vision_model")).last_hidden_state
    expected = model.vision_model.post_layernorm(tokens)[:, 1:].mean(1) if family == "clip" else tokens.mean(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model_type", ["vit", "siglip2_vision_model", "llama", None, "dinov2; import os"])
def test_another_model_type_is_refused_by_name(folder, model_type):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    with pytest.raises(ValueError, match=naming("weights", repr(model_type), "dinov2", "siglip")):
        record(folder)


def test_code_beside_a_model_is_never_run(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    encoder = build(folder)
    assert not (tmp_path / "ran").exists()
    assert "auto_map" not in encoder.backbone.model.config.to_dict()


@pytest.mark.parametrize("data", [b"\xff" * 100, b""])
def test_damaged_weights_are_one_error_with_the_folder(folder, data):
    encoder = record(folder).create((16, 16, 3))
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(FileNotFoundError, match=naming("weights", folder)):
        encoder.backbone.load(folder)


def test_weights_in_a_file_elsewhere_are_refused(folder):
    encoder = record(folder).create((16, 16, 3))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../other.safetensors"}}')
    with pytest.raises(ValueError, match=naming("model.safetensors.index.json", "'../other.safetensors'")):
        encoder.backbone.load(folder)


def test_weights_must_be_safetensors(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=naming("weights", "model.safetensors")):
        build(folder)


def test_weights_of_another_architecture_are_refused(folder, tmp_path):
    resolved = record(folder)
    other = published(tmp_path / "deeper", num_hidden_layers=3)
    assert other.config.num_hidden_layers == 3
    for changes, fault in (
        ({"num_hidden_layers": 4}, "'encoder.layer.3.attention.k_proj.bias'"),
        ({"hidden_size": 24}, "torch.Size([24])"),
    ):
        architecture = {**resolved.architecture, **changes}
        wrong = resolved.model_copy(update={"architecture": architecture, "weights": str(tmp_path / "deeper")})
        with pytest.raises(ValueError, match=naming(tmp_path / "deeper", fault)):
            load_pretrained(wrong.create(SHAPE))


def test_what_is_neither_folder_nor_hub_id_is_refused():
    with pytest.raises(FileNotFoundError, match=naming("weights", "'nowhere'")):
        VitEncoderConfig(weights="nowhere").resolve()


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=naming("config.json", "save_pretrained")):
        record(tmp_path)


@pytest.mark.slow
def test_offline_a_cached_model_is_found_and_another_is_named(tmp_path):
    """What huggingface_hub reads of the environment it reads when it is imported, hence another process."""
    snapshot = tmp_path / "hub" / "models--some--vit" / "snapshots" / ("a" * 40)
    published(snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("a" * 40)
    program = """
from dp_prior.networks.encoders.encoder import load_pretrained
from dp_prior.networks.encoders.vit import VitEncoderConfig
for weights in ("some/vit", "some/vit@" + 40 * "a"):
    record = VitEncoderConfig(weights=weights).resolve()
    encoder = record.create((40, 48, 3))
    load_pretrained(encoder)
    print(record.architecture["model_type"], encoder.backbone.model.layernorm.weight.std().item() > 0.1)
for weights in ("other/vit", "some/vit@v2"):
    try:
        VitEncoderConfig(weights=weights).resolve()
    except FileNotFoundError as error:
        print(error)
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *loaded, other, revision = done.stdout.splitlines()
    assert loaded == ["dinov2 True"] * 2
    assert told(other, "weights", "other/vit", "config.json", "Hub", "(hf download", "local folder")
    assert told(
        revision, "weights", "some/vit@v2", "config.json", "Hub", "(hf download", "--revision v2", "local folder"
    )


def test_attention_pools_by_learned_queries_to_several_tokens(folder):
    one, three = build(folder), build(folder, tokens=3, output_dim=5)
    assert one(frames()).shape == (2, 2, one.output_dim) == (2, 2, 16) and one.n_tokens == 1
    assert three(frames()).shape == (2, 2, three.output_dim) == (2, 2, 15) and three.n_tokens == 3
    tokens = three.backbone(prepared(frames(), "dinov2"))
    query = three.attention.queries[1].expand(4, 1, -1)
    expected = three.project(three.attention.attention(query, tokens, tokens, need_weights=False)[0])
    torch.testing.assert_close(three(frames()).view(4, 3, 5)[:, 1], expected[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"pool": "cls"},
        {"pool": "mean"},
        {"tokens": 2},
        {"output_dim": 5},
        {"image_size": 42},
        {"mean": (0.0, 0.0, 0.0)},
        {"std": (1.0, 1.0, 1.0)},
        {"crop": (30, 30)},
        {"jitter": ColorJitterConfig()},
        {"architecture": "other"},
        {"weights": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_the_features(folder, tmp_path, change):
    before = build(folder)(frames(), rows())
    other = tmp_path / "other"
    if "weights" in change:
        published(other, seed=1)
        change = {"weights": str(other)}
    if "architecture" in change:
        changed = {**record(folder).architecture, "layer_norm_eps": 0.5}
        change = {"architecture": changed, "mean": record(folder).mean, "std": record(folder).std}
    after = build(folder, **change)(frames(), rows())
    assert before.shape != after.shape or not torch.equal(before, after)


def test_learning_rate_and_freezing_concern_the_backbone(folder):
    encoder = build(folder)
    assert [m.lr_scale for m in encoder.modules() if isinstance(m, FineTuned)] == [0.1]
    frozen = build(folder, freeze=True, output_dim=5, lr_scale=0.3)
    assert frozen.backbone.lr_scale == 0.3
    learning = {name.partition(".")[0] for name, p in frozen.named_parameters() if p.requires_grad}
    assert learning == {"attention", "project"}
    frozen(frames(), rows()).sum().backward()
    assert all(p.grad is None for p in frozen.backbone.parameters())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_lower_precision_stays_close_by_autocast_or_cast(tmp_path, family):
    published(tmp_path, family, std=0.1)
    encoder = build(tmp_path, output_dim=5).eval()
    expected = encoder(frames())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = encoder(frames())
    for parameter in encoder.parameters():  # buffers stay, as `from_pretrained` leaves them
        parameter.data = parameter.data.to(torch.bfloat16)
    cast = encoder(frames())
    assert found.dtype is cast.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)
    torch.testing.assert_close(cast.float(), expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 2, "pool": "cls"}, ("tokens", 2, "'cls'", "'attention'")),
        ({"image_size": 30}, ("image_size", 30, 7, 28, 35)),
        ({"image_size": 5}, ("image_size", 5, 7)),
        ({"pool": "max"}, ("pool", "'max'")),
        ({"tokens": 0}, ("tokens", 0)),
        ({"architecture": {"model_type": "vit"}}, ("architecture.model_type", "'vit'", "dinov2")),
        ({"architecture": {"model_type": "dinov2"}}, ("architecture", "'hidden_size'", "'patch_size'")),
        (
            {"architecture": {"model_type": "dinov2", "attn_implementation": "user/kernel"}},
            ("architecture", "['attn_implementation']"),
        ),
    ],
)
def test_bad_fields_are_refused(folder, changes, message):
    with pytest.raises(ValueError, match=naming(*message)):
        record(folder, **changes)


def test_siglip_has_no_class_token(tmp_path):
    published(tmp_path, "siglip_vision_model")
    with pytest.raises(ValueError, match=naming("pool", "'cls'", "siglip_vision_model")):
        record(tmp_path, pool="cls")


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(("content", "message"), [("{", "JSON"), ("[1]", "list"), ("\xff", "JSON")])
def test_damaged_files_are_named(folder, file, content, message):
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=naming(folder / file, message)):
        record(folder)


def test_a_normalisation_that_is_none_is_refused(folder):
    (folder / "preprocessor_config.json").write_text('{"image_std": [0.0, 1.0, 1.0]}')
    with pytest.raises(ValueError, match=naming("std.0", 0)):
        record(folder)


def test_a_model_of_grey_images_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_channels": 1}))
    with pytest.raises(ValueError, match=naming("num_channels", 1, 3)):
        record(folder)


def test_without_transformers_the_extra_is_named(folder, monkeypatch):
    resolved = record(folder)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=naming("vit", "transformers", 'pip install "dp_prior[clip]"')):
        resolved.create(SHAPE)


def test_a_copy_is_independent(folder):
    encoder = build(folder).eval()
    other = copy.deepcopy(encoder)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    assert not torch.equal(other(frames()), encoder(frames()))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"patch_size": 0}, "patch_size 0"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"num_attention_heads": 3}, "num_heads"),
        ({"hidden_size": "16"}, "'hidden_size'"),
        ({"hidden_size": -16}, "RuntimeError"),
        ({"hidden_act": "import os"}, "'import os'"),
    ],
)
def test_an_architecture_that_contradicts_itself_is_refused(change, found):
    sizes = {name: value for name, value in TINY.items() if name not in ("intermediate_size", "num_register_tokens")}
    with pytest.raises(ValueError, match=naming("architecture", found)):
        VitEncoderConfig(weights="a/b", architecture={"model_type": "dinov2", **sizes, **change}).create(SHAPE)


def test_a_model_that_is_not_square_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "image_size": [28, 35]}))
    with pytest.raises(ValueError, match=naming("image_size", "[28, 35]", "patch_size", 7)):
        record(folder)


def test_a_repository_without_a_model_is_told_by_what_it_lacks_and_not_to_be_downloaded(hub):
    hub.create("me/data", files={"README.md": b"not a model"})
    for weights, words in (
        ("me/none", ("me/none", "HF_TOKEN")),
        ("me/data@v9", ("me/data@v9", "revision")),
        ("me/data", ("me/data", "config.json")),
    ):
        with pytest.raises(FileNotFoundError, match=naming("weights", *words)) as caught:
            VitEncoderConfig(weights=weights).resolve()
        assert "hf download" not in str(caught.value)


def test_a_hub_that_fails_midway_is_no_model_without_a_mean(hub, folder, monkeypatch):
    """The family's mean would be taken in silence for that of the model."""
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}))
    hub.create("me/vit", files={path.name: path.read_bytes() for path in folder.iterdir()})
    read = HubRepository.file

    def broken(self, path, most, **options):
        if path == "preprocessor_config.json":
            hub.fail("resolve", times=99, status=501)  # which the client does not repeat
        return read(self, path, most, **options)

    with monkeypatch.context() as patch:
        patch.setattr(HubRepository, "file", broken)
        with pytest.raises(FileNotFoundError, match=naming("weights", "me/vit", "preprocessor_config.json", "Hub")):
            VitEncoderConfig(weights="me/vit").resolve()
    hub.heal()
    found = VitEncoderConfig(weights="me/vit").resolve()
    assert found.mean == (0.5,) * 3 and found.std == (0.25,) * 3
