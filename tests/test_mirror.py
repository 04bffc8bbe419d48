"""Every module has its tests where a reader looks for them: those of `a/b.py` in `a/test_b.py`."""

from pathlib import Path

from tests.faults import assert_none

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "dp_prior"


def test_a_module_has_a_test_file_at_its_own_path():
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE)
        mirror = TESTS / module.with_name(f"test_{module.name}")
        if path.stem not in ("__init__", "__main__") and not mirror.is_file():  # these two offer and start others
            faults.append(f"{module}: write {mirror.relative_to(TESTS.parent)}")
    assert_none(faults)
