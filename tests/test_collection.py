"""Every worker imports every file of tests, so what is heavy is imported in the tests that use it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.faults import assert_none

HERE = Path(__file__).parent
# Each takes a worker 0.1 s or more.
HEAVY = (
    "datasets", "diffusers", "matplotlib", "mujoco", "onnxruntime", "pandas", "scipy", "sklearn", "torchvision",
    "transformers", "wandb", "zarr",
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
    found = [
        (path.relative_to(HERE), line, name)
        for path in sorted(HERE.rglob("*.py"))
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) > 2000
    assert_none(
        f"{path}:{line}: imports {name} for every worker: import it in the tests that use it"
        for path, line, name in found
        if name.partition(".")[0] in HEAVY
    )
