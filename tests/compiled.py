"""Workers share the compilation of the tests, which takes more than their import and which each would do for itself.

pytest rewrites the assertions of each file of tests, compiles the file and stores the code beside it. On a fresh
checkout every worker would do this for every file, in the same order.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Compile every nth file before collection if this is one of n workers for the whole suite."""
    worker, is_whole = os.environ.get("PYTEST_XDIST_WORKER"), session.config.args == session.config.getini("testpaths")
    if worker is None or not is_whole or sys.dont_write_bytecode:
        return
    first, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    store_compiled(session.config.pluginmanager.rewrite_hook, sorted(TESTS.rglob("test_*.py"))[first::count])


def store_compiled(loader: rewrite.AssertionRewritingHook, paths: Iterable[Path]) -> None:
    """Store the rewritten code of the files that have changed, as their import would, and execute none of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "exec", lambda code, namespace: None, raising=False)
        for path in paths:
            spec = importlib.util.spec_from_file_location(f"{__name__}.{path.stem}", path, loader=loader)
            loader.exec_module(importlib.util.module_from_spec(spec))
