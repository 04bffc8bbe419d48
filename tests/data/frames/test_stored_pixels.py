"""Arrays of numbers and channels of many kinds, as 8 bit RGB."""

import numpy as np
import pytest

from dp_prior.data.frames.stored_pixels import PixelError, StoredPixels
from tests.cases import every
from tests.data.frames.recordings import pictures

OPAQUE = np.full((6, 24, 32, 1), 255, np.uint8)
GREY = pictures(6)[..., 0]

READ = {
    "float32": (pictures(6).astype(np.float32), pictures(6)),
    "float16": (pictures(6).astype(np.float16), pictures(6)),
    "float64, channels first": (pictures(6).astype(np.float64).transpose(0, 3, 1, 2), pictures(6)),
    "int64": (pictures(6).astype(np.int64), pictures(6)),
    "grey": (GREY, np.stack([GREY] * 3, 3)),
    "grey channel": (GREY[..., None], np.stack([GREY] * 3, 3)),
    "grey first": (GREY[:, None], np.stack([GREY] * 3, 3)),
    "opaque": (np.concatenate([pictures(6), OPAQUE], 3), pictures(6)),
    "opaque, channels first": (np.concatenate([pictures(6), OPAQUE], 3).transpose(0, 3, 1, 2), pictures(6)),
    "opaque floats": (np.concatenate([pictures(6), OPAQUE], 3).astype(np.float32), pictures(6)),
}


@every(name=READ)
def test_no_value_is_lost(name):
    values, expected = READ[name]
    stored = StoredPixels.of(values.shape, values.dtype)
    stored.check(lambda: values)
    assert stored.size == (24, 32)
    np.testing.assert_array_equal(stored.frames(values), expected)


def test_only_three_channels_of_uint8_say_nothing_more_about_themselves():
    """Their caches keep their names."""
    for values in (pictures(6), pictures(6).transpose(0, 3, 1, 2)):
        assert StoredPixels.of(values.shape, values.dtype).describe() == {}
    for name in READ:
        values, _ = READ[name]
        assert StoredPixels.of(values.shape, values.dtype).describe() != {}, name


@every(odd=[0.5, -1, 256, np.nan, np.inf])
def test_one_value_of_another_kind_is_found_by_its_row(odd):
    values = pictures(6).astype(np.float64)
    values[4, 1, 2, 0] = odd
    with pytest.raises(PixelError) as caught:
        StoredPixels.of(values.shape, values.dtype).frames(values)
    assert caught.value.row == 4 and f"{odd:g}" in str(caught.value)
