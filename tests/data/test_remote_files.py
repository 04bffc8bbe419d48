"""Files behind a URL: errors of the place are told from those of the content, without the text of its client."""

import errno
import os

import numpy as np
import pytest

fsspec = pytest.importorskip("fsspec", reason="NOT CHECKED: fsspec is not installed")

from dp_prior.data.embeddings.folder import FolderConfig  # noqa: E402
from dp_prior.data.errors import DataError, UnreachableError  # noqa: E402
from dp_prior.data.remote_files import RemoteFile, reached  # noqa: E402
from tests.data.embeddings.folders import COUNTS, embeddings, remote, write_npy, write_parquet  # noqa: E402
from tests.messages import naming  # noqa: E402

OF_CLIENTS = [
    (PermissionError("key=canary"), ("PermissionError", "credentials")),
    (type("NoCredentialsError", (Exception,), {})("key=canary"), ("NoCredentialsError", "credentials")),
    (type("EndpointConnectionError", (Exception,), {})("key=canary"), ("EndpointConnectionError",)),
    (OSError(errno.EBUSY, "key=canary"), (os.strerror(errno.EBUSY),)),
]


@pytest.fixture
def memory():
    yield fsspec.filesystem("memory")
    fsspec.filesystem("memory").store.clear()


def test_a_file_is_read_as_it_is(memory):
    memory.pipe_file("/x/a", bytes(range(200)))
    with RemoteFile(memory, "/x/a") as file:
        assert (file.seek(-50, os.SEEK_END), file.read(8), file.tell()) == (150, bytes(range(150, 158)), 158)
        assert file.read() == bytes(range(158, 200)) and file.read(1) == b""


def test_a_missing_file_and_what_is_said_of_the_content_stay_what_they_are(memory):
    with pytest.raises(DataError, match=naming("/x/none")):
        RemoteFile(memory, "/x/none")
    with pytest.raises(DataError, match=naming("torn")), reached("/x"):
        raise DataError("/x", ["torn"])


@pytest.mark.parametrize(("error", "said"), OF_CLIENTS)
@pytest.mark.parametrize("call", ["info", "find", "open", "read"])
@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_place_that_refuses_is_told_by_its_kind_wherever_it_does(
    memory, tmp_path, kind, call, error, said, monkeypatch
):
    rows = embeddings(sum(COUNTS))
    if kind == "npy":
        write_npy(tmp_path, rows, COUNTS)
    else:
        write_parquet(tmp_path, {"embedding": rows}, COUNTS)
    record = FolderConfig(path=remote(tmp_path, tmp_path.name), format=kind)

    def failing(*arguments, **options):
        raise error

    owner = type(memory.open(memory.find(f"/{tmp_path.name}")[0])) if call == "read" else type(memory)
    monkeypatch.setattr(owner, call, failing)
    with pytest.raises(UnreachableError, match=naming(tmp_path.name, *said)) as caught:
        record.create()
    assert "canary" not in str(caught.value)


def test_a_place_that_goes_away_while_rows_are_read_is_told(memory, tmp_path, monkeypatch):
    rows = embeddings(sum(COUNTS))
    folder = FolderConfig(path=remote(write_npy(tmp_path, rows, COUNTS), tmp_path.name)).create()
    assert np.array_equal(folder.rows.read(0, 3), rows[:3])
    monkeypatch.setattr(type(memory), "open", lambda *arguments, **options: 1 / 0)
    with pytest.raises(UnreachableError, match=naming(f"memory://{tmp_path.name}", "ZeroDivisionError")):
        folder.rows.read(0, 3)


def test_a_file_that_was_replaced_by_a_shorter_one_is_no_fault_of_the_place(memory, tmp_path):
    folder = FolderConfig(path=remote(write_npy(tmp_path, embeddings(sum(COUNTS)), COUNTS), tmp_path.name)).create()
    memory.pipe_file(f"/{tmp_path.name}/img_emb_00.npy", b"short")
    with pytest.raises(DataError, match=naming(f"/{tmp_path.name}/img_emb_00.npy")):
        folder.rows.read(0, 3)
