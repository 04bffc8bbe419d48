"""Instructions of every format become the embeddings of their texts, frame by frame."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.embeddings.written import EmbeddingsRecord, Job, write_embeddings
from dp_prior.data.errors import DataError
from dp_prior.data.language import LanguageConfig, read_texts
from dp_prior.data.trajectories import TrajectoriesConfig
from dp_prior.embedders.hashed import HashedConfig
from tests.data.episodes import test_lerobot as lerobot
from tests.data.test_recorded_sets import FOLDER, need

ENDS = np.array([4, 7, 12])
TEXTS = ("go left", "go right", "stop")
PER_FRAME = np.array([0, 0, 1, 1, 2, 2, 2, 0, 0, 0, 1, 1])


def embed(folder: Path, texts=TEXTS, column="text", dimension=8) -> dict:
    """Embeddings of texts, and the record of their folder."""
    model = HashedConfig(dimension=dimension)
    record = EmbeddingsRecord(embedder=model, source={"texts": column}, rows=len(texts))
    values = model.create().texts(texts)
    write_embeddings(folder, Job(record, {column: list(texts)}, lambda first, stop: values[first:stop]))
    return {"path": str(folder), "format": "parquet"}


def write_npz(path: Path, **arrays) -> dict:
    numbers = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    np.savez(path, state=numbers, action=numbers, episode_ends=ENDS, **arrays)
    return {"type": "npz", "path": str(path)}


def texts_of(episodes: dict, folder: dict, **fields) -> list[str]:
    """The text of every frame."""
    config = TrajectoriesConfig.from_json(
        json.dumps(
            {"episodes": episodes, "obs": {"s": {"key": "state"}}, "action": {"key": "action"}}
            | {"language": {"told": {"folder": folder, **fields}}}
        )
    )
    texts, index = read_texts(config.language["told"], config.episodes.create(), ENDS)
    return [texts[number] for number in index]


EXPECTED = [TEXTS[number] for number in PER_FRAME]
BY_EPISODE = [TEXTS[number] for number, length in enumerate(np.diff(ENDS, prepend=0)) for _ in range(length)]


@pytest.mark.parametrize(
    ("arrays", "fields", "expected"),
    [
        ({"told": np.array(EXPECTED)}, {"key": "told"}, EXPECTED),
        ({"told": np.array(EXPECTED)[:, None]}, {"key": "told"}, EXPECTED),
        ({"told": np.char.encode(np.array(TEXTS))}, {"key": "told"}, BY_EPISODE),
        ({"number": PER_FRAME, "list": np.array(TEXTS)}, {"key": "number", "texts": "list"}, EXPECTED),
        ({"number": PER_FRAME.astype(np.uint8)}, {"key": "number", "texts": TEXTS}, EXPECTED),
        ({"number": np.array([0, 1, 2])}, {"key": "number", "texts": TEXTS}, BY_EPISODE),
        ({"number": np.array([2, 1, 0] * 5)}, {"key": "number", "texts": ["stop"] * 3}, ["stop"] * 12),  # rows behind
        ({}, {"texts": TEXTS}, BY_EPISODE),
        ({}, {"texts": ["stop"]}, ["stop"] * 12),
    ],
)
def test_texts_are_read_from_keys_and_lists(tmp_path, arrays, fields, expected):
    assert texts_of(write_npz(tmp_path / "d.npz", **arrays), embed(tmp_path / "e"), **fields) == expected


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("column", ["task", "__index_level_0__"])
def test_texts_of_lerobot_are_its_tasks(tmp_path, version, column, monkeypatch):
    added = {"task_index": {"dtype": "int64", "shape": [1]}, "words": {"dtype": "string", "shape": [1]}}
    monkeypatch.setattr(lerobot, "FEATURES", {**lerobot.FEATURES, **added})
    plain = lerobot.columns

    def columns(episodes):
        own = np.isin(np.repeat(np.arange(3), lerobot.LENGTHS), episodes)
        words = lerobot.pa.array([f"{TEXTS[number]}!" for number in PER_FRAME[own]])
        return {**plain(episodes), "task_index": lerobot.pa.array(PER_FRAME[own] + 5), "words": words}

    monkeypatch.setattr(lerobot, "columns", columns)
    root = lerobot.WRITERS[version](tmp_path)
    if version == "v3.0":
        lerobot.write_table(root / "meta/tasks.parquet", {"task_index": [5, 6, 7], column: list(TEXTS)})
    else:
        lines = [json.dumps({"task_index": 5 + number, "task": text}) for number, text in enumerate(TEXTS)]
        (root / "meta/tasks.jsonl").write_text("\n".join(lines))
    folder, episodes = embed(tmp_path / "e"), {"type": "lerobot", "path": str(root)}
    assert texts_of(episodes, folder) == texts_of(episodes, folder, key="task_index") == EXPECTED
    assert texts_of(episodes, folder, key="words") == [f"{text}!" for text in EXPECTED]
    record = {"told": {"folder": folder}}
    config = {"episodes": episodes, "obs": {"s": {"key": "observation.state"}}, "action": {"key": "action"}}
    data = TrajectoriesConfig.from_json(json.dumps({**config, "language": record})).create(4, 2, 2)
    assert [path.name for path in data.files if path.stem == "tasks"] == [
        f"tasks.{'jsonl' if version != 'v3.0' else 'parquet'}"
    ]
    for path in (root / "meta").glob("tasks.*"):
        path.unlink()
    with pytest.raises(DataError, match="tasks"):
        texts_of(episodes, folder)


def make(tmp_path, folder, **fields):
    episodes = write_npz(tmp_path / "d.npz", number=PER_FRAME)
    record = {
        "episodes": episodes,
        "obs": {"state": {"key": "state"}},
        "language": {"told": {"key": "number", "texts": TEXTS, "folder": folder, **fields}},
        "action": {"key": "action"},
        "split": {"train": 0.7, "val": 0.3, "test": 0.0},
    }
    return TrajectoriesConfig.from_json(json.dumps(record)).create(4, 2, 2)


def test_samples_hold_the_embeddings_of_their_frames(tmp_path):
    folder = embed(tmp_path / "e", ("unused", *TEXTS[::-1], "stop"))
    data = make(tmp_path, folder)
    model = HashedConfig(dimension=8)
    assert data.spec.kind("told") == "text" and data.spec.cond_shapes["told"] == (2, 8)
    assert data.spec.embedders == {"told": model}
    table = torch.from_numpy(model.create().texts(EXPECTED))
    state = np.load(tmp_path / "d.npz")["state"]
    for part in (data.train, data.val):
        batch = part.fetch(torch.arange(len(part)))
        row = [[int(np.argmin(np.abs(state - one).sum(1))) for one in two] for two in batch.cond["state"].numpy()]
        assert torch.equal(batch.cond["told"], table[torch.tensor(row)])
    assert set(data.statistics()) == {"state", "told", "x"}
    assert data.loader(seed=0, batch_size=4, accumulation=1, rank=0, world_size=1).global_batch(0)


def test_other_texts_or_embeddings_are_other_data(tmp_path):
    prints = {
        make(tmp_path, embed(tmp_path / "a")).fingerprint,
        make(tmp_path, embed(tmp_path / "b", dimension=16)).fingerprint,
        make(tmp_path, embed(tmp_path / "c"), texts=TEXTS[::-1]).fingerprint,
    }
    assert len(prints) == 3
    assert make(tmp_path, embed(tmp_path / "d", ("unused", *TEXTS))).fingerprint in prints  # the same numbers


def test_the_column_of_texts_may_have_another_name(tmp_path):
    folder = embed(tmp_path / "e", column="caption")
    expected = make(tmp_path, embed(tmp_path / "t"))
    assert make(tmp_path, folder, text="caption").fingerprint == expected.fingerprint
    with pytest.raises(DataError, match="there is no column 'text'. Did you mean .*caption|It has: caption"):
        make(tmp_path, folder)
    assert set(LanguageConfig.model_fields) == {"key", "texts", "folder", "text"}


NUMBERS = {"key": "n", "texts": TEXTS}


@pytest.mark.parametrize(
    ("arrays", "fields", "message"),
    [
        ({}, {"key": "no"}, "language: there is no key 'no'"),
        ({}, {}, "nothing says which texts the numbers stand for; list them in language.texts"),
        ({}, {"texts": TEXTS[:2]}, "lists 2 texts for 3 episodes"),
        ({"n": PER_FRAME + 1}, NUMBERS, "episode 1, frame 0: 'n' is 3, but the texts are numbered 0 to 2"),
        ({"n": PER_FRAME * 0.5}, NUMBERS, "key 'n' holds float64 .*expected a text or the number"),
        ({"n": PER_FRAME[:5]}, NUMBERS, "has 5 rows; expected one for each of 12 frames or 3 episodes"),
        ({"t": np.array(["a", " ", "c"])}, {"key": "t"}, "episode 1, frame 0: the instruction is an empty text"),
        ({"t": np.array(["stop", "jump", "run"])}, {"key": "t"}, "2 of the 3 instructions have no embedding: 'jump', "),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_clear_line(tmp_path, arrays, fields, message):
    config = {
        "episodes": write_npz(tmp_path / "d.npz", **arrays),
        "obs": {"s": {"key": "state"}},
        "action": {"key": "action"},
        "language": {"told": {"folder": embed(tmp_path / "e"), **fields}},
    }
    with pytest.raises(DataError, match=message):
        TrajectoriesConfig.from_json(json.dumps(config)).create(4, 2, 2)


def test_names_are_told_apart_and_an_instruction_alone_is_no_observation(tmp_path):
    config = {
        "episodes": write_npz(tmp_path / "d.npz"),
        "action": {"key": "action"},
        "language": {"told": {"folder": embed(tmp_path / "e"), "texts": TEXTS}},
    }
    with pytest.raises(ConfigError, match="obs, embeddings and images are empty"):
        TrajectoriesConfig.from_json(json.dumps(config))
    with pytest.raises(ConfigError, match=r"obs, embeddings, images and language name \['told'\] twice"):
        TrajectoriesConfig.from_json(json.dumps({**config, "obs": {"told": {"key": "state"}}}))


@pytest.mark.parametrize(
    ("name", "state", "action", "n_texts", "first"),
    [
        ("gr00t_gr1_picknplace", "observation.state", "action", 5, "pick the pear from the counter and place it"),
        ("lingzu_open50_v30", "state", "actions", 1, "lingzu teleoperation"),
        ("g1_yellow_bottle", "observation.state", "action", 1, "Pick up the yellow bottle on the table."),
    ],
)
def test_instructions_of_recorded_robots(tmp_path, name, state, action, n_texts, first):
    root = FOLDER / name / "lerobot"
    need(root)
    config = {
        "episodes": {"type": "lerobot", "path": str(root)},
        "obs": {"state": {"key": state}},
        "action": {"key": action},
        "language": {"told": {"folder": {"path": "none"}}},
    }
    record = TrajectoriesConfig.from_json(json.dumps(config))
    store = record.episodes.create()
    texts, index = read_texts(record.language["told"], store, store.episode_ends)
    assert len(texts) == n_texts and texts[index[0]].startswith(first)
    config["language"]["told"]["folder"] = embed(tmp_path / "e", texts)
    data = TrajectoriesConfig.from_json(json.dumps(config)).create(16, 2, 8)
    assert data.train.fetch(torch.arange(3)).cond["told"].shape == (3, 2, 8)
    warned = any("in every frame, so it tells the policy nothing" in line for line in data.report()["warnings"])
    assert warned == (n_texts == 1)
