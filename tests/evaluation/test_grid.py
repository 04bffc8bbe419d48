"""Pictures of images, byte by byte."""

import numpy as np
import pytest

from dp_prior.evaluation.grid import grid, write_png

IMAGES = np.random.default_rng(0).integers(0, 255, (5, 40, 30, 3), dtype=np.uint8)


def test_every_image_is_in_its_place_and_the_rest_is_white():
    sheet = grid(IMAGES, 3)
    assert sheet.shape == (2 * 40 + 2, 3 * 30 + 2 * 2, 3)
    for number, image in enumerate(IMAGES):
        row, column = divmod(number, 3)
        assert np.array_equal(sheet[row * 42 :, column * 32 :][:40, :30], image)
        sheet[row * 42 :, column * 32 :][:40, :30] = 255
    assert (sheet == 255).all()


def test_a_first_column_may_stand_apart():
    sheet = grid(IMAGES[:4], 2, after_first=8)
    assert sheet.shape == (82, 30 + 2 + 8 + 30, 3)
    assert np.array_equal(sheet[42:, 40:], IMAGES[3]) and np.array_equal(sheet[42:, :30], IMAGES[2])


@pytest.mark.parametrize(("height", "side"), [(8, 64), (28, 56), (64, 64), (100, 100)])
def test_small_images_are_enlarged_by_a_whole_number(height, side):
    assert grid(np.zeros((1, height, height, 1), np.uint8), 1).shape == (side, side, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_pixels(tmp_path, channels):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pictures are NOT tested")
    write_png(tmp_path / "new" / "a.png", IMAGES[0, ..., :channels])
    found = np.asarray(image.open(tmp_path / "new" / "a.png"))
    assert np.array_equal(found.reshape(40, 30, channels), IMAGES[0, ..., :channels])
