"""What a camera is named by, what of it decides about pixels, and what is refused."""

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.camera import Cameras, DepthConfig, ImageConfig
from dp_prior.run.changes import kind_of
from dp_prior.tensors.pixels.resize import Fit
from tests.data.columns.held import Held
from tests.messages import naming, told
from tests.tiny_camera import FRAMES, SIZE, data_of, recorded


@pytest.mark.parametrize(
    "changes", [{}, {"region": (0.25, 0.125, 1.0, 0.625)}, {"turn": "up_down"}, {"turn": "left"}, {"bgr": True}]
)
def test_every_window_holds_the_resized_frames_of_its_rows(tmp_path, changes):
    record = recorded("npz", tmp_path)
    record["images"]["front"].update(changes)
    data, fit = data_of(record), Fit(size=SIZE, **changes)
    expected = fit.apply(torch.from_numpy(FRAMES))
    if "turn" in changes or "bgr" in changes:
        assert not torch.equal(expected, Fit(size=SIZE).apply(torch.from_numpy(FRAMES)))
        assert told(data.summary(), "front", changes.get("turn", "bgr"))
    if "region" in changes:
        assert torch.equal(expected, Fit(size=SIZE).apply(torch.from_numpy(FRAMES[:, 6:, 4:20]).contiguous()))
    batch = data.train.fetch(torch.arange(len(data.train)))
    assert batch.cond["front"].dtype == torch.uint8 and data.spec.kinds == {"front": "image"}
    assert data.spec.cond_shapes == {"front": (2, *SIZE, 3)} and data.spec.fits == {"front": fit}
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
    assert {kind_of(f"data.images.front.{field}") for field in ("region", "turn", "bgr")} == {"data"}


def test_cameras_of_one_video_see_different_regions(tmp_path):
    record = recorded("npz", tmp_path)
    regions = {"front": None, "table": [0.5, 0.0, 1.0, 1.0], "gripper": [0.0, 0.25, 0.5, 0.75]}
    regions["corner"] = [0.0, 0.0, 0.05, 0.04]  # a pixel
    record["images"] = {name: {**record["images"]["front"], "region": region} for name, region in regions.items()}
    data = data_of(record)
    assert len(data.cache_directories()) == 4
    for name, region in regions.items():
        expected = Fit(size=SIZE, region=region).apply(torch.from_numpy(FRAMES))
        assert torch.equal(data.images[name].rows(torch.arange(len(FRAMES))), expected)
    table, gripper, corner = data.summary().split("; ")[2:]
    assert told(table, "table", 12, 23, 0, 31, "24 x 32") and told(corner, "corner", 0, "24 x 32")
    assert told(gripper, "gripper", 0, 11, 8, 23, "24 x 32")


@pytest.mark.parametrize("field", ["fit", "size", "jpeg_quality", "region", "turn", "bgr"])
def test_what_decides_about_pixels_changes_the_fingerprint(tmp_path, field):
    record = recorded("npz", tmp_path)
    before = data_of(record).fingerprint
    if field == "jpeg_quality":
        pytest.importorskip("PIL")
    changes = {"fit": "letterbox", "size": [16, 12], "jpeg_quality": 90, "region": [0.5, 0, 1, 1]}
    changes |= {"turn": "half", "bgr": True}
    record["images"]["front"][field] = changes[field]
    assert data_of(record).fingerprint != before


