"""The distribution of the plug-in: LeRobot finds it by its name, and its modules keep to what is installed with it."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

import dp_prior
from tests.faults import assert_none
from tests.plugins.standin import NAME, ROOT

FILES = sorted((ROOT / "src" / NAME).glob("*.py"))
AT_THE_TOP = {"lerobot", "draccus", "numpy", "torch", NAME, "dp_prior_client"}
IN_A_FUNCTION = {"huggingface_hub", "dp_prior.inference", "dp_prior_robot"}
"""A robot whose policy another machine runs has LeRobot, and of dp_prior what needs numpy alone."""


def imports(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {id(inner) for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))
            for inner in ast.walk(node)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from ((name, node.lineno, id(node) in late) for name in names)


def test_modules_import_what_every_robot_has_and_the_rest_when_it_is_used():
    faults = []
    for path in FILES:
        for name, line, is_late in imports(path):
            parts = name.split(".")
            part = ".".join(parts[:2]) if parts[0] == "dp_prior" else parts[0]
            if part not in {*sys.stdlib_module_names, *AT_THE_TOP, *(IN_A_FUNCTION if is_late else ())}:
                faults.append(f"{path.name}:{line} imports {name}")
    assert FILES
    assert_none(faults)


def test_the_name_keeps_its_underscores_and_the_version_is_that_of_the_trainer():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert told["project"]["name"] == NAME and told["project"]["version"] == dp_prior.__version__
    needed = re.fullmatch(r"setuptools>=(\d+)", told["build-system"]["requires"][0])
    assert int(needed[1]) >= 77, "older ones write the name with hyphens"


def test_both_sides_agree_on_the_folder():
    from dp_prior_robot.export import lerobot_folder

    text = (ROOT / "src" / NAME / "configuration_dp_prior.py").read_text(encoding="utf-8")
    fields = {node.target.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AnnAssign)}
    assert re.search(rf"^LAYOUT = {lerobot_folder.LAYOUT_VERSION}$", text, re.MULTILINE)
    written = {"layout", "keys", "state_names", "state_range", "action_names", "frame_sizes", "fps", "address", "merge"}
    assert written <= fields


def test_both_sides_agree_on_the_numbers_that_a_rollout_passes():
    from dp_prior_robot import lerobot_rollouts

    tree = ast.parse((ROOT / "src" / NAME / "fit.py").read_text(encoding="utf-8"))
    assigned = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(assigned["PASSED"]) == lerobot_rollouts.PASSED


@pytest.mark.slow
def test_the_wheel_has_the_name_that_lerobot_looks_for(tmp_path):
    source = shutil.copytree(ROOT, tmp_path / "source")  # setuptools writes beside its source
    build = ("--no-deps", "--no-build-isolation", "--ignore-requires-python")
    command = (sys.executable, "-m", "pip", "wheel", "-q", *build, "-w", tmp_path, source)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        [metadata] = [name for name in file.namelist() if name.endswith("METADATA")]
        assert f"Name: {NAME}\n" in file.read(metadata).decode()
        assert {f"{NAME}/{path.name}" for path in FILES} <= {*file.namelist()}
