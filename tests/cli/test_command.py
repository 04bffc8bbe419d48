"""What all commands share: imports, warnings, output that nobody takes."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading

import click
import pytest

from dp_prior.cli.command import Command, ResumableCommand, exit_codes
from dp_prior.config import ConfigError
from dp_prior.data.errors import UnwritableError
from dp_prior.files.left_behind import left_behind
from tests import forks
from tests.cli.invoked import all_commands, command
from tests.messages import told
from tests.tiny import write


@pytest.mark.parametrize("line", [["schema"], ["sweep", "pusht_state"], ["report", "runs/a"]])
def test_each_command_imports_what_it_is_told_to(line):
    found = command(*line, "--import", "no_such_parts")
    assert found.exit_code == 64 and "error: --import no_such_parts: 1 problem" in found.output


def test_another_python_without_torch_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    line = [sys.executable, "train_policy.py", "--config_file", write(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert ended.returncode == 64 and told(ended.stderr, "error", "torch", sys.executable, "environment", "dp_prior")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (OSError(errno.EACCES, "Permission denied", "/data/run"), ("Permission denied", "/data/run", "another path")),
        (OSError(errno.EROFS, "Read-only file system", "a", None, "b"), ("'a' -> 'b'", "another path")),
        (OSError(errno.ENOSPC, "No space left on device", "/data/run"), ("/data/run", "make room")),
        (OSError(errno.ENOSPC, "No space left on device"), ("make room",)),
    ],
)
def test_a_refusal_of_the_system_names_the_place_and_the_remedy(error, parts, capsys):
    with pytest.raises(SystemExit) as ended, exit_codes():
        raise error
    text = capsys.readouterr().err
    assert ended.value.code == 74 and told(text, *parts) and len(text.splitlines()) == 1, text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError("no run"), 64),
        (ConfigError("a", ["b"]), 64),
        (OSError(28, "No space left", "x"), 74),
        (OSError(28, "No space left"), 74),  # of a file that was open
        (UnwritableError(28, "cannot be written", "x"), 74),
    ],
)
def test_an_error_of_the_user_is_one_message_and_its_code(error, code, capsys):
    with pytest.raises(SystemExit) as caught, exit_codes():
        raise error
    said = capsys.readouterr().err
    assert caught.value.code == code and said.startswith("error: ") and "Traceback" not in said


def test_an_error_of_two_places_names_both(capsys):
    """Of a copy, Python's first place is the source, though the target's disk is full."""
    with pytest.raises(SystemExit), exit_codes():
        raise OSError(28, "No space left", "from", None, "to")
    assert told(capsys.readouterr().err, "'from'", "'to'")


def test_ctrl_c_is_told_and_has_its_code_without_the_imports_that_it_may_have_broken(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_prior.run.exit_file", None)
    with pytest.raises(SystemExit) as caught, exit_codes():
        raise KeyboardInterrupt
    assert (caught.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")


@pytest.mark.parametrize(
    ("kind", "code", "words"), [(ResumableCommand, 75, ("goes on",)), (Command, 143, ("error: ", "begins anew"))]
)
def test_sigterm_is_one_line_and_a_code_which_for_a_command_that_goes_on_makes_schedulers_repeat_it(
    kind, code, words, capsys
):
    closed = []

    @click.command(cls=kind)
    def works():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the command goes on")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # a second one does not break off what closes
            closed.append(True)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        works.main([])
    assert caught.value.code == code and closed and signal.getsignal(signal.SIGTERM) is before
    said = capsys.readouterr().err
    assert told(said, "SIGTERM", "same command", *words) and said.count("\n") == 1


def test_a_command_outside_the_main_thread_which_takes_no_signals_runs():
    ran = []

    @click.command(cls=Command)
    def runs():
        ran.append(True)

    thread = threading.Thread(target=runs.main, args=[[]], kwargs={"standalone_mode": False})
    thread.start()
    thread.join()
    assert ran


def test_every_command_of_which_the_help_says_that_the_same_command_goes_on_has_the_code_of_these():
    told_to_go_on = {name for name, one in all_commands().items() if "same command" in " ".join(one.help.split())}
    resumable = {name for name, one in all_commands().items() if isinstance(one, ResumableCommand)}
    assert {"train", "sweep", "sample", "improve", "compare", "trial"} <= told_to_go_on <= resumable
    assert resumable - told_to_go_on <= {"cache", "embed", "push"}


SILENT = """
import os, signal, threading
from concurrent.futures import ThreadPoolExecutor
from dp_prior.cli.command import exit_codes
from dp_prior.files.left_behind import left_behind
def download():
    with ThreadPoolExecutor(2) as pool:
        pool.submit(os.kill, os.getpid(), signal.SIGINT)
        pool.submit(threading.Event().wait)
