"""Every module has its tests where a reader looks for them: those of `a/b.py` in `a/test_b.py`."""

from pathlib import Path

from tests.faults import assert_none

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "dp_prior"
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "__main__")  # what a folder offers, and a line that starts it
)
UNMIRRORED = [
    "commands/push.py",
    "commands/stored.py",
]
"""Modules whose tests stand in another file. The list only shrinks: a new module comes with a file of its own."""


def mirror(module: str) -> Path:
    """The file with the tests of a module."""
    path = TESTS / module
    return path.with_name(f"test_{path.name}")


def test_a_module_has_a_test_file_at_its_own_path():
    missing = [module for module in MODULES if not mirror(module).is_file() and module not in UNMIRRORED]
    assert_none(f"{module}: write {mirror(module).relative_to(TESTS.parent)}" for module in missing)


def test_a_module_that_is_excused_is_there_and_has_no_test_file():
    reasons = {module: "is gone" for module in UNMIRRORED if module not in MODULES}
    reasons |= {module: "has a test file" for module in UNMIRRORED if mirror(module).is_file()}
    assert_none(f"{module} {reason}; take it out of UNMIRRORED" for module, reason in reasons.items())


def test_excuses_are_in_order_and_given_once():
    assert sorted(set(UNMIRRORED)) == UNMIRRORED
