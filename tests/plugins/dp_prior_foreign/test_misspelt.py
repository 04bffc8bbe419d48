"""Misspelt keys are refused by the stored schema as the records refuse them, in a fraction of the time."""

import copy
import itertools
import json
import random
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.cli.options import check_spelling
from dp_prior.config import ConfigError
from dp_prior.config.read import Layers, unknown_keys
from dp_prior.run.config import TrainConfig
from dp_prior.run.configurations import configurations, stored_schema
from dp_prior_foreign import misspelt
from dp_prior_foreign.translation.hints import hint
from tests.faults import assert_none
from tests.messages import naming, told
from tests.tiny import train, write

FILE = Layers({}, "mine.json")
PROGRAM = """
import sys
from dp_prior.cli import main
try:
    main(["train", "--config_file", "pusht_state", "--set", "train.lr.peek=1"])
finally:
    assert not {"torch", "accelerate"} & sys.modules.keys(), "torch was imported"
"""


def objects(value, path=()):
    """All objects of a document, with their paths."""
    if isinstance(value, dict):
        yield path, value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects(inner, (*path, key))


def misspelled(key, draw):
    """A key with two neighbours exchanged, a letter doubled, or one left out."""
    place = draw.randrange(len(key) - 1)
    swapped = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
    return draw.choice([swapped, key[:place] + key[place] + key[place:], key[:place] + key[place + 1 :]])


def refusal(check):
    """The text of the error, None without one."""
    try:
        check()
    except ConfigError as error:
        return str(error)
    return None


def test_what_the_records_take_has_no_unknown_key():
    schema, faults = stored_schema(), []
    for name, path in configurations().items():
        for document in (json.loads(path.read_text()), TrainConfig.from_json_path(path).to_document()):
            faults += [f"{name}: {key}" for key, _ in unknown_keys(document, [schema], schema)]
    assert_none(faults)


@pytest.mark.slow
def test_early_refusals_are_those_of_the_records(tmp_path):
    draw, early = random.Random(7), 0
    for name, path in [*configurations().items()] * 2:
        document = json.loads(path.read_text())
        del document["$schema"]
        below = document.pop("extends", None)
        places = [
            (room, key) for _, room in objects(document) for key in room if key != "type"
        ]  # it tells members apart
        room, key = draw.choice([(room, key) for room, key in places if len(key) > 3])
        room[misspelled(key, draw)] = room.pop(key)
        document |= {"extends": str(path.parent / below)} if below else {}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(document))
        told = refusal(lambda file=file: check_spelling(file, ()))
        early += told is not None
        full = refusal(lambda file=file: TrainConfig.from_json_path(file))
        told_lines = [] if told is None else told.splitlines()[1:]
        assert set(told_lines) <= set((full or "").splitlines()), (told, full)
    assert early > 20


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.lr.peek=1", "train.lr.peek: unknown key. Did you mean 'peak'?"),
        ("trian.steps=3", "trian: unknown key. Did you mean 'train'?"),
        ("evaluate.2.n_episode=3", "evaluate.2.n_episode: unknown key. Did you mean 'n_episodes'?"),
        ("task.backbone.down_dim=[8]", "task.backbone.down_dim: unknown key. Did you mean 'down_dims'?"),
    ],
)
def test_overrides_are_checked_as_the_records_check_them(override, line):
    said = refusal(lambda: check_spelling("pusht_state", [override]))
    assert said == refusal(lambda: TrainConfig.from_json_path("pusht_state", [override]))
    assert said.splitlines()[1:] == [f"  {line}"]


def test_a_value_that_is_no_number_is_refused_as_the_records_refuse_it():
    """At every third number of two configurations; what the records take, or refuse otherwise, is left to them."""
    early, faults, values = 0, [], itertools.cycle(["abc", "null", "true", '"3"', "1e-4x"])
    for name in ("pusht_state", "pusht_image"):
        document = TrainConfig.from_json_path(name).to_document()
        paths = [(*path, key) for path, room in objects(document) for key, inner in room.items() if is_number(inner)]
        for path in paths[::3]:
            override = [f"{'.'.join(map(str, path))}={next(values)}"]
            said = refusal(lambda name=name, override=override: check_spelling(name, override))
            early += said is not None
            full = refusal(lambda name=name, override=override: TrainConfig.from_json_path(name, override))
            if said not in (None, full):
                faults.append(f"{override}: {said}, the records: {full}")
    assert_none(faults)
    assert early > 12


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize(
    "overrides", [["train.lr.peak=1e-4"], ["train.lr.peak=x", "train.lr.peak=0.1"], ['train.lr={"type": "constant"}']]
)
def test_a_wrong_value_that_an_override_replaces_is_none(overrides, tmp_path):
    below = {"extends": str(configurations()["pusht_state"]), "train": {"lr": {"peak": "high"}}}
    (tmp_path / "top.json").write_text(json.dumps(below))
    check_spelling(tmp_path / "top.json", overrides)
    with pytest.raises(ConfigError, match=naming("train.lr.peak", "'high'")):
        check_spelling(tmp_path / "top.json", ["train.lr.warmup_steps=8"])


@pytest.mark.parametrize(
    "override",
    [
        "train.lr.peak=1",
        "task.backbone.zzz=1",
        "data.obs.goalposition.key=x",
        "train.lr=3e-4",
        "task.backbone.type=mine",
    ],
)
def test_everything_else_is_left_to_the_records(override):
    check_spelling("pusht_state", [override])


