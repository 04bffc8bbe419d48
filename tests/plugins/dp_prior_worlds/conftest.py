"""Simulators that may be missing, the demonstrations in the repository, and recordings in the test's process."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior_worlds import expert_demonstrations
from tests.plugins.dp_prior_worlds.shipped import SHIPPED


@pytest.fixture
def in_this_process(monkeypatch):
    """Worker processes take seconds to start; what they do is the same here."""
    pool = SimpleNamespace(map=map)
    monkeypatch.setattr(expert_demonstrations, "recorders", lambda workers: contextlib.nullcontext(pool))


@pytest.fixture(scope="module")
def gym_pusht():
    return pytest.importorskip("gym_pusht", reason="gym-pusht is not installed: pip install dp_prior[pusht]")


@pytest.fixture(scope="module")
def metaworld():
    return pytest.importorskip(
        "metaworld", reason="NOT CHECKED: metaworld is not installed: pip install dp_prior[metaworld]"
    )


@pytest.fixture(scope="module")
def gym_aloha():
    return pytest.importorskip(
        "gym_aloha", reason="NOT CHECKED: gym-aloha is not installed: pip install dp_prior[aloha]"
    )


@pytest.fixture(scope="module")
def robosuite():
    return pytest.importorskip(
        "robosuite", reason="NOT CHECKED: robosuite is not installed: pip install dp_prior[robosuite]"
    )


@pytest.fixture(scope="module")
def shipped() -> dict[str, np.ndarray]:
    with np.load(SHIPPED) as arrays:
        return dict(arrays)
