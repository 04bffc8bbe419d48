"""The three distributions: one version, bounds, and what `scripts/release.sh` checks before an upload."""

import ast
import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import dp_prior
from tests.faults import assert_none
from tests.messages import told

ROOT = Path(__file__).parent.parent
CLIENT, PLUGIN = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in ("dp_prior_client", "plugins/lerobot_policy_dp_prior")
)


def checker():
    spec = importlib.util.spec_from_file_location("checker", ROOT / "scripts/check_distributions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_client_is_the_folder_itself_in_the_version_of_the_trainer():
    project, tool = CLIENT["project"], CLIENT["tool"]["setuptools"]
    assert project["version"] == PLUGIN["project"]["version"] == dp_prior.__version__
    assert tool["package-dir"] == {"dp_prior_client": "."}
    folders = {path.parent for path in (ROOT / "dp_prior_client").rglob("*.py")} - {ROOT / "dp_prior_client/build"}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders if "build" not in folder.parts}
    assert {*tool["packages"]} == packages
    assert (ROOT / "dp_prior_client/py.typed").is_file() and (ROOT / "dp_prior/py.typed").is_file()


def test_what_the_client_imports_it_requires():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "dp_prior_client").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported = {module.partition(".")[0] for module in modules}
    outside = imported - {*sys.stdlib_module_names, "dp_prior_client"}
    extras = CLIENT["project"]["optional-dependencies"]
    lines = [*CLIENT["project"]["dependencies"], *(line for extra in extras.values() for line in extra)]
    required = {re.match(r"[\w-]+", line)[0] for line in lines}
    assert outside == required


def test_the_plugin_stays_below_the_lerobot_that_changes_what_it_extends():
    (bound,) = (line for line in PLUGIN["project"]["dependencies"] if line.startswith("lerobot"))
    assert bound == "lerobot>=0.6.1,<0.7"


def write_distribution(folder, name, files, *, requires=(), python=">=3.11", description="What it is.", version="1.0"):
    metadata = [f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    metadata += [f"Requires-Dist: {line}" for line in requires]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join([*metadata, "", description]))
        for path in files:
            wheel.writestr(path, "")
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path in ("PKG-INFO", "README.md"):
            archive.addfile(tarfile.TarInfo(f"{name}-{version}/{path}"), io.BytesIO())


REQUIRED = {
    "dp_prior": ["torch>=2.7"],
    "dp_prior_client": ["numpy", "msgpack>=1", "websockets>=13"],
    "lerobot_policy_dp_prior": ["dp_prior", "lerobot<0.7,>=0.6.1"],
}


OPTIONAL = 'ruckig>=0.12; extra == "ruckig"'
"""A requirement of an extra, which counts for none of the rules."""


def write_all(folder, **changes):
    """Distributions without a fault, but for `changes` of one of them by its name."""
    check = checker()
    for name, files in check.INSIDE.items():
        options = {
            "files": files,
            "requires": [*REQUIRED[name], OPTIONAL],
            "python": check.PYTHONS[name],
            **changes.get(name, {}),
        }
        write_distribution(folder, name, **options)
    return check.faults_of(folder)


def test_distributions_as_they_have_to_be_pass(tmp_path):
    assert write_all(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("dp_prior", {"files": ["dp_prior/py.typed"]}, ("lacks", "dp_prior/configs/policy/pusht_state.json")),
        ("dp_prior_client", {"requires": ["numpy", "torch"]}, ("torch", "numpy", "msgpack", "websockets")),
        ("dp_prior_client", {"python": ">=3.11"}, (">=3.11", ">=3.8")),
        ("lerobot_policy_dp_prior", {"requires": ["lerobot>=0.6.1"]}, ("lerobot>=0.6.1", "bound")),
        ("lerobot_policy_dp_prior", {"version": "2.0"}, ("1.0", "2.0")),
        ("dp_prior", {"description": ""}, ("dp_prior", "no description")),
    ],
)
def test_a_distribution_with_a_fault_is_named(name, change, fault, tmp_path):
    faults = write_all(tmp_path, **{name: change})
    assert any(told(line, *fault) for line in faults), faults


def test_a_missing_archive_and_files_of_tests_are_told(tmp_path):
    assert write_all(tmp_path) == []
    next(tmp_path.glob("dp_prior-*.tar.gz")).unlink()
    with zipfile.ZipFile(next(tmp_path.glob("dp_prior_client-*.whl")), "a") as wheel:
        wheel.writestr("tests/test_a.py", "")
    faults = checker().faults_of(tmp_path)
    assert len(faults) == 2 and told(faults[0], "dp_prior", 0) and told(faults[1], "tests/test_a.py")


@pytest.mark.slow
def test_the_wheels_of_this_tree_have_their_files(tmp_path):
    source = tmp_path / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("NOT CHECKED: this is no clone")
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("tests/", "docs/", "demonstrations/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(ROOT / name, source / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--ignore-requires-python",
    ]
    check = checker()
    for folder in (".", "dp_prior_client", "plugins/lerobot_policy_dp_prior"):
        done = subprocess.run([*build, "-w", tmp_path, source / folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for name in check.INSIDE:
        with tarfile.open(tmp_path / f"{name}-1.tar.gz", "w:gz") as archive:
            for path in ("PKG-INFO", "README.md"):
                archive.addfile(tarfile.TarInfo(f"{name}-1/{path}"), io.BytesIO())
    assert_none(check.faults_of(tmp_path))
