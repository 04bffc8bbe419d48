"""All tables: their rows lead somewhere, their files are recognised, and every row is translated in a test."""

import contextlib
import importlib
import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
from dp_prior_foreign.translated import translate_settings
from dp_prior_foreign.translation.foreign_settings import flat
from dp_prior_foreign.translation.libraries import LIBRARIES, LISTS_OF_THEIRS, recognise
from dp_prior_foreign.translation.translate import translate
from tests.cases import every
from tests.faults import assert_none
from tests.messages import told
from tests.plugins.dp_prior_foreign.translation.said_defaults import CONFIGURATIONS, omissions, records, saved, stated
from tests.plugins.dp_prior_foreign.translation.translated import defaults_filled, merged, nested, translated
from tests.tiny import train

EXAMPLES = {
    library.key: importlib.import_module(f"tests.plugins.dp_prior_foreign.translation.test_{library.key}_table").ALL
    for library in LIBRARIES
}
AVERAGES = {
    "diffusion_policy": (
        {"ema": {"_target_": "diffusion_policy.model.diffusion.ema_model.EMAModel"}},
        {
            "training": {"use_ema": True},
            "ema": {"update_after_step": 0, "inv_gamma": 1.0, "power": 2 / 3, "min_value": 0.0, "max_value": 0.9999},
        },
    ),
    "lerobot": (
        {"ema": {"enable": True}},
        {
            "ema": {
                **{"decay": None, "update_after_step": 0, "inv_gamma": 1.0, "power": 0.75},
                **{"min_decay": 0.0, "max_decay": 0.9999},
            }
        },
    ),
    "openpi": ({}, {"ema_decay": 0.99}),
    "dalle2": (
        {},
        {
            "train": {
                **{"use_ema": True, "ema_beta": 0.99, "ema_update_after_step": 100, "ema_update_every": 10},
                **{"ema_inv_gamma": 1.0, "ema_power": 2 / 3, "ema_min_value": 0.0},
            }
        },
    ),
    "improved_diffusion": ({}, {"ema_rate": "0.9999"}),
    "denoising_diffusion": ({}, {"ema_decay": 0.995, "ema_update_every": 10}),
    "rin": ({}, {"ema_decay": 0.995, "ema_update_every": 10}),
}
"""For each library settings that name an average, and the defaults of their own code for all settings of averages."""

ANCESTORS = Path(__file__).parents[4].parent / "shared/reference/cases/ancestors"


def test_every_row_leads_to_a_setting_that_exists_or_says_why_not():
    faults = [
        f"{library.name}: {row.path} -> {row.place or 'nowhere, without a word'}"
        for library in LIBRARIES
        for row in library.rows
        if (not TrainConfig.has(re.sub(r"<\w+>", "0", row.place)) if row.place else not row.note)
    ]
    faults += [
        f"{library.name}: {theirs} -> {ours}"
        for library in LIBRARIES
        for theirs, ours in library.blocks.items()
        if not TrainConfig.has(ours)
    ]
    assert not faults, "\n".join(faults)


def test_a_setting_has_one_row():
    faults = []
    for library in LIBRARIES:
        paths = [row.path for row in library.rows]
        faults += [f"{library.name}: {path}" for path in {path for path in paths if paths.count(path) > 1}]
    assert not faults, "\n".join(sorted(faults))


def test_every_row_is_met_and_every_value_is_one_of_a_valid_configuration():
    faults = []
    for library in LIBRARIES:
        met = set()
        defaults = [
            {**omission, **stated(library, record, omission)}
            for record in records()
            if record["library"] == library.key
            for omission in omissions(record)[:1]
        ]
        for settings in EXAMPLES[library.key] + defaults:
            translation = translated(library, settings)  # which checks it by pydantic
            faults += [str(line) for line in translation.lines if line.outcome == "unknown"]
            rows = map(library.row, flat(settings, "a test", library.lists))
            met |= {row[0].path for row in rows if row is not None}
        faults += [f"{library.name}: {row.path} is in no example" for row in library.rows if row.path not in met]
    assert not faults, "\n".join(faults)


def test_a_value_of_another_kind_is_dropped_or_refused_by_the_name_of_its_setting():
    faults = []
    for library, value in product(LIBRARIES, [None, "x", [], 0]):
        for path in (row.path.replace(".**", "").replace("*", "a") for row in library.rows):
            try:
                told_of = [line.path for line in translate(library, {path: value}).lines]
            except ConfigError as error:
                told_of = [problem.partition(":")[0] for problem in error.problems]
            except Exception as error:
                told_of = [repr(error)]
            if path not in told_of:
                faults.append(f"{library.name}: {path} = {value!r}: {told_of}")
    assert not faults, "\n".join(faults)


