"""The defaults of a format's record."""

from pathlib import Path
from typing import Literal

import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from tests.messages import naming


def test_a_format_that_says_nothing_more_is_on_this_machine_and_not_written(tmp_path):
    class ReadOnly(EpisodeStoreRecord):
        """Read only."""

        type: Literal["read_only"] = "read_only"

        path: Path
        """Nowhere."""

        def create(self):
            """Nothing."""

    record = ReadOnly(path=tmp_path)
    assert record.local({}, ()) is record and not record.is_remote and not record.is_at(tmp_path)
    with pytest.raises(DataError, match=naming("'read_only'")):
        record.write(None)


def test_a_format_derived_from_another_is_written_as_that_one(tmp_path, monkeypatch):
    class Derived(ZarrStoreConfig):
        """A replay buffer with a name of its own."""

        type: Literal["derived"] = "derived"

    written = []
    monkeypatch.setattr("dp_prior_foreign.writers.zarr_writer.write", lambda *call: written.append(call))
    record = Derived(path=tmp_path)
    record.write("a recording")
    assert written == [(record, "a recording")]
