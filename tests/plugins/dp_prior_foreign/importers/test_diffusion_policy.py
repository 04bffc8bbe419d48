"""Exports of Diffusion Policy, made by hand: the plain networks' outputs and units, and refusals by name."""

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior_foreign.importers.diffusion_policy import read
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from tests.messages import naming
from tests.plugins.dp_prior_foreign.importers.checkpoints import diffusion_policy
from tests.quiet import quiet


def published(place):
    return read(PublishedFiles(str(place)))


@pytest.mark.parametrize("kind", ["unet", "transformer"])
def test_the_networks_output_and_the_units_are_theirs(tmp_path, kind):
    place, net = diffusion_policy(tmp_path / "a", kind)
    policy = published(place).create()
    x, t, obs = torch.randn(3, 8, 2), torch.tensor([0, 5, 9]), torch.randn(3, 2, 4)
    found = published(place).tensors
    scale, offset = (found[f"normalizer.params_dict.obs.{name}"] for name in ("scale", "offset"))
    cond = policy.encode({"obs": obs})
    torch.testing.assert_close(cond, obs * scale + offset, rtol=0, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(policy.backbone(x, t, cond), net.eval()(x, t, cond), rtol=1e-4, atol=1e-4)
    scale, offset = (found[f"normalizer.params_dict.action.{name}"] for name in ("scale", "offset"))
    torch.testing.assert_close(policy.normalizer.unnormalize("x", x), (x - offset) / scale, rtol=0, atol=1e-5)
    assert policy.record.sampler.type == "ddpm" and policy.record.sampler.steps == 10


def test_actions_that_were_not_normalised_stay_so_even_where_they_were_constant(tmp_path):
    stats = {f"input_stats.{name}": torch.full((2,), 3.0) for name in ("min", "max", "mean")}
    given = {"scale": torch.ones(2), "offset": torch.zeros(2), **stats}
    tensors = {f"normalizer.params_dict.action.{name}": value for name, value in given.items()}
    place, _ = diffusion_policy(tmp_path / "a", tensors=tensors)
    x = torch.randn(4, 2)
    assert torch.equal(published(place).create().normalizer.unnormalize("x", x), x)


@pytest.mark.parametrize(
    ("kind", "order"), [("hybrid", ["wrist", "agent_pos", "front"]), ("image", ["front", "wrist", "agent_pos"])]
)
def test_features_are_ordered_as_theirs(tmp_path, kind, order):
    place, _ = diffusion_policy(tmp_path / "a", kind)
    assert list(published(place).observations) == order


def test_configuration_of_cameras(tmp_path):
    place, _ = diffusion_policy(tmp_path / "a", "hybrid")
    parts = published(place).configuration()
    expected = {"blocks": [2, 2, 2, 2], "norm": "group", "crop": (84, 112), "mean": [0.5] * 3, "std": [0.5] * 3}
    assert parts["task"]["encoders"]["front"] == {"type": "resnet", **expected}
    assert parts["data"]["images"]["front"] == {"key": "front", "size": (96, 128)}
    assert parts["data"]["batch_size"] == 32 and parts["train"]["epochs"] == 7

    place, _ = diffusion_policy(tmp_path / "b", "image", policy__obs_encoder__resize_shape={"wrist": [48, 64]})
    found = published(place)
    assert found.cameras["wrist"].shape == (48, 64, 3) and found.cameras["front"].shape == (96, 128, 3)
    encoder = found.configuration()["task"]["encoders"]["front"]
    expected = {"blocks": [3, 4, 6, 3], "pool": "mean", "output_dim": None, "norm": "frozen_batch"}
    assert encoder | expected == encoder and encoder["weights_prefix"] == "obs_encoder.key_model_map.front."
    # (2 rgb - 1 - mean) / std of ImageNet
    assert encoder["mean"] == pytest.approx([(1 + mean) / 2 for mean in (0.485, 0.456, 0.406)])
    assert encoder["std"] == pytest.approx([std / 2 for std in (0.229, 0.224, 0.225)])

    changes = {"share_rgb_model": True, "use_group_norm": True, "random_crop": False, "imagenet_norm": False}
    changes = {f"policy__obs_encoder__{name}": value for name, value in changes.items()}
    encoder = published(diffusion_policy(tmp_path / "c", "image", **changes)[0]).cameras["front"]
    assert encoder.prefix == "obs_encoder.key_model_map.rgb." and encoder.encoder["crop"] is None
    assert encoder.encoder["norm"] == "frozen_batch"  # Diffusion Policy replaces it in networks of one camera only


REFUSALS = {
    "another policy": (
        "unet",
        {"policy__type": "IbcDfoLowdimPolicy"},
        ("policy.type", "'IbcDfoLowdimPolicy'", "'DiffusionUnetLowdimPolicy'"),
    ),
    "a step's argument": ("unet", {"policy__eta": 0.5}, ("policy.eta", "diffusion_policy.json")),
    "inpainting": ("unet", {"policy__obs_as_global_cond": False}, ("policy.obs_as_global_cond", "true")),
    "local": ("unet", {"policy__obs_as_local_cond": True}, ("policy.obs_as_local_cond", "false")),
    "later start": ("unet", {"policy__oa_step_convention": False}, ("policy.oa_step_convention", "true")),
    "short chunk": (
        "transformer",
        {"policy__pred_action_steps_only": True},
        ("policy.pred_action_steps_only", "false"),
    ),
    "encoder only": ("transformer", {"policy__model__time_as_cond": False}, ("policy.model.time_as_cond", "true")),
    "random crops": ("hybrid", {"policy__eval_fixed_crop": False}, ("policy", "eval_fixed_crop")),
    "depth": (
        "hybrid",
        {"policy__shape_meta__obs__front__shape": [1, 96, 128]},
        ("policy.shape_meta.obs.front", "[1, 96, 128]"),
    ),
    "r3m": (
        "image",
        {"policy__obs_encoder__rgb_model__weights": "r3m"},
        ("policy.obs_encoder.rgb_model.weights", "'r3m'"),
    ),
    "vit": (
        "image",
        {"policy__obs_encoder__rgb_model__name": "vit_b_16"},
        ("policy.obs_encoder.rgb_model.name", "'vit_b_16'"),
    ),
    "thresholding": (
        "unet",
        {"policy__noise_scheduler__thresholding": True},
        ("policy.noise_scheduler.thresholding", "false"),
    ),
    "spacing": (
        "unet",
        {"policy__noise_scheduler__timestep_spacing": "trailing"},
        ("policy.noise_scheduler.timestep_spacing", "'trailing'"),
    ),
    "betas": (
        "unet",
        {"policy__noise_scheduler__trained_betas": [0.1]},
        ("policy.noise_scheduler.trained_betas", "[0.1]"),
    ),
    "another scheduler": (
        "unet",
        {"policy__noise_scheduler__type": "PNDMScheduler"},
        ("policy.noise_scheduler.type", "'PNDMScheduler'"),
    ),
    "another version": ("unet", {"format": 2}, ("format", 1, 2)),
    "missing key": ("unet", {"policy__model__kernel_size": ...}, ("policy.model.kernel_size", "diffusion_policy.json")),
}


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSALS.values(), ids=REFUSALS)
def test_policies_without_a_counterpart_are_refused_by_name(tmp_path, kind, changes, message):
    place, _ = diffusion_policy(tmp_path / "a", kind, **changes)
    with pytest.raises(ConfigError, match=naming(*message)):
        published(place)


SCALE = "normalizer.params_dict.obs.scale"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({SCALE: None}, ("normalizer.params_dict.obs.scale", "(1,)", "(4,)")),
        ({SCALE: torch.ones(3)}, ("normalizer.params_dict.obs.scale", "(3,)")),
        ({SCALE: torch.zeros(4)}, ("'obs'", "dimension 0", "0.0")),
        (
            {"obs_encoder.key_model_map.rgb.fc.weight": torch.ones(1)},
            ("obs_encoder.key_model_map.rgb.fc.weight", "unknown"),
        ),
        ({"model.final_conv.1.bias": None}, ("backbone.head.out.bias", "missing")),
    ],
)
@quiet
def test_tensors_that_do_not_fit_are_named(tmp_path, tensors, message):
    place, _ = diffusion_policy(tmp_path / "a", tensors=tensors)
    with pytest.raises(ConfigError, match=naming(*message)):
        published(place).create()
