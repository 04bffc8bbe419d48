"""Frames from an installed package: an encoder for images that crops at random, and a data set that maps them."""

import json
import re

import numpy as np
import pytest
import torch

from tests.extension.installed import assert_unknown, installed, lines_of
from tests.messages import naming

PACKAGE = '''\
import hashlib
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from dp_prior.tensors.batch import Spec
from dp_prior.config import Config
from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.data_record import BatchSize, DataRecord, ManifestPlace, Verified
from dp_prior.data.recorded.split import SplitConfig
from dp_prior.data.recorded.windows import WindowRows
from dp_prior.data.recorded.windows import make_windows
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import SplitData
from dp_prior.networks.encoders.encoder import Encoder
from dp_prior.tensors.normalizer import Statistics


class CropEncoderConfig(Config):
    """A small convolution over crops of frames."""

    type: Literal["toy_crop"] = "toy_crop"

    reads: ClassVar = ("image",)
    needs_data_units: ClassVar = True

    size: int = 6
    """Height and width of a crop."""

    def create(self, shape):
        return CropEncoder(self.size, shape)


class CropEncoder(Encoder):
    draws = True

    def __init__(self, size, shape):
        super().__init__()
        self.size, self.room, self.output_dim = size, (shape[0] - size + 1, shape[1] - size + 1), 4
        self.layers = nn.Sequential(nn.Conv2d(shape[2], 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, value, random=None):
        """The crop is the sample's own while training, the middle otherwise."""
        first = [torch.full((len(value),), room // 2) for room in self.room]
        if random is not None:
            first = [random.stream(axis).integers(room) for axis, room in enumerate(self.room)]
        rows, columns = (begin[:, None] + torch.arange(self.size) for begin in first)
        crops = value[torch.arange(len(value))[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        pixels = crops.permute(0, 3, 4, 1, 2).flatten(0, 1).float() / 255
        return self.layers(pixels).unflatten(0, value.shape[:2])


class MappedColumn(DiskColumn):
    """The rows of a .npy file, which the system pages in as they are read."""

    def __init__(self, path):
        self.values = torch.from_numpy(np.load(path, mmap_mode="c"))
        self.dtype, self.shape = self.values.dtype, tuple(self.values.shape[1:])

    def __len__(self):
        return len(self.values)

    def rows(self, ids):
        return self.values.index_select(0, ids)


class FramesConfig(DataRecord):
    """A folder with `frames.npy`, uint8, `action.npy` and `ends.npy`."""

    type: Literal["toy_frames"] = "toy_frames"

    provides: ClassVar = "trajectories"

    path: Path
    """The folder."""

    split: SplitConfig = SplitConfig()
    """Which episodes are trained on."""

    batch_size: BatchSize = 8

    verify: Verified = "sizes"

    manifest: ManifestPlace = None

    def root(self):
        return self.path

    def create(self, horizon, n_obs_steps, n_action_steps, *, all_obs=False):
        return Frames(self, horizon, n_obs_steps, n_action_steps)


class Frames(SplitData):
    def __init__(self, config, horizon, n_obs_steps, n_action_steps):
        self.files = sorted(config.path.glob("*.npy"))
        action, ends = (np.load(config.path / f"{name}.npy") for name in ("action", "ends"))
        self.frames, self.action = MappedColumn(config.path / "frames.npy"), torch.from_numpy(action)
        self.fingerprint = hashlib.sha256(action.tobytes()).hexdigest()
        self.spec = Spec(
            x_shape=(horizon, action.shape[1]),
            cond_shapes={"camera": (n_obs_steps, *self.frames.shape)},
            kinds={"camera": "image"},
        )
        ids, lengths = config.split.assign(len(ends)).ids(), np.diff(ends, prepend=0)

        def part(name):
            own = np.array(ids[name], dtype=np.int64)
            windows = make_windows(lengths[own], horizon, n_obs_steps - 1, n_action_steps - 1)
            rows = np.concatenate([np.arange(ends[i] - lengths[i], ends[i]) for i in own] or [np.zeros(0, np.int64)])
            index = torch.from_numpy(rows[windows.source])
            columns = {"x": MemoryColumn(self.action[index]), "camera": self.frames.taking(index)}
            return Samples(columns, WindowRows.of(windows, n_obs_steps))

        self.train, self.val, self.test = map(part, ("train", "val", "test"))

    def statistics(self):
        return {"x": Statistics.of(self.train.columns["x"].values.numpy())}
'''
ENTRIES = {"encoders.crop": "outside_frames:CropEncoderConfig", "data.frames": "outside_frames:FramesConfig"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("packages"), "outside_frames", PACKAGE, ENTRIES) as tiny:
        yield tiny


