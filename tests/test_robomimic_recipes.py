"""The recipes for robomimic's data sets have the values that Diffusion Policy publishes, and train on such files."""

import pytest

from dp_prior.run.config import TrainConfig
from tests.plugins.dp_prior_worlds.robomimic_recording import TASKS, write_robomimic
from tests.test_recipes import CONFIGS, PUBLISHED, differences
from tests.tiny import train

pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")

# real-stanford/diffusion_policy at 5ba07ac, diffusion_policy/config/task/NAME_lowdim_abs.yaml: obs_dim, action_dim of
# the learned numbers, and max_steps of proficient demonstrations.
STATES = {
    "lift": (19, 10, 400),
    "can": (23, 10, 400),
    "square": (23, 10, 400),
    "transport": (59, 20, 700),
    "tool_hang": (53, 10, 700),
}
# NAME_image_abs.yaml: shape_meta.obs of type rgb, height, and the sum of the other observations.
IMAGES = {
    "lift": (["agentview_image", "robot0_eye_in_hand_image"], 84, 9),
    "can": (["agentview_image", "robot0_eye_in_hand_image"], 84, 9),
    "square": (["agentview_image", "robot0_eye_in_hand_image"], 84, 9),
    "transport": (
        ["shouldercamera0_image", "robot0_eye_in_hand_image", "shouldercamera1_image", "robot1_eye_in_hand_image"],
        84,
        18,
    ),
    "tool_hang": (["sideview_image", "robot0_eye_in_hand_image"], 240, 9),
}
# The crop of train_diffusion_unet_hybrid_workspace.yaml; of the tool's larger pictures the paper's table of
# hyperparameters has 216, which the file leaves to the command line.
CROPS = {84: [76, 76], 240: [216, 216]}
ROBOSUITE = {
    "lift": "Lift",
    "can": "PickPlaceCan",
    "square": "NutAssemblySquare",
    "transport": "TwoArmTransport",
    "tool_hang": "ToolHang",
}
CAMERA = PUBLISHED["task"]["encoders"]["camera"]  # the same class of encoder
# train_diffusion_unet_lowdim_workspace.yaml and train_diffusion_unet_hybrid_workspace.yaml: what differs between both.
WORKSPACES = {
    "state": {"down_dims": [256, 512, 1024], "step_embed_dim": 256, "batch_size": 256, "epochs": 5000},
    "image": {"down_dims": [512, 1024, 2048], "step_embed_dim": 128, "batch_size": 64, "epochs": 3050},
}
LIMITS = {"type": "limits", "clip": None}
SETTINGS = {
    "horizon": 16,
    "n_obs_steps": 2,
    "n_action_steps": 8,
    "relative_to": None,
    "arms": [],
    "cond_dropout": {},
    "diffusion": PUBLISHED["task"]["diffusion"],
    "sampler": {"type": "ddpm", "steps": 100},
}
BOTH = [(task, kind) for task in TASKS for kind in WORKSPACES]


def recipe(task, kind, overrides=()):
    return TrainConfig.from_json_path(CONFIGS / f"robomimic_{task}_{kind}.json", overrides)


def published(task, kind):
    """The values of the ancestor's files, by the names here."""
    workspace, n_arms = WORKSPACES[kind], STATES[task][1] // 10
    cameras, side, _ = IMAGES[task] if kind == "image" else ([], 0, 0)
    parts = [f"robot{arm}_{part}" for arm in range(n_arms) for part in ("eef_pos", "eef_quat", "gripper_qpos")]
    observed = parts if cameras else ["object", *parts]
    grippers = [{"slice": [7 * arm + 6, 7 * arm + 7], "normalizer": {"type": "identity"}} for arm in range(n_arms)]
    normalizers = {"action": {"type": "slices", "slices": grippers, "others": LIMITS}}
    for key in observed:
        in_pictures = {"type": "identity"} if key.endswith("quat") else LIMITS
        normalizers[key] = in_pictures if cameras else {"type": "max_abs", "clip": None}
    file = "image_abs.hdf5" if cameras else "low_dim_abs.hdf5"
    rotations = [{"slice": [7 * arm + 3, 7 * arm + 6], "form": "axis_angle"} for arm in range(n_arms)]
    env = {
        "type": "robosuite",
        "task": ROBOSUITE[task],
        "make_arguments": {},
        "absolute_actions": True,
        "max_steps": STATES[task][2],
        "cameras": {camera.removesuffix("_image"): [side, side] for camera in cameras},
    }
    return {
        "seed": 42,
        "task": SETTINGS
        | {
            "normalizer": normalizers,
            "encoders": {
                **dict.fromkeys(cameras, CAMERA | {"crop": CROPS.get(side)}),
                **dict.fromkeys(observed, {"hidden_dims": [], "output_dim": None}),
            },
            "backbone": PUBLISHED["task"]["backbone"]
            | {"down_dims": workspace["down_dims"], "step_embed_dim": workspace["step_embed_dim"]},
        },
        "data": {
            "episodes": {"type": "robomimic", "path": f"data/robomimic/datasets/{task}/ph/{file}", "filter": None},
            "action": {"key": "actions", "rotations": rotations, "ahead": 0},
            "images": {camera: {"key": f"obs/{camera}", "size": [side, side]} for camera in cameras},
            "previous_action": None,
            "mask_padding": False,
            "batch_size": workspace["batch_size"],
            "split": {"train": 0.98, "val": 0.02, "test": 0.0, "seed": 42, "max_train_episodes": None},
        },
        "train": PUBLISHED["train"] | {"steps": None, "epochs": workspace["epochs"], "max_grad_norm": 1e9},
        "checkpoints": {"keep_best": 5},
        "test": {"env": env, "n_episodes": 50, "first_seed": 100000},
    }


