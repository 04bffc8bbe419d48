"""An extra joins by its line in the table alone: columns, spec, order, fingerprint and warnings are asked for."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.recorded import trajectories
from dp_prior.data.recorded.extra import Extra
from dp_prior.data.samples.weighted_order import Share
from tests import forks
from tests.data.recorded.trajectories import configure, fetch_all


@dataclass(frozen=True)
class RowNumbers(Extra):
    """The number of each row as an observation, and twice this number as an array in memory."""

    record: Path

    @classmethod
    def open(cls, record, opened):
        numbers = np.arange(opened.chosen.ends[-1], dtype=np.float32)[:, None]
        return cls(record, keys=["gripper"]), replace(opened, arrays={**opened.arrays, "twice": 2 * numbers})

    def spec(self, opened, steps):
        return {"cond_shapes": {"number": (steps, 1), "twice": (steps, 1)}, "names": {"number": ("row",)}}

    def columns(self, rows):
        return {"number": MemoryColumn(torch.from_numpy(rows)[:, None].float())}

    def digest(self):
        return b"numbers"

    def cached_digest(self):
        return str(self.record).encode()

    def training_spec(self, rows):
        return {"instructions": {"number": (f"{len(rows)} rows",)}}

    def has_loss(self, rows):
        return rows % 2 == 0

    def shares(self, newest, count, successes):
        return [Share(np.flatnonzero(newest == newest[0]), count)]

    def summary(self, windows, shares):
        return [f"{windows} windows, {len(shares)} share"]

    def mixture_warnings(self):
        return ["perhaps"]

    def warnings(self):
        return ["surely"]


@pytest.fixture
def extra(monkeypatch):
    monkeypatch.setitem(trajectories.EXTRAS, "frame_cache", f"{__name__}:RowNumbers")


def test_a_data_set_asks_an_extra_everything_and_knows_none_by_name(extra, path):
    data = configure(path, frame_cache="/nowhere").create(8, 2, 4)
    assert data.spec.cond_shapes["number"] == data.spec.cond_shapes["twice"] == (2, 1)
    assert list(data.spec.cond_shapes) == ["agent", "points", "gripper", "number", "twice"]
    assert data.spec.names == {"number": ("row",)} and data.spec.instructions["number"][0].endswith(" rows")
    for samples, is_masked in ((data.train, True), (data.val, False)):
        batch = fetch_all(samples)
        assert torch.equal(2 * batch.cond["number"], batch.cond["twice"])
        is_odd = batch.cond["number"][..., 0] % 2 == 1
        assert batch.mask[:, :2][~is_odd].any() and batch.mask[:, :2][is_odd].any() != is_masked
    assert [share.count for share in data.shares] == [len(data.train)] and len(data.shares[0].ids) < len(data.train)
    assert data.summary().endswith(f"{len(data.train)} windows, 1 share")
    assert data.mixture_warnings() == ["perhaps"] and data.warnings()[-2:] == ["perhaps", "surely"]
    same, other = (configure(path, frame_cache=cache).create(8, 2, 4) for cache in ("/nowhere", "/elsewhere"))
    assert same.fingerprint == data.fingerprint != other.fingerprint


def test_without_extras_a_data_set_has_the_defaults(path):
    data = configure(path).create(8, 2, 4)
    assert [*configure(path).extras()] == [] and data.mixture_warnings() == [] and data.images == {}
    assert (data.shares, data.follows, data.has_embeddings) == (None, {}, False)


OPENS = """
import json, sys
from dp_prior.data.recorded.trajectories import EXTRAS, TrajectoriesConfig
config = TrajectoriesConfig.from_json(sys.argv[1])
config.create(8, 2, 4)
modules = {place.partition(":")[0] for place in EXTRAS.values()}
print(json.dumps(sorted(name.rpartition(".")[2] for name in modules & sys.modules.keys())))
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"previous_action": "before"}, ["previous"]),
        ({"weights": {"episodes": {"0": 2.0}}}, ["weights"]),
        ({"mirror": {"agent": {}, "action": {}}, "obs": {"agent": {"key": "state"}}}, ["mirror"]),
    ],
    ids=["none", "previous action", "weights", "mirror"],
)
def test_only_the_extras_of_the_configuration_are_imported(path, changes, expected):
    output = forks.call(["-c", OPENS, configure(path, **changes).to_json()])
    assert output.returncode == 0, output.stderr
    assert output.stdout.strip() == str(expected).replace("'", '"')
