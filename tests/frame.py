"""Counts the frame of the package: what the main job loads, and how dense and how plain the code is.

    python -m tests.frame

`tests/test_frame.py` holds the numbers that may only fall.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dp_prior"
BESIDE = (ROOT / "dp_prior_client", *sorted((ROOT / "plugins").glob("dp_prior_*")))
"""The packages that the same wheel brings."""

CONFIGURATION = "configs/policy/pusht_state.json"
EMPTY_NAMES = {
    *("found", "one", "each", "own", "told", "seen", "given", "kept", "known", "others", "wanted", "named", "what"),
    *("most", "more", "shown", "theirs", "ours", "said", "left"),
}
"""Names of variables and arguments that do not say what they hold."""

SHORT_FILE = 30
"""A file of fewer code lines is short."""

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SMALL_JOB = (  # the main job on a budget of a few steps, with all that ./demo evaluates, films and reports
    *("train.samples=512", "data.global_batch_size=64", "evaluate.1.n_samples=16"),
    *(f"{evaluator}.{setting}" for evaluator in ("evaluate.2", "test.0") for setting in ("n_episodes=2", "videos=1")),
    *("evaluate.2.env.max_steps=8", "test.0.env.max_steps=8"),
)
_PROGRAM = """
import atexit, json, runpy, sys

def write_modules():
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    with open(target, "w") as file:
        json.dump({name: path for name, path in files.items() if path and name.startswith("dp_prior")}, file)

target = sys.argv.pop(1)
atexit.register(write_modules)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Every part of a file's syntax, the module first."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@functools.cache
def code_lines(path: Path) -> int:
    """Lines with code: without blank lines, comments and docstrings."""
    rows = enumerate(map(str.strip, path.read_text(encoding="utf-8").splitlines()), start=1)
    lines = {number for number, row in rows if row and not row.startswith("#")}
    texts = [node for node in nodes_of(path) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    for node in texts:
        if node.end_lineno > node.lineno:  # a text of several lines, some of which may look like comments
            lines.update(range(node.lineno, node.end_lineno + 1))
    for node in nodes_of(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def loaded(program: Path, *arguments: str, folder: Path) -> dict[str, Path]:
    """The modules of dp_prior and the packages beside it that a program has imported at its end, in its own process.

    Args:
        folder: an existing folder for the list.
    """
    target = folder / "modules.json"
    subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(target), str(program), *arguments],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    return {name: Path(path) for name, path in json.loads(target.read_text()).items()}


def loaded_by_main_job(folder: Path) -> dict[str, Path]:
    """The modules that `./demo` loads, on a budget of a few steps."""
    settings = [f"tracker.data_path={folder / 'run'}", *_SMALL_JOB]
    options = [word for setting in settings for word in ("--set", setting)]
    return loaded(ROOT / "train_policy.py", "--config_file", CONFIGURATION, *options, folder=folder)


def loaded_by_reading(folder: Path) -> dict[str, Path]:
    """The modules that reading the configuration of `./demo` loads."""
    program = folder / "read.py"
    program.write_text(
        f"from dp_prior.run.config import TrainConfig\nTrainConfig.from_json_path({str(ROOT / CONFIGURATION)!r})\n"
    )
    return loaded(program, folder=folder)


def lines_of(paths: Iterable[Path]) -> int:
    return sum(map(code_lines, paths))


@functools.cache
def files() -> list[Path]:
    """Every file of dp_prior and of the packages beside it."""
    return [path for folder in (PACKAGE, *BESIDE) for path in sorted(folder.rglob("*.py"))]


def names() -> Counter[str]:
    """How often each name of a variable or an argument is bound in the package."""
    counts: Counter[str] = Counter()
    for path in files():
        for node in nodes_of(path):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] += 1
            elif isinstance(node, ast.arg):
                counts[node.arg] += 1
    return counts


def share_of_empty_names() -> float:
    """Share of the bound names that are empty, in per cent."""
    counts = names()
    return 100 * sum(counts[name] for name in EMPTY_NAMES) / counts.total()


def nested_comprehensions() -> int:
    """Comprehensions with several loops or with another comprehension inside."""
    count = 0
    for path in files():
        for node in nodes_of(path):
            if isinstance(node, _COMPREHENSIONS):
                inner = [part for part in ast.walk(node) if isinstance(part, _COMPREHENSIONS)]
                count += len(node.generators) > 1 or len(inner) > 1
    return count


def settings() -> int:
    """Fields of all records that a configuration can hold, types not counted."""
    from dp_prior.config.schema import records
    from dp_prior.run.config import TrainConfig

    return sum(name != "type" for record in records(TrainConfig) for name in record.model_fields)


def commands() -> int:
    """Commands that `dp-prior --help` shows."""
    from click import Context

    from dp_prior.cli import main

    context = Context(main)
    shown = [main.get_command(context, name) for name in main.list_commands(context)]
    return sum(not command.hidden for command in shown)


def room(path: Path) -> str:
    """The folder of dp_prior, or the package beside it, that a file belongs to."""
    inside = path.relative_to(ROOT).parts
    return inside[1] if inside[0] in ("dp_prior", "plugins") else inside[0]


def names_at_the_top() -> list[str]:
    """Folders and modules of dp_prior."""
    names = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}
    return sorted(names - {"__init__.py", "__main__.py"})


def main() -> None:
    paths = files()
    core = [path for path in paths if path.is_relative_to(PACKAGE)]
    total = lines_of(paths)
    with tempfile.TemporaryDirectory() as folder:
        reading, job = loaded_by_reading(Path(folder)), loaded_by_main_job(Path(folder))
    print(f"dp_prior           {len(core):5} modules {lines_of(core):7,} code lines")
    print(f"with plug-ins      {len(paths):5} modules {total:7,} code lines")
    trainer = [path for path in job.values() if path.is_relative_to(PACKAGE)]
    print(f"main job           {len(job):5} modules {lines_of(job.values()):7,} code lines")
    print(f"  of dp_prior      {len(trainer):5} modules {lines_of(trainer):7,} code lines")
    print(f"reading its file   {len(reading):5} modules {lines_of(reading.values()):7,} code lines")
    lines: Counter[str] = Counter()
    loaded_lines: Counter[str] = Counter()
    for path in paths:
        lines[room(path)] += code_lines(path)
    for path in job.values():
        loaded_lines[room(path)] += code_lines(path)
    print("code lines by folder, and those that the main job loads:")
    for name, count in lines.most_common():
        print(f"  {name:18} {count:7,} {loaded_lines[name]:7,}")
    print(f"names at the top   {len(names_at_the_top()):5}")
    print(f"empty names        {share_of_empty_names():5.1f} % of variables and arguments")
    print(f"nested             {1000 * nested_comprehensions() / total:5.1f} comprehensions in 1,000 lines")
    print(f"short files        {sum(code_lines(path) < SHORT_FILE for path in paths):5} below {SHORT_FILE} code lines")
    print(f"commands           {commands():5}")
    print(f"settings           {settings():5}")


if __name__ == "__main__":
    main()
