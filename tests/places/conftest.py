"""The tests here sync thousands of small files; what is synced when is tested on its own, by watching the calls."""

import os

import pytest


@pytest.fixture(autouse=True)
def disk_is_not_waited_for(monkeypatch):
    """A killed process loses nothing that it has written, so only a power cut could tell the difference."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
