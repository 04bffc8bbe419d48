import pytest

from dp_prior.data import frames
from tests.data.frames.caches import LENGTHS, PARTS
from tests.data.frames.recordings import MadeFrames


@pytest.fixture
def source(tmp_path):
    """Eight episodes in four files."""
    (tmp_path / "set").mkdir()
    return MadeFrames(tmp_path / "set", LENGTHS, PARTS)


@pytest.fixture
def small_blocks(monkeypatch):
    """Seven frames at a time, so that episodes and blocks end at different frames."""
    monkeypatch.setattr(frames, "BLOCK_BYTES", 7 * 24 * 32 * 3)
