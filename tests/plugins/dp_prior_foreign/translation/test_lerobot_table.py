"""LeRobot: `train_config.json` of its diffusion policy."""

from dp_prior_foreign.translation.lerobot_table import LEROBOT
from dp_prior_foreign.translation.published_choices import FREE_NORM
from tests.messages import told
from tests.plugins.dp_prior_foreign.translation.translated import differences, merged, reasons, translated, values

PUSHT = {
    "dataset": {
        "repo_id": "lerobot/pusht",
        "root": None,
        "episodes": None,
        "exclude_episodes": None,
        "image_transforms": {"enable": False},
        "revision": "v3.0",
        "use_imagenet_stats": True,
        "video_backend": "torchcodec",
        "streaming": False,
        "return_uint8": False,
        "repo_type": "dataset",
        "depth_output_unit": "mm",
        "eval_split": 0.1,
    },
    "env": {
        "type": "pusht",
        "task": "PushT-v0",
        "fps": 10,
        "features": {"action": {"shape": [2]}},
        "features_map": {"action": "action"},
        "max_parallel_tasks": 1,
        "disable_env_checker": True,
        "episode_length": 250,
        "obs_type": "pixels_agent_pos",
        "render_mode": "rgb_array",
        "visualization_width": 384,
        "visualization_height": 384,
        "observation_width": 384,
        "observation_height": 384,
    },
    "policy": {
        "type": "diffusion",
        "n_obs_steps": 3,
        "horizon": 20,
        "n_action_steps": 6,
        "normalization_mapping": {"VISUAL": "MEAN_STD", "STATE": "SHUFFLED", "ENV": "MEAN_STD", "ACTION": "MEAN_STD"},
        "input_features": {
            "observation.state": {"type": "STATE", "shape": [2]},
            "observation.image": {"type": "VISUAL", "shape": [3, 96, 112]},
            "observation.images.wrist": {"type": "VISUAL", "shape": [3, 96, 112]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
        "drop_n_last_frames": 7,
        "vision_backbone": "resnet34",
        "resize_shape": None,
        "crop_ratio": 1.0,
        "crop_shape": [84, 90],
        "crop_is_random": True,
        "pretrained_backbone_weights": None,
        "use_group_norm": True,
        "spatial_softmax_num_keypoints": 16,
        "use_separate_rgb_encoder_per_camera": True,
        "down_dims": [64, 128],
        "kernel_size": 3,
        "n_groups": 4,
        "diffusion_step_embed_dim": 64,
        "use_film_scale_modulation": False,
        "gradient_checkpointing": False,
        "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 50,
        "beta_schedule": "linear",
        "beta_start": 0.0002,
        "beta_end": 0.04,
        "prediction_type": "sample",
        "clip_sample": True,
        "clip_sample_range": 1.5,
        "num_inference_steps": 10,
        "compile_model": False,
        "compile_mode": "default",
        "do_mask_loss_for_padding": True,
        "optimizer_lr": 3e-4,
        "optimizer_betas": [0.9, 0.99],
        "optimizer_eps": 1e-7,
        "optimizer_weight_decay": 1e-5,
        "scheduler_name": "linear",
        "scheduler_warmup_steps": 100,
        "use_amp": True,
        "device": "cuda",
        "path": None,
        "pretrained_path": None,
        "pretrained_revision": None,
        "push_to_hub": True,
        "repo_id": "me/policy",
        "private": None,
        "tags": None,
        "license": None,
        "use_peft": False,
        "use_relative_actions": False,
        "use_delta_joint_actions_aloha": False,
    },
    "output_dir": "outputs/pusht",
    "job_name": "pusht",
    "resume": False,
    "checkpoint_path": None,
    "config_path": None,
    "seed": 7,
    "cudnn_deterministic": False,
    "num_workers": 4,
    "prefetch_factor": 4,
    "persistent_workers": True,
    "dataloader_multiprocessing_context": "spawn",
    "save_checkpoint_to_hub": False,
    "batch_size": 48,
    "steps": 3000,
    "env_eval_freq": 700,
    "log_freq": 25,
    "eval_steps": 300,
    "max_eval_samples": 90,
    "tolerance_s": 1e-4,
    "save_checkpoint": True,
    "save_freq": 500,
    "use_policy_training_preset": True,
    "optimizer": {
        "type": "adam",
        "lr": 3e-4,
        "weight_decay": 1e-5,
        "grad_clip_norm": 5.0,
        "betas": [0.9, 0.99],
        "eps": 1e-7,
    },
    "scheduler": {"type": "diffuser", "num_warmup_steps": 100, "name": "linear"},
    "eval": {
        "n_episodes": 30,
        "batch_size": 15,
        "use_async_envs": True,
        "recording": False,
        "recording_repo_id": None,
        "recording_private": False,
        "save_predicted_video": False,
    },
    "wandb": {
        "enable": True,
        "disable_artifact": False,
        "project": "pusht",
        "entity": "me",
        "notes": "a note",
        "run_id": "abc",
        "mode": "offline",
        "add_tags": True,
    },
    "ema": {
        "enable": True,
        "decay": None,
        "update_after_step": 5,
        "inv_gamma": 2.0,
        "power": 0.6,
        "min_decay": 0.1,
        "max_decay": 0.99,
        "use_for_eval": True,
    },
    "peft": None,
    "job": {"target": None},
    "sample_weighting": None,
    "rename_map": {"a": "b"},
    "reward_model": None,
}
OLDER = {
    "steps": 10,
    "eval_freq": 5,
    "env": {"type": "pusht"},
    "policy": {"type": "diffusion"},
    "dataset": {"root": "data/x"},
}
ALL = [PUSHT, OLDER]


def test_the_configuration_of_a_run():
    found = values(LEROBOT, PUSHT)
    expected = {
        "seed": 7,
        "description": "a note",
        "task.horizon": 20,
        "task.n_obs_steps": 3,
        "task.n_action_steps": 6,
        "task.encoders.camera.type": "resnet",
        "task.encoders.camera.crop": [84, 90],
        "task.encoders.camera.blocks": [3, 4, 6, 3],
        "task.encoders.camera.bottleneck": False,
        "task.encoders.camera.keypoints": 16,
        "task.encoders.images_wrist.norm": "group",
        "task.normalizer.agent_pos.type": "limits",
        "task.normalizer.action.type": "gaussian",
        "task.backbone.type": "unet1d",
        "task.backbone.down_dims": [64, 128],
        "task.backbone.kernel_size": 3,
        "task.backbone.n_groups": 4,
        "task.backbone.step_embed_dim": 64,
        "task.backbone.film_scale": False,
        "task.diffusion.schedule.type": "linear",
        "task.diffusion.schedule.steps": 50,
        "task.diffusion.schedule.beta_start": 1e-5,
        "task.diffusion.schedule.beta_end": 0.002,
        "task.diffusion.objective.type": "x0",
        "task.diffusion.clip.bound": 1.5,
        "task.sampler.type": "ddim",
        "task.sampler.steps": 10,
        "task.sampler.spacing": "diffusers",
        "task.sampler.use_clipped_model_output": False,
        "data.episodes.type": "lerobot",
        "data.episodes.repo": "lerobot/pusht",
        "data.episodes.revision": "v3.0",
        "data.obs.agent_pos.key": "observation.state",
        "data.images.camera.key": "observation.image",
        "data.images.camera.size": [96, 112],
        "data.images.images_wrist.key": "observation.images.wrist",
        "data.action.key": "action",
        "data.mask_padding": True,
        "data.split.train": 0.9,
        "data.split.val": 0.1,
        "data.batch_size": 48,
        "train.steps": 3000,
        "train.precision": "bf16",
        "train.compile": "auto",
        "train.lr.type": "linear",
        "train.lr.peak": 3e-4,
        "train.lr.warmup_steps": 100,
        "train.optimizer.betas": [0.9, 0.99],
        "train.optimizer.eps": 1e-7,
        "train.optimizer.weight_decay": 1e-5,
        "train.max_grad_norm": 5.0,
        "train.ema.ema.update_after_step": 5,
        "train.ema.ema.inv_gamma": 2.0,
        "train.ema.ema.power": 0.6,
        "train.ema.ema.min_decay": 0.1,
        "train.ema.ema.max_decay": 0.99,
        "train.monitor.metric": "rollout/score",
        "train.monitor.mode": "max",
        "train.log_every.steps": 25,
        "train.save_every.steps": 500,
        "evaluate.0.every.steps": 300,
        "evaluate.0.max_samples": 90,
        "evaluate.1.every.steps": 700,
        "evaluate.1.n_episodes": 30,
        "evaluate.1.env.n_envs": 15,
        "evaluate.1.env.max_steps": 250,
        "evaluate.1.env.camera": [96, 112],
        "tracker.data_path": "outputs/pusht",
        "tracker.run_name": "pusht",
        "tracker.run_id": "abc",
        "tracker.log.1.project": "pusht",
        "tracker.log.1.entity": "me",
        "tracker.log.1.mode": "offline",
    }
    assert {path: found.get(path) for path in expected} == expected


def test_state_and_environment_state_are_normalised_each_by_its_own_mode():
    features = {"observation.state": {"type": "STATE"}, "observation.environment_state": {"type": "ENV"}}
    for modes in ({"STATE": "MEAN_STD", "ENV": "MIN_MAX"}, {"ENV": "MIN_MAX", "STATE": "MEAN_STD"}):
        policy = {"policy": {"input_features": features, "normalization_mapping": modes}}
        found = values(LEROBOT, merged(OLDER, policy))
        assert found["task.normalizer.agent_pos.type"] == "gaussian"
        assert found["task.normalizer.environment_state.type"] == "limits"
    found = values(LEROBOT, merged(OLDER, {"policy": {"input_features": features}}))
    assert found["task.normalizer.agent_pos.type"] == "limits"
    assert found["task.normalizer.environment_state.type"] == "identity"  # as there, where no mode is named


def test_a_setting_changes_what_it_changes_there():
    constant = {"ema": {"decay": 0.995}}
    found = differences(LEROBOT, PUSHT, merged(PUSHT, constant))
    assert found.pop("train.ema.ema.decay") == 0.995 and found.pop("train.ema.ema.type") == "constant"
    assert set(found.values()) == {None}
    resized = {"policy": {"resize_shape": [64, 72], "crop_ratio": 0.9, "crop_shape": None}}
    assert differences(LEROBOT, PUSHT, merged(PUSHT, resized)) == {
        **{f"data.images.{camera}.size": [64, 72] for camera in ("camera", "images_wrist")},
        **{f"task.encoders.{camera}.crop": [57, 64] for camera in ("camera", "images_wrist")},
    }


def test_zero_is_no_limit_of_gradients_and_no_cadence_of_the_log():
    changes = {"optimizer": {"grad_clip_norm": 0}, "log_freq": 0}
    assert values(LEROBOT, merged(PUSHT, changes))["train.max_grad_norm"] == FREE_NORM
    assert told(reasons(LEROBOT, merged(PUSHT, changes))["log_freq"], "always logged", "train.log_every")


def test_without_an_average_the_trained_weights_are_measured():
    found = translated(LEROBOT, merged(PUSHT, {"ema": {"enable": False, "decay": 0.9}}))
    assert found.config["train"]["ema"] == {}


def test_what_has_no_counterpart_says_what_has_one():
    modes = {"STATE": "SHUFFLED", "ACTION": "MEAN_STD"}
    changes = {
        "dataset": {"root": "data/x"},
        "policy": {
            "vision_backbone": "vit_b_16",
            "noise_scheduler_type": "EDM",
            "normalization_mapping": modes,
        },
        "env": {"type": "libero"},
        "eval_freq": 0,
        "wandb": {"mode": "disabled"},
    }
    found = reasons(LEROBOT, merged(PUSHT, changes))
    expected = {
        "dataset.repo_id": ("`dataset.root`",),
        "dataset.revision": ("`dataset.root`",),
        "policy.vision_backbone": ("'vit_b_16'", "resnet18"),
        "policy.noise_scheduler_type": ("'EDM'", "DDIM", "DDPM"),
        "policy.normalization_mapping.STATE": ("'SHUFFLED'", "MIN_MAX"),
        "env.type": ("'libero'", "docs/environments.md"),
        "eval_freq": ("`evaluate`",),
        "wandb.mode": ("wandb", "tracker.log"),
    }
    assert not [path for path, names in expected.items() if not told(found.get(path, ""), *names)]
    for nowhere in ({}, {"repo_id": None}):
        assert values(LEROBOT, {**PUSHT, "dataset": nowhere})["data.episodes.path"] == "FILL_IN/data"


def test_a_sampler_of_all_noise_is_ddpm():
    found = values(LEROBOT, merged(PUSHT, {"policy": {"noise_scheduler_type": "DDPM"}}))
    assert (found["task.sampler.type"], found["task.sampler.spacing"]) == ("ddpm", "diffusers")
    assert "task.sampler.use_clipped_model_output" not in found


def test_a_local_data_set_and_weights_by_name():
    found = values(LEROBOT, OLDER)
    assert found["data.episodes.path"] == "data/x" and found["data.obs.agent_pos.key"] == "observation.state"
    assert found["evaluate.0.every.steps"] == 5
    said = reasons(LEROBOT, merged(OLDER, {"policy": {"pretrained_backbone_weights": "X", "use_group_norm": False}}))
    assert "safetensors" in said["policy.pretrained_backbone_weights"]
    assert "frozen_batch" in said["policy.use_group_norm"]


def test_settings_of_another_policy_are_not_taken_for_those_of_diffusion():
    act = {"type": "act", "n_obs_steps": 1, "chunk_size": 100, "n_action_steps": 100, "optimizer_lr": 1e-5}
    act |= {"vision_backbone": "resnet18", "num_inference_steps": 10, "kl_weight": 10.0, "pretrained_path": "x/act"}
    features = {"input_features": PUSHT["policy"]["input_features"]}
    theirs = {**PUSHT, "policy": act | features, "optimizer": {"type": "adamw", "lr": 1e-5}}
    bare = {**PUSHT, "policy": {"type": "diffusion"} | features, "optimizer": {}}
    assert values(LEROBOT, theirs) == values(LEROBOT, bare)
    said = reasons(LEROBOT, theirs)
    for name in {*act} - {"type"}:
        assert "'act'" in said[f"policy.{name}"]
    assert "'act'" in said["optimizer.lr"] and "'act'" in said["policy.type"]


def test_each_camera_has_its_own_encoder_unless_they_share_that_of_the_first():
    separate = values(LEROBOT, PUSHT)
    name = "use_separate_rgb_encoder_per_camera"
    unsaid = {**PUSHT, "policy": {key: value for key, value in PUSHT["policy"].items() if key != name}}
    assert values(LEROBOT, unsaid) == separate
    shared = values(LEROBOT, merged(PUSHT, {"policy": {name: False}}))
    assert shared.pop("task.shared_encoders.images_wrist") == "camera"
    assert shared == {key: one for key, one in separate.items() if not key.startswith("task.encoders.images_wrist.")}


def test_pictures_are_normalised_as_theirs_are():
    def levels(mode, is_imagenet):
        visual = {"policy": {"normalization_mapping": {"VISUAL": mode}}, "dataset": {"use_imagenet_stats": is_imagenet}}
        translation = values(LEROBOT, merged(PUSHT, visual))
        return tuple(translation.get(f"task.encoders.camera.{field}") for field in ("mean", "std"))

    imagenet = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert levels("MEAN_STD", True) == imagenet
    assert levels("MEAN_STD", False) == levels("MIN_MAX", True) == (None, None)
    assert levels("IDENTITY", True) == ([0.0] * 3, [1.0] * 3)
    unsaid = values(LEROBOT, {"policy": {"type": "diffusion"}, "env": {"type": "pusht"}})
    assert (unsaid["task.encoders.camera.mean"], unsaid["task.encoders.camera.std"]) == imagenet
    measured = reasons(LEROBOT, merged(PUSHT, {"dataset": {"use_imagenet_stats": False}}))
    assert told(measured["dataset.use_imagenet_stats"], "`mean`", "`std`")


def test_a_decay_that_acts_on_other_parameters_is_said():
    (line,) = (
        line.text
        for line in translated(LEROBOT, {"policy": {"type": "diffusion"}}).lines
        if line.path.startswith("policy.optimizer_weight_decay")
    )
    assert told(line, "biases", "norms", "Adam")


def test_a_rate_without_its_schedule_follows_theirs():
    for theirs, ours, value in ("optimizer_lr", "peak", 3e-4), ("scheduler_warmup_steps", "warmup_steps", 70):
        found = values(LEROBOT, merged(OLDER, {"policy": {theirs: value}}))
        assert (found["train.lr.type"], found[f"train.lr.{ours}"]) == ("cosine", value)


def test_without_the_preset_optimizer_and_schedule_count():
    own = {
        "use_policy_training_preset": False,
        "optimizer": {"type": "adamw", "lr": 2e-3, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1},
        "scheduler": {"type": "diffuser", "name": "constant_with_warmup", "num_warmup_steps": 30},
    }
    found = values(LEROBOT, merged(PUSHT, own))
    assert [found[f"train.optimizer.{key}"] for key in ("betas", "eps", "weight_decay")] == [[0.8, 0.9], 1e-6, 0.1]
    assert [found[f"train.lr.{key}"] for key in ("type", "peak", "warmup_steps")] == ["constant", 2e-3, 30]
    said = reasons(LEROBOT, merged(PUSHT, own))
    assert told(said["policy.optimizer_lr"], "`optimizer.lr`", "`use_policy_training_preset`")
    assert told(reasons(LEROBOT, PUSHT)["optimizer.lr"], "`policy.optimizer_lr`")
    other = merged(PUSHT, merged(own, {"optimizer": {"type": "sgd"}}))
    assert told(reasons(LEROBOT, other)["optimizer.type"], "'sgd'", "train.optimizer")
    omitted = values(LEROBOT, merged(OLDER, {"use_policy_training_preset": False, "optimizer": {"type": "adam"}}))
    assert [omitted[key] for key in ("train.lr.peak", "train.optimizer.weight_decay")] == [1e-3, 0.0]


def test_episodes_that_are_chosen_or_left_out_stay_so():
    given = merged(PUSHT, {"dataset": {"episodes": [0, 1, 7], "exclude_episodes": [1]}})
    assert translated(LEROBOT, given).config["data"]["choice"] == {"only": [0, 1, 7], "leave_out": [1]}


def test_a_set_that_a_shell_would_name_is_to_be_filled_in():
    translation = translated(LEROBOT, {"policy": {"type": "diffusion"}, "dataset": {"repo_id": "${HF_USER}/arm"}})
    assert translation.to_fill_in == ["data.episodes.path"]
    assert translation.config["tracker"]["data_path"] == "runs/lerobot_diffusion"
