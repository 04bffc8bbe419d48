"""Codecs that are not there are named with what registers them."""

import pytest

pytest.importorskip("numcodecs", reason="NOT CHECKED: the extra zarr is not installed")

from dp_prior.data.formats.zarr.codecs import unknown_codec  # noqa: E402
from tests.messages import told


def test_a_codec_that_is_not_registered_is_named_with_its_package_and_the_line():
    for metadata in ({"compressor": {"id": "imagecodecs_jpegxl"}}, {"filters": [{"id": "imagecodecs_jpegxl"}]}):
        found = unknown_codec(metadata)
        assert told(found, "'imagecodecs_jpegxl'", "imagecodecs", "--import")
        assert "imagecodecs.numcodecs.register_codecs()" in found
    assert told(unknown_codec({"compressor": {"id": "my_codec"}}), "'my_codec'", "install", "--import")
    for metadata in ({}, {"compressor": None, "filters": None}, {"compressor": {"id": "blosc"}}, {"codecs": [{}]}):
        assert unknown_codec(metadata) is None