@every(library=LIBRARIES)
def test_an_average_is_the_same_whether_its_defaults_are_said_or_not(library):
    silent, defaults = AVERAGES[library.key]
    rows = {row.path for row in library.rows if "ema" in re.split(r"[._]", row.path)}
    unknown = {path for path in flat(defaults, "a test") if library.row(path) is None}
    assert not unknown and rows - flat(merged(silent, defaults), "a test").keys() <= {"ema.use_for_eval"}

    def averages(settings):
        return TrainConfig.from_json(json.dumps(translate(library, flat(settings, "a test")).config)).train.ema

    assert averages(silent) == averages(merged(silent, defaults)) != {}
    for path, value in flat(defaults, "a test").items():
        assert averages(merged(silent, nested(path, value))) == averages(silent), path


def test_arguments_mean_the_same_in_whichever_objects_they_are():
    flat_ones = [library for library in LIBRARIES if library.is_flat]
    assert flat_ones
    for library in flat_ones:
        for settings in EXAMPLES[library.key]:
            grouped = {"model": dict([*settings.items()][::2]), "train": {"loop": dict([*settings.items()][1::2])}}
            assert translated(library, grouped).config == translated(library, settings).config


def test_a_configuration_is_recognised_by_its_settings_and_ours_is_not_taken_for_one():
    faults = []
    for library in LIBRARIES:
        for i, settings in enumerate(EXAMPLES[library.key]):
            found = recognise(flat(settings, "a test", LISTS_OF_THEIRS))
            faults += [] if found is library else [f"{library.name}, example {i}: {found and found.name}"]
    for path in sorted(Path("configs").rglob("*.json")):
        config = json.loads(path.read_text())
        faults += [str(path)] if "train" in config and TrainConfig.other_file(config, "a test") else []
    assert not faults, "\n".join(faults)
    assert recognise(["steps"]) is None and recognise(["a", "b", "batch_size"]) is None


def test_a_library_is_known_to_the_command_by_its_key():
    from dp_prior_foreign.cli import translate as command

    option = next(option for option in command.params if option.name == "library")
    assert list(option.type.choices) == [library.key for library in LIBRARIES]


@pytest.mark.parametrize(
    ("name", "key"),
    [("id_flags", "improved_diffusion"), ("lucid_args", "denoising_diffusion"), ("oldkeys", "diffusion_policy")],
)
def test_files_of_keys_that_users_gave(name, key):
    """Each key of theirs is told where it belongs, and none of them a misleading neighbour."""
    if not ANCESTORS.exists():
        pytest.skip(f"NOT CHECKED: there is no {ANCESTORS}")
    settings = json.loads((ANCESTORS / f"{name}.json").read_text())
    library = next(library for library in LIBRARIES if library.key == key)
    assert translate(library, flat(settings, name)).config
    with pytest.raises(ValueError) as caught:
        TrainConfig.from_json(json.dumps(settings))
    assert "Did you mean" not in str(caught.value)


def test_the_ancestors_configurations_that_were_ported_are_valid_and_known_as_ours():
    """Fifteen files of five libraries, written in our settings by hand."""
    if not ANCESTORS.exists():
        pytest.skip(f"NOT CHECKED: there is no {ANCESTORS}")
    ports = sorted((ANCESTORS / "ports").glob("*.json"))
    assert len(ports) == 15
    faults = []
    for port in ports:
        TrainConfig.from_json_path(port)
        with contextlib.suppress(ConfigError):
            translate_settings([str(port)])
            faults.append(f"{port.name} was translated, though it is ours")
    assert not faults


def effective(library, settings):
    """The values of a translated configuration with the defaults here, by path."""
    return defaults_filled(json.dumps(translate(library, settings).config))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.key)
def test_saying_every_default_of_theirs_changes_nothing(library):
    """One default by one, and all of a class in both orders."""
    faults, n_options = [], 0
    for record in records():
        if record["library"] != library.key:
            continue
        for omission in omissions(record):
            unsaid, said = effective(library, omission), stated(library, record, omission)
            n_options += len(said)
            for path, default in said.items():
                settings = {**omission, path: default}
                written = flat(translate(library, settings).config, path)
                is_same = all(unsaid.get(place, written) == value for place, value in written.items())
                if not is_same and effective(library, settings) != unsaid:
                    faults.append(f"{record['source']}: {path}={default!r} changes {sorted(written.items())}")
            for order in (said, dict(reversed(said.items()))):
                after = effective(library, {**omission, **order})
                changed = {place for place in {**unsaid, **after} if unsaid.get(place) != after.get(place)}
                faults += [f"{record['source']}: all together change {place}" for place in sorted(changed)]
    assert n_options > 20
    assert_none(faults)


