"""A backbone from an installed package: trained from JSON, resumed and loaded, without an edit of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny

ROOT = Path(__file__).parent.parent.parent
PACKAGE = '''\
from typing import Literal

import torch
from torch import nn

from dp_prior.networks.backbones.record import BackboneRecord
from dp_prior.networks.dropout import Dropout


class GRUConfig(BackboneRecord):
    """A recurrent network over the chunk, started from timestep and observations."""

    type: Literal["gru"] = "gru"

    width: int = 16
    """Features."""

    def create(self, x_shape, cond_shape, output_channels_factor=1, input_channels_factor=1):
        channels, cond_dim = x_shape[-1], cond_shape[0] * cond_shape[1]
        return GRU(channels * input_channels_factor, channels * output_channels_factor, cond_dim, self.width)


class GRU(nn.Module):
    def __init__(self, in_channels, out_channels, cond_dim, width):
        super().__init__()
        self.start, self.dropout = nn.Linear(1 + cond_dim, width), Dropout(0.1)
        self.cells, self.head = nn.GRU(in_channels, width, batch_first=True), nn.Linear(width, out_channels)

    def forward(self, x_t, t, cond):
        start = torch.cat([t[:, None].to(x_t), cond.flatten(1)], dim=1)
        return self.head(self.dropout(self.cells(x_t, self.start(start)[None])[0]))
'''
ENTRY_POINTS = "[dp_prior.backbones]\ngru = outside_gru:GRUConfig\n"


def install(place: Path) -> None:
    """Lay the package out as an installer would."""
    (place / "outside_gru.py").write_text(PACKAGE)
    metadata = place / "outside_gru-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-gru\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)


def call(place: Path, *arguments: str, packages: Path | None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(part) for part in (ROOT, packages) if part is not None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
def test_backbone_of_30_lines_trains_resumes_and_loads(tmp_path):
    """PACKAGE and one entry point are all there is: no file of ours knows the name."""
    assert len([line for line in PACKAGE.splitlines() if line.strip()]) <= 30
    assert not [path for path in (ROOT / "dp_prior").rglob("*.py") if '"gru"' in path.read_text(encoding="utf-8")]
    packages = tmp_path / "site-packages"
    packages.mkdir()
    install(packages)
    for steps in (4, 8):
        config = tiny(tmp_path, train__steps=steps, task__backbone={"type": "gru", "width": 8})
        (tmp_path / "config.json").write_text(json.dumps(config))
        done = call(tmp_path, str(ROOT / "train_policy.py"), "--config_file", "config.json", packages=packages)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "step_00000004" in done.stdout, "the second start goes on from the first"
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in losses) == 8

    program = "from dp_prior import load_policy; print(type(load_policy('run').backbone).__module__)"
    done = call(tmp_path, "-c", program, packages=packages)
    assert done.stdout == "outside_gru\n", done.stderr

    done = call(tmp_path, str(ROOT / "train_policy.py"), "--config_file", "config.json", packages=None)
    assert done.returncode != 0 and "task.backbone.type: 'gru' is not known" in done.stdout + done.stderr
