"""The command that a check names, and what a check refuses."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import told
from tests.tiny import train, write

ROOT = Path(__file__).parent.parent.parent


def test_a_check_names_the_command_that_trains_with_what_was_given(tmp_path):
    config = write(tmp_path, train__steps=2, evaluate=[])
    said = train(config, "--check", "--set", "train.steps=3", "--import", "colorsys").output.partition("next\n")[2]
    line = ["dp-prior", "train", str(config), "--set=train.steps=3", "--import=colorsys"]
    assert shlex.split(said) == line


@pytest.mark.slow
def test_a_check_under_a_launcher_names_the_launcher(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "-m", "dp_prior", "train"]
    line = [*launcher, str(write(tmp_path, evaluate=[])), "--set", "train.steps=3"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*line, "--check", "--resume", "never"], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert shlex.split(done.stdout.partition("next\n")[2]) == [*line, "--resume=never"], done.stderr


def test_a_check_refuses_to_resume_or_to_begin_as_the_run_would(tmp_path):
    config = write(tmp_path)
    must = train(config, "--check", "--resume", "must")
    assert must.exit_code == 64 and told(must.output, "--resume must", "no checkpoint"), must.output
    assert "--resume=never" in train(config, "--check", "--resume", "never").output
    train(config)
    never = train(config, "--check", "--resume", "never")
    assert never.exit_code == 64 and told(never.output, "--resume never", "checkpoints", "overwritten"), never.output
    assert train(config, "--check", "--resume", "must").exit_code == 0
