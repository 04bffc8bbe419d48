"""A checkpoint is taken up by the run that it is of: what has changed is told, and refused unless it is allowed."""

import pytest

from tests.tiny import state, train, write


def test_snapshot_of_another_model_is_refused_by_the_settings_not_by_a_tensor(tmp_path):
    config = write(tmp_path, train__steps=2)
    train(config)
    other = train(config, "--set", "task.backbone.hidden_dim=24", "--set", "seed=3")
    assert other.exit_code == 64
    assert "the checkpoint is of another run: 2 problems" in other.output
    assert "seed: 0 in the checkpoint, 3 now" in other.output
    assert "task.backbone.hidden_dim: 16 in the checkpoint, 24 now" in other.output
    assert "train in another directory (--set tracker.data_path=...)" in other.output
    assert "resume with --allow-change seed --allow-change task.backbone" in other.output
    still = train(config, "--set", "task.backbone.hidden_dim=24", "--allow-change", "task.backbone")
    assert still.exit_code == 64
    assert "the checkpoint is of another run: 1 problem\n  the tensors of the checkpoint do not fit" in still.output


@pytest.mark.promise("B5")
def test_allowed_change_is_shown_and_the_run_goes_on(tmp_path):
    config = write(tmp_path, train__steps=2)
    train(config)
    change = ["--set", "train.steps=4", "--set", "task.diffusion.schedule.type=linear"]
    assert train(config, *change).exit_code == 64
    done = train(config, *change, "--allow-change", "task.diffusion")
    assert done.exit_code == 0
    assert "train.steps: 2 in the checkpoint, 4 now (schedule-changing)" in done.output
    said = "task.diffusion.schedule.type: 'cosine' in the checkpoint, 'linear' now (architecture), allowed"
    assert said in done.output
    assert state(tmp_path / "run")["progress"]["global_step"] == 4
    assert train(config, *change).exit_code == 0  # the newest checkpoint is of the run as it is now
