"""A task of another shape from an installed package: pictures (H, W, C), with data and a backbone of its own."""

import json

import pytest
import torch

from tests.extension.installed import assert_unknown, installed, lines_of

PACKAGE = '''\
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from dp_prior.tensors.batch import Spec
from dp_prior.config import Config
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.data_record import BatchSize, DataRecord, ManifestPlace, Verified
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.samples.row_selection import EachRow
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.networks.backbones import BackboneConfig
from dp_prior.networks.backbones.backbone_record import BackboneRecord
from dp_prior.tensors.normalizer import Normalizer
from dp_prior.tasks.model import DiffusionModel


class PicturesConfig(DataRecord):
    """One .npy file of pictures, (N, H, W, C) uint8."""

    type: Literal["toy_pictures"] = "toy_pictures"

    provides: ClassVar = "toy_pictures"

    path: Path
    """The file."""

    batch_size: BatchSize = 8

    verify: Verified = "sizes"

    manifest: ManifestPlace = None

    def root(self):
        return self.path

    def create(self):
        return Pictures(self.path)


class Pictures(SplitData):
    noun = "picture"

    def __init__(self, path):
        pixels = torch.from_numpy(np.load(path))
        self.files, self.fingerprint = [path], str(int(pixels.sum()))
        self.spec = Spec(x_shape=tuple(pixels.shape[1:]), cond_shapes={})
        samples = Samples({"x": MemoryColumn(pixels / 127.5 - 1)}, EachRow(len(pixels), pixels.shape[1:3]))
        self.train, self.val, self.test = samples, samples, samples


class ConvConfig(BackboneRecord):
    """Two convolutions and the timestep."""

    type: Literal["toy_conv"] = "toy_conv"

    width: int = 8
    """Channels inside."""

    def create(self, x_shape, cond_shape, output_channels_factor=1, input_channels_factor=1):
        return Conv(x_shape[-1] * input_channels_factor, x_shape[-1] * output_channels_factor, self.width)


class Conv(nn.Module):
    def __init__(self, in_channels, out_channels, width):
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        self.last = nn.Conv2d(width, out_channels, 3, padding=1)
        self.step = nn.Linear(1, width)

    def forward(self, x_t, t, cond):
        inside = self.first(x_t.movedim(-1, 1)) + self.step(t[:, None].to(x_t) / 100)[..., None, None]
        return self.last(torch.relu(inside)).movedim(1, -1)


class NoCondition(nn.Module):
    cond_shape = (0, 1)

    def forward(self, cond, kept=None, random=None):
        return None


class PictureTask(Config):
    """Pictures, given nothing."""

    type: Literal["toy_picture"] = "toy_picture"

    kind: ClassVar = "toy_picture"
    data_types: ClassVar = ("toy_pictures",)

    backbone: BackboneConfig = ConvConfig()
    """The network."""

    diffusion: DiffusionConfig = DiffusionConfig()
    """Noise and objective."""

    sampler: SamplerConfig = DDIM()
    """How pictures are drawn."""

    def resolve(self):
        return self

    def open(self, data):
        return data.create()

    def create(self, spec):
        process = DiffusionProcess(self.diffusion)
        return DiffusionModel(
            spec=spec,
            normalizer=Normalizer({"x": spec.x_shape}, {"x": None}),
            encoder=NoCondition(),
            backbone=self.backbone.create(spec.x_shape, (0, 1), process.output_factor, process.input_factor),
            process=process,
            sampler=self.sampler,
            cond_dropout={},
        )
'''
ENTRIES = {
    "data.pictures": "outside_pictures:PicturesConfig",
    "backbones.conv": "outside_pictures:ConvConfig",
    "tasks.picture": "outside_pictures:PictureTask",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("packages"), "outside_pictures", PACKAGE, ENTRIES) as tiny:
        yield tiny


@pytest.mark.slow
def test_pictures_in_120_lines_train_resume_and_are_drawn(tmp_path, tiny):
    import numpy as np

    from dp_prior.checkpoints.format import read_checkpoint
    from dp_prior.places.reference import resolve
    from dp_prior.tensors.randomness import Randomness

    assert lines_of(PACKAGE) <= 120
    assert_unknown("toy_pictures", "toy_picture", "toy_conv")
    np.save(tmp_path / "pictures.npy", np.random.default_rng(0).integers(256, size=(16, 6, 5, 3), dtype=np.uint8))
    config = tiny.tiny(tmp_path, train__steps=4)
    config["data"] = {"type": "toy_pictures", "path": str(tmp_path / "pictures.npy")}
    config["task"] = {
        "type": "toy_picture",
        "backbone": {"type": "toy_conv", "width": 4},
        "diffusion": {"schedule": {"type": "cosine", "steps": 10}},
        "sampler": {"type": "ddim", "steps": 2},
    }
    for steps in (4, 8):
        config["train"]["steps"] = steps
        (tmp_path / "config.json").write_text(json.dumps(config))
        done = tiny.train(tmp_path / "config.json")
        assert done.exit_code == 0, done.output
    assert "step_00000004" in done.output, "the second start goes on from the first"
    last = tiny.rows(tmp_path / "run")[-1]
    assert last["step"] == 8 and last["train/loss"] > 0

    run = tiny.experiment(config)
    model = run.parts.model
    model.load_state_dict(read_checkpoint(resolve(tmp_path / "run")).tensors["model.safetensors"])
    drawn = model.eval().sample({}, Randomness.from_counts(0, "draw", torch.arange(3)))
    assert drawn.shape == (3, 6, 5, 3) and drawn.isfinite().all()