def test_every_recipe_has_the_published_values(subtests):
    for task, kind in BOTH:
        with subtests.test(f"{task} {kind}"):
            settings = recipe(task, kind).model_dump(mode="json")
            replay, settings["test"] = settings["test"]
            expected = published(task, kind)
            assert not differences(settings, expected)
            for group, key in (("task", "normalizer"), ("task", "encoders"), ("data", "images")):
                assert settings[group][key].keys() == expected[group][key].keys()
            assert settings["task"]["normalizer"].keys() - {"action"} == settings["data"]["obs"].keys()
            assert {name: entry["key"] for name, entry in settings["data"]["obs"].items()} == {
                name: f"obs/{name}" for name in settings["data"]["obs"]
            }
            selected = settings["evaluate"][-1]
            assert selected["env"] == settings["test"]["env"] and selected["every"]["epochs"] == 50
            assert selected["first_seed"] == 200000, "other starts than those of the test"
            assert replay["start"] == {"states": "states"} and replay["env"]["task"] == ROBOSUITE[task]


@pytest.mark.parametrize("change", ["data.split.seed=0", "task.backbone.kernel_size=3", "train.epochs=3000"])
def test_a_changed_value_is_noticed(change):
    settings = recipe("lift", "state", [change]).model_dump(mode="json")
    settings["test"] = settings["test"][1]
    (line,) = differences(settings, published("lift", "state"))
    assert line.startswith(change.partition("=")[0])


@pytest.mark.parametrize("key", ["actions", "actions_abs"])
def test_a_file_of_robomimic_s_writers_has_the_published_number_of_inputs_and_actions(key, subtests, tmp_path):
    """20 learned numbers of two arms, whose files hold 14; of converted files, and of those with added poses."""
    for task, kind in BOTH if key == "actions" else [("transport", "state"), ("square", "state")]:
        with subtests.test(f"{task} {kind}"):
            pictures = kind == "image"
            path = write_robomimic(tmp_path / f"{task}_{kind}.hdf5", task, pictures=pictures, poses=key, steps=10)
            overrides = [f"data.episodes.path={path}", f"data.action.key={key}", "data.split.val=0.25"]
            overrides += ["data.split.train=0.75", "data.global_batch_size=2"]
            config = recipe(task, kind, overrides)
            data = config.data.create(config.task.horizon, config.task.n_obs_steps, config.task.n_action_steps)
            n_obs, n_action, _ = STATES[task]
            widths = {name: shape[-1] for name, shape in data.spec.cond_shapes.items() if not name.endswith("_image")}
            assert sum(widths.values()) == (IMAGES[task][2] if pictures else n_obs)
            assert data.spec.x_shape == (16, 7 * n_action // 10)
            assert config.task.transforms(data.spec).shape("x")[-1] == n_action


@pytest.mark.slow
@pytest.mark.parametrize("task", ["transport", "tool_hang"])
@pytest.mark.parametrize("kind", WORKSPACES)
def test_the_recipe_passes_check_on_a_file_of_robomimic_s_writers(task, kind, tmp_path):
    path = write_robomimic(tmp_path / "d.hdf5", task, pictures=kind == "image", poses="actions")
    small = {
        "data.episodes.path": path,
        "data.global_batch_size": 2,
        "data.split.train": 0.75,
        "data.split.val": 0.25,
        "tracker.data_path": tmp_path / "run",
        "task.backbone.down_dims": "[16,32,64]",
        "task.diffusion.schedule.steps": 10,
        "task.sampler.steps": 2,
        "train.monitor.metric": "validation/ema/loss",
        "train.monitor.mode": "min",
        "evaluate": '[{"type": "loss", "every": {"steps": 1}}]',
        "test": "[]",
    }
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    done = train(CONFIGS / f"robomimic_{task}_{kind}.json", "--check", *settings)
    assert done.exit_code == 0 and "3 train episodes" in done.output, done.output
