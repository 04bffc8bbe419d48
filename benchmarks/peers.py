"""The image policies of LeRobot and Stanford, from the folder that `scripts/peers.sh FOLDER` fills.

Both are given the network of `configs/policy/pusht_image_paper.json`, or one with a smaller UNet.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

VARIABLE = "DP_PRIOR_PEERS"
"""Environment variable that holds the folder."""

CROP = (84, 84)
FRAME = (96, 96)
STEP_DIM = 128


def missing() -> str | None:
    """Why the peers cannot be compared with here; None if they can."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return f"{VARIABLE} is not set; scripts/peers.sh FOLDER makes such a folder"
    absent = [name for name in ("packages/lerobot", "packages/robomimic") if not Path(folder, name).is_dir()]
    return f"{VARIABLE} is {folder}, which has no {absent[0]}; fill it with scripts/peers.sh" if absent else None


def enter() -> None:
    """Let Python find the peers' packages after its own.

    torchvision is built for another torch: its operators do not load, which its ResNet does not need.
    """
    folder = Path(os.environ[VARIABLE])
    for path in (folder / "packages", folder / "diffusion_policy"):
        if str(path) not in sys.path:
            sys.path.append(str(path))
    _stub("torchvision._meta_registrations", [])
    # The package imports the configurations of all policies, some of which need Python 3.12.
    lerobot = importlib.util.find_spec("lerobot")
    _stub("lerobot.policies", [f"{lerobot.submodule_search_locations[0]}/policies"])


def _stub(name: str, path: list[str]) -> None:
    """An empty module, whose submodules are looked for in `path`."""
    if name not in sys.modules:
        module = ModuleType(name)
        module.__path__ = path
        sys.modules[name] = module


def lerobot_policy(widths: tuple[int, ...], **changes: Any) -> nn.Module:
    """LeRobot's `DiffusionPolicy` for Push-T, `diffusion` of which has `compute_loss`."""
    enter()
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    inputs = {
        "observation.image": PolicyFeature(FeatureType.VISUAL, (3, *FRAME)),
        "observation.state": PolicyFeature(FeatureType.STATE, (2,)),
    }
    record = DiffusionConfig(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        crop_shape=CROP,
        down_dims=widths,
        device="cpu",
        **changes,
    )
    return DiffusionPolicy(record)


def stanford_policy(widths: tuple[int, ...]) -> nn.Module:
    """Stanford's `DiffusionUnetHybridImagePolicy` for Push-T, whose encoder is robomimic's."""
    enter()
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
    from diffusion_policy.policy.diffusion_unet_hybrid_image_policy import DiffusionUnetHybridImagePolicy

    image = {"shape": [3, *FRAME], "type": "rgb"}
    return DiffusionUnetHybridImagePolicy(
        shape_meta={"action": {"shape": [2]}, "obs": {"image": image, "agent_pos": {"shape": [2], "type": "low_dim"}}},
        noise_scheduler=DDPMScheduler(
            num_train_timesteps=100,
            beta_start=0.0001,
            beta_end=0.02,
            beta_schedule="squaredcos_cap_v2",
            variance_type="fixed_small",
            clip_sample=True,
            prediction_type="epsilon",
        ),
        horizon=16,
        n_action_steps=8,
        n_obs_steps=2,
        num_inference_steps=100,
        crop_shape=CROP,
        diffusion_step_embed_dim=STEP_DIM,
        down_dims=widths,
        obs_encoder_group_norm=True,
        eval_fixed_crop=True,
    )


def stanford_encoder() -> nn.Module:
    """Stanford's `MultiImageObsEncoder` with torchvision's ResNet-18, without a pooling of keypoints."""
    enter()
    from diffusion_policy.model.vision.multi_image_obs_encoder import MultiImageObsEncoder
    from torchvision.models import resnet18

    backbone = resnet18(weights=None)
    backbone.fc = nn.Identity()
    return MultiImageObsEncoder(
        shape_meta={"obs": {"image": {"shape": [3, *CROP], "type": "rgb"}}},
        rgb_model=backbone,
        use_group_norm=True,
    )
