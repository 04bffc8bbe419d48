"""openpi: its `TrainConfig`, as names and values."""

import pytest

from dp_prior_foreign.translation.openpi_table import OPENPI
from tests.messages import told
from tests.plugins.dp_prior_foreign.translation.translated import merged, reasons, values

FINE_TUNED = {
    "name": "pi05_mine",
    "exp_name": "first",
    "project_name": "arms",
    "model": {
        "action_horizon": 12,
        "action_dim": 32,
        "max_token_len": 48,
        "pi05": True,
        "discrete_state_input": False,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "dtype": "bfloat16",
        "fast_model_tokenizer": None,
        "fast_model_tokenizer_kwargs": None,
    },
    "weight_loader": {"params_path": "gs://x"},
    "pytorch_weight_path": None,
    "pytorch_training_precision": "bfloat16",
    "lr_schedule": {"warmup_steps": 200, "peak_lr": 5e-5, "decay_steps": 9000, "decay_lr": 1e-5},
    "optimizer": {
        "b1": 0.8,
        "b2": 0.9,
        "eps": 1e-7,
        "weight_decay": 1e-4,
        "clip_gradient_norm": 0.5,
        "fused": True,
    },
    "ema_decay": 0.995,
    "freeze_filter": None,
    "data": {
        "repo_id": "me/arms",
        "assets": {"assets_dir": None, "asset_id": "trossen"},
        "base_config": {
            "prompt_from_task": True,
            "use_quantile_norm": True,
            "action_sequence_keys": ["action"],
            "norm_stats": None,
            "asset_id": None,
            "repo_id": None,
        },
        "extra_delta_transform": False,
        "use_delta_joint_actions": False,
        "adapt_to_pi": True,
        "default_prompt": "fold",
        "repack_transforms": None,
        "data_transforms": None,
        "model_transforms": None,
        "rlds_data_dir": None,
        "action_space": None,
        "datasets": [],
        "filter_dict_path": None,
    },
    "assets_base_dir": "./assets",
    "checkpoint_base_dir": "out",
    "seed": 43,
    "batch_size": 24,
    "num_workers": 2,
    "num_train_steps": 9000,
    "log_interval": 30,
    "save_interval": 300,
    "keep_period": 900,
    "overwrite": False,
    "resume": False,
    "wandb_enabled": True,
    "policy_metadata": {"reset_pose": [0, 1]},
    "fsdp_devices": 4,
}
INVERSE_ROOT = {
    "name": "rsqrt",
    "lr_schedule": {"warmup_steps": 30, "peak_lr": 4e-5, "timescale": 5000},
    "optimizer": {"lr": 5e-5, "momentum": 0.9, "nesterov": False},
    "ema_decay": None,
    "wandb_enabled": False,
}
PENS = {
    "data": {
        "repo_id": "me/pens",
        "adapt_to_pi": True,
        "action_sequence_keys": ["action"],
        "repack_transforms": {
            "inputs": [
                {
                    "structure": {
                        "images": {"cam_high": "observation.images.cam_high", "cam_left": "observation.images.left"},
                        "state": "observation.state",
                        "actions": "action",
                    }
                }
            ],
            "outputs": [],
        },
    }
}
ALL = [FINE_TUNED, INVERSE_ROOT, PENS]


def test_a_configuration():
    found = values(OPENPI, FINE_TUNED)
    expected = {
        "seed": 43,
        "task.horizon": 12,
        "task.n_action_steps": 12,
        "task.n_obs_steps": 1,
        "task.normalizer.action.type": "quantile",
        "task.diffusion.objective.type": "flow",
        "data.episodes.repo": "me/arms",
        "data.action.key": "action",
        "data.global_batch_size": 24,
        "train.steps": 9000,
        "train.precision": "bf16",
        "train.lr.type": "cosine",
        "train.lr.peak": 5e-5,
        "train.lr.warmup_steps": 200,
        "train.lr.final_fraction": pytest.approx(0.2),
        "train.optimizer.betas": [0.8, 0.9],
        "train.optimizer.eps": 1e-7,
        "train.optimizer.weight_decay": 1e-4,
        "train.max_grad_norm": 0.5,
        "train.shard": "model",
        "train.ema.ema.decay": 0.995,
        "train.log_every.steps": 30,
        "train.save_every.steps": 300,
        "checkpoints.keep_every": 900,
        "tracker.data_path": "out/pi05_mine/first",
        "tracker.run_name": "first",
        "tracker.log.1.project": "arms",
    }
    assert {path: found.get(path) for path in expected} == expected


def test_the_inverse_root_and_no_average():
    found = values(OPENPI, INVERSE_ROOT)
    rate = {"type": "inverse_sqrt", "peak": 4e-5, "warmup_steps": 30, "timescale_steps": 5000}
    assert {key: found[f"train.lr.{key}"] for key in rate} == rate
    assert "train.ema.ema.decay" not in found and found["tracker.data_path"] == "runs/rsqrt"


