"""What the commands about runs refuse."""

import pytest

from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import train, write


@pytest.mark.parametrize("line", ["report", "push --repo me/x --wait 0"])
def test_a_checkpoint_is_no_run_and_gets_no_files(line, tmp_path):
    train(write(tmp_path, train__steps=2))
    name, *options = line.split()
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000002"
    before = sorted(checkpoint.iterdir())
    done = command(name, checkpoint, *options)
    assert done.exit_code == 64 and told(done.output, checkpoint, tmp_path / "run")
    assert sorted(checkpoint.iterdir()) == before