def test_a_key_of_the_file_below_is_told_with_its_file(tmp_path):
    (tmp_path / "base.json").write_text(json.dumps({"extends": str(configurations()["pusht_state"]), "sead": 1}))
    (tmp_path / "top.json").write_text(json.dumps({"extends": "base.json", "train": {"setps": 3}}))
    said = refusal(lambda: check_spelling(tmp_path / "top.json", ()))
    assert said.splitlines()[1:] == [
        "  train.setps: unknown key. Did you mean 'steps'?",
        f"  sead: unknown key. Did you mean 'seed'? (in {tmp_path / 'base.json'})",
    ]
    with pytest.raises(ConfigError, match=naming("sead", "seed", tmp_path / "base.json")):
        TrainConfig.from_json_path(tmp_path / "top.json")


@pytest.mark.parametrize(
    ("top", "override"),
    [
        ({"evaluate": []}, None),
        ({"task": {"backbone": {"type": "mlp"}}, "evaluate": []}, None),
        ({}, 'evaluate=[{"type": "loss"}]'),
    ],
)
def test_a_misspelt_key_that_a_higher_layer_replaces_is_none(top, override, tmp_path):
    below = json.loads(configurations()["pusht_state"].read_text())
    below["evaluate"][2]["n_episode"] = 3
    (tmp_path / "base.json").write_text(json.dumps(below))
    (tmp_path / "top.json").write_text(json.dumps({"extends": "base.json", **top}))
    check_spelling(tmp_path / "top.json", [override] if override else [])
    with pytest.raises(ConfigError, match=naming("evaluate.2.n_episode", "n_episodes")):
        check_spelling(tmp_path / "base.json", ["task.horizon=8"])


def test_a_schema_older_than_the_source_refuses_no_field():
    schema = copy.deepcopy(stored_schema())
    del schema["properties"]["seed"]
    schema["properties"]["sede"] = {}
    (key, names), *others = unknown_keys({"seed": 1}, [schema], schema)
    assert (key, "sede" in names, others) == (("seed",), True, [])
    assert misspelt.misspelt(FILE, [(key, names)], [], hint) is None
    assert misspelt.misspelt(FILE, [(("sedee",), names)], [], hint) is not None


def test_a_part_of_another_package_leaves_all_to_the_records(monkeypatch):
    class Foreign:
        module = "their_package.parts"

    unknown = [(("sead",), ["seed"])]
    assert misspelt.misspelt(FILE, unknown, [], hint) is not None
    monkeypatch.setattr(misspelt, "families", lambda: ["envs"])
    monkeypatch.setattr(misspelt, "entry_points", lambda family: [Foreign()])
    assert misspelt.misspelt(FILE, unknown, [], hint) is None


def test_a_misspelt_key_is_refused_before_torch_is_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 64, done.stderr
    assert done.stderr.splitlines()[1:] == ["  train.lr.peek: unknown key. Did you mean 'peak'?"]


def test_a_value_that_does_not_fit_either_is_told_together_with_the_misspelt_key(tmp_path):
    for fault in ({"task__horizon": "4"}, {"train__steps": -1}, {"data__batch_size": 2.5}):
        refused = train(write(tmp_path, train__acumulation=2, **fault))
        [setting] = fault
        assert refused.exit_code == 64 and told(refused.output, "train.acumulation", setting.replace("__", "."))


def test_an_override_that_does_not_fit_is_told_together_with_the_misspelt_key(tmp_path):
    refused = train(write(tmp_path), "--set", "train.acumulation=2", "--set", "task.horizon=long")
    assert refused.exit_code == 64 and told(refused.output, "train.acumulation", "task.horizon", "'long'")


def test_a_key_of_another_library_is_left_to_the_records():
    unknown = [(("sead",), ["seed"]), (("trian",), ["train"])]
    assert len(misspelt.misspelt(FILE, unknown, [], lambda path: None)) == 2
    assert misspelt.misspelt(FILE, unknown, [], lambda path: "elsewhere" if path == ("trian",) else None) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--config_file", "FILE"],
        ["sweep", "FILE", "--vary", "seed=1,2"],
        ["cache", "FILE"],
        ["embed", "--model", "hashed", "--out", "out", "--config_file", "FILE", "--key", "text"],
        ["inspect", "FILE"],
        ["compare", "a", "b", "--out", "out", "--config_file", "FILE"],
        ["improve", "run", "--out", "out", "--config_file", "FILE"],
    ],
)
def test_every_command_that_reads_a_configuration_refuses_it_early(arguments, tmp_path, monkeypatch):
    """The check comes before anything else of the command."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"extends": str(configurations()["pusht_state"]), "train": {"lr": {"peak": "high"}}}))
    monkeypatch.setattr(TrainConfig, "from_json_path", lambda *_: pytest.fail("the records were asked"))
    result = CliRunner().invoke(main, [str(file) if word == "FILE" else word for word in arguments])
    assert result.exit_code == 64 and told(result.output, "train.lr.peak", "'high'"), result.output


def test_parts_of_imported_modules_are_left_to_the_records(tmp_path, monkeypatch):
    (tmp_path / "parts.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"extends": str(configurations()["pusht_state"]), "train": {"lr": {"peak": "high"}}}))
    monkeypatch.setattr(TrainConfig, "from_json_path", lambda *_: sys.exit(99))
    assert CliRunner().invoke(main, ["cache", str(file), "--import", "parts"]).exit_code == 99
