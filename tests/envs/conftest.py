"""Simulators that may be missing, and the demonstrations in the repository."""

import numpy as np
import pytest

from tests.envs.shipped import SHIPPED


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
