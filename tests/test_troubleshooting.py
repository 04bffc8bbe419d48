"""The messages of docs/troubleshooting.md are those that the commands print."""

import json
import re
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from dp_prior.cli import main
from tests.faults import assert_none
from tests.messages import told

PAGE = (Path(__file__).parent.parent / "docs/troubleshooting.md").read_text(encoding="utf-8")
CONFIG = {
    "task": {"horizon": 8, "n_obs_steps": 2, "n_action_steps": 4, "backbone": {"type": "mlp"}},
    "data": {
        "episodes": {"type": "npz", "path": "mine.npz"},
        "obs": {"state": {"key": "state"}},
        "action": {"key": "action"},
        "batch_size": 16,
    },
    "train": {"samples": 320, "lr": {"type": "cosine", "peak": 1e-3}},
    "evaluate": [{"type": "loss"}],
    "tracker": {"data_path": "run"},
}
QUOTED = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)
QUOTES = {  # what makes the command print a message -> parts of what the page quotes of it
    "train.learning_rate=1e-4": ("train.learning_rate", "unknown key"),
    "train.lr=1e-4": ("train.lr", "object"),
    "task.backbone.type=mine": ("'mine'", "--import MODULE"),
    "task.n_action_steps=9": ("n_action_steps", 9, 7),
    "train.monitor.metric=rollout/score": ("train.monitor.metric",),
    "data.episodes.path=none.npz": ("data.episodes.path",),
    "data.obs.state.key=stat": ("'stat'", "'state'"),
    'data.obs.img={"key": "img"}': ("uint8", "picture"),
    "data.episodes.path=nan.npz": ("'state'", "nan"),
    "data.batch_size=4096": ("batch_size", 4096),
    "data.global_batch_size=64; train.accumulation=2": ("data.global_batch_size", 64, "accumulation", 2),
    "train.samples=160": ("checkpoint", "--resume auto"),
}


def test_messages_of_the_page_are_those_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    arrays = {"action": state[:, :2], "img": np.zeros((80, 24, 24, 3), np.uint8), "episode_ends": [40, 80]}
    np.savez("mine.npz", state=state, **arrays)
    state[50, 1] = np.nan
    np.savez("nan.npz", state=state, **arrays)
    Path("mine.json").write_text(json.dumps(CONFIG))
    faults = []
    for setting, parts in QUOTES.items():
        sets = [word for assignment in setting.split("; ") for word in ("--set", assignment)]
        done = CliRunner().invoke(main, ["train", "--config_file", "mine.json", "--resume", "must", *sets])
        [quote] = [quote for quote in QUOTED if told(quote, *parts)]
        pieces = re.split(r" \.\.\. | ?\b[A-Z]{3,}\b ?", quote)  # dots and words in capitals stand for what differs
        if done.exit_code == 0 or not all(piece in done.output for piece in pieces):
            faults.append(f"--set {setting}: the page quotes {quote!r}; found {done.output}")
    assert_none(faults)
