"""A download that lasts is told of with what has arrived, and one that does not is not."""

import logging
import threading

from dp_prior.places.download_report import reported
from tests.messages import told


def test_what_has_arrived_is_told_again_and_again(tmp_path, caplog):
    (tmp_path / "model.safetensors.part").write_bytes(bytes(1_500_000))
    lines = threading.Semaphore(0)

    class Counting(type(caplog.handler)):
        def emit(self, record):
            lines.release()

    logger, handler = logging.getLogger("dp_prior.places.download_report"), Counting()
    logger.addHandler(handler)
    try:
        with reported("s3://bucket/x", tmp_path, 4_000_000, first_s=0.001, next_s=0.001):
            assert lines.acquire(timeout=60) and lines.acquire(timeout=60)
    finally:
        logger.removeHandler(handler)
    assert told(caplog.messages[0], "s3://bucket/x", "1.5 of 4.0 MB", "Ctrl-C")


def test_nothing_is_told_of_a_short_download_or_after_an_error(tmp_path, caplog):
    try:
        with reported("s3://bucket/x", tmp_path, 4, first_s=60.0):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert not caplog.messages and "download report" not in {one.name for one in threading.enumerate()}
