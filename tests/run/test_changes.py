"""What may change between a checkpoint and the run that goes on from it: a table of verdicts."""

import copy
import json
import re

import pytest

from dp_prior.config import ConfigError
from dp_prior.run.changes import KINDS, check_changes, kind_of
from dp_prior.run.config import TrainConfig
from tests.tiny import tiny

REFUSED = {
    "seed=1": "seed: 0 in the checkpoint, 1 now",
    "task.horizon=8": "task.horizon: 4 in the checkpoint, 8 now",
    "task.n_obs_steps=1": "task.n_obs_steps: 2 in the checkpoint, 1 now",
    "task.backbone.hidden_dim=8": "task.backbone.hidden_dim: 16 in the checkpoint, 8 now",
    "task.diffusion.schedule.steps=20": "task.diffusion.schedule.steps: 10 in the checkpoint, 20 now",
    'task.normalizer.goal={"type": "gaussian"}': "task.normalizer.goal",
    "data.obs.goal.key=other": "data.obs.goal.key: 'state' in the checkpoint, 'other' now",
    "data.split.seed=4": "data.split.seed: 0 in the checkpoint, 4 now",
    "data.mask_padding=false": "data.mask_padding: True in the checkpoint, False now",
    "train.ema.slow.decay=0.5": "train.ema.slow.decay: 0.9 in the checkpoint, 0.5 now",
}
SCHEDULE = {
    "train.steps=48": "train.steps: 24 in the checkpoint, 48 now",
    "train.lr.peak=0.5": "train.lr.peak: 0.001 in the checkpoint, 0.5 now",
    "train.precision=bf16": "train.precision: 'fp32' in the checkpoint, 'bf16' now",
    "task.n_action_steps=1": "task.n_action_steps: 2 in the checkpoint, 1 now",
}
HARMLESS = {
    "train.accumulation=2": "train.accumulation: 1 in the checkpoint, 2 now",
    "train.log_every.steps=9": "train.log_every.steps: 2 in the checkpoint, 9 now",
    "train.rollback=1": "train.rollback: 0 in the checkpoint, 1 now",
    "train.divergence=stop": "train.divergence: 'warn' in the checkpoint, 'stop' now",
    "train.dist_timeout=5m": "train.dist_timeout: 120.0 in the checkpoint, 300.0 now",
    "train.max_runtime=47h": "train.max_runtime: None in the checkpoint, 169200.0 now",
    "train.requeue=true": "train.requeue: False in the checkpoint, True now",
    "train.init_from=other": "train.init_from: None in the checkpoint, 'other' now",
    "task.sampler.steps=4": "task.sampler.steps: 2 in the checkpoint, 4 now",
    "data.batch_size=4": "data.batch_size: 8 in the checkpoint, 4 now",
    "data.episodes.path=moved.npz": "data.episodes.path",
    "checkpoints.keep_latest=5": "checkpoints.keep_latest: 2 in the checkpoint, 5 now",
    "tracker.data_path=moved": "tracker.data_path",
    'evaluate=[{"type": "loss", "every": {"steps": 3}}]': "evaluate: [",
}


@pytest.fixture
def documents(tmp_path):
    def build(*overrides):
        config = TrainConfig.from_json(json.dumps(tiny(tmp_path)), overrides)
        return {
            "config.json": json.loads(config.model_dump_json()),
            "data.json": {"fingerprint": "a" * 64},
            "progress.json": {"global_batch_size": 8},
        }

    return build


def test_nothing_changed_says_nothing(documents):
    assert check_changes(documents(), documents("description=better"), 8) == []


@pytest.mark.promise("B5")
@pytest.mark.parametrize("override", REFUSED)
def test_what_the_tensors_and_the_clock_mean_may_not_change(override, documents):
    with pytest.raises(ConfigError) as caught:
        check_changes(documents(), documents(override), 8)
    assert REFUSED[override] in str(caught.value)
    assert "put these settings back, train in another directory" in caught.value.problems[-1]
    (part,) = re.findall("--allow-change ([^ ]+)", caught.value.problems[-1])
    told = check_changes(documents(), documents(override), 8, allowed=[part])
    assert told and all(line.endswith(("now (architecture), allowed", "now (data), allowed")) for line in told)


