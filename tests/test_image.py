"""A model of images trains, stops, goes on and is loaded as a policy is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior import load_image
from dp_prior.run.config import TrainConfig
from dp_prior.run.run import Run
from tests.tiny import train

pytest.importorskip("diffusers", reason="needs the extra image")

N, SIZE, CLASSES = 40, 8, 3


def write_images(place: Path) -> Path:
    """Squares in the corner that their label says, as .npz."""
    rng = np.random.default_rng(0)
    labels = np.arange(N) % CLASSES
    images = rng.integers(0, 60, (N, SIZE, SIZE, 3), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 150
    np.savez(place / "images.npz", images=images, labels=labels)
    return place / "images.npz"


def tiny(place: Path, **changes) -> dict:
    """A configuration as JSON; its images are in `place`, its run in `place / "run"`."""
    path = place / "images.npz"
    if not path.exists():
        write_images(place)
    config = {
        "task": {
            "type": "image",
            "backbone": {
                "type": "unet2d",
                "channels": 8,
                "channel_mult": [1, 2],
                "n_res_blocks": 1,
                "attention_resolutions": [4],
                "head_dim": 8,
                "n_groups": 4,
                "dropout": 0.1,
            },
            "diffusion": {"schedule": {"type": "cosine", "steps": 10}},
            "sampler": {"type": "ddim", "steps": 2},
            "label_dropout": 0.2,
            "flip": 0.5,
        },
        "data": {
            "source": {"type": "npz", "path": str(path)},
            "labels": True,
            "split": {"train": 0.8, "val": 0.2},
            "batch_size": 8,
            "frame_cache": str(place / "frames"),
        },
        "train": {
            "steps": 20,
            "lr": {"type": "cosine", "peak": 1e-3},
            "log_every": {"steps": 2},
            "save_every": {"steps": 6},
        },
        "evaluate": [{"type": "loss", "every": {"steps": 7}}],
        "test": [{"type": "likelihood", "models": ["ema"]}],
        "tracker": {"data_path": str(place / "run"), "log": []},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        here = config
        for key in parents:
            here = here[key]
        here[last] = value
    return config


def write(place: Path, **changes) -> Path:
    path = place / "config.json"
    path.write_text(json.dumps(tiny(place, **changes)))
    return path


def experiment(config: dict) -> Run:
    return Run(TrainConfig.from_json(json.dumps(config)), report=lambda line: None)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("image")
    done = train(write(place))
    assert done.exit_code == 0
    assert "from dp_prior import load_image" in done.output
    return place / "run"


def test_what_is_loaded_draws_what_was_trained(uninterrupted):
    model = load_image(uninterrupted)
    found = model.predict(["0", 2, "1"])
    assert found.shape == (3, SIZE, SIZE, 3) and found.dtype == torch.uint8
    assert torch.equal(found, load_image(uninterrupted).predict(torch.tensor([0, 2, 1])))
