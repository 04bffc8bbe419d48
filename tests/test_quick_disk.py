"""Neither a test nor its forks wait for the disk; what is not open is refused as by the system."""

import errno
import os

import pytest

from tests.forks import call
from tests.quick_disk import not_waited_for


def test_nothing_is_synced_here_and_in_forks():
    assert os.fsync is not_waited_for
    done = call(["-c", "import os; print(os.fsync.__module__)"])
    assert done.stdout == "tests.quick_disk\n", done.stderr


def test_a_descriptor_that_is_not_open_is_refused(tmp_path):
    with (tmp_path / "file").open("w") as file:
        descriptor = file.fileno()
        assert os.fsync(descriptor) is None
    with pytest.raises(OSError) as caught:
        os.fsync(descriptor)
    assert caught.value.errno == errno.EBADF
