"""What a camera is named by, what of it decides about pixels, and what is refused."""

import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.pixels.resize import Fit
from dp_prior.run.files.changes import kind_of
from tests.messages import naming
from tests.tiny_camera import FRAMES, SIZE, data_of, recorded


def test_every_window_holds_the_resized_frames_of_its_rows(tmp_path):
    data = data_of(recorded("npz", tmp_path))
    expected = Fit(size=SIZE).apply(torch.from_numpy(FRAMES))
    batch = data.train.fetch(torch.arange(len(data.train)))
    assert batch.cond["front"].dtype == torch.uint8 and data.spec.kinds == {"front": "image"}
    assert data.spec.cond_shapes == {"front": (2, *SIZE, 3)} and data.spec.fits == {"front": Fit(size=SIZE)}
    now = batch.x[:, 1, 0].long()  # the action is the number of its row; the newest frame lies beside the second
    assert torch.equal(batch.cond["front"][:, 1], expected[now])
    assert set(data.statistics()) == {"x"}


def test_hashes_find_a_damaged_cache_and_have_it_built_again(tmp_path):
    record = recorded("npz", tmp_path)
    before = data_of(record).train.fetch(torch.arange(4)).cond["front"]
    pixels = next((tmp_path / ".dp_prior_frames").glob("*/frames.u8"))
    pixels.write_bytes(bytes(pixels.stat().st_size))
    assert not torch.equal(data_of(record).train.fetch(torch.arange(4)).cond["front"], before)
    assert torch.equal(data_of({**record, "verify": "hashes"}).train.fetch(torch.arange(4)).cond["front"], before)


def test_a_folder_of_frames_may_move(tmp_path):
    assert kind_of("data.images.front.folder") == "harmless" and kind_of("data.images.front.size") == "data"


@pytest.mark.parametrize("field", ["fit", "size", "jpeg_quality"])
def test_what_decides_about_pixels_changes_the_fingerprint(tmp_path, field):
    record = recorded("npz", tmp_path)
    before = data_of(record).fingerprint
    if field == "jpeg_quality":
        pytest.importorskip("PIL")
    record["images"]["front"][field] = {"fit": "letterbox", "size": [16, 12], "jpeg_quality": 90}[field]
    assert data_of(record).fingerprint != before


@pytest.mark.parametrize(
    "image, message",
    [
        ({"size": [4, 4]}, ("images.front", "neither", '"key"', '"folder"')),
        ({"key": "image", "folder": "x", "size": [4, 4]}, ("images.front", "both", '"key"', '"folder"')),
        ({"key": "image"}, ("config", "images.front.size")),
        ({"folder": "x", "render": {"type": "pusht"}, "size": [4, 4]}, ("images.front", "render", '"key"')),
        (
            {"key": "action", "render": {"type": "pusht"}, "fit": "crop", "size": [4, 4]},
            ("images.front", "fit", "'crop'", "renderer"),
        ),
        ({"key": "imag", "size": [4, 4]}, ("'image'", "d.npz", "'imag'")),
        ({"key": "action", "size": [4, 4]}, ("action", "float32", "(40, 1)")),
    ],
)
def test_a_wrong_camera_is_refused(tmp_path, image, message):
    record = {**recorded("npz", tmp_path), "images": {"front": image}}
    with pytest.raises((ConfigError, DataError), match=naming(*message)):
        data_of(record)
