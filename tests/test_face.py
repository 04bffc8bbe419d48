"""The package as a library: its public names, what importing them loads, and what a wheel carries."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dp_prior
from tests.messages import naming
from tests.tiny import write

ROOT = Path(__file__).parent.parent


def run(*command, cwd=ROOT, path=ROOT):
    environment = os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)


def test_tab_shows_the_public_names_and_each_is_what_its_module_has():
    assert dir(dp_prior) == sorted(dp_prior.__all__)
    names = {*dp_prior.__all__} - {"__version__"}
    assert all(getattr(dp_prior, name).__name__ == name for name in names)
    tree = ast.parse(Path(dp_prior.__file__).read_text(encoding="utf-8"))
    shown = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in shown.body for alias in node.names}
    assert homes == dp_prior._HOMES and homes.keys() == names, "type checkers see what is imported"
    with pytest.raises(AttributeError, match=naming("'dp_prior'", "'load_polcy'")):
        _ = dp_prior.load_polcy


def test_a_client_and_errors_load_no_torch():
    program = "import sys; from dp_prior import ConfigError, PolicyClient; sys.exit('torch' in sys.modules)"
    assert run("-c", program).returncode == 0


def test_the_package_is_a_command_too():
    done = run("-m", "dp_prior", "--help")
    assert done.returncode == 0 and "configs" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_built_package_has_types_and_configurations_and_trains_under_a_launcher(tmp_path):
    source, built, place = tmp_path / "source", tmp_path / "built", tmp_path / "place"
    for name in ("dp_prior", "dp_prior_client", "plugins", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    place.mkdir()
    done = run("setup.py", "-q", "build", "--build-lib", str(built), cwd=source, path=source)
    assert done.returncode == 0, done.stderr
    assert (built / "dp_prior/py.typed").exists()
    trees = [
        sorted(path.relative_to(top) for path in (top / "configs").rglob("*")) for top in (ROOT, built / "dp_prior")
    ]
    assert trees[0] == trees[1]
    done = run("-m", "dp_prior", "configs", cwd=place, path=built)
    assert f"pusht_state              {built / 'dp_prior/configs/policy/pusht_state.json'}" in done.stdout, done.stderr
    config = write(place, train__steps=2)
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "-m", "dp_prior", "train")
    done = run(*launch, "--config_file", str(config), cwd=place, path=built)
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = json.loads((place / "run/exit.json").read_text())
    assert manifest["reason"] == "finished"
