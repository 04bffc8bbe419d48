"""The tests here sync thousands of small files; what is synced when is tested on its own, by watching the calls."""

import os

import pytest

from tests.places.parcels import Run


@pytest.fixture(autouse=True)
def disk_is_not_waited_for(monkeypatch):
    """A killed process loses nothing that it has written, so only a power cut could tell the difference."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def run(tmp_path):
    """A run that saves checkpoints to be sent."""
    run = Run(tmp_path / "run")
    yield run
    run.lock.release()
