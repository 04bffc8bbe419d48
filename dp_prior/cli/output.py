"""Output of commands: lines without control characters, warnings, and survival of closed pipes and full disks."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

import click

from dp_prior.files.printable import printable, wrapped


def echo(text: object, *, err: bool = False, whole: bool = False) -> None:
    """Print lines to stdout or stderr, control characters in names and messages as escapes; all commands print here.
    `whole` keeps lines that a user copies unbroken at a terminal, such as JSON and commands."""
    lines = printable(str(text))
    click.echo(lines if whole else _wrapped(lines, sys.stderr if err else sys.stdout), err=err)


def _wrapped(text: str, stream: TextIO | None) -> str:
    """Break the lines for a terminal; other streams get the lines as they are."""
    return wrapped(text, shutil.get_terminal_size().columns) if stream is not None and stream.isatty() else text


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python shows an error that ends the process, control characters as escapes."""
    import traceback

    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))


def say(line: str) -> None:
    """Print a line; ignores a closed pipe or a full disk, which must not end the training."""
    with contextlib.suppress(OSError):
        echo(line)


@contextlib.contextmanager
def optional_stdout() -> Iterator[None]:
    """Discard output if stdout is closed or fails. Without this the interpreter's flush at exit would fail and change
    the exit code."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def escape_unencodable() -> None:
    """Print characters that the encoding of stdout lacks as escapes, as Python does on stderr, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def quiet() -> None:
    """Show warnings; hide messages of libraries below this level. The list of commands needs no logging."""
    import logging

    class PlainFormatter(logging.Formatter):
        """The message alone, control characters as escapes."""

        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record))

    handler = logging.lastResort  # looks up sys.stderr at every message, because the live display replaces it
    handler.filters = [lambda record: not logging.getLogger(record.name.partition(".")[0]).handlers]  # no duplicates
    handler.setFormatter(PlainFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_traceback
    # accelerate passes an option that torch has renamed; every rank would print a warning
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    # a font of matplotlib lacks letters of a name; in a page the browser's fonts have them
    warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
    # 1x1 convolutions on channels-last images: two descriptions of the same layout
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
