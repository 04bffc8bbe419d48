import pytest

from tests.data.frames.caches import LENGTHS, PARTS
from tests.data.frames.recordings import MadeFrames


@pytest.fixture
def source(tmp_path):
    """Eight episodes in four files."""
    (tmp_path / "set").mkdir()
    return MadeFrames(tmp_path / "set", LENGTHS, PARTS)