def write_frames(folder):
    """Three episodes of 12 steps; the action is where the bright pixel is."""
    folder.mkdir()
    places = np.random.default_rng(0).integers(8, size=(36, 2))
    frames = np.zeros((36, 8, 8, 3), np.uint8)
    frames[np.arange(36), places[:, 0], places[:, 1]] = 255
    np.save(folder / "frames.npy", frames)
    np.save(folder / "action.npy", places.astype(np.float32))
    np.save(folder / "ends.npy", np.array([12, 24, 36]))
    return frames


def configuration(tiny, place, **changes):
    config = tiny.tiny(place, task__encoders={"camera": {"type": "toy_crop", "size": 6}}, **changes)
    split = {"train": 0.7, "val": 0.3}
    config["data"] = {"type": "toy_frames", "path": str(place.parent / "toy_frames"), "split": split, "batch_size": 8}
    path = place / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.slow
def test_encoder_and_data_set_of_100_lines_train_resume_and_act(tmp_path, tiny):
    from dp_prior import load_policy
    from dp_prior.data.columns.disk import TakenColumn
    from dp_prior.inference.agent import Agent

    assert lines_of(PACKAGE) <= 100
    assert_unknown("toy_crop", "toy_frames")
    frames = write_frames(tmp_path / "toy_frames")
    for name in ("straight", "broken"):
        (tmp_path / name).mkdir()
    straight = configuration(tiny, tmp_path / "straight", train__steps=10)
    done = tiny.train(straight)
    assert done.exit_code == 0, done.output
    broken = configuration(tiny, tmp_path / "broken", train__steps=10)
    assert tiny.train_and_die(broken, "step", 8) < 0
    done = tiny.train(broken)
    assert done.exit_code == 0 and re.search("start from .*/step_0000000[57]", done.output), done.output
    tiny.assert_equal(tiny.state(tmp_path / "broken" / "run"), tiny.state(tmp_path / "straight" / "run"))

    run = tiny.experiment(json.loads(straight.read_text()))
    assert isinstance(run.parts.data.train.columns["camera"], TakenColumn), "frames stay on disk"
    assert run.parts.data.train.fetch(torch.arange(2)).cond["camera"].dtype == torch.uint8
    policy = load_policy(tmp_path / "straight" / "run")
    assert policy.spec.kind("camera") == "image"
    agent = Agent(policy, seed=1)
    assert agent.act({"camera": frames[0]}).shape == (2,)
    with pytest.raises(ValueError, match=naming("uint8", "'image'")):
        agent.act({"camera": frames[0] / 255})


@pytest.mark.slow
def test_crop_is_a_function_of_the_sample_alone(tmp_path, tiny):
    import outside_frames

    from dp_prior.tensors.randomness import Randomness

    encoder = outside_frames.CropEncoderConfig().create((8, 8, 3))
    value = torch.from_numpy(write_frames(tmp_path / "toy_frames")[:4, None].repeat(2, 1))
    random = Randomness.from_counts(0, "crops", torch.arange(4))
    together = encoder(value, random)
    assert together.shape == (4, 2, 4)
    alone = torch.cat([encoder(value[i : i + 1], random[i : i + 1]) for i in range(4)])
    assert torch.allclose(together, alone, atol=1e-6)
    others = encoder(value, Randomness.from_counts(1, "crops", torch.arange(4)))
    assert not torch.equal(together, others) and not torch.equal(together, encoder(value))
