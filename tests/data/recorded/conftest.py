import numpy as np
import pytest

from tests.data.recorded.trajectories import episodes


@pytest.fixture
def path(tmp_path):
    """A data set in a file."""
    np.savez(tmp_path / "set.npz", **episodes())
    return tmp_path / "set.npz"