@every(library=[library for library in LIBRARIES if library.key not in ("diffusion_policy", "improved_diffusion")])
def test_a_file_that_says_everything_is_that_of_nothing(library):
    """As the library itself saves it; classes that exclude each other are left to the law above."""
    faults, configurations = [], saved(library)
    assert configurations
    for omission, record in configurations:
        unsaid, after = (
            effective(library, omission),
            effective(library, {**stated(library, record, omission), **omission}),
        )
        changed = {place for place in {**unsaid, **after} if unsaid.get(place) != after.get(place)}
        faults += [f"{omission}: {place}" for place in sorted(changed)]
    assert_none(faults)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.key)
def test_every_option_of_their_sources_is_known(library):
    options = {
        path: record["source"]
        for record in records()
        if record["library"] == library.key
        for path in flat(record["defaults"], "options", library.lists)
    }
    faults = [
        f"{source}: {path}"
        for path, source in options.items()
        if library.row(path) is None and not library.is_object(path)
    ]
    assert_none(faults)


FIRST = {"improved_diffusion": ("image_train.py",)}
"""Programs whose configurations are checked, of a library without a common one; upsampling 256 pixels takes minutes."""


def recorded(place, data):
    """`data` on stand-ins of the shapes that it reads: arrays, a folder of pictures, or embeddings."""
    random = np.random.default_rng(0)
    if data["type"] == "images":
        height, width = data["size"]
        for number in range(60):
            picture = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(picture).save(place / f"cat_{number}.png")
        return {**data, "source": {**data["source"], "path": str(place)}}
    if data["type"] == "embeddings":
        shapes = {name: (24, 77, 768) if name == "text_encodings" else (24, 768) for name in data if name in EMBEDDED}
        for name, shape in shapes.items():
            (place / name).mkdir()
            rows = random.normal(size=shape).astype(np.float32)
            np.save(place / name / "part_0.npy", rows.reshape(shape[0], -1))
        return data | {name: {**data[name], "path": str(place / name), "metadata": None} for name in shapes}
    arrays = {"episode_ends": np.array([80, 160])}
    keys = {entry["key"] for entry in data["obs"].values()}
    arrays |= {key: np.cumsum(random.normal(size=(160, 14)), axis=0).astype(np.float32) for key in sorted(keys)}
    arrays[data["action"]["key"]] = np.cumsum(random.normal(size=(160, 14)), axis=0).astype(np.float32)
    for entry in data.get("images", {}).values():
        arrays[entry["key"]] = random.integers(0, 256, (160, 48, 64, 3), dtype=np.uint8)
    np.savez(place / "episodes.npz", **arrays)
    return data | {"episodes": {"type": "npz", "path": str(place / "episodes.npz")}}


NARROW = {
    "unet1d": {"down_dims": [32, 64]},
    "unet2d": {"channels": 32, "channel_mult": [1, 1], "attention_resolutions": []},
    "dit": {"n_layers": 1},
    "dit2d": {"n_layers": 1},
    "multi_query_prior": {"n_layers": 1},
}
"""Settings of a small network of each type."""

EMBEDDED = ("image", "text", "text_encodings")


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.key)
def test_translated_files_pass_check_on_data_of_their_shapes(library, tmp_path):
    """With the library's own defaults but for the size of a step and of the network, and steps of measured samples."""
    faults, sources = [], FIRST.get(library.key, ())
    chosen = [entry for entry in CONFIGURATIONS[library.key] if not entry.sources or set(entry.sources) & set(sources)]
    assert chosen
    for number, omission in enumerate(chosen):
        place = tmp_path / str(number)
        (place / "data").mkdir(parents=True)
        config = translated(library, omission.settings).config
        config["data"] = {**recorded(place / "data", config["data"]), "batch_size": 2}
        config["data"] |= {"global_batch_size": 2} if "global_batch_size" in config["data"] else {}
        for evaluator in config.get("evaluate", []):
            evaluator |= {"eval_timesteps": [4]} if evaluator["type"] in ("images", "similarity") else {}
        config["task"]["backbone"] |= NARROW[config["task"]["backbone"]["type"]]
        config["tracker"] = {"data_path": str(place / "run")}
        (place / "config.json").write_text(json.dumps(config))
        done = train(place / "config.json", "--check")
        if done.exit_code or not told(done.output, "checked"):
            faults.append(f"{omission.settings}: {done.output[-1500:]}")
    assert_none(faults)