@pytest.mark.parametrize(
    "image, message",
    [
        ({"size": [4, 4]}, ("images.front", "neither", '"key"', '"folder"')),
        ({"key": "image", "folder": "x", "size": [4, 4]}, ("images.front", "both", '"key"', '"folder"')),
        ({"key": "image"}, ("config", "images.front.size")),
        ({"key": "image", "file": "0.mp4", "size": [4, 4]}, ("images.front", "file", '"folder"')),
        ({"key": "image", "frames_per_row": 2, "size": [4, 4]}, ("images.front", "frames_per_row", '"folder"')),
        ({"folder": "x", "render": {"type": "pusht"}, "size": [4, 4]}, ("images.front", "render", '"key"')),
        (
            {"key": "action", "render": {"type": "pusht"}, "fit": "crop", "size": [4, 4]},
            ("images.front", "fit", "'crop'", "renderer"),
        ),
        (
            {"key": "action", "render": {"type": "pusht"}, "region": [0, 0, 0.0001, 1], "size": [4, 4]},
            ("images.front", "40000 x 4", "[4, 4]", "8192", "larger region"),
        ),
        (
            {"key": "action", "render": {"type": "pusht"}, "turn": "half", "size": [4, 4]},
            ("turn", "renderer"),
        ),
        ({"key": "action", "render": {"type": "pusht"}, "bgr": True, "size": [4, 4]}, ("bgr", "renderer")),
        (
            {"key": "image", "region": [0, 0, 240, 320], "size": [4, 4]},
            ("images.front.region", "[0.0, 0.0, 240.0, 320.0]", "from 0 to 1"),
        ),
        (
            {"key": "image", "region": [0, 0, 0.01, 1], "size": [4, 4]},
            ("d.npz, image", "[0.0, 0.0, 0.01, 1.0]", "0 rows", "24 x 32", "larger"),
        ),
        ({"key": "imag", "size": [4, 4]}, ("'image'", "d.npz", "'imag'")),
        ({"key": "action", "size": [4, 4]}, ("action", "float32", "(40, 1)")),
    ],
)
def test_a_wrong_camera_is_refused(tmp_path, image, message):
    record = {**recorded("npz", tmp_path), "images": {"front": image}}
    with pytest.raises((ConfigError, DataError), match=naming(*message)):
        data_of(record)


def cameras_of(frames, **fields):
    """A camera of depth from 0.5 m to 2 m whose frames lie in memory."""
    camera = DepthConfig(key="far", size=(2, 2), near=0.5, far=2.0, **fields)
    return Cameras({"far": camera}, images={"far": Held(frames)})


@pytest.mark.parametrize(("inside", "is_told"), [(0, True), (4, True), (7, True), (8, False), (16, False)])
def test_depth_of_which_less_than_half_lies_in_its_range_is_doubted(inside, is_told):
    frames = torch.full((4, 2, 2, 1), 20.0)
    frames.view(-1)[:inside] = 1.0
    doubts = [*cameras_of(frames).mixture_warnings()]
    assert len(doubts) == is_told
    if inside in (4, 7):
        assert told(doubts[0], "depth.far", f"{inside / 16:.0%}", "1 to 20 m", "near 0.5", "far 2 m", "unit")
    frames.view(-1)[8:] = 0  # nothing was measured there
    assert bool([*cameras_of(frames).mixture_warnings()]) == (inside < 4)


def test_depth_is_looked_at_in_frames_of_the_whole_recording():
    frames = torch.ones(1000, 2, 2, 1)
    frames[200:] = 20.0
    (doubt,) = cameras_of(frames).mixture_warnings()
    assert told(doubt, "depth.far", "20%") and cameras_of(frames).images["far"].reads == 0
    assert not [*cameras_of(frames[:350]).mixture_warnings()]


def test_a_mirror_image_shows_the_frames_of_the_camera_on_the_other_side():
    sides = {name: torch.randint(0, 256, (5, 4, 6, 3), dtype=torch.uint8) for name in ("left", "right", "top")}
    mirrors, flip = {"left": {"camera": "right"}, "right": {"camera": "left"}, "top": {}}, {"flip": "left_right"}
    record = {name: ImageConfig(key=name, size=(4, 6), mirror=mirror | flip) for name, mirror in mirrors.items()}
    columns = Cameras(record, images={name: Held(frames) for name, frames in sides.items()}).columns(np.arange(10))
    for name, mirror in mirrors.items():
        seen = columns[name].rows(torch.arange(10))
        assert torch.equal(seen[:5], sides[name])
        assert torch.equal(seen[5:], sides[mirror.get("camera", name)].flip(2))
