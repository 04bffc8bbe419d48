"""A backbone from an installed package: trained from JSON, resumed and loaded, without an edit of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extension.installed import assert_unknown, examples, installed, lay_out, lines_of
from tests.messages import told
from tests.tiny import train, write

ROOT = Path(__file__).parent.parent.parent
PACKAGE = examples()["my_backbone"]
ENTRY_POINTS = {"backbones.gru": "outside_gru:GRUConfig"}
BACKBONE = {"type": "gru", "width": 8}


def test_backbone_of_35_lines_trains_resumes_and_loads(tmp_path):
    """PACKAGE and one entry point are all there is: no file of ours knows the name."""
    assert lines_of(PACKAGE) <= 35
    assert_unknown("gru")
    with installed(tmp_path, "outside_gru", PACKAGE, ENTRY_POINTS) as tiny:
        from dp_prior import load_policy

        for steps in (4, 8):
            done = tiny.train(tiny.write(tmp_path, train__steps=steps, task__backbone=BACKBONE))
            assert done.exit_code == 0, done.output
        assert "step_00000004" in done.output, "the second start goes on from the first"
        assert tiny.rows(tmp_path / "run")[-1]["step"] == 8
        assert type(load_policy(tmp_path / "run").backbone).__module__ == "outside_gru"
        stored = json.loads((tmp_path / "run" / "config.json").read_text())
        assert stored["$parts"] == {"gru": "outside_gru 1.0, module outside_gru"}
    done = train(tmp_path / "config.json")
    assert done.exit_code == 64 and told(done.output, "task.backbone.type", "'gru'")


@pytest.mark.slow
def test_backbone_of_another_package_in_processes_of_their_own(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    lay_out(packages, "outside_gru", PACKAGE, ENTRY_POINTS)
    config = write(tmp_path, train__steps=4, task__backbone=BACKBONE)
    done = call(tmp_path, str(ROOT / "train_policy.py"), "--config_file", str(config), packages=packages)
    assert done.returncode == 0, done.stdout + done.stderr
    program = "from dp_prior import load_policy; print(type(load_policy('run').backbone).__module__)"
    assert call(tmp_path, "-c", program, packages=packages).stdout == "outside_gru\n"
    done = call(tmp_path, str(ROOT / "train_policy.py"), "--config_file", str(config), packages=None)
    assert done.returncode == 64 and told(done.stdout + done.stderr, "task.backbone.type", "'gru'")


def call(place: Path, *arguments: str, packages: Path | None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(part) for part in (ROOT, packages) if part is not None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
