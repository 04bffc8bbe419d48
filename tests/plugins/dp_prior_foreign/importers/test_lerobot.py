"""LeRobot's files, made by hand: the same actions as a plain network and diffusers' sampler, and refusals by name."""

import json
import os

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.tensors.randomness import Randomness
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from dp_prior_foreign.importers.lerobot import read
from tests.messages import naming, told
from tests.plugins.dp_prior_foreign.importers.checkpoints import (
    ACTION,
    ENV,
    STATE,
    STEPS,
    lerobot,
    lerobot_config,
    statistics,
    write,
)

ROWS = 4


def published(place):
    return read(PublishedFiles(str(place)))


@pytest.mark.parametrize("old", [True, False], ids=["before 0.4", "since 0.4"])
def test_actions_are_those_of_the_plain_network_and_diffusers_sampler(tmp_path, old):
    from diffusers import DDIMScheduler

    place, net = lerobot(tmp_path / "a", old=old)
    policy, stats = published(place).create(), statistics()
    torch.manual_seed(2)
    obs = {"state": torch.randn(ROWS, 2, 3), "environment_state": torch.randn(ROWS, 2, 4)}
    random = Randomness.from_counts(0, "test", torch.arange(ROWS))

    def limits(name):
        return stats[name]["min"], stats[name]["max"] - stats[name]["min"]

    low, width = limits(STATE)
    state = 2 * (obs["state"] - low) / width - 1
    env = (obs["environment_state"] - stats[ENV]["mean"]) / (stats[ENV]["std"] + 1e-8)
    cond = torch.cat([state, env], dim=-1)  # in their order, which is not the alphabetical one
    scheduler = DDIMScheduler(num_train_timesteps=STEPS, beta_schedule="squaredcos_cap_v2")
    scheduler.set_timesteps(3)
    x = random.stream("start").normal(8, 2)
    with torch.no_grad():
        for t in scheduler.timesteps:
            x = scheduler.step(net(x, t.expand(ROWS), cond), t, x).prev_sample
    low, width = limits(ACTION)
    expected = (x + 1) / 2 * width + low
    assert len(expected.unique()) > expected.numel() / 4  # not all are clipped
    torch.testing.assert_close(policy.predict(obs, random), expected, rtol=0, atol=1e-5)


