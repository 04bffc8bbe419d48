"""What a run still has to deliver, or its best checkpoint, is sent when asked."""

import json

import pytest

from dp_prior import load_policy
from dp_prior.places.upload import UploadConfig
from dp_prior.places.worker import Worker
from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import train, write

SAVER = {"type": "huggingface", "repo": "me/tiny", "save_latest": True, "drain_s": 250, "license": "mit"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Attempts run in the thread that waits for them."""
    monkeypatch.setattr(UploadConfig, "worker", lambda record: Worker({}, record.destination))


def test_push_says_what_it_could_not_send(tmp_path, hub):
    hub.role = "read"
    train(write(tmp_path, tracker__save=[{**SAVER, "drain_s": 0}], train__steps=2))
    pushed = command("push", tmp_path / "run")
    assert pushed.exit_code == 69
    assert told(pushed.output, "huggingface me/tiny", "token", 403, "`dp-prior checkpoints push RUN`")
    pushed = command("push", tmp_path / "run", "--repo", "me/later")  # which the run does not name
    assert pushed.exit_code == 69 and told(
        pushed.output, "me/later", 403, "`dp-prior checkpoints push RUN --repo me/later`"
    )
    hub.role = "write"
    assert command("push", tmp_path / "run", "--repo", "me/later").exit_code == 0
    assert load_policy("me/later").horizon == 4


def test_push_to_a_repository_that_the_run_did_not_name(tmp_path, hub):
    train(write(tmp_path, train__steps=2))
    assert command("push", tmp_path / "run").exit_code == 64
    assert command("push", tmp_path / "run", "--repo", "me/later").exit_code == 0
    assert load_policy("me/later").horizon == 4
    assert command("push", tmp_path / "nothing").exit_code == 64


def test_push_to_a_repository_sends_the_best_though_its_saver_sends_the_latest(tmp_path, hub):
    train(write(tmp_path, tracker__save=[{**SAVER, "save_best": False}], train__steps=2))
    assert "best.json" not in hub.files("me/tiny")
    assert command("push", tmp_path / "run", "--repo", "me/tiny").exit_code == 0
    assert json.loads(hub.files("me/tiny")["best.json"])["step"] > 0


def test_push_to_a_repository_shows_what_the_finished_run_has_measured_and_drawn(tmp_path, hub):
    train(write(tmp_path, tracker__save=[SAVER], train__steps=2, test=[{"type": "loss", "name": "final"}]))
    sent = hub.files("me/tiny")
    assert b"final/ema/loss" in sent["README.md"] and "media/curve.png" in sent
    assert command("push", tmp_path / "run", "--repo", "me/tiny").exit_code == 0
    assert hub.files("me/tiny")["README.md"] == sent["README.md"]
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert command("push", moved, "--repo", "me/later").exit_code == 0
    later = hub.files("me/later")
    assert later["media/curve.png"] == sent["media/curve.png"] and b"final/ema/loss" in later["README.md"]


def test_a_repository_without_its_user_is_refused_by_the_name_of_the_option(tmp_path):
    train(write(tmp_path, train__steps=2))
    refused = command("push", tmp_path / "run", "--repo", "tiny")
    assert refused.exit_code == 64 and told(refused.output, "--repo", "user/name", "'tiny'"), refused.output
