"""`python -m benchmarks.metaworld_readout`: how exactly one camera tells goal and object of reach, push and pick-place,
which the camera policy of MT10 loses.

The encoder of `configs/policy/metaworld_mt10_camera.json` learns alone to read the places of goal and object from start
pictures, of as many starts of each task as the policy has demonstrations, or of ten times as many. The rows are medians
over 150 other starts of each task, in mm: across the ray from the camera through the goal, and along the ray. The last
column is a reader that sees the direction exactly and takes the middle of the ray within the room of goals.

With `--policy` the reader is linear in what the camera encoder of a trained policy tells, and in what the same encoder
tells without training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.training import ROOT
from dp_prior import load_policy
from dp_prior.data.recorded.camera import ImageConfig
from dp_prior.networks.encoders import EncoderConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.randomness import Randomness
from dp_prior_worlds.metaworld import SeededTask

TASKS = ("reach-v3", "push-v3", "pick-place-v3")
CONFIG = ROOT / "configs/policy/metaworld_mt10_camera.json"
PLACE = np.array([0.75, 0.075, 0.7])  # of the cameras corner4 and corner2_near, m
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


def starts(count: int, image: ImageConfig) -> Starts:
    """Draw the first `count` starts of each task, as a policy sees them."""
    top, left, bottom, right = image.region or (0, 0, 1, 1)
    height, width = round(image.size[0] / (bottom - top)), round(image.size[1] / (right - left))
    rows, columns = (slice(round(a * n), round(b * n)) for a, b, n in ((top, bottom, height), (left, right, width)))
    draw = image.render.create((height, width))
    frames, places = [], []
    for task in TASKS:
        env = SeededTask(task)
        for seed in range(FIRST_SEED, FIRST_SEED + count):
            obs, _ = env.reset(seed)
            frames.append(draw(obs["scene"][None])[0, rows, columns])
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


def linear_readings(data: Starts, encoder: nn.Module, learned: int) -> Tensor:
    """Places (n, 6) that ridge regression for each task reads from an encoder's features, from `learned` starts of it,
    the last fifth of which selects the penalty."""
    with torch.no_grad():
        features = torch.cat([encoder(frames[:, None])[:, 0] for frames in data.frames.split(BATCH)]).double()
    read = torch.empty(len(features), 6, dtype=torch.float64)
    for number in range(len(TASKS)):
        rows = torch.nonzero(data.tasks == number)[:, 0]
        inside, places = features[rows], data.places[rows].double()
        inside = (inside - inside[:learned].mean(0)) / (inside[:learned].std(0) + 1e-6)
        center, fitted = places[:learned].mean(0), learned * 4 // 5

        def of(penalty: float, count: int, inside: Tensor = inside, places: Tensor = places - center) -> Tensor:
            square = inside[:count].T @ inside[:count] + penalty * torch.eye(inside.shape[1])
            return inside @ torch.linalg.solve(square, inside[:count].T @ places[:count])

        held_out = slice(fitted, learned)
        errors = {
            penalty: (of(penalty, fitted)[held_out] - (places - center)[held_out]).square().mean()
            for penalty in (0.01, 0.1, 1.0, 10.0, 100.0)
        }
        read[rows] = of(min(errors, key=errors.get), learned) + center
    return read


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


def rows(data: Starts, learned: int, read: Tensor, reader: str) -> Iterator[str]:
    """The rows of the table for one reader."""
    tested = torch.arange(len(data.tasks)) % (MOST + TESTED) >= MOST
    for number, task in enumerate(TASKS):
        of_task = tested & (data.tasks == number)
        found = misses(read[of_task].numpy(), data.places[of_task].numpy())
        middle = middle_of_ray(data.places[data.tasks == number, :3].numpy())
        cells = f"{found.goal_across:.0f} | {found.goal_along:.0f} | {found.within:.0%} | {found.object:.0f}"
        yield f"| `{task}` | {reader}, {learned} | {cells} | {middle:.0%} |"


@click.command(help=__doc__)
@click.option("--samples", default=38_400, help="Pictures that the encoder learns from, each start many times.")
@click.option("--policy", type=click.Path(path_type=Path, exists=True), help="Checkpoint of a policy of one camera.")
def main(samples: int, policy: Path | None) -> None:
    torch.set_num_threads(1)
    config = TrainConfig.from_json_path(CONFIG if policy is None else policy.parent.parent / "config.json")
    ((camera, image),) = config.data.images.items()
    data, encoder = starts(MOST + TESTED, image), config.task.encoders[camera]
    click.echo("| task | reader, starts | goal across | goal along | within 5 cm | object | middle of the ray |")
    click.echo("|---|---|---|---|---|---|---|")
    if policy is None:
        for learned in (MOST, MOST // 10):
            for row in rows(data, learned, readings(data, encoder, learned, samples), "encoder"):
                click.echo(row)
        return
    torch.manual_seed(0)
    untrained = encoder.create(tuple(data.frames.shape[1:])).eval()
    trained = next(part for part in load_policy(policy).eval().modules() if type(part) is type(untrained))
    for reader, network in (("policy", trained), ("untrained", untrained)):
        for row in rows(data, MOST, linear_readings(data, network, MOST), reader):
            click.echo(row)


if __name__ == "__main__":
    main()
