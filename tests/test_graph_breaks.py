"""torch.compile takes a step of every recipe, its sampler's network and its encoder as one region each."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dp_prior.diffusion.draw import Draw
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.randomness import Randomness, derive_seed

RECIPES = sorted((Path(__file__).parent.parent / "configs").glob("*/*.json"))
ELSEWHERE = ("pusht_distilled", "three_bodies")  # a teacher is a trained run; each body is a region of its own
RECIPES = [path for path in RECIPES if path.stem not in ELSEWHERE]
SMALL: dict[str, dict[str, Any]] = {
    "unet1d": {"down_dims": [16, 32], "n_groups": 8, "step_embed_dim": 16},
    "unet2d": {"channels": 32, "n_res_blocks": 1, "head_dim": 8, "n_groups": 8},
    "prior_transformer": {"depth": 2, "n_heads": 2, "head_dim": 8},
    "resnet": {"width": 16, "blocks": [1, 1], "weights": None},
}
WIDTHS = {"state": 5, "keypoint": 18, "embedding": 8}
ROWS = 2


def shrunk(part: dict[str, Any]) -> dict[str, Any]:
    """The part at small widths; fields that the part lacks are left out."""
    return part | {field: value for field, value in SMALL.get(part.get("type"), {}).items() if field in part}


def small(path: Path) -> TrainConfig:
    document = TrainConfig.from_json_path(path).model_dump(mode="json")
    task = document["task"]
    task["backbone"] = shrunk(task["backbone"])
    for key, encoder in task.get("encoders", {}).items():
        task["encoders"][key] = shrunk(encoder)
    return TrainConfig.from_json(json.dumps(document))


def ends(rotations: list[Any]) -> int:
    return max((rotation.slice[1] for rotation in rotations), default=0)


def width_of(key: str, observation: Any) -> int:
    if observation.slice is not None:
        return observation.slice[1] - observation.slice[0]
    return max(WIDTHS.get(key, 2), ends(observation.rotations))


def spec_of(config: TrainConfig) -> Spec:
    """Shapes as the data of a recipe would have them, where the recipe says so."""
    data, task = config.data, config.task
    if task.type == "image":
        size = 2 * max(task.backbone.attention_resolutions)
        return Spec(
            x_shape=(size, size, 3), cond_shapes={"label": ()}, kinds={"label": "label"}, classes={"label": ("a", "b")}
        )
    if task.type == "prior":
        return Spec(x_shape=(32,), cond_shapes={"text": (32,)})
    steps = task.n_obs_steps
    widths = {key: width_of(key, observation) for key, observation in data.obs.items()}
    texts = {key: "text" for key in data.language or {}}
    pictures = {key: tuple(image.size) for key, image in data.images.items()}
    embeddings = {key: 8 for key in getattr(data, "embeddings", None) or {}}
    slices = [*data.action.rotations, *getattr(task.normalizer.get("action"), "slices", ())]
    action = widths[task.relative_to] if isinstance(task.relative_to, str) else max(7, ends(slices))
    rotations = {key: tuple(value.rotations) for key, value in data.obs.items() if value.rotations}
    if data.action.rotations:
        rotations["x"] = tuple(data.action.rotations)
    return Spec(
        x_shape=(task.horizon, action),
        cond_shapes={
            **{key: (steps, width) for key, width in {**widths, **embeddings}.items()},
            **{key: (steps, 8) for key in texts},
            **{key: (steps, *size, 3) for key, size in pictures.items()},
        },
        kinds={**dict.fromkeys(texts, "text"), **dict.fromkeys(pictures, "image")},
        rotations=rotations,
    )


@functools.cache
def parts(path: Path) -> tuple[Any, Batch]:
    torch.manual_seed(0)
    config = small(path)
    spec = spec_of(config)
    model = config.task.create(spec)
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(ROWS)

    def values(key: str, shape: tuple[int, ...]) -> torch.Tensor:
        if spec.kind(key) == "image":
            return torch.randint(0, 256, (ROWS, *shape), dtype=torch.uint8, generator=generator)
        if spec.kind(key) == "label":
            return torch.zeros(ROWS, *shape, dtype=torch.int64)
        return 2 * torch.rand(ROWS, *shape, generator=generator) - 1

    x = values("x", spec.x_shape)
    x = (127 * (x + 1)).to(torch.uint8) if config.task.type == "image" else x
    cond = {key: values(key, shape) for key, shape in spec.cond_shapes.items()}
    batch = Batch(x=x, cond=cond, mask=torch.ones(ROWS, *spec.x_shape[:-1], dtype=torch.bool), ids=ids, positions=ids)
    encoded = {"x": model.encode_x(x.float(), cond), **model.encode_cond(cond)}
    statistics = {}
    for key, value in encoded.items():
        if config.task.type not in ("image", "prior") and spec.kind(key) in ("vector", "text"):
            rows = value.flatten(0, -2).numpy()
            statistics[key] = Statistics.of(np.concatenate([rows, rows - 1, rows + 1]))
    if statistics:
        model.normalizer.fit(statistics)
    return model, batch


def whole(function: Any) -> Any:
    """The function compiled without a backend; a break of the region is an error."""
    torch.compiler.reset()
    torch.compiler.assume_constant_result(derive_seed)
    return torch.compile(function, backend="eager", fullgraph=True, dynamic=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_no_region_of_a_recipe_breaks(path):
    model, batch = parts(path)
    random = Randomness.from_counts(0, "training", batch.positions)
    model.train()
    expected = model(batch, random, True).total
    torch.testing.assert_close(whole(model.forward)(batch, random, True).total, expected)
    model.eval()
    with torch.no_grad():
        tokens = model.encode(batch.cond)
        torch.testing.assert_close(whole(model.encode)(batch.cond), tokens)
        network = model.with_mask(model.network(tokens), Draw().shown)
        x_t, t = torch.zeros(ROWS, *model.x_shape), torch.zeros(ROWS, dtype=torch.int64)
        x_t = torch.cat([x_t, x_t], dim=-1) if model.process.input_factor == 2 else x_t
        torch.testing.assert_close(whole(network)(x_t, t), network(x_t, t))
