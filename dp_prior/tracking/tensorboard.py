"""TensorBoard: event files in the folder `tensorboard` of the run; records are never written in part.

The x axis is the optimizer step. A resumed run writes a new file, which starts with a session marker: TensorBoard then
ignores later steps of earlier files, and these files are not modified. Unlike torch's SummaryWriter, a full disk leaves
no partial record, which would hide all later records, and files sort by age even if the clock was set back.
"""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, Literal

from dp_prior.checkpoints.clock import Progress
from dp_prior.files.durable import append
from dp_prior.files.entry_points import needing
from dp_prior.tracking.logger import Logger, LoggerRecord, RunFacts
from dp_prior.tracking.media import picture_bytes

EVENTS_FOLDER = "tensorboard"


class TensorBoardConfig(LoggerRecord):
    """Event files for `tensorboard --logdir RUN/tensorboard`: numbers, pictures, videos as GIFs, errors as text."""

    type: Literal["tensorboard"] = "tensorboard"

    def create(self) -> TensorBoardLogger:
        """Create a logger that opens its file when the run begins.

        Raises:
            ImportError: TensorBoard is not installed.
        """
        with needing("tensorboard", 'the logger "tensorboard" is not installed'):
            import tensorboard  # noqa: F401 (fails now rather than in the thread)
        return TensorBoardLogger()


class TensorBoardLogger(Logger):
    """Writes events; see the module."""

    name = "tensorboard"

    def begin(self, run: RunFacts) -> None:
        """Open a file whose name sorts after all existing files."""
        directory = run.directory / EVENTS_FOLDER
        directory.mkdir(parents=True, exist_ok=True)
        times = [int(path.name.split(".")[3]) for path in directory.glob("events.out.tfevents.[0-9]*")]
        now = max([int(time.time()), *(number + 1 for number in times)])
        path = directory / f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._config = json.dumps(run.config, indent=2)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._write(file_version="brain.Event:2")

    def log(self, metrics: dict[str, float], progress: Progress) -> None:
        """Add a point to the curve of each metric, and of `samples_seen`."""
        points = {**metrics, "samples_seen": progress.samples_seen}
        self._write_values(progress, [{"tag": name, "simple_value": value} for name, value in points.items()])

    def log_images(self, images: dict[str, Path], progress: Progress) -> None:
        """Show pictures; videos as GIFs, 240 pixels wide."""
        for name, path in images.items():
            data = picture_bytes(path)
            width, height = _size(data)
            picture = {"encoded_image_string": data, "width": width, "height": height, "colorspace": 3}
            self._write_values(progress, [{"tag": name, "image": picture}])

    def log_file(self, name: str, path: Path, progress: Progress) -> None:
        """Show the path of a file as text."""
        self._write_text(f"files/{name}", str(path), progress)

    def log_error(self, message: str, progress: Progress) -> None:
        """Show an error as text."""
        self._write_text("errors", message, progress)

    def rewind(self, progress: Progress) -> None:
        """Make readers ignore logged values of later steps; at the start of a run of all steps."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        step = 0 if progress == Progress() else progress.global_step + 1
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))
        self._write_text("config", "\n".join(f"    {line}" for line in self._config.splitlines()), progress)

    def sync(self) -> None:
        """Make the events survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.sync()
        self._file.close()

    def _write_text(self, name: str, text: str, progress: Progress) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._write(step=progress.global_step, summary=text_pb(name, [text]))

    def _write_values(self, progress: Progress, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(**value) for value in values])
        self._write(step=progress.global_step, summary=summary)

    def _write(self, **event: Any) -> None:
        """Append a record."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        stream = io.BytesIO()
        RecordWriter(stream).write(Event(wall_time=time.time(), **event).SerializeToString())
        append(self._file, stream.getvalue())


def _size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG or GIF; 0 for other formats, since TensorBoard uses the size for display only."""
    if data.startswith(b"\x89PNG"):
        return struct.unpack(">II", data[16:24])
    return struct.unpack("<HH", data[6:10]) if data.startswith(b"GIF") else (0, 0)
