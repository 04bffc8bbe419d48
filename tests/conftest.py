"""Shared by all tests: quiet, repeatable settings and a way to run code on several ranks."""

import gc
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dp_prior.files.left_behind import work_left_behind
from tests.forks import start
from tests.hub_server import HubServer
from tests.promises import pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_sessionfinish
from tests.quick_disk import quicken_disk

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure", "pytest_sessionfinish"]

pytest_plugins = [
    *("tests.collected", "tests.compiled", "tests.examples", "tests.order"),
    *("tests.own_threads", "tests.trained", "tests.within"),
]

# What collection makes lasts to the end: it is hardly looked through for garbage meanwhile, and not at all later.
gc.set_threshold(200_000, 50, 50)


def pytest_collection() -> None:
    """The workers share the cores; their controller collects nothing and imports no torch before they start."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """From here on look for garbage among what the tests make."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# A shell starts a suite in the background with Ctrl-C ignored, which every process of the tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PREAMBLE = """
import os, torch
torch.set_num_threads(1)
if int(os.environ["WORLD_SIZE"]) > 1:
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + os.environ["RENDEZVOUS"], rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]))
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
rank, world_size = accelerator.process_index, accelerator.num_processes
"""


@pytest.fixture(scope="session", autouse=True)
def quick_pictures() -> None:
    """Runs and pages of this process draw nothing but their frames; `drawn` draws all."""
    from tests.quick_pictures import quicken

    quicken()


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> None:
    """No test waits for the disk, on which those of other workers wait meanwhile."""
    quicken_disk()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(own_threads: Callable[[str], list[str]]) -> Iterator[None]:
    """Work that a test leaves behind ends with it, before it can speak or ask a server in the midst of another test.

    A client of websockets that is not closed pings its server from two threads, and logs what comes of it.
    """

    def threads_at_work() -> list[str]:
        clients = [name for name in own_threads("") if name.endswith(("(recv_events)", "(keepalive)"))]
        return clients + [thread.name for thread in work_left_behind()]

    yield
    end = time.monotonic() + 20
    while (names := threads_at_work()) and time.monotonic() < end:
        time.sleep(0.01)  # not a join, since another thread may be about to start one of them
    assert not names, "threads go on that this test left behind; close its clients"


@pytest.fixture
def drawn() -> Iterator[None]:
    """Curves, charts and pictures of rollouts of this test are those of users."""
    from tests.quick_pictures import really_drawn

    with really_drawn():
        yield


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub on loopback that the client in this process, and those it starts, talk to; with a cache of its own."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    home = tmp_path / "hf_home"
    with HubServer() as server:
        for name, value in server.environment(home).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        disable_progress_bars()
        yield server


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[str]]:
    """`run_ranks(source, world_size, *arguments, timeout=250)` -> what each rank printed.

    `source` runs once per gloo rank with `accelerator`, `rank` and `world_size` defined, `arguments` in sys.argv[1:].
    The ranks meet in a file, so no port is needed. The first rank that fails, or a rank that takes too long, ends all
    of them and fails the test with its output.
    """
    runs = itertools.count()

    def run(source: str, world_size: int, *arguments: object, timeout: float = 250) -> list[str]:
        folder = tmp_path / f"ranks_{next(runs)}"
        folder.mkdir()
        (folder / "script.py").write_text(f"{_PREAMBLE}{source}\naccelerator.end_training()\n")
        environment = {
            "WORLD_SIZE": str(world_size),
            "RENDEZVOUS": str(folder / "meeting"),
            "MASTER_ADDR": "127.0.0.1",  # accelerate wants to see them; nothing listens there
            "MASTER_PORT": "0",
            "ACCELERATE_USE_CPU": "true",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        logs = [folder / f"rank_{rank}.txt" for rank in range(world_size)]
        processes = []
        for rank, log in enumerate(logs):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(start([folder / "script.py", *arguments], log, log, cwd=Path.cwd(), **own))
        end = time.monotonic() + timeout
        try:
            while (codes := [process.exitcode for process in processes]) != [0] * world_size:
                failed = [rank for rank, code in enumerate(codes) if code]
                late = [rank for rank, code in enumerate(codes) if code is None] if time.monotonic() > end else []
                for rank in failed or late:
                    what = f"exited with {codes[rank]}" if failed else f"still ran after {timeout} s"
                    pytest.fail(f"rank {rank} of {world_size} {what}:\n{logs[rank].read_text()}")
                time.sleep(0.02)
        finally:
            for process in processes:
                process.kill()
                process.join()
        return [log.read_text() for log in logs]

    return run
