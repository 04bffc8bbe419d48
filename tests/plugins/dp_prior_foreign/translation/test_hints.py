"""A key of another library is told its place here, never a neighbour that means something else."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
from dp_prior_foreign.translation.hints import differing_sizes, hint
from dp_prior_foreign.translation.libraries import LIBRARIES
from dp_prior_foreign.translation.row import copies
from tests.cases import drawn
from tests.messages import told
from tests.plugins.dp_prior_foreign.translation.test_dalle2_table import PRIOR
from tests.plugins.dp_prior_foreign.translation.test_improved_diffusion_table import HYBRID

MISLED = {  # by the nearest key, once
    "rollout_every": "evaluate.<rollout>.every",
    "val_every": "evaluate.<validation>.every",
    "resume": "--resume",
    "max_train_steps": "train.steps",
    "max_train_episodes": "data.split.max_train_episodes",
    "amp": "train.precision",
    "ema_rate": "train.ema",
    "dropout": "task.backbone.dropout",
    "scale": "task.diffusion.schedule.scale",
}


def refusal(settings):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_json(json.dumps(settings), source="mine.json")
    return str(caught.value)


def test_every_setting_of_every_library_is_told_where_it_belongs():
    faults, [repeated] = [], copies("", "x")
    for library in LIBRARIES:
        for row in library.rows:
            said = hint([part for part in row.path.split(".") if "*" not in part]) or ""
            if row.path == row.place or row.note.startswith(repeated.note):
                continue  # the same path in both, or a row for a repetition
            if (row.place or row.note) not in said:
                faults.append(f"{library.name}: {row.path}: {said!r} lacks {row.place or row.note}")
        faults += [f"{library.name}: {key}: {hint([key])}" for key in library.blocks if not hint([key])]
    assert not faults, "\n".join(faults)


def test_no_setting_of_another_library_is_taken_for_a_misspelling():
    keys = sorted({row.key for library in LIBRARIES for row in library.rows})
    for room, key in drawn(len(keys), ["task", "data", "train", "tracker"], keys):
        said = hint([room, key])
        assert said is None or "Did you mean" not in said
    for room, (key, remedy) in drawn(len(MISLED), ["task", "data", "train"], [*MISLED.items()]):
        line = next(line for line in refusal({room: {key: 1}}).splitlines() if f"{room}.{key}: " in line)
        assert remedy in line and "Did you mean" not in line, line


def test_the_setting_of_the_same_place_comes_first():
    assert told(hint(["train", "lr_warmup_steps"]).partition(")")[0], "train.lr.warmup_steps", "(Diffusion Policy")
    assert told(hint(["batch_size"]), "data.batch_size (LeRobot", "data.global_batch_size (openpi)")
    assert "eval" not in hint(["dataloader", "batch_size"])


def test_a_key_of_ours_in_a_record_of_another_type_is_not_sent_to_where_it_stands():
    said = hint(["task", "backbone", "down_dims"])
    assert said is None or "task.backbone.down_dims" not in said
    assert hint(["task", "zoo"]) is None


@pytest.mark.parametrize(("settings", "name"), [(PRIOR, "DALLE2-pytorch"), (HYBRID, "improved-diffusion")])
def test_a_file_of_another_library_gets_one_line(settings, name):
    said = refusal(settings)
    assert said.startswith("mine.json: 1 problem") and name in said and "`dp-prior translate mine.json`" in said


def test_a_block_of_another_library_in_a_file_of_ours_gets_its_place():
    for block, place in {"prior": "task", "model": "task", "trainer": None, "policy": "task"}.items():
        line = next(
            line for line in refusal({"train": {"steps": 1}, block: {"x": 1}}).splitlines() if f"{block}: " in line
        )
        assert place is None or told(line, block, place)
        assert "Did you mean" not in line


def test_a_key_deep_inside_is_not_sent_to_a_setting_that_stands_elsewhere():
    assert "train.lr.peak" in hint(["train", "learning_rate"])
    assert hint(["data", "images", "front", "mirror", "learning_rate"]) is None


def test_a_key_of_an_object_beside_is_sent_there_before_blocks_of_other_libraries():
    assert hint(["task", "sampler", "clip"]) == "Its place is task.diffusion.clip."
    assert told(hint(["train", "ema", "warmup_steps"]), "train.lr.warmup_steps")
    assert hint(["task", "clip"]) == "Its place is task.diffusion.clip."
    assert "task.sampler.type" not in (hint(["task", "diffusion", "type"]) or "")
    problems = refusal({"task": {"sampler": {"type": "ddim", "clip": None}}}).splitlines()
    line = next(line for line in problems if "clip" in line)
    assert told(line, "task.sampler.clip", "task.diffusion.clip") and "data.image" not in line


def test_sizes_that_differ_are_said_in_numbers_and_equal_ones_not_at_all():
    stored = {"x_shape": [8, 2], "cond_shapes": {"state": [2, 4], "wrist": [2, 3, 24, 24]}}
    other = {"x_shape": (8, 14), "cond_shapes": {"state": (2, 14), "top": (2, 3, 24, 24)}}
    said = differing_sizes(stored, other)
    assert told(said, 2, 14, "'state'", (4,), (14,), "'wrist'", "'top'", "none")
    assert differing_sizes(stored, {**stored, "x_shape": (16, 2)}) is None


def test_a_longer_spelling_of_a_required_key_is_that_key():
    said = refusal({"tracker": {"save": [{"type": "huggingface", "repo_id": "me/run"}]}})
    assert told(said, "tracker.save.0.repo_id", "'repo'") and "data.episodes" not in said
