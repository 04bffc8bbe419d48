"""Every worker imports every file of tests, so what is heavy is imported in the tests that use it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.collected import PACKAGES
from tests.faults import assert_none

HERE = Path(__file__).parent
# Each takes a worker 0.1 s or more.
HEAVY = (
    "datasets", "diffusers", "lance", "matplotlib", "mujoco", "onnxruntime", "pandas", "scipy", "sklearn",
    "torchvision", "transformers", "wandb", "zarr",
)  # fmt: skip


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each package that importing a file of tests imports."""
    for statement in tree.body:
        match statement:
            case ast.Import(names=names):
                yield from ((statement.lineno, name.name) for name in names)
            case ast.ImportFrom(module=str(name)):
                yield statement.lineno, name
            case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
                match call:
                    case ast.Call(func=ast.Attribute(attr="importorskip"), args=[ast.Constant(value=str(name)), *_]):
                        yield statement.lineno, name


def test_no_file_of_tests_imports_what_is_heavy():
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(HERE.rglob("*.py"))}
    found = [
        (path.relative_to(HERE), line, name)
        for path, source in sources.items()
        if any(package in source for package in HEAVY)
        for line, name in imported(ast.parse(source))
    ]
    assert len(found) > 1000
    assert_none(
        f"{path}:{line}: imports {name} for every worker: import it in the tests that use it"
        for path, line, name in found
        if name.partition(".")[0] in HEAVY
    )


def test_nothing_that_is_heavy_was_imported_by_what_tests_import(pytestconfig):
    """Where the whole suite runs, of all tests; of one file, of its imports alone."""
    packages = pytestconfig.stash[PACKAGES]
    assert "torch" in packages
    assert_none(
        f"{name} was imported with the files of tests: `python -X importtime` shows by which import of this project"
        for name in HEAVY
        if name in packages
    )


def test_the_controller_of_workers_imports_no_torch():
    """Every worker waits for the controller, which runs no test."""
    program = "import importlib, sys; from tests.conftest import pytest_plugins as names"
    program += (
        "; [importlib.import_module(name) for name in names]; print(*sorted({'numpy', 'torch'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=HERE.parent)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
