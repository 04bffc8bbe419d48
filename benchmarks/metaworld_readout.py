"""`python -m benchmarks.metaworld_readout`: how exactly one camera tells goal and object of reach, push and pick-place,
which the camera policy of MT10 loses.

The encoder of `configs/policy/metaworld_mt10_camera.json` learns alone to read the places of goal and object from start
pictures, of as many starts of each task as the policy has demonstrations, or of ten times as many. The rows are medians
over 150 other starts of each task, in mm: across the ray from the camera through the goal, and along the ray. The last
column is a reader that sees the direction exactly and takes the middle of the ray within the room of goals.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.training import ROOT
from dp_prior.networks.encoders import EncoderConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior_worlds.metaworld import SeededTask

TASKS = ("reach-v3", "push-v3", "pick-place-v3")
CONFIG = ROOT / "configs/policy/metaworld_mt10_camera.json"
CAMERA, SIDE = "corner4", 128
PLACE = np.array([0.75, 0.075, 0.7])  # of the camera, m
FIRST_SEED, MOST, TESTED = 500_000, 500, 150  # starts to learn from, and to test
BATCH, RATE, WARMUP = 50, 1e-3, 50
SUCCESS = 0.05  # m


class Starts(NamedTuple):
    """Starts of several tasks, one task after another, equally many of each."""

    frames: Tensor
    """(n, height, width, 3) uint8, the part of the picture that the policy sees."""

    places: Tensor
    """(n, 6) goal and object, x, y and z in m."""

    tasks: Tensor
    """(n,) the number of the task."""


def starts(count: int) -> Starts:
    """Draw the first `count` starts of each task."""
    image = TrainConfig.from_json_path(CONFIG).data.images[CAMERA]
    draw = image.render.create((SIDE, SIDE))
    top, left, bottom, right = (round(edge * SIDE) for edge in image.region)
    frames, places = [], []
    for task in TASKS:
        env = SeededTask(task)
        for seed in range(FIRST_SEED, FIRST_SEED + count):
            obs, _ = env.reset(seed)
            frames.append(draw(obs["scene"][None])[0, top:bottom, left:right])
            places.append(np.concatenate([obs["state"][36:39], obs["state"][4:7]]))
        env.close()
    numbers = torch.arange(len(TASKS)).repeat_interleave(count)
    return Starts(torch.from_numpy(np.stack(frames)), torch.tensor(np.stack(places), dtype=torch.float32), numbers)


def readings(data: Starts, encoder: EncoderConfig, learned: int, samples: int) -> Tensor:
    """Teach an encoder on the first `learned` starts of each task, with random crops; returns the places (n, 6) that it
    reads from all starts, each from the crop in the middle."""
    count = len(data.tasks) // len(TASKS)
    of_tasks = data.places.reshape(len(TASKS), count, 6)
    mean, std = of_tasks.mean(1), of_tasks.std(1).clamp(min=0.003)
    target = (data.places - mean[data.tasks]) / std[data.tasks]
    torch.manual_seed(0)
    network = encoder.create(tuple(data.frames.shape[1:]))
    head = nn.Linear(network(data.frames[:1, None]).shape[-1], 6 * len(TASKS))

    def read(rows: Tensor, random: Randomness | None = None) -> Tensor:
        everything = head(network(data.frames[rows, None], random)[:, 0]).reshape(-1, len(TASKS), 6)
        return everything[torch.arange(len(rows)), data.tasks[rows]]

    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], RATE)
    rows = torch.nonzero(torch.arange(len(data.tasks)) % count < learned)[:, 0]
    shuffle, step, steps = torch.Generator().manual_seed(0), 0, samples // BATCH
    while step < steps:
        for batch in rows[torch.randperm(len(rows), generator=shuffle)].split(BATCH)[: steps - step]:
            rate = RATE * min(1, (step + 1) / WARMUP) * 0.5 * (1 + np.cos(np.pi * step / steps))
            optimizer.param_groups[0]["lr"] = rate
            crops = Randomness.from_counts(0, "train", torch.arange(len(batch)) + step * BATCH)
            loss = (read(batch, crops) - target[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    network.eval()
    with torch.no_grad():
        read_all = torch.cat([read(batch) for batch in torch.arange(len(data.tasks)).split(BATCH)])
    return read_all * std[data.tasks] + mean[data.tasks]


class Misses(NamedTuple):
    """Medians in mm, and a share, of the starts of one task."""

    goal_across: float
    goal_along: float
    within: float
    """Share of the goals that are read to within `SUCCESS`."""

    object: float


def misses(read: np.ndarray, places: np.ndarray) -> Misses:
    """How far what was read (n, 6) is from the true places (n, 6)."""
    error = read - places
    ray = places[:, :3] - PLACE
    ray /= np.linalg.norm(ray, axis=1, keepdims=True)
    along = (error[:, :3] * ray).sum(1)
    across = np.linalg.norm(error[:, :3] - along[:, None] * ray, axis=1)
    far = np.linalg.norm(error.reshape(-1, 2, 3), axis=2)
    medians = (1000 * float(np.median(values)) for values in (across, np.abs(along), far[:, 1]))
    goal_across, goal_along, of_object = medians
    return Misses(goal_across, goal_along, float((far[:, 0] < SUCCESS).mean()), of_object)


def middle_of_ray(goals: np.ndarray) -> float:
    """Share of goals (n, 3) within `SUCCESS` of the middle of their ray in the room that the goals fill."""
    low, high = goals.min(0), goals.max(0)
    ray = goals - PLACE
    distance = np.linalg.norm(ray, axis=1)
    sides = np.stack([low - PLACE, high - PLACE])[:, None] / (ray / distance[:, None])
    middle = (sides.min(0).max(1) + sides.max(0).min(1)) / 2
    return float((np.abs(distance - middle) < SUCCESS).mean())


@click.command(help=__doc__)
@click.option("--samples", default=38_400, help="Pictures that the encoder learns from, each start many times.")
@click.option("--data", type=click.Path(path_type=Path), help="Keep the drawn starts in this .npz.")
def main(samples: int, data: Path | None) -> None:
    torch.set_num_threads(1)
    if data is not None and data.exists():
        with np.load(data) as arrays:
            drawn = Starts(*(torch.from_numpy(arrays[name]) for name in Starts._fields))
    else:
        drawn = starts(MOST + TESTED)
        if data is not None:
            np.savez(data, **{name: value.numpy() for name, value in drawn._asdict().items()})
    encoder = TrainConfig.from_json_path(CONFIG).task.encoders[CAMERA]
    click.echo("| task | starts | goal across | goal along | within 5 cm, % | object | middle of the ray, % |")
    click.echo("|---|---|---|---|---|---|---|")
    tested = torch.arange(len(drawn.tasks)) % (MOST + TESTED) >= MOST
    for learned in (MOST, MOST // 10):
        read = readings(drawn, encoder, learned, samples)
        for number, task in enumerate(TASKS):
            rows = tested & (drawn.tasks == number)
            found = misses(read[rows].numpy(), drawn.places[rows].numpy())
            middle = middle_of_ray(drawn.places[drawn.tasks == number, :3].numpy())
            cells = f"{found.goal_across:.0f} | {found.goal_along:.0f} | {found.within:.0%} | {found.object:.0f}"
            click.echo(f"| `{task}` | {learned} | {cells} | {middle:.0%} |")


if __name__ == "__main__":
    main()