def test_what_differs_says_what_to_do():
    two = {"action_sequence_keys": ["left", "right"]}
    other = merged(FINE_TUNED, {"lr_schedule": {"decay_steps": 5}, "data": two})
    found = reasons(OPENPI, other)
    assert told(found["data.action_sequence_keys"], "one vector")
    assert "train.steps" in found["lr_schedule.decay_steps"]
    assert "task.encoders" in found["model.paligemma_variant"] and "init_from" in found["weight_loader.params_path"]


def test_data_of_aloha_have_the_keys_that_are_repacked_and_two_arms_of_offsets():
    found = values(OPENPI, PENS)
    assert keys(found) == {
        "data.images.cam_high": "observation.images.cam_high",
        "data.images.cam_left": "observation.images.left",
        "data.obs.state": "observation.state",
        "data.action": "action",
    }
    assert [found[f"task.arms.{arm}.action"] for arm in (0, 1)] == [[0, 6], [7, 13]]
    assert [found[f"task.arms.{arm}.slice"] for arm in (0, 1)] == [[0, 6], [7, 13]]
    top = values(OPENPI, {"data": {"repo_id": "me/pens", "use_delta_joint_actions": False}})
    assert keys(top)["data.images.cam_high"] == "observation.images.top" and "task.arms.0.type" not in top


def test_other_data_are_those_of_libero_or_have_the_keys_that_are_repacked():
    found = values(OPENPI, {"data": {"repo_id": "me/kitchen", "extra_delta_transform": True}})
    assert keys(found) == {
        "data.images.image": "image",
        "data.images.wrist_image": "wrist_image",
        "data.obs.state": "state",
        "data.action": "actions",
    }
    assert (found["data.images.image.size"], found["data.images.image.fit"]) == ([224, 224], "letterbox")
    assert found["task.arms.0.action"] == found["task.arms.0.slice"] == [0, 6]
    droid = {"observation/joint_position": "joints", "observation/wrist_image_left": "wrist", "prompt": "prompt"}
    other = {"data": {"repo_id": "me/droid", "repack_transforms": {"inputs": [{"structure": droid}]}}}
    found, said = values(OPENPI, other), reasons(OPENPI, other)
    named = {"data.obs.joint_position": "joints", "data.images.wrist_image_left": "wrist"}
    assert keys(found) == named | {"data.action": "actions"}
    assert found["task.normalizer.joint_position.type"] == "gaussian"
    assert "data.language" in said["data.repack_transforms.inputs.0.structure.prompt"]


def keys(found):
    """Keys of the data set by places here."""
    return {
        path.removesuffix(".key"): value for path, value in found.items() if path.endswith(".key") and "data." in path
    }


def test_runs_of_one_name_and_two_experiments_have_two_directories():
    found = [values(OPENPI, {"name": "pi0", "exp_name": name})["tracker.data_path"] for name in ("first", "second")]
    assert found == ["runs/pi0/first", "runs/pi0/second"]


@pytest.mark.parametrize(("peak", "last"), [(1e-3, None), (1e-3, 1e-4), (2.5e-5, None)])
def test_the_last_rate_is_a_fraction_of_the_peak(peak, last):
    rates = {"peak_lr": peak} | ({} if last is None else {"decay_lr": last})
    found = values(OPENPI, {"data": {"repo_id": "me/x"}, "lr_schedule": rates})
    assert found["train.lr.peak"] == peak
    assert found["train.lr.final_fraction"] == pytest.approx((2.5e-6 if last is None else last) / peak)


@pytest.mark.parametrize(("model", "length"), [({}, 50), ({"fast_model_tokenizer_kwargs": {"path": "x"}}, 32)])
def test_a_chunk_has_the_length_of_its_model(model, length):
    found = values(OPENPI, {"data": {"repo_id": "me/x"}, "model": model | {"dtype": "bfloat16"}})
    assert found["task.horizon"] == found["task.n_action_steps"] == length


@pytest.mark.parametrize(("devices", "shard"), [(1, False), (2, "model"), (8, "model")])
def test_the_model_is_divided_among_several_devices(devices, shard):
    found = values(OPENPI, {"data": {"repo_id": "me/x"}, "fsdp_devices": devices})
    assert found["train.shard"] == shard


@pytest.mark.parametrize(("settings", "decay"), [({}, 0.99), ({"ema_decay": 0.9}, 0.9), ({"ema_decay": None}, None)])
def test_the_average_is_theirs_or_none(settings, decay):
    found = values(OPENPI, {"data": {"repo_id": "me/x"}, **settings})
    assert found.get("train.ema.ema.decay") == decay
