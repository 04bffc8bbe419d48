"""Whole runs and the Hub: training never waits for it, a fresh machine goes on from it, and policies come back from it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dp_prior import load_policy
from dp_prior.checkpoints.fetch import resolve
from dp_prior.config import ConfigError
from tests.hub_server import TOKEN
from tests.test_cli import command
from tests.tiny import assert_equal, experiment, state, tiny, train, train_and_die, write
from tests.tracking.parcels import step_at_root

SAVER = {"type": "huggingface", "repo": "me/tiny", "save_latest": True, "drain_s": 30, "license": "mit"}
ROOT = Path(__file__).parent.parent


def test_a_run_ends_with_its_best_and_latest_on_the_hub(tmp_path, hub):
    config = write(tmp_path, tracker__save=[SAVER])
    done = train(config)
    assert done.exit_code == 0 and "warning" not in done.output, done.output
    files = hub.files("me/tiny")
    assert json.loads(files["best.json"])["step"] > 0
    assert json.loads(files["latest.json"])["step"] == 24
    policy = load_policy("me/tiny")
    own = load_policy(tmp_path / "run")
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in policy.state_dict().items())
