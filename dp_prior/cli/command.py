"""Shared by all commands: turns user errors into exit codes, imports the user's modules, survives failing output."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

from dp_prior.cli.interpreter import LOCKS, missing_package
from dp_prior.cli.output import echo, escape_unencodable, quiet
from dp_prior.files.entry_points import ask
from dp_prior.files.left_behind import work_left_behind

if TYPE_CHECKING:
    from dp_prior.job.stop import Stop


class Terminated(KeyboardInterrupt):
    """SIGTERM ends a command as Ctrl-C does, which closes processes and files.

    Attributes:
        code: exit code of the command.
        raised: the newest exception; libraries, such as pydantic, may wrap this exception in their own.
    """

    raised: ClassVar[Terminated | None] = None

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """User errors end with one clear message and their exit code (docs/processes.md), without a traceback."""
    earlier = work_left_behind()
    try:
        yield
    except Terminated as error:
        echo(error, err=True)
        _end(error.code, earlier)
    except SystemExit as error:  # of a run that stopped in an evaluation
        if not isinstance(error.code, int):
            raise
        _end(error.code, earlier)
    except KeyboardInterrupt as error:  # without imports: they fail if it came while torch was imported
        echo(f"error: {str(error) or 'interrupted'}", err=True)
        _end(130, earlier)  # docs/processes.md
    except Exception as error:
        _report(error, earlier)


def _report(error: Exception, earlier: set[threading.Thread]) -> NoReturn:
    """Print the one message of an error and end the command with its code; raises an error that is a bug.

    Args:
        earlier: see `_end`.
    """
    if (ending := Terminated.raised) is not None:
        echo(ending, err=True)
        _end(ending.code, earlier)
    try:
        from dp_prior.config import ConfigError

        # Without `classify`, whose module imports torch, which takes seconds.
        if isinstance(error, ConfigError) and "torch" not in sys.modules:
            echo(f"error: {error}", err=True)
            sys.exit(64)  # docs/processes.md
        from dp_prior.files.durable import FULL
        from dp_prior.run.exit_file import FAILED, REFUSED, STOPPED, classify
    except ModuleNotFoundError as missing:  # run by a Python outside the environment
        echo(f"error: {missing_package(missing.name)}", err=True)
        sys.exit(64)  # as for any missing package; docs/processes.md

    reason, code = classify(error)
    if code == FAILED:
        raise error
    text = str(error)
    if reason == REFUSED:
        places = " -> ".join(repr(place) for place in (error.filename, error.filename2) if place)
        remedy = "make room" if error.errno in FULL or not places else "allow access to it, or name another path"
        text = f"{': '.join(filter(None, (error.strerror, places)))}; {remedy}"
    if not getattr(error, "is_relayed", False):  # the main rank says it, see `Ranks.decide`
        echo(text if code == STOPPED else f"error: {text}", err=True)
    _end(code, earlier)


def _end(code: int, earlier: set[threading.Thread]) -> NoReturn:
    """End the command; the whole process at once if the command left work behind, see `work_left_behind`.

    Args:
        earlier: what others had left behind in this process.
    """
    if work_left_behind() - earlier:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed stream
                if stream is not None:
                    stream.flush()
        os._exit(code)
    sys.exit(code)


IMPORTED = "dp_prior.imported"
"""Key of a context's `meta`: whether the command has imported modules with parts that the stored schema lacks."""

SECTIONS = ("Train and measure", "Data", "Robot", "Share", "Tools")
"""Sections of the help, in order."""


