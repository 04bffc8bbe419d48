"""The files of a frame cache: grey is Pillow's, what is written is read, and a torn journal ends where it is torn."""

import pytest
import torch

from dp_prior.data.errors import DataError
from dp_prior.data.frames.layout import (
    CACHE_FILE,
    JOURNAL,
    JPEG,
    RAW,
    CacheIndex,
    Encoding,
    StoredEpisode,
    greyscale,
    read_index,
    read_journal,
)
from dp_prior.files.json_text import seal
from dp_prior.pixels.resize import Fit
from tests.messages import naming

FRAMES = torch.randint(0, 256, (3, 8, 6, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_grey_is_that_of_pillow_for_every_pixel():
    image = pytest.importorskip("PIL.Image", reason="NOT CHECKED: Pillow is not installed")
    found = greyscale(FRAMES)
    for frame, grey in zip(FRAMES, found, strict=True):
        assert (torch.tensor(list(image.fromarray(frame.numpy()).convert("L").tobytes())) == grey.flatten()).all()


@pytest.mark.parametrize("kind", ["raw", "grey"])
def test_stored_pixels_are_the_bytes_of_their_channels(kind):
    encoding = Encoding(type=kind)
    pixels = encoding.pixels(FRAMES)
    assert pixels.shape[-1] == encoding.channels and encoding.files == (RAW,)
    stored = encoding.encode(pixels[0])
    assert torch.equal(torch.frombuffer(bytearray(stored), dtype=torch.uint8).view_as(pixels[0]), pixels[0])


@pytest.mark.parametrize("frame_bytes", [None, 10], ids=["jpeg", "raw"])
def test_of_a_journal_torn_at_any_byte_the_whole_lines_before_are_believed(frame_bytes, tmp_path):
    episodes = [StoredEpisode(number, "f" * 64, stop) for number, stop in ((2, 4), (0, 7), (1, 10))]
    text, place = b"".join(episode.line() for episode in episodes), tmp_path / JOURNAL
    pixels = JPEG if frame_bytes is None else RAW
    (tmp_path / pixels).write_bytes(b"x" * 10)
    for end in range(0, len(text) + 1, 7):
        place.write_bytes(text[:end])
        whole = text[:end].count(b"\n")
        assert list(read_journal(tmp_path, pixels, frame_bytes).values()) == episodes[:whole]
    place.write_bytes(text)
    (tmp_path / pixels).write_bytes(b"x" * 7)
    assert len(read_journal(tmp_path, pixels, frame_bytes)) == (2 if frame_bytes is None else 0), "frames are gone"
    place.unlink()
    assert read_journal(tmp_path, pixels, frame_bytes) == {}


def test_an_index_is_read_as_written_and_refused_if_a_file_has_another_size(tmp_path):
    index = CacheIndex(
        source="set", fit=Fit(size=(8, 6)), encoding=Encoding(type="raw"), ends=[3], sizes={RAW: 5}, digests=["f" * 64]
    )
    (tmp_path / CACHE_FILE).write_bytes(seal(index.model_dump(mode="json")))
    with pytest.raises(DataError, match=naming(RAW)):
        read_index(tmp_path)
    (tmp_path / RAW).write_bytes(b"x" * 5)
    assert read_index(tmp_path) == index
    (tmp_path / RAW).write_bytes(b"x" * 6)
    with pytest.raises(DataError, match=naming(RAW, 6, 5)):
        read_index(tmp_path)
    (tmp_path / CACHE_FILE).write_bytes(b"{}")
    with pytest.raises(DataError, match=naming(CACHE_FILE, "SHA-256")):
        read_index(tmp_path)
