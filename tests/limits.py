"""A full disk in miniature: what does not fit under the limit on file sizes is written in part, then refused."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_sizes_up_to(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