class Command(click.Command):
    """A command that imports the modules of `modules_option` and turns user errors and SIGTERM into exit codes.

    Its help ends with an example.

    Attributes:
        section: of the help, one of `SECTIONS`.
    """

    terminated = ("error: ended by SIGTERM before the work was done; the same command begins anew", 143)
    """The last line and the exit code of a command after SIGTERM (docs/processes.md)."""

    def __init__(self, *names: Any, section: str = SECTIONS[-1], example: str = "", **settings: Any):
        super().__init__(*names, epilog=f"\b\nExample:\n  {example}" if example else None, **settings)
        self.section = section

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole first sentence of the help, of any length."""
        return super().get_short_help_str(1000)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the words; a setting as an option, such as `--train.lr.peak=3e-4`, is one of `--set`."""
        options = set().union(*(parameter.opts for parameter in self.params))
        words = {word.partition("=")[0] for word in args if word[:2] == "--" and len(word) > 2}
        if "--set" in options and words - options - {"--help"}:
            with exit_codes():
                args = ask("as_overrides", args, options) or args
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            raise ask("explained_usage", error, context) or error from None

    def invoke(self, context: click.Context) -> object:
        quiet()
        escape_unencodable()
        # twice, since SIGTERM may arrive while the inner one ends
        with exit_codes(), _ended_by_sigterm(*self.terminated), self.watch_of_launcher(), exit_codes():
            if "modules" not in context.params:  # see `late_modules_option`
                import_modules(imported := context.params.pop("imported", ()))
                context.meta[IMPORTED] = bool(imported)
            return super().invoke(context)

    def watch_of_launcher(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the end of the launcher that started this command is a SIGTERM."""
        from dp_prior.job.launcher import end_with_launcher

        return end_with_launcher(lambda: os.kill(os.getpid(), signal.SIGTERM), os.environ)


class ResumableCommand(Command):
    """A command that goes on where it was stopped. SIGTERM ends it with the code of a repeat by schedulers."""

    terminated = ("stopped on SIGTERM; the same command goes on", 75)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Refuse Windows, before a file is read: these commands hold locks."""
        if sys.platform == "win32" and "--help" not in args:
            echo(f"error: {LOCKS}", err=True)
            sys.exit(64)  # as for any missing package; docs/processes.md
        return super().parse_args(context, args)


class StoppingCommand(ResumableCommand):
    """A command that finishes its step or batch when it is `asked_to_stop`."""

    def watch_of_launcher(self) -> contextlib.AbstractContextManager[None]:
        """No watch of its own: `asked_to_stop` has one."""
        return contextlib.nullcontext()


@contextlib.contextmanager
def _ended_by_sigterm(line: str, code: int) -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`; outside the main thread, where Python allows no handlers, it does not."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break off what closes
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)  # or change the exit code
        Terminated.raised = Terminated(line, code)
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            echo(line, err=True)  # an exception in C++ code that imports would abort the process
            os._exit(code)
        raise Terminated.raised

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        Terminated.raised = None


class Commands(click.Group):
    """A group of `Command`s."""

    command_class = Command
    group_class = type  # nested groups are `Commands` too

    def __init__(self, *names: Any, section: str = SECTIONS[-1], **settings: Any):
        super().__init__(*names, **settings)
        self.section = section


def unlisted(command: click.Command) -> click.Command:
    """Hide a command from the help."""
    import copy

    command = copy.copy(command)
    command.hidden = True
    return command


def import_modules(modules: tuple[str, ...]) -> None:
    """Import the modules that the user names, from the working directory too; no file can cause an import.

    Raises:
        ConfigError: a module cannot be imported.
    """
    import numpy  # noqa: F401 (before torch, which goes on without NumPy after a Ctrl-C while it imports NumPy)

    if modules:
        sys.path.append(os.getcwd())  # last, so that no local file hides an installed module
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            from dp_prior.config import ConfigError

            problem = ask("import_fault", name, error) or f"{type(error).__name__}: {error}"
            raise ConfigError(f"--import {name}", [problem]) from error


@contextlib.contextmanager
def asked_to_stop() -> Iterator[Stop]:
    """The stop that signals and the end of the launcher request. Entered before the imports of a command, which take
    seconds."""
    from dp_prior.job.signals import ignore_repeats_at_exit, stop_requests
    from dp_prior.job.stop import Stop

    stop = Stop()
    with stop_requests(stop, os.environ):
        ignore_repeats_at_exit()
        yield stop
