"""What a record of data declares by default: one manifest, and nothing read from elsewhere."""

from pathlib import Path
from typing import ClassVar

import pytest

from dp_prior.data.data_record import BatchSize, DataRecord, ManifestPlace, Verified
from dp_prior.data.integrity import DATA_MANIFEST


class Numbers(DataRecord):
    provides: ClassVar = "numbers"
    batch_size: BatchSize = 8
    verify: Verified = "sizes"
    manifest: ManifestPlace = None

    def places(self):
        return {}


@pytest.mark.parametrize("place", [None, "~/shared.json", "shared.json"])
def test_the_manifest_lies_in_the_run_directory_or_where_the_record_says(place, tmp_path, monkeypatch):
    monkeypatch.setattr("dp_prior.data.data_record.Integrity", lambda *given: given)
    manifest, root, *_ = Numbers(manifest=place).integrity(tmp_path)
    expected = tmp_path / DATA_MANIFEST if place is None else Path(place).expanduser()
    assert manifest == expected and root is None


def test_by_default_nothing_is_downloaded_joined_or_read_from_folders():
    record = Numbers()
    assert record.downloaded({"me/data": "abc"}) is record and record.root() is None
    assert not (record.recorded_sets() or record.folders() or record.sources() or record.places())