signal.signal(signal.SIGINT, signal.default_int_handler)
with exit_codes():
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("left_behind(download)", 130, "error: interrupted\n"),
        (
            "try: left_behind(download)\n    except KeyboardInterrupt: exit(75)",
            75,
            "",
        ),
    ],
    ids=["at once", "as a run that stops"],
)
def test_ctrl_c_ends_a_command_although_threads_of_a_pool_wait_for_a_silent_server(end, code, said):
    done = forks.call(["-c", SILENT.format(end=end)], timeout=60)
    assert (done.returncode, done.stderr) == (code, said)


def test_a_command_that_left_nothing_behind_does_not_end_the_process_in_which_others_did():
    end = threading.Event()
    with pytest.raises(ZeroDivisionError):
        left_behind(lambda: end.wait(60), lambda: 1 / 0)
    with pytest.raises(SystemExit), exit_codes():
        raise ConfigError("the configuration", ["seed: -1"])
    end.set()


@pytest.mark.parametrize("line", [["inspect", "data"], ["train", "--config_file", "pusht_state", "--check"]])
def test_ctrl_c_while_numpy_is_imported_ends_a_command_that_imports_torch(line):
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy':\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from dp_prior.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, *line], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "error: interrupted\n")


def test_an_error_of_the_program_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), exit_codes():
        raise ZeroDivisionError


def test_an_error_of_the_main_rank_is_silent_on_the_others_with_the_same_code(capsys):
    error = ConfigError("the checkpoint is of another run", ["seed: 0 in the checkpoint, 5 now"])
    error.is_relayed = True
    with pytest.raises(SystemExit) as caught, exit_codes():
        raise error
    assert caught.value.code == 64 and capsys.readouterr().err == ""


def test_sigterm_while_a_command_ends_is_the_same_line_and_code(capsys):
    class Ending(Command):
        @contextlib.contextmanager
        def watch_of_launcher(self):
            yield
            os.kill(os.getpid(), signal.SIGTERM)

    @click.command(cls=Ending)
    def works():
        pass

    with pytest.raises(SystemExit) as caught:
        works.main([])
    said = capsys.readouterr().err
    assert caught.value.code == 143 and told(said, "SIGTERM") and said.count("\n") == 1


@pytest.mark.parametrize("wrapped", [RuntimeError, ValueError, ConfigError.__base__])
def test_sigterm_that_a_library_wraps_in_an_error_of_its_own_is_the_same_line_and_code(wrapped, capsys):
    @click.command(cls=Command)
    def works():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException as error:  # as pydantic does while it builds a schema
            raise wrapped("invalid schema") from error

    for _ in range(2):  # the first leaves nothing behind
        with pytest.raises(SystemExit) as caught:
            works.main([])
        said = capsys.readouterr().err
        assert caught.value.code == 143 and told(said, "SIGTERM") and said.count("\n") == 1

    @click.command(cls=Command)
    def fails():
        raise wrapped("invalid schema")

    with pytest.raises((wrapped, SystemExit)) as caught:
        fails.main([])
    assert getattr(caught.value, "code", 64) != 143


IMPORTED_IN_C = """
import os, signal
def destroy():
    os.kill(os.getpid(), signal.SIGTERM)
try:
    destroy()
except BaseException:
    os.abort()  # as C++ does where an exception leaves code that expects none
"""


def test_sigterm_while_torch_is_imported_raises_nothing_in_its_code(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(IMPORTED_IN_C)
    program = (
        "import click, sys; from dp_prior.cli.command import Command\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "@click.command(cls=Command)\ndef works():\n    import torch\nworks.main([])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 143 and told(done.stderr, "SIGTERM") and done.stderr.count("\n") == 1
