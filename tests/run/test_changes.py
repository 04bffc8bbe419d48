"""What may change between a checkpoint and the run that goes on from it: a table of verdicts."""

import copy
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from dp_prior.config import Config, ConfigError, change_of, child, records_in
from dp_prior.config.schema import records
from dp_prior.run.changes import check_changes, kind_of
from dp_prior.run.config import TrainConfig
from tests.messages import naming, told
from tests.tiny import tiny

REFUSED = {
    "seed=1": ("seed", 0, 1),
    "task.horizon=8": ("task.horizon", 4, 8),
    "task.n_obs_steps=1": ("task.n_obs_steps", 2, 1),
    "task.backbone.hidden_dim=8": ("task.backbone.hidden_dim", 16, 8),
    "task.diffusion.schedule.steps=20": ("task.diffusion.schedule.steps", 10, 20),
    'task.normalizer.goal={"type": "gaussian"}': ("task.normalizer.goal.type", "null", '"gaussian"'),
    "data.obs.goal.key=other": ("data.obs.goal.key", '"state"', '"other"'),
    "data.previous_action=before": ("data.previous_action", "null", '"before"'),
    "data.split.seed=4": ("data.split.seed", 0, 4),
    "data.split.max_rows=9": ("data.split.max_rows", "null", 9),
    "data.mask_padding=false": ("data.mask_padding", "true", "false"),
    "train.ema.slow.decay=0.5": ("train.ema.slow.decay", 0.9, 0.5),
}
SCHEDULE = {
    "train.steps=48": ("train.steps", 24, 48),
    "train.lr.peak=0.5": ("train.lr.peak", 0.001, 0.5),
    "train.precision=bf16": ("train.precision", '"fp32"', '"bf16"'),
    "task.n_action_steps=1": ("task.n_action_steps", 2, 1),
}
HARMLESS = {
    "train.accumulation=2": ("train.accumulation", 1, 2),
    "train.shard=model": ("train.shard", "false", '"model"'),
    "train.shard=optimizer": ("train.shard", "false", '"optimizer"'),
    "train.shard_optimizer=true": ("train.shard", "false", '"optimizer"'),
    "train.log_every.steps=9": ("train.log_every.steps", 2, 9),
    "train.rollback=1": ("train.rollback", 0, 1),
    "train.divergence=stop": ("train.divergence", '"warn"', '"stop"'),
    "train.dist_timeout=5m": ("train.dist_timeout", 120.0, 300.0),
    "train.max_runtime=47h": ("train.max_runtime", "null", 169200.0),
    "train.requeue=true": ("train.requeue", "false", "true"),
    "train.init_from=other": ("train.init_from", "null", '"other"'),
    "task.sampler.steps=4": ("task.sampler.steps", 2, 4),
    "data.batch_size=4": ("data.batch_size", 8, 4),
    "data.episodes.path=moved.npz": ("data.episodes.path",),
    "checkpoints.keep_latest=5": ("checkpoints.keep_latest", 2, 5),
    "tracker.data_path=moved": ("tracker.data_path",),
    'evaluate=[{"type": "loss", "every": {"steps": 3}}]': ("evaluate.0.every.steps", 7, 3),
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


def tells(line, name, *values):
    """Whether the line names the setting and its values, that of the checkpoint first."""
    found = ".*?".join(re.escape(str(value)) for value in (name, *values))
    return told(line, name, *values) and re.search(found, line) is not None


def test_nothing_changed_says_nothing(documents):
    assert check_changes(documents(), documents("description=better"), 8) == []


@pytest.mark.promise("B5")
@pytest.mark.parametrize("override", REFUSED)
def test_what_the_tensors_and_the_clock_mean_may_not_change(override, documents):
    with pytest.raises(ConfigError) as caught:
        check_changes(documents(), documents(override), 8)
    *changes, remedy = str(caught.value).splitlines()
    assert any(tells(line, *REFUSED[override]) for line in changes)
    assert told(remedy, "--set tracker.data_path=")
    (part,) = re.findall("--allow-change ([^ ]+)", remedy)
    lines = check_changes(documents(), documents(override), 8, allowed=[part])
    assert lines and all(told(line, "allowed") for line in lines)
    assert all(told(line, "(architecture)") or told(line, "(data)") for line in lines)


@pytest.mark.promise("B5")
@pytest.mark.parametrize("override", [*SCHEDULE, *HARMLESS])
def test_everything_else_may_change_and_is_told(override, documents):
    (line,) = check_changes(documents(), documents(override), 8)
    assert tells(line, *{**SCHEDULE, **HARMLESS}[override])
    assert told(line, "(schedule-changing)" if override in SCHEDULE else "(harmless)")


def test_a_size_that_follows_the_global_batch_is_told_once(tmp_path):
    def documents(size, **given):
        document = tiny(tmp_path)
        document["data"] = {**document["data"], "global_batch_size": size, "batch_size": size, **given}
        config = TrainConfig.from_json(json.dumps(document)).model_dump_json()
        progress = {"global_batch_size": 8}
        return {"config.json": json.loads(config), "data.json": {"fingerprint": "a"}, "progress.json": progress}

    (line,) = check_changes(documents(8), documents(16), 8)
    assert told(line, "data.global_batch_size", 8, 16)
    lines = check_changes(documents(8), documents(16, batch_size=4), 8)
    assert len(lines) == 2 and any(told(line, "data.batch_size", 8, 4) for line in lines)


def test_another_version_of_the_package_of_a_part_is_told(documents):
    before, now = documents(), documents()
    before["config.json"]["$parts"], now["config.json"]["$parts"] = {"gru": "mine 1.0"}, {"gru": "mine 2.0"}
    (line,) = check_changes(before, now, 8)
    assert told(line, "gru", "mine 1.0", "mine 2.0", "(harmless)")


def test_rows_of_embeddings_in_other_parts_are_other_data(documents):
    before, now = documents(), documents()
    before["data.json"]["rows"], now["data.json"]["rows"] = {"train": 8, "val": 2}, {"train": 7, "val": 3}
    with pytest.raises(
        ConfigError, match=naming("data.split", '{"train": 8, "val": 2}', '{"train": 7, "val": 3}', "(data)")
    ):
        check_changes(before, now, 8)
    assert told(check_changes(before, now, 8, allowed=["data.split"])[0], "data.split", "(data)", "allowed")
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
        with pytest.raises(ConfigError, match=naming("--set tracker.data_path=", "--allow-change")):
            check_changes(documents(), other, 8, allowed=[name for name in allowed if name != part])


@pytest.mark.parametrize("key", ["horizon", "task.horizont", "fingerprint", "seed.x"])
def test_a_change_that_is_allowed_is_that_of_a_setting(documents, key):
    with pytest.raises(ConfigError, match=naming("--allow-change", f"'{key}'", "task.horizon")):
        check_changes(documents(), documents(), 8, allowed=["seed", "data.fingerprint", key])
    for known in ("train.ema.slow", "task.encoders", "data.obs.goal.key", "evaluate", "task.backbone.hidden_dim"):
        assert check_changes(documents(), documents(), 8, allowed=[known]) == []


@pytest.mark.promise("B5")
def test_another_version_is_told(documents):
    before = documents()
    before["progress.json"]["versions"] = {"torch": "2.6"}
    (line,) = check_changes(before, documents(), 8, versions={"torch": "2.7"})
    assert tells(line, "torch", 2.6, 2.7) and told(line, "version", "(harmless)")


RECORDED = {  # of the entries that hold a setting the longest counts
    "": "schedule-changing",
    "seed": "data",
    "task": "architecture",
    "task.sampler": "harmless",
    "task.teacher": "harmless",
    "task.n_action_steps": "schedule-changing",
    "data": "data",
    "data.episodes": "harmless",
    "data.image.path": "harmless",
    "data.image.metadata": "harmless",
    "data.text.path": "harmless",
    "data.text_encodings.path": "harmless",
    "data.embeddings.any.folder.path": "harmless",
    "data.embeddings.any.folder.metadata": "harmless",
    "data.embeddings.embedding.folder.path": "harmless",
    "data.embeddings.embedding.folder.metadata": "harmless",
    "data.language.instruction.folder.path": "harmless",
    "data.language.instruction.folder.metadata": "harmless",
    "data.language.instruction.weights": "schedule-changing",
    "data.language.instruction.success_of": "schedule-changing",
    "data.weights": "schedule-changing",
    "data.weight": "schedule-changing",  # this and the next two of a set alone
    "data.fps": "harmless",
    "data.action_names": "harmless",
    "data.weights.mask": "data",
    "data.sets.language.weights": "schedule-changing",  # of sets that are called so
    "data.sets.weights.episodes": "harmless",
    "data.source.path": "harmless",
    "data.source.csv": "harmless",
    "data.test_source.path": "harmless",
    "data.test_source.csv": "harmless",
    "data.batch_size": "harmless",
    "data.global_batch_size": "harmless",
    "data.images.camera.folder": "harmless",
    "data.images.corner4.folder": "harmless",
    "data.images.top.folder": "harmless",
    "data.images.agentview_image.folder": "harmless",
    "data.images.sideview_image.folder": "harmless",
    "data.images.robot0_eye_in_hand_image.folder": "harmless",
    "data.images.corner2_near.folder": "harmless",
    "data.images.shouldercamera0_image.folder": "harmless",
    "data.images.shouldercamera1_image.folder": "harmless",
    "data.images.robot1_eye_in_hand_image.folder": "harmless",
    "data.images.agentview_rgb.folder": "harmless",
    "data.images.eye_in_hand_rgb.folder": "harmless",
    "data.device": "harmless",
    "data.verify": "harmless",
    "data.manifest": "harmless",
    "data.frame_cache": "harmless",
    "train.accumulation": "harmless",
    "train.shard": "harmless",
    "train.shard_optimizer": "harmless",
    "train.compile": "harmless",
    "train.optimizer.type": "architecture",
    "train.ema": "architecture",
    "train.log_every": "harmless",
    "train.save_every": "harmless",
    "train.monitor": "harmless",
    "train.nonfinite_limit": "harmless",
    "train.rollback": "harmless",
    "train.divergence": "harmless",
    "train.dist_timeout": "harmless",
    "train.max_runtime": "harmless",
    "train.requeue": "harmless",
    "train.init_from": "harmless",
    "evaluate": "harmless",
    "test": "harmless",
    "checkpoints": "harmless",
    "tracker": "harmless",
}


def keys_of(value, prefix=""):
    """Dotted keys of every setting and of every object."""
    found = [prefix] if prefix else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += keys_of(inner, f"{prefix}.{key}" if prefix else key)
    return found


SHIPPED = [path for path in (Path(__file__).parents[2] / "configs").rglob("*.json") if "schema" not in path.name]


@pytest.mark.promise("B5")
@pytest.mark.parametrize("path", [*SHIPPED, None], ids=lambda path: path.stem if path else "every record")
def test_fields_declare_the_recorded_classes(path):
    """Over every key of every shipped configuration, and over all that any record can hold."""
    keys = keys_of_records() if path is None else keys_of(json.loads(TrainConfig.from_json_path(path).to_json()))
    assert len(keys) > 100
    for key in [
        *keys,
        "gone",
        "train.gone",
        "task.gone.inside",
        "data.obs.any.key",
        "data.embeddings.any.folder.path",
        "data.images.any.key",
    ]:
        setting = re.sub(r"\Adata\.sets\.(sawyer|aloha|panda)\.", "data.", key)  # a set has the settings of `data`
        held_by = max((part for part in RECORDED if part in ("", setting) or setting.startswith(part + ".")), key=len)
        assert kind_of(key) == RECORDED[held_by], key


def keys_of_records(annotation=TrainConfig, prefix="", depth=0):
    found = []
    for record in records_here(annotation):
        for name in record.model_fields:
            key = f"{prefix}{name}"
            found += [key, *(keys_of_records(child(record, name), f"{key}.", depth + 1) if depth < 4 else [])]
    return sorted(set(found))


def records_here(annotation):
    """Those that a value of this annotation can be, not those inside it."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Config) else []
    return [record for part in records_in(annotation) or get_args(annotation) for record in records_here(part)]


def test_members_of_a_family_declare_the_same_for_the_same_field():
    """The class of a setting is found by its key alone, so the record that holds it must not matter."""
    for record in records(TrainConfig):
        for name in record.model_fields:
            declared = {}
            for member in records_here(child(record, name)):
                for field in member.model_fields:
                    declared.setdefault(field, set()).add(str(change_of(child(member, field))))
            assert all(len(kinds) == 1 for kinds in declared.values()), f"{record.__name__}.{name}: {declared}"


def test_other_data_are_refused_and_another_global_batch_is_told(documents):
    other = documents()
    other["data.json"] = {"fingerprint": "b" * 64}
    with pytest.raises(ConfigError, match=naming("data.fingerprint", "a" * 12, "b" * 12, "--allow-change")):
        check_changes(documents(), other, 8)
    (line,) = check_changes(documents(), documents(), 16)
    assert told(line, "batch size", 8, 16, "(schedule-changing)")


def test_everything_refused_is_in_one_report(documents):
    with pytest.raises(ConfigError) as caught:
        check_changes(documents(), documents("seed=1", "task.horizon=8", "train.steps=3"), 8)
    first, second = caught.value.problems
    assert told(first, "seed", 0, 1) and told(second, "task.horizon", 8)
    assert told(str(caught.value), "2 problems", "--allow-change seed --allow-change task.horizon")


def test_setting_of_an_older_version_is_told_not_tripped_over(documents):
    """A checkpoint may know settings that are gone, and lack ones that have come."""
    old, now = documents(), documents()
    old["config.json"] = copy.deepcopy(old["config.json"])
    old["config.json"]["train"]["gone"] = 1
    del old["config.json"]["train"]["nonfinite_limit"]
    lines = check_changes(old, now, 8)
    assert [line.partition(":")[0] for line in lines] == ["train.gone", "train.nonfinite_limit"]


def test_a_setting_that_a_newer_version_adds_is_no_change_while_it_has_its_default(documents):
    """Old checkpoints lack the key, whose default keeps what they mean."""
    old = documents()
    old["config.json"] = copy.deepcopy(old["config.json"])
    del old["config.json"]["task"]["diffusion"]["data_step"]
    assert check_changes(old, documents(), 8) == []
    with pytest.raises(ConfigError, match=naming("task.diffusion.data_step", "null", 0.1, "(architecture)")):
        check_changes(old, documents("task.diffusion.data_step=0.1"), 8)


def test_long_values_stand_on_lines_of_their_own(documents):
    evaluator = {
        "type": "action_error",
        "name": "measured_on_all_samples_of_validation",
        "n_samples": 64,
        "eval_timesteps": [4],
    }
    (text,) = check_changes(documents(), documents(f"test={json.dumps([evaluator])}"), 8)
    lines = text.splitlines()
    assert len(lines) == 3 and told(lines[0], "test") and max(map(len, lines)) <= 240
    assert told(lines[1], "[]") and told(lines[2], '"eval_timesteps": [4]')
