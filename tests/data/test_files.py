"""Headers of arrays in files."""

import io
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.lib import format as npy_format

from dp_prior.data.files import npy_header


def test_headers_are_parsed_one_at_a_time_however_many_threads_read(monkeypatch):
    """CPython 3.11 raises SystemError where several threads parse at once."""
    original, inside, most = npy_format.read_array_header_1_0, [], []

    def parse(stream):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()
        return original(stream)

    monkeypatch.setattr(npy_format, "read_array_header_1_0", parse)
    stored = io.BytesIO()
    np.save(stored, np.zeros((3, 5), np.float32))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: npy_header(io.BytesIO(stored.getvalue())), range(50)))
    assert found == [((3, 5), False, np.dtype(np.float32))] * 50 and max(most) == 1


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_the_stream_stands_at_the_values_after_the_header(version):
    array, stored = np.arange(6.0).reshape(2, 3), io.BytesIO()
    npy_format.write_array(stored, array, version)
    stored.seek(0)
    assert npy_header(stored) == (array.shape, False, array.dtype)
    assert stored.read() == array.tobytes()
