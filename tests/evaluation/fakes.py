"""Small stand-ins for a model, a data set and several ranks."""

import copy
import threading
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from dp_prior.checkpoints.clock import Progress
from dp_prior.diffusion.bits_per_dim import bits_per_dim
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.pixels.video_files import import_av
from tests.diffusion.sampling import sample_of
from tests.meeting import Meeting

NOW = Progress(samples_seen=1600, global_step=100)


def read_video(path):
    """The frames of a video, (height, width, 3) uint8 each, in order."""
    with import_av().open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


class TinyPolicy(nn.Module):
    """A real diffusion process around one linear layer; dropout tells whether it was put in evaluation mode."""

    def __init__(self, seed=0, horizon=8, n_obs_steps=2, n_action_steps=4, keys=None, action_dim=2, **diffusion):
        super().__init__()
        torch.manual_seed(seed)
        self.horizon, self.n_obs_steps, self.n_action_steps = horizon, n_obs_steps, n_action_steps
        shapes = {key: (n_obs_steps, *shape) for key, shape in (keys or {"a": (3,)}).items()}
        self.spec = Spec(x_shape=(horizon, action_dim), cond_shapes=shapes)
        self.sampler = DDIM(steps=4)
        self.process = DiffusionProcess(DiffusionConfig(**diffusion))
        width = sum(int(np.prod(shape)) for shape in shapes.values())
        self.layer = nn.Linear(width + action_dim, action_dim * self.process.output_factor)
        self.dropout = nn.Dropout(0.5)

    def network(self, cond):
        tokens = torch.cat([value.flatten(1) for value in cond.values()], dim=1)  # (B, width)

        def call(x_t, t):
            wide = tokens[:, None].expand(-1, self.horizon, -1)
            return self.layer(self.dropout(torch.cat([x_t, wide], dim=-1)))

        return call

    def forward(self, batch, random):
        return self.process.loss(self.network(batch.cond), batch.x, batch.mask, random, batch.denominator)

    def bits_per_dim(self, batch, random):
        return bits_per_dim(self.process, self.process.denoiser(self.network(batch.cond)), batch.x, batch.mask, random)

    def draw(self, obs, random, how=AS_CONFIGURED):
        return sample_of(self.process, self.network(obs), self.spec.x_shape, random, Draw(how.sampler or self.sampler))


class Samples:
    """n random samples with padding; sample number `ids` is the same in whatever batch."""

    device = torch.device("cpu")

    def __init__(self, n, horizon=8, seed=0):
        random = np.random.default_rng(seed)
        self.x = torch.tensor(random.normal(size=(n, horizon, 2)), dtype=torch.float32)
        self.a = torch.tensor(random.normal(size=(n, 2, 3)), dtype=torch.float32)
        length = random.integers(0 if n > 3 else 1, horizon + 1, n)
        self.mask = torch.tensor(np.arange(horizon) < length[:, None])
        self.x[~self.mask] = 1e6  # must not matter

    def __len__(self):
        return len(self.x)

    def fetch(self, ids):
        return Batch(x=self.x[ids], cond={"a": self.a[ids]}, mask=self.mask[ids], ids=ids)


def data(n, **fields):
    """A split data set whose parts differ."""
    parts = {part: Samples(n, seed=seed, **fields) for seed, part in enumerate(("train", "val", "test"))}
    return SimpleNamespace(**parts, recorded_at=lambda part, sample: None)


class ThreadRanks:
    """An accelerator of one of several ranks that are threads of this process."""

    def __init__(self, rank, shared):
        self.process_index, self.num_processes, self.device = rank, shared.ranks, torch.device("cpu")
        self._shared = shared

    def gather(self, tensor):
        self._shared.parts[self.process_index] = tensor
        self._shared.meeting.wait(self.process_index)
        whole = torch.cat([self._shared.parts[rank] for rank in range(self.num_processes)])
        self._shared.meeting.wait(self.process_index)
        return whole


def on_ranks(ranks, run, models):
    """`run(models, accelerator)` on every rank, with models of its own; the results by rank, errors among them."""
    shared = SimpleNamespace(ranks=ranks, parts={}, meeting=Meeting(ranks))
    results = [None] * ranks

    def work(rank):
        try:
            results[rank] = run(copy.deepcopy(models), ThreadRanks(rank, shared))
        except Exception as error:
            results[rank] = error
        finally:
            shared.meeting.end(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
