"""Every kind of column reads any rows as brute-force indexing of the same array does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.columns import Column
from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.columns.joined import join
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.columns.mirrored import MirroredColumn
from dp_prior.data.embeddings.embedding_column import EmbeddingColumn
from dp_prior.data.embeddings.folder import FolderConfig
from tests.data.embeddings.folders import write_npy
from tests.examples import examples

N = 23
KINDS = ["memory", "memory uint8", "disk uint8", "with mirrored frames", "folder", "folder cached"]


class ArrayOnDisk(DiskColumn):
    """An array that counts as one on disk, as the columns of other packages may."""

    def __init__(self, values: np.ndarray):
        self.values = torch.from_numpy(values)
        self.dtype, self.shape = self.values.dtype, values.shape[1:]

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.values.index_select(0, ids)


def make(kind: str, place: Path) -> tuple[np.ndarray, Column]:
    """The array and a column that holds it."""
    random = np.random.default_rng(0)
    if kind == "memory":
        values = random.normal(size=(N, 2, 3)).astype(np.float32)
        return values, MemoryColumn(torch.from_numpy(values))
    if kind in ("memory uint8", "disk uint8"):
        values = random.integers(0, 256, (N, 4, 5, 3)).astype(np.uint8)
        return values, MemoryColumn(torch.from_numpy(values)) if kind == "memory uint8" else ArrayOnDisk(values)
    if kind == "with mirrored frames":
        frames = random.integers(0, 256, (N, 4, 4, 3)).astype(np.uint8)
        column = ArrayOnDisk(frames)
        turned = frames.swapaxes(1, 2)[:, ::-1, ::-1]
        return np.concatenate([frames, turned]), join([column, MirroredColumn(column, "antidiagonal")])
    values = random.normal(size=(N, 6)).astype(np.float32)
    column = EmbeddingColumn(FolderConfig(path=str(write_npy(place / "emb", values, [9, N - 9]))).create())
    return values, column if kind == "folder" else column.cached(4, 3)


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    place = tmp_path_factory.mktemp("columns")
    return {kind: make(kind, place) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(data=st.data())
def test_rows_are_those_of_brute_force_indexing(columns, kind, data):
    values, column = columns[kind]
    for _ in range(data.draw(st.integers(0, 3))):
        change = data.draw(st.sampled_from(["taking", "runs", "cached", "to"]))
        if change == "taking":
            index = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=30))
            values, column = values[index], column.taking(torch.tensor(index))
        elif change == "runs":
            length = data.draw(st.integers(1, min(4, len(values))))
            values = np.stack([values[i : i + length] for i in range(len(values) - length + 1)])
            column = column.runs(length)
        elif change == "cached":
            column = column.cached(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4)))
        else:
            column = column.to("cpu")
    ids = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20))
    found = column.rows(torch.tensor(ids, dtype=torch.int64))
    assert found.dtype == column.dtype == torch.from_numpy(values).dtype
    assert found.shape == (len(ids), *column.shape) and len(column) == len(values)
    assert np.array_equal(found.numpy(), values[ids])


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_placed_by_itself(columns, kind):
    _, column = columns[kind]
    moved = column.to("meta")
    assert moved.device.type == ("meta" if kind.startswith("memory") else "cpu")
    assert (column.n_bytes > 0) == kind.startswith("memory")
