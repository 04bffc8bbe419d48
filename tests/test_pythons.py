"""The wheel trains, evaluates and acts under every supported Python that this machine has, without the checkout."""

import functools
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tiny import write

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def interpreter(version: str) -> str | None:
    """A Python of this version: this one, one on PATH, or one of pyenv."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (sys.executable, f"python{version}", *map(str, pyenv)):
        told = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run([candidate, "-c", told], capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if done.stdout.strip() == version:
            return candidate
    return None


@functools.cache
def torch_requirement() -> str:
    """The tested version of torch; on Linux its CPU build, which brings no gigabytes of CUDA."""
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    return f"torch=={pinned}+cpu" if platform.system() == "Linux" else f"torch=={pinned}"


def run(*command: str | Path, timeout: float = 240, **given) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    given = {"capture_output": True, "text": True, "env": clean | {"OMP_NUM_THREADS": "1"}, **given}
    return subprocess.run([str(part) for part in command], timeout=timeout, **given)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, ROOT)
    assert done.returncode == 0, done.stderr
    return next(place.glob("dp_prior-*.whl"))


def oldest(wheel: Path) -> list[str]:
    """The lowest version of each package that the wheel requires, but for torch: few of its versions are to be had."""
    with zipfile.ZipFile(wheel) as archive:
        told = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    bounds = re.findall(r"^Requires-Dist: ([\w-]+)>=([\d.]+)$", told, re.MULTILINE)
    assert len(bounds) > 10 and ("torch" in dict(bounds))
    return [f"{package}=={version}" for package, version in bounds if package != "torch"]


def small_job(version: str, wheel: Path, place: Path, *requirements: str | Path) -> None:
    """Install the wheel with pip's `requirements` in a new environment; train, evaluate and load a policy there."""
    if (found := interpreter(version)) is None:
        pytest.skip(f"NOT CHECKED: there is no Python {version} on this machine")
    assert run(found, "-m", "venv", place / "venv").returncode == 0
    python = place / "venv/bin/python"
    pip = (python, "-m", "pip", "-q", "--disable-pip-version-check", "--retries", "1")
    source = ("--extra-index-url", CPU_BUILDS)
    fetched = run(*pip, "download", "--no-deps", "-d", place / "torch", *source, torch_requirement())
    if fetched.returncode:
        pytest.skip(f"NOT CHECKED: pip finds no {torch_requirement()} for Python {version}, also at {CPU_BUILDS}")
    sources = ("--find-links", place / "torch", *requirements)
    installed = run(*pip, "install", *sources, torch_requirement(), wheel, timeout=600)
    assert installed.returncode == 0, installed.stderr
    config = write(place, train__steps=4)
    command = place / "venv/bin/dp-prior"
    for arguments in (("train", "--config_file", config), ("evaluate", place / "run"), ("schema",)):
        done = run(command, *arguments, cwd=place)
        assert done.returncode == 0, done.stdout + done.stderr
    acts = "import sys, dp_prior; print(dp_prior.__file__, type(dp_prior.load_policy(sys.argv[1])).__name__)"
    done = run(python, "-c", acts, place / "run", cwd=place)
    assert done.returncode == 0 and "site-packages" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.pythons
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_runs_a_small_job(version, wheel, tmp_path):
    small_job(version, wheel, tmp_path, "-c", ROOT / "constraints.txt")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.pythons
@pytest.mark.timeout(900)
def test_the_wheel_runs_a_small_job_with_the_oldest_versions_that_it_allows(wheel, tmp_path):
    small_job(VERSIONS[0], wheel, tmp_path, *oldest(wheel))