def test_configuration_of_cameras(tmp_path):
    """Cameras in the order of the file, with mean and std of RGB for every way to normalise them."""
    camera = {"type": "VISUAL", "shape": [3, 96, 128]}
    changes = {
        "input_features": {
            "observation.images.wrist": camera,
            STATE: {"type": "STATE", "shape": [3]},
            "observation.image": camera,
        },
        "crop_shape": [84, 112],
        "vision_backbone": "resnet50",
        "use_separate_rgb_encoder_per_camera": True,
        "spatial_softmax_num_keypoints": 16,
        "clip_sample": False,
        "prediction_type": "sample",
    }
    stats = {
        f"{name}.{one}": torch.tensor([[[0.2]], [[0.3]], [[0.5]]])
        for name in ("observation.images.wrist", "observation.image")
        for one in ("mean", "std")
    }
    place, _ = lerobot(tmp_path / "a", config=changes, stats=stats)
    found = published(place)
    assert list(found.observations) == ["state", "images_wrist", "image"]
    assert [one.prefix for one in found.cameras.values()] == ["diffusion.rgb_encoder.0.", "diffusion.rgb_encoder.1."]
    parts = found.configuration()
    encoder = parts["task"]["encoders"]["images_wrist"]
    assert encoder["mean"] == pytest.approx([0.2, 0.3, 0.5]) and encoder["std"] == pytest.approx([0.2, 0.3, 0.5])
    expected = {
        "blocks": [3, 4, 6, 3],
        "bottleneck": True,
        "norm": "group",
        "keypoints": 16,
        "output_dim": 32,
        "crop": (84, 112),
    }
    assert encoder | expected == encoder
    assert parts["data"]["images"]["images_wrist"] == {"key": "observation.images.wrist", "size": (96, 128)}
    assert parts["data"]["obs"] == {"state": {"key": STATE}}
    assert parts["task"]["diffusion"]["clip"] is None
    assert parts["task"]["diffusion"]["objective"] == {"type": "x0"}
    assert parts["train"]["lr"]["peak"] == 3e-4

    changes["resize_shape"], changes["crop_ratio"], changes["use_group_norm"] = [48, 64], 0.9, False
    changes["normalization_mapping"] = {"VISUAL": "MIN_MAX", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"}
    stats = {
        name.replace("mean", "min").replace("std", "max"): value * (1 + ("std" in name))
        for name, value in stats.items()
    }
    place, _ = lerobot(tmp_path / "b", config=changes, stats=stats)
    found = published(place)
    assert found.cameras["image"].shape == (48, 64, 3)
    encoder = found.configuration()["task"]["encoders"]["image"]
    assert encoder["crop"] == (43, 57) and encoder["norm"] == "frozen_batch"
    assert encoder["weights_prefix"] == "diffusion.rgb_encoder.1."
    assert encoder["mean"] == pytest.approx([0.3, 0.45, 0.75]) and encoder["std"] == pytest.approx([0.1, 0.15, 0.25])


def test_what_was_constant_in_the_data(tmp_path):
    """As theirs: an observation becomes -1 there, an action is that constant, whatever the network says."""
    stats = {f"{STATE}.max": statistics()[STATE]["min"], f"{ACTION}.max": statistics()[ACTION]["min"]}
    place, _ = lerobot(tmp_path / "a", stats=stats)
    normalizer = published(place).create().normalizer
    constant = statistics()[STATE]["min"]
    torch.testing.assert_close(normalizer.normalize("state", constant), -torch.ones(3), rtol=0, atol=1e-6)
    assert torch.equal(normalizer.unnormalize("x", torch.randn(5, 2)), statistics()[ACTION]["min"].expand(5, 2))


@pytest.mark.parametrize(("mode", "low", "high"), [("QUANTILES", "q01", "q99"), ("MIN_MAX", "min", "max")])
def test_two_statistics_become_minus_one_and_one(tmp_path, mode, low, high):
    known = {"min": -torch.ones(3), "q01": torch.arange(3.0), "q99": torch.arange(3.0) + 2, "max": 5 + torch.ones(3)}
    stats = {f"{STATE}.{name}": value for name, value in known.items()}
    place, _ = lerobot(tmp_path / "a", config={"normalization_mapping__STATE": mode}, stats=stats)
    normalizer = published(place).create().normalizer
    assert torch.equal(normalizer.normalize("state", known[low]), -torch.ones(3))
    assert torch.equal(normalizer.normalize("state", known[high]), torch.ones(3))


def test_quantiles_of_width_0(tmp_path):
    """A joint that seldom moved: an action is its quantile, as theirs, which divides by 1e-8; it swung by a unit."""
    known = {"min": -torch.ones(3), "q01": torch.tensor([0.25, 0, 1]), "q99": torch.tensor([0.25, 1, 1])}
    known["max"] = 5 + torch.ones(3)
    stats = {f"{key}.{name}": value for key in (STATE, ACTION) for name, value in known.items()}
    stats |= {f"{ACTION}.{name}": value[:2] for name, value in known.items()}
    modes = {"normalization_mapping__STATE": "QUANTILES", "normalization_mapping__ACTION": "QUANTILES"}
    place, _ = lerobot(tmp_path / "a", config=modes, stats=stats)
    normalizer = published(place).create().normalizer
    found = normalizer.unnormalize("x", torch.tensor([[-1.0, -1], [0, 0], [1, 1]]))
    torch.testing.assert_close(found, torch.tensor([[0.25, 0], [0.25, 0.5], [0.25, 1]]), rtol=0, atol=1e-7)
    assert torch.equal(normalizer.normalize("state", known["q01"]), -torch.ones(3))
    assert normalizer.normalize("state", known["q01"] + 0.125).abs().max() < 1


KEYS_SINCE = {  # what each release first wrote, with its value where the user gave none
    "0.3.3": {
        "device": "cuda", "use_amp": False, "push_to_hub": True, "repo_id": "me/policy", "private": None, "tags": None,
        "license": None, "drop_n_last_frames": 7, "crop_is_random": True, "scheduler_name": "cosine",
        "pretrained_backbone_weights": None,
    },
    "0.4.0": {"pretrained_path": None},
    "0.5.1": {"compile_model": False, "compile_mode": "reduce-overhead", "resize_shape": None, "crop_ratio": 1.0,
              "use_peft": False},
    "0.6.1": {"pretrained_revision": None, "gradient_checkpointing": False},
}  # fmt: skip


def test_the_configuration_of_every_release_is_read_and_what_is_ignored_is_told(tmp_path):
    """Their training may checkpoint gradients, and their policy be the revision of another: no action depends on it."""
    keys = {}
    for release, added in KEYS_SINCE.items():
        keys |= added
        found = published(lerobot(tmp_path / release, config=keys)[0])
        told = {key: reason for reason, names in found.ignored.items() for key in names}
        assert told.keys() == keys.keys() - {"resize_shape", "crop_ratio", "use_peft"}, release
        assert all("LeRobot" in reason or "weights" in reason for reason in told.values())
    keys |= {"pretrained_revision": "v2", "gradient_checkpointing": True}
    assert published(lerobot(tmp_path / "set", config=keys)[0]).ignored == found.ignored


def test_an_unknown_key_without_a_value_is_told_and_one_with_a_value_refused(tmp_path):
    empty = {"a_null": None, "b_false": False, "c_text": "", "d_list": [], "e_object": {}}
    found = published(lerobot(tmp_path / "empty", config=empty)[0])
    assert [keys for reason, keys in found.ignored.items() if told(reason, "unknown", "value")] == [[*empty]]
    for number, value in enumerate((True, 0, 0.0, "x", [None], {"a": None})):
        with pytest.raises(ConfigError, match=naming("new: unknown key", repr(value), "null, false")):
            published(lerobot(tmp_path / str(number), config={"new": value})[0])


REFUSALS = {
    "another policy": ({"type": "act", "chunk_size": 100}, ("type", "'diffusion'", "'act'")),
    "unknown key": ({"use_vqvae": True}, ("config.json", "use_vqvae")),
    "adapters": ({"use_peft": True}, ("use_peft", "false", "true")),
    "another backbone": (
        {"vision_backbone": "vit_b_16"},
        ("vision_backbone", "'resnet18'", "'vit_b_16'"),
    ),
    "another way to normalise": (
        {"normalization_mapping__STATE": "QUANTILE10"},
        ("normalization_mapping.STATE", "'QUANTILE10'"),
    ),
    "another schedule": ({"beta_schedule": "exponential"}, ("beta_schedule", "'exponential'")),
    "another prediction": ({"prediction_type": "score"}, ("prediction_type", "'score'")),
    "no state": ({f"input_features__{STATE.replace('.', '~')}": ...}, ("input_features", "'observation.state'")),
    "an ignored input": (
        {"input_features__observation~effort": {"type": "STATE", "shape": [3]}},
        ("'observation.effort'", "STATE", "[3]"),
    ),
    "depth": (
        {"input_features__observation~depth": {"type": "VISUAL", "shape": [1, 96, 96]}},
        ("'observation.depth'", "VISUAL", "[1, 96, 96]"),
    ),
    "two names that are one here": (
        {
            "input_features__observation~a~b": {"type": "VISUAL", "shape": [3, 96, 96]},
            "input_features__observation~a_b": {"type": "VISUAL", "shape": [3, 96, 96]},
        },
        ("input_features", "'a_b'", "alike"),
    ),
    "another output": ({"output_features": {}}, ("output_features", "[]", "'action'")),
    "an uneven horizon": ({"horizon": 7}, ("horizon", 7, "'unet1d'")),
    "too many steps": ({"num_inference_steps": 50}, ("diffusion.schedule", "50 steps", 10)),
    "too many actions": (
        {"n_action_steps": 8},
        ("n_action_steps", "horizon 8", "n_obs_steps 2", "7 actions"),
    ),
    "text for a size": ({"down_dims": ["16", 32]}, ("down_dims.0", "'16'")),
    "a huge network": ({"down_dims": [16, 1 << 40]}, ("68,985 numbers", "127 tensors")),
}


@pytest.mark.parametrize(("changes", "message"), REFUSALS.values(), ids=REFUSALS)
def test_configurations_without_a_counterpart_are_refused_by_name(tmp_path, changes, message):
    place, _ = lerobot(tmp_path / "a")
    (place / "config.json").write_text(json.dumps(lerobot_config(**changes)))
    with pytest.raises(ConfigError, match=naming(*message)):
        published(place).create()


NORMALIZER = "steps__3__config"
STEPS_REFUSED = {
    "two of one name": (
        {"steps__0__config": {"rename_map": {"a": STATE, "b": STATE}}},
        ("step 0", "rename_map", f"'a': '{STATE}'"),
    ),
    "a name that another has": ({"steps__0__config": {"rename_map": {ENV: STATE}}}, ("step 0", "rename_map", ENV)),
    "renames after": (
        {"steps__2": {"registry_name": "rename_observations_processor", "config": {"rename_map": {"a": STATE}}}}
        | {"steps__0__config": {"rename_map": {"b": STATE}}},
        ("step 2", "'rename_observations_processor'"),
    ),
    "no renames": ({"steps__0__config": {"rename_map": ["a"]}}, ("step 0", "rename_map")),
    "relative actions": (
        {"steps__1__registry_name": "relative_actions_processor"},
        ("step 1", "'relative_actions_processor'"),
    ),
    "a class": ({"steps__1": {"class": "os.system"}}, ("policy_preprocessor.json", "steps.1.class")),
    "a path": ({"steps__3__state_file": "../a.safetensors"}, ("steps.3.state_file", "'../a.safetensors'")),
    "other modes": (
        {f"{NORMALIZER}__norm_map": {"STATE": "MEAN_STD"}},
        ("step 3", "observation.state", "config.json"),
    ),
    "another eps": ({f"{NORMALIZER}__eps": 1e-4}, ("step 3", "0.0001", "1e-08")),
    "an input left out": ({f"{NORMALIZER}__features": {}}, ("step 3", "observation.state", "config.json")),
    "some keys": (
        {f"{NORMALIZER}__normalize_observation_keys": []},
        ("step 3", "normalize_observation_keys", "[]"),
    ),
    "nothing": ({"steps": []}, ("'normalizer_processor'", "state_file")),
}


def test_observations_that_a_processor_renames_have_their_names_in_the_recording(tmp_path):
    """Robots and data sets have those names. In another alphabetical order, the network says the same."""
    renames = {"steps__0__config": {"rename_map": {"observation.arm": STATE, "observation.other": "unused"}}}
    plain, renamed = (published(lerobot(tmp_path / name, before=one)[0]) for name, one in [("a", {}), ("b", renames)])
    keys = {name: one.key for name, one in renamed.observations.items()}
    assert keys == {"arm": "observation.arm", "environment_state": ENV}
    assert renamed.configuration()["data"]["obs"]["arm"] == {"key": "observation.arm"}
    x, t = torch.randn(ROWS, 8, 2), torch.arange(ROWS)
    state, others = torch.randn(ROWS, 2, 3), {"environment_state": torch.randn(ROWS, 2, 4)}
    said = []
    for found, name in ((plain, "state"), (renamed, "arm")):
        policy = found.create()
        said.append(policy.backbone(x, t, policy.encode({name: state, **others})))
    torch.testing.assert_close(*said)


def test_statistics_under_a_recorded_name_are_not_applied_as_in_their_policy_and_told(tmp_path):
    """lerobot-train with a rename_map stores those of the data set, and its normalizer looks for the policy's name."""
    theirs = {f"{STATE}.{one}": None for one in statistics()[STATE]}
    theirs |= {f"observation.arm.{one}": value for one, value in statistics()[STATE].items()}
    renames = {"steps__0__config": {"rename_map": {"observation.arm": STATE}}}
    found = published(lerobot(tmp_path / "a", before=renames, stats=theirs)[0])
    state = torch.randn(ROWS, 2, 3)
    assert torch.equal(found.create().normalizer.normalize("arm", state), state)
    assert [keys for reason, keys in found.ignored.items() if told(reason, "rename_map", "unnormalised")] == [
        [f"normalization_mapping of {STATE}"]
    ]
    with pytest.raises(ConfigError, match=naming(f"'{STATE}'", "MIN_MAX", "missing")):
        published(lerobot(tmp_path / "b", stats=theirs)[0])
    renames |= {f"{NORMALIZER}__norm_map__STATE": "IDENTITY"}
    config = {"normalization_mapping__STATE": "IDENTITY"}
    place, _ = lerobot(tmp_path / "c", config=config, before=renames, stats=theirs)
    assert not any("rename_map" in reason for reason in published(place).ignored)


@pytest.mark.parametrize(("changes", "message"), STEPS_REFUSED.values(), ids=STEPS_REFUSED)
def test_processors_without_a_counterpart_are_refused_by_name(tmp_path, changes, message):
    place, _ = lerobot(tmp_path / "a", before=changes)
    with pytest.raises(ConfigError, match=naming(*message)):
        published(place)


WEIGHT = "diffusion.unet.final_conv.1.bias"
TENSORS = {
    "missing": ({"weights": {WEIGHT: None}}, ("backbone.head.out.bias", "missing")),
    "unknown": ({"weights": {"diffusion.vqvae.0": torch.ones(1)}}, ("diffusion.vqvae.0", "unknown")),
    "a camera too many": (
        {"weights": {"diffusion.rgb_encoder.out.bias": torch.ones(1)}},
        ("diffusion.rgb_encoder.out.bias", "unknown"),
    ),
    "of another shape": (
        {"weights": {WEIGHT: torch.ones(3)}},
        ("backbone.head.out.bias", "(3,)", "(2,)"),
    ),
    "integer": ({"weights": {WEIGHT: torch.ones(2, dtype=torch.int64)}}, ("backbone.head.out.bias", "torch.int64")),
    "not finite": ({"weights": {WEIGHT: torch.tensor([1, float("nan")])}}, ("backbone.head.out.bias", "NaN")),
    "no statistic": (
        {"stats": {f"{STATE}.min": None}},
        ("'observation.state'", "MIN_MAX"),
    ),
    "short statistic": ({"stats": {f"{STATE}.min": torch.ones(2)}}, ("[3]", "'min'", "[2]")),
    "infinite statistic": (
        {"stats": {f"{ACTION}.max": torch.tensor([1.0, float("inf")])}},
        ("'x'", "dimension 1"),
    ),
}


@pytest.mark.parametrize("old", [True, False], ids=["before 0.4", "since 0.4"])
@pytest.mark.parametrize(("changes", "message"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_do_not_fit_are_named(tmp_path, changes, message, old):
    place, _ = lerobot(tmp_path / "a", old=old, **changes)
    with pytest.raises(ConfigError, match=naming(*message)):
        published(place).create()


def test_half_precision_becomes_float32(tmp_path):
    place, _ = lerobot(tmp_path / "a", weights={WEIGHT: torch.ones(2, dtype=torch.bfloat16)})
    assert published(place).create().backbone.head.out.bias.dtype == torch.float32


def test_a_compiled_unet_has_its_own_names(tmp_path):
    place, _ = lerobot(
        tmp_path / "a", weights={WEIGHT: None, WEIGHT.replace("unet.", "unet._orig_mod."): torch.ones(2)}
    )
    published(place).create()


def test_hostile_files(tmp_path):
    place, _ = lerobot(tmp_path / "a")
    for name, content, message in (
        ("model.safetensors", b"\x80\x05.", ("model.safetensors", "head")),
        ("model.safetensors", b"", ("model.safetensors", "safetensors")),
        ("model.safetensors", (1 << 62).to_bytes(8, "little") + b"{}", ("model.safetensors", "safetensors")),
        ("config.json", b"[" * 100_000, ("config.json", "nested")),
        ("config.json", b"\xff\xfe", ("config.json", "JSON", "'utf-8'")),
        ("config.json", b" " * (17 << 20), ("config.json", "17825792 bytes")),
        ("config.json", b'{"type": "diffusion", "type": "diffusion"}', ("config.json", "'type'", "twice")),
    ):
        before = (place / name).read_bytes()
        (place / name).write_bytes(content)
        with pytest.raises(ConfigError, match=naming(*message)):
            published(place)
        (place / name).write_bytes(before)
    (place / "config.json").unlink()
    os.mkfifo(place / "config.json")
    with pytest.raises(ConfigError, match=naming("config.json", "named pipe")):
        published(place)


def test_missing_files_are_named(tmp_path):
    place = write(tmp_path / "a", {"config.json": lerobot_config()}, {})
    with pytest.raises(FileNotFoundError, match=naming(place, "model.safetensors", "config.json")):
        published(place)
    with pytest.raises(FileNotFoundError, match=naming("config.json", "scripts/export_diffusion_policy.py")):
        PublishedFiles(str(place / "config.json"))
    with pytest.raises(FileNotFoundError, match=naming("'nowhere'", "user/name")):
        PublishedFiles("nowhere")