@pytest.mark.promise("B5")
@pytest.mark.parametrize("override", [*SCHEDULE, *HARMLESS])
def test_everything_else_may_change_and_is_told(override, documents):
    (line,) = check_changes(documents(), documents(override), 8)
    assert {**SCHEDULE, **HARMLESS}[override] in line
    assert line.endswith(" now (schedule-changing)" if override in SCHEDULE else " now (harmless)")


def test_rows_of_embeddings_in_other_parts_are_other_data(documents):
    before, now = documents(), documents()
    before["data.json"]["rows"], now["data.json"]["rows"] = {"train": 8, "val": 2}, {"train": 7, "val": 3}
    with pytest.raises(ConfigError, match="data.split: {'train': 8, 'val': 2} rows in the checkpoint, {'train': 7, "):
        check_changes(before, now, 8)
    assert check_changes(before, now, 8, allowed=["data.split"])[0].endswith("into other parts (data), allowed")
    now["data.json"]["fingerprint"] = "b" * 64
    assert len(check_changes(before, now, 8, allowed=["data.fingerprint"])) == 1


@pytest.mark.parametrize("key", ["image.path", "image.metadata", "text.path", "text_encodings.path"])
def test_embeddings_may_lie_elsewhere(key):
    assert kind_of(f"data.{key}") == "harmless" and kind_of("data.image.format") == "data"


@pytest.mark.promise("B5")
@pytest.mark.parametrize(
    "allowed", [["task.horizon", "data"], ["task", "data.split", "data.fingerprint"], ["task", "data", "seed"]]
)
def test_a_change_is_allowed_by_its_name_or_that_of_what_holds_it(documents, allowed):
    other = documents("task.horizon=8", "data.split.seed=4")
    other["data.json"] = {"fingerprint": "b" * 64}
    assert len(check_changes(documents(), other, 8, allowed=allowed)) == 3
    for part in allowed[:2]:
        with pytest.raises(ConfigError, match="the checkpoint is of another run"):
            check_changes(documents(), other, 8, allowed=[name for name in allowed if name != part])


@pytest.mark.promise("B5")
def test_another_version_is_told(documents):
    before = documents()
    before["progress.json"]["versions"] = {"torch": "2.6"}
    assert check_changes(before, documents(), 8, versions={"torch": "2.7"}) == [
        "version of torch: 2.6 in the checkpoint, 2.7 now; the last bits of results may differ (harmless)"
    ]


def test_every_class_names_settings_that_exist():
    """But for `data.*` of other kinds of data, which are looked for in all of them."""
    schema = json.dumps(TrainConfig.model_json_schema())
    assert all(f'"{key.rpartition(".")[2]}"' in schema for key in KINDS if key)


def test_other_data_are_refused_and_another_global_batch_is_told(documents):
    other = documents()
    other["data.json"] = {"fingerprint": "b" * 64}
    expected = "aaaaaaaaaaaa in the checkpoint, bbbbbbbbbbbb now: the data set is another one"
    with pytest.raises(ConfigError, match=expected):
        check_changes(documents(), other, 8)
    told = check_changes(documents(), documents(), 16)
    assert told == ["global batch size: 8 in the checkpoint, 16 now; no sample is skipped (schedule-changing)"]


def test_everything_refused_is_in_one_report(documents):
    with pytest.raises(ConfigError) as caught:
        check_changes(documents(), documents("seed=1", "task.horizon=8", "train.steps=3"), 8)
    assert len(caught.value.problems) == 3  # two settings and the advice


def test_setting_of_an_older_version_is_told_not_tripped_over(documents):
    """A checkpoint may know settings that are gone, and lack ones that have come."""
    old, now = documents(), documents()
    old["config.json"] = copy.deepcopy(old["config.json"])
    old["config.json"]["train"]["gone"] = 1
    del old["config.json"]["train"]["nonfinite_limit"]
    told = check_changes(old, now, 8)
    assert [line.partition(":")[0] for line in told] == ["train.gone", "train.nonfinite_limit"]
