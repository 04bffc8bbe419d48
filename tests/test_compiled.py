"""What a worker has compiled is what every worker imports."""

import importlib.util
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.compiled import TESTS, pytest_collection, store_compiled
from tests.messages import naming

SOURCE = "def check(value):\n    assert value == 1\n\n\nraise RuntimeError('executed')\n"


def written(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.rglob("*.pyc")}


def imported(hook, path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=hook)
    module = importlib.util.module_from_spec(spec)
    hook.exec_module(module)
    return module


@pytest.fixture
def hook(request, monkeypatch):
    """The loader of this pytest, which stores what it compiles."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    return request.config.pluginmanager.rewrite_hook


def test_a_compiled_file_is_not_executed_and_is_compiled_no_more_until_it_changes(hook, tmp_path, monkeypatch):
    path = tmp_path / "test_it.py"
    path.write_text(SOURCE)
    store_compiled(hook, [path])
    assert written(tmp_path) == {"test_it"}
    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "_rewrite_test", None)
        with pytest.raises(RuntimeError, match=naming("executed")):
            imported(hook, path)
    path.write_text(SOURCE.partition("\n\n\nraise")[0])
    with pytest.raises(AssertionError, match=naming("assert 2 == 1")):
        imported(hook, path).check(2)


@pytest.mark.parametrize(
    ("args", "environment", "shares"),
    [
        (["tests"], {"PYTEST_XDIST_WORKER": "gw0", "PYTEST_XDIST_WORKER_COUNT": "3"}, slice(0, None, 3)),
        (["tests"], {"PYTEST_XDIST_WORKER": "gw2", "PYTEST_XDIST_WORKER_COUNT": "3"}, slice(2, None, 3)),
        (["tests/test_once.py"], {"PYTEST_XDIST_WORKER": "gw0", "PYTEST_XDIST_WORKER_COUNT": "3"}, slice(0)),
        (["tests"], {}, slice(0)),
    ],
    ids=["first", "last", "one file", "no workers"],
)
def test_workers_for_all_tests_compile_a_share_each(hook, args, environment, shares, request, monkeypatch):
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(request.config, "args", args)
    compiled = []
    monkeypatch.setattr(hook, "exec_module", lambda module: compiled.append(Path(module.__file__)))
    pytest_collection(request.session)
    assert compiled == sorted(TESTS.rglob("test_*.py"))[shares]
