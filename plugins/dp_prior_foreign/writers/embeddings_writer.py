"""Writes folders of embeddings, which `dp_prior.data.embeddings` reads.

A folder appears complete or not at all. Files of `ROWS_WRITTEN` rows are written to an unfinished folder beside its
place; after an interruption the same job resumes, and another job is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.embeddings.written import COLUMN, RECORD, EmbeddingsRecord, read_record
from dp_prior.files.durable import make_directory, replace_file, replacing, sync_directory
from dp_prior.files.json_text import seal
from dp_prior.files.locks import FileLock, NoLocksError
from dp_prior.files.temporary import remove_leftovers

ROWS_WRITTEN = 1024
GROUP_BYTES = 16 << 20
"""Bytes of embeddings in a row group, which a reader decodes whole."""


@dataclass(frozen=True)
class Job:
    """Embeddings to be made.

    Attributes:
        record: record of the folder.
        columns: (rows,) columns by name, written beside the embeddings.
        embed: (first, stop) -> (stop - first, dimension) float32.
    """

    record: EmbeddingsRecord
    columns: Mapping[str, Any]
    embed: Callable[[int, int], np.ndarray]


def write_embeddings(folder: Path, job: Job, report: Callable[[str], None] = lambda line: None) -> bool:
    """Write the folder, continuing where an interrupted call of the same job stopped.

    Args:
        report: receives a line about the progress for each file.

    Returns:
        False if the folder was complete already.

    Raises:
        FileExistsError: the folder or its unfinished copy belongs to another job, or another process
            fills the folder.
    """
    if folder.exists():
        if _is_of(folder, job):
            return False
        raise FileExistsError(f"{folder} exists and is not this job's: {_difference(folder, job)}; name another folder")
    partial = folder.with_name(f".{folder.name}.unfinished")
    make_directory(partial)
    with _held(partial):
        remove_leftovers(partial)
        _fill(partial, job, report)
        os.rename(partial, folder)
        sync_directory(folder.parent)
    return True


def _held(partial: Path) -> contextlib.AbstractContextManager[object]:
    """Lock an unfinished folder, which one process at a time may fill.

    Raises:
        FileExistsError: another process fills the folder.
    """
    try:
        lock = FileLock.take(partial, folder=True)
    except NoLocksError:  # nobody else would be seen there
        return contextlib.nullcontext()
    if lock is None:
        raise FileExistsError(f"another process fills {partial}; wait for its end, or name another folder")
    return lock


def _fill(partial: Path, job: Job, report: Callable[[str], None]) -> None:
    """Write the missing files of an unfinished folder; see `write_embeddings`."""
    import pyarrow
    from pyarrow import parquet

    if read_record(partial) is None:
        replace_file(partial / RECORD, seal(job.record.model_dump(mode="json")))
    elif not _is_of(partial, job):
        raise FileExistsError(
            f"{partial} is the unfinished folder of another job: {_difference(partial, job)}; delete it"
        )
    for number, first in enumerate(range(0, job.record.rows, ROWS_WRITTEN)):
        path, stop = partial / f"part_{number:06d}.parquet", min(first + ROWS_WRITTEN, job.record.rows)
        if not path.exists():
            embeddings = job.embed(first, stop)
            values = pyarrow.array(np.ascontiguousarray(embeddings, np.float32).ravel())
            lists = pyarrow.FixedSizeListArray.from_arrays(values, embeddings.shape[1])
            table = {name: column[first:stop] for name, column in job.columns.items()}
            group = max(1, GROUP_BYTES // (4 * embeddings.shape[1]))
            with replacing(path) as temporary:
                parquet.write_table(pyarrow.table({**table, COLUMN: lists}), temporary, row_group_size=group)
        report(f"{stop} of {job.record.rows} rows")


def _is_of(folder: Path, job: Job) -> bool:
    record = read_record(folder)
    return record is not None and record.job == job.record.job


def _difference(folder: Path, job: Job) -> str:
    record = read_record(folder)
    if record is None:
        return f"it has no {RECORD}"
    names = [name for name in ("embedder", "source", "rows") if getattr(record, name) != getattr(job.record, name)]
    return "; ".join(f"{name} {getattr(record, name)}, now {getattr(job.record, name)}" for name in names)
