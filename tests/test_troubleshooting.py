"""The messages of docs/troubleshooting.md are those that the commands print."""

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from dp_prior.cli import main

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
MESSAGES = {  # what the page quotes -> what makes the command print it
    "train.learning_rate: unknown key. Its place here is train.lr.peak (Diffusion Policy).": "train.learning_rate=1e-4",
    "train.lr: input should be an object; found 0.0001": "train.lr=1e-4",
    "a part of your own needs --import MODULE": "task.backbone.type=mine",
    "n_action_steps is 9, but horizon 8 and n_obs_steps 2 leave room for 7 actions": "task.n_action_steps=9",
    "train.monitor.metric is 'rollout/score', which no evaluator in": "train.monitor.metric=rollout/score",
    "no such file; check data.episodes.path": "data.episodes.path=none.npz",
    "the data set has no key 'stat'. Did you mean 'state'?": "data.obs.state.key=stat",
    "holds uint8 of shape (24, 24, 3) per step, which is a picture": 'data.obs.img={"key": "img"}',
    "key 'state', episode 1, frame 10, dimension 1 is nan": "data.episodes.path=nan.npz",
    "one step takes batch_size 4096": "data.batch_size=4096",
    "there is no checkpoint in": "train.samples=160",
}


def test_messages_of_the_page_are_those_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    arrays = {"action": state[:, :2], "img": np.zeros((80, 24, 24, 3), np.uint8), "episode_ends": [40, 80]}
    np.savez("mine.npz", state=state, **arrays)
    state[50, 1] = np.nan
    np.savez("nan.npz", state=state, **arrays)
    Path("mine.json").write_text(json.dumps(CONFIG))
    other = {}
    for message, setting in MESSAGES.items():
        done = CliRunner().invoke(main, ["train", "--config_file", "mine.json", "--resume", "must", "--set", setting])
        if done.exit_code == 0 or message not in PAGE or message not in done.output:
            other[message] = done.output
    assert not other
