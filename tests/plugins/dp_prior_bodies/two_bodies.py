"""`tests.tiny` with two bodies: `short` has two joints and a camera, `long` three joints, larger units and a goal."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import tiny
from tests.tiny_camera import ENCODER, FRAMES, LENGTHS, SIZE

JOINTS = {"short": 2, "long": 3}


def write_bodies(place: Path) -> dict[str, Any]:
    """The settings of `data.sets`, with the files that they name in `place`."""
    place.mkdir(exist_ok=True)
    ends, sets = np.cumsum(LENGTHS), {}
    for seed, (name, joints) in enumerate(JOINTS.items()):
        generator, scale = np.random.default_rng(seed), 100.0**seed
        state = (generator.normal(size=(ends[-1], joints)) * scale).astype(np.float32)
        more = {"image": FRAMES} if name == "short" else {"goal": generator.normal(size=(ends[-1], 2))}
        np.savez(place / f"{name}.npz", state=state, action=0.5 * state + scale, episode_ends=ends, **more)
        sets[name] = {
            "episodes": {"type": "npz", "path": str(place / f"{name}.npz")},
            "obs": {"state": {"key": "state"}},
            "action": {"key": "action"},
        }
    sets["short"]["images"] = {"front": {"key": "image", "size": list(SIZE)}}
    sets["long"]["obs"]["goal"] = {"key": "goal"}
    return sets


def bodies_run(place: Path, **changes: Any) -> dict[str, Any]:
    """A configuration as JSON; see `tiny` for the changes."""
    sets = write_bodies(place)
    data = {"type": "bodies", "sets": sets, "split": {"train": 0.75, "val": 0.25}, "batch_size": 8}
    settings = {"data": data, "task__type": "bodies", "task__encoders": {"front": dict(ENCODER)}, "train__steps": 6}
    return tiny(place, **{**settings, **changes})


def saved(place: Path, **changes: Any) -> Path:
    """`bodies_run` as a file."""
    config = bodies_run(place, **changes)
    path = place / "config.json"
    path.write_text(json.dumps(config))
    return path
