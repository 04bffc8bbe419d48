import json
import sys
import tracemalloc

import numpy as np
import pytest

from dp_prior.data.recorded import trajectories
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.trajectories import Trajectories
from dp_prior.files.entry_points import EntryPoint
from dp_prior_streams import mapped_numbers
from dp_prior_streams.mapped_trajectories import MappedTrajectories
from tests.extras import needs
from tests.messages import told
from tests.plugins.dp_prior_streams.recorded_sets import batches_of, config_of, created, data_config

needs("pyarrow", "lerobot")

SETTINGS = {
    "whole": {},
    "fewer rows": {"split": {"max_rows": 500}},
    "every third row": {"stride": 3},
    "chosen": {"choice": {"leave_out": [0, 7, 8]}},
    "several keys": {
        "obs": {"both": {"key": ["observation.state", "action"]}, "some": {"key": "action", "slice": [1, 3]}},
        "action": {"key": "action", "ahead": 2},
    },
    "weighed": {"weights": {"key": "task_index"}},
    "with the action before": {"previous_action": "before"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_mapped_data_are_those_in_memory(small_set, tmp_path, in_groups, name):
    episodes = {"type": "lerobot", "path": str(small_set)}
    config = data_config(episodes, frame_cache=str(tmp_path), **SETTINGS[name])
    expected, data = created(config), created(config, MappedTrajectories)
    assert data._numbers.plan.group_ends[0] < len(data._numbers.arrays["x"])
    assert {key for key, column in data.train.columns.items() if column.on_disk} == {*config.obs, "x"}
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))
    assert data.fingerprint == expected.fingerprint and data.split_ids == expected.split_ids
    assert data.files == expected.files and data.warnings() == expected.warnings()
    assert data.spec == expected.spec
    assert data.statistics().keys() == expected.statistics().keys()
    for key, statistics in expected.statistics().items():
        mapped = data.statistics()[key]
        for field in ("min", "max", "q01", "q99"):
            assert np.array_equal(getattr(mapped, field), getattr(statistics, field)), (key, field)
        for field in ("mean", "std"):
            np.testing.assert_allclose(getattr(mapped, field), getattr(statistics, field), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["npz", "zarr"])
def test_arrays_of_other_formats_are_mapped_alike(tmp_path, in_groups, kind):
    config = config_of(kind, tmp_path)
    expected, data = created(config), created(config, MappedTrajectories)
    assert batches_of(data, None) == batches_of(expected, None) and data.fingerprint == expected.fingerprint
    assert data.files == expected.files


def test_mirror_images_are_held_in_memory(tmp_path):
    config = config_of("npz", tmp_path, mirror={"state": {"sign": -1}, "action": {"sign": -1}})
    data, expected = created(config, MappedTrajectories), created(config)
    assert not any(column.on_disk for column in data.train.columns.values())
    assert data.fingerprint == expected.fingerprint and data.statistics().keys() == expected.statistics().keys()
    assert data.cache_directories() == expected.cache_directories() and data.summary() == expected.summary()
    [line] = set(data.warnings()) - set(expected.warnings())
    assert told(line, "data.mirror", f"{2 * 4 * 600 * 5:,}", "slice")


def test_only_numbers_above_a_quarter_of_the_memory_are_mapped(tmp_path, monkeypatch):
    point = EntryPoint("mapped", "dp_prior_streams.mapped_trajectories:MappedTrajectories", "dp_prior.data_sets")
    monkeypatch.setattr(trajectories, "entry_points", lambda group, name: [point] * (group == "data_sets"))
    config, n_bytes = config_of("npz", tmp_path), 4 * 600 * 5
    monkeypatch.setattr(trajectories, "memory_bytes", lambda: 4 * n_bytes)
    assert type(created(config)) is Trajectories
    assert type(created(config.beside(2))) is MappedTrajectories
    assert type(created(config)) is Trajectories, "the record itself stays"
    monkeypatch.setattr(trajectories, "memory_bytes", lambda: 4 * n_bytes - 4)
    assert type(created(config)) is MappedTrajectories
    assert told(created(config).summary(), tmp_path / ".dp_prior_frames")
    sets = {name: config.model_dump(mode="json", include={"episodes", "obs", "action"}) for name in "ab"}
    mixture = MixtureConfig.from_json(json.dumps({"type": "mixture", "sets": sets, "device": "cpu"}), source="data")
    assert {type(data) for data in created(mixture).sets.values()} == {Trajectories}
    monkeypatch.setattr(trajectories, "entry_points", lambda group, name: [])
    assert type(created(config)) is Trajectories


@pytest.mark.slow
def test_memory_while_the_numbers_are_read_is_a_part_of_theirs(tmp_path, monkeypatch):
    config = config_of("zarr", tmp_path, rows=120_000, width=100)
    n_bytes = 4 * 120_000 * 102
    monkeypatch.setattr(mapped_numbers, "memory_bytes", lambda: mapped_numbers.GROUP_PARTS * n_bytes // 40)
    tracemalloc.start()
    try:
        created(config, MappedTrajectories)
        mapped_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mapped_peak < 0.7 * n_bytes  # chunks that threads decode at the same time take 0.42 to 0.52


SCRIPT = """
import ctypes, json, sys
from pathlib import Path
from dp_prior.data.recorded.trajectories import Trajectories, TrajectoriesConfig
from dp_prior_streams import mapped_numbers
from dp_prior_streams.mapped_trajectories import MappedTrajectories

mapped_numbers.memory_bytes = lambda: mapped_numbers.GROUP_PARTS * 1_000_000

def anonymous():
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is given back
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("Anonymous:")).split()[1])

data_set = {"mapped": MappedTrajectories, "memory": Trajectories}[sys.argv[2]]
before = 0
for path in sys.argv[3], sys.argv[1]:  # the first makes this process import everything
    before = anonymous()
    config = TrajectoriesConfig.from_json(Path(path).read_text(), source="data")
    data = data_set(config, config.episodes.create(), 8, 2, 4, all_obs=False)
    loader = data.loader(seed=0, batch_size=8, accumulation=1, rank=rank, world_size=world_size)
    batches = loader.from_sample(0)
    total = sum(float(batch.x.sum()) for _ in range(20) for batch in next(batches))
    batches.close()
print(json.dumps([anonymous() - before, total, data.fingerprint]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="NOT CHECKED: reads /proc")
def test_two_ranks_share_one_copy(tmp_path, run_ranks):
    config = config_of("zarr", tmp_path, rows=120_000, width=200)
    n_bytes = 4 * 120_000 * 202
    (tmp_path / "data.json").write_text(config.model_dump_json())
    (tmp_path / "small").mkdir()
    (tmp_path / "small.json").write_text(config_of("zarr", tmp_path / "small").model_dump_json())
    results = {}
    for kind in ("mapped", "memory"):
        outputs = run_ranks(SCRIPT, 2, tmp_path / "data.json", kind, tmp_path / "small.json")
        results[kind] = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert max(taken for taken, *_ in results["mapped"]) < 0.6 * n_bytes
    assert min(taken for taken, *_ in results["memory"]) > 0.9 * n_bytes
    assert [rest for _, *rest in results["mapped"]] == [rest for _, *rest in results["memory"]]
    folders = [path for path in (tmp_path / ".dp_prior_frames").iterdir() if path.is_dir()]
    assert len(folders) == 1
