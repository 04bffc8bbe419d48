"""Instructions of every format become the embeddings of their texts, frame by frame."""

import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.embeddings.written import EmbeddingsRecord
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ALL_EPISODES
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.language import LanguageConfig, read_texts
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.run.changes import kind_of
from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings
from tests.data.formats.lerobot import test_dataset as lerobot
from tests.data.recorded.test_recorded_sets import FOLDER, need
from tests.messages import naming, told

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
    store = config.episodes.create()
    texts, index = read_texts(config.language["told"], store, ALL_EPISODES.of(store)[0])
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


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_texts_of_hdf5_may_be_of_any_length(tmp_path, encoding):
    """h5py gives them as Python objects, as zarr does on numpy 1.26; where they choose and weigh they were read."""
    h5py = pytest.importorskip("h5py")
    for number, (begin, end) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["state"] = file["action"] = np.random.default_rng(0).normal(size=(end - begin, 2))
            file.create_dataset("told", data=EXPECTED[begin:end], dtype=h5py.string_dtype(encoding))
            file.create_dataset("uneven", (end - begin,), h5py.vlen_dtype(np.float32))[:] = [np.ones(2)] * (end - begin)
    episodes = {"type": "episode_files", "path": str(tmp_path)}
    assert texts_of(episodes, embed(tmp_path / "e"), key="told") == EXPECTED
    with pytest.raises(DataError, match=naming("language", "'uneven'", "text")):
        texts_of(episodes, embed(tmp_path / "e"), key="uneven")


def test_texts_that_a_conversion_stored_need_no_list(tmp_path):
    episodes = write_npz(tmp_path / "d.npz", task_index=PER_FRAME)
    with pytest.raises(DataError, match=naming("language", "language.texts")):
        texts_of(episodes, embed(tmp_path / "e"), key="task_index")
    with zipfile.ZipFile(tmp_path / "d.npz", "a") as archive:
        archive.writestr("meta.json", json.dumps({"tasks": TEXTS}))
    assert texts_of(episodes, {"path": str(tmp_path / "e"), "format": "parquet"}, key="task_index") == EXPECTED


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", [str, "U8"])
@pytest.mark.filterwarnings("ignore:The data type")  # zarr: U8 has no specification in v3
def test_texts_of_zarr_may_be_of_any_length(tmp_path, version, dtype):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "d.zarr", mode="w", zarr_format=version)
    numbers = np.random.default_rng(0).normal(size=(12, 2))
    for key, values in (("data/state", numbers), ("data/action", numbers), ("meta/episode_ends", ENDS)):
        group.create_array(key, data=values)
    group.create_array("data/told", shape=(12,), chunks=(5,), dtype=dtype)[:] = np.array(EXPECTED)
    episodes = {"type": "zarr", "path": str(tmp_path / "d.zarr")}
    assert texts_of(episodes, embed(tmp_path / "e"), key="told") == EXPECTED


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
    with pytest.raises(DataError, match=naming("meta/tasks." + ("parquet" if version == "v3.0" else "jsonl"))):
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
    with pytest.raises(DataError, match=naming("'text'", "caption", "embedding")):
        make(tmp_path, folder)
    assert set(LanguageConfig.model_fields) == {"key", "texts", "folder", "text", "weights", "success_of"}


NUMBERS = {"key": "n", "texts": TEXTS}


@pytest.mark.parametrize(
    ("arrays", "fields", "message"),
    [
        ({}, {"key": "no"}, ("language", "'no'")),
        ({}, {}, ("language", "language.texts")),
        ({}, {"texts": "stat"}, ("language", "'stat'", "'state'")),
        ({}, {"texts": TEXTS[:2]}, ("language.texts", "2 texts", "3 episodes")),
        ({"n": PER_FRAME + 1}, NUMBERS, ("episode 1", "frame 0", "'n'", 3, 0, 2)),
        ({"n": PER_FRAME * 0.5}, NUMBERS, ("'n'", "float64")),
        ({"n": PER_FRAME[:5]}, NUMBERS, ("'n'", "5 rows", "12 frames", "3 episodes")),
        ({"t": np.array([b"gr\xfcn"] * 12)}, {"key": "t"}, ("d.npz[t]", "UTF-8")),
        ({"t": np.array(["a", " ", "c"])}, {"key": "t"}, ("episode 1", "frame 0", '{"leave_out": [1]}')),
        ({"t": np.array(["stop", "jump", "run"])}, {"key": "t"}, ("'jump'", "'run'", "dp-prior embed")),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_clear_line(tmp_path, arrays, fields, message):
    config = {
        "episodes": write_npz(tmp_path / "d.npz", **arrays),
        "obs": {"s": {"key": "state"}},
        "action": {"key": "action"},
        "language": {"told": {"folder": embed(tmp_path / "e"), **fields}},
    }
    with pytest.raises(DataError, match=naming(*message)):
        TrajectoriesConfig.from_json(json.dumps(config)).create(4, 2, 2)


WEIGHTED = {"go left": 1, "go right": 3, "stop": 2}
LENGTHS = (20, 9, 14, 30, 6)
SAID = (2, 0, 1, 0, 2)  # number of each episode's text


def weighted(place, weights, said=SAID, lengths=LENGTHS, **fields) -> dict:
    """A set whose episodes are told `said`, as JSON; windows of 8 steps, 2 observations and 4 actions."""
    place.mkdir(exist_ok=True)
    numbers = np.random.default_rng(0).normal(size=(sum(lengths), 2)).astype(np.float32)
    np.savez(place / "d.npz", state=numbers, action=numbers, episode_ends=np.cumsum(lengths), said=said, **fields)
    told = {"key": "said", "texts": TEXTS, "folder": embed(place / "e"), "weights": weights}
    keys = {"obs": {"state": {"key": "state"}}, "language": {"told": told}, "action": {"key": "action"}}
    return {"episodes": {"type": "npz", "path": str(place / "d.npz")}, **keys}


def opened(record: dict, kind=TrajectoriesConfig):
    return kind.from_json(json.dumps({**record, "split": {"train": 1.0, "val": 0.0}})).create(8, 2, 4)


def drawn(data, epochs) -> Counter:
    """How often each window comes."""
    loader = data.loader(batch_size=1, accumulation=1, seed=5, rank=0, world_size=1)
    return Counter(np.concatenate([loader.order.ids(epoch, 0, len(loader)) for epoch in range(epochs)]).tolist())


def texts_of_windows(data) -> list[str]:
    """What the newest observation of each window is told, by its embedding."""
    told = data.train.fetch(torch.arange(len(data.train))).cond["told"][:, 1]
    return [
        TEXTS[int(k)] for k in (told @ torch.from_numpy(HashedConfig(dimension=8).create().texts(TEXTS)).T).argmax(1)
    ]


@pytest.mark.parametrize("weights", ["balanced", WEIGHTED])
def test_each_text_has_its_exact_share_of_every_epoch_and_all_its_windows_come_in_turn(tmp_path, weights):
    data = opened(weighted(tmp_path, weights))
    texts, n = texts_of_windows(data), len(data.train)
    given = dict.fromkeys(TEXTS, 1) if weights == "balanced" else weights
    for epochs in (1, 2, 5):
        counts = drawn(data, epochs)
        for text in TEXTS:
            of = [counts[i] for i in range(n) if texts[i] == text]
            assert abs(sum(of) / epochs - n * given[text] / sum(given.values())) < 1 and max(of) - min(of) <= 1
    assert "3 instructions, shares 0." in data.summary()
    how = {"batch_size": 4, "accumulation": 1, "seed": 3, "rank": 0, "world_size": 1}
    ranks = [data.loader(**how | {"batch_size": 2, "rank": rank, "world_size": 2}) for rank in range(2)]
    for start in (0, 8, 500 * 4):  # any position, whatever the ranks
        found = torch.stack([torch.cat([batch.ids for batch in one.global_batch(start)]) for one in ranks], 1)
        assert torch.equal(found.flatten(), data.loader(**how).global_batch(start)[0].ids)


def test_weights_like_the_numbers_of_windows_change_no_window_s_number(tmp_path):
    data = opened(weighted(tmp_path / "a", None))
    assert data.shares is None
    counts = Counter(texts_of_windows(data))
    every = opened(weighted(tmp_path / "b", {text: counts[text] for text in TEXTS}))
    equal = opened(weighted(tmp_path / "c", "balanced", said=(0, 1, 2), lengths=(9, 9, 9)))
    for one in (data, every, equal):
        assert set(drawn(one, 1).values()) == {1} and set(drawn(one, 3).values()) == {3}


def test_weights_of_texts_are_those_of_sets_with_one_text_each(tmp_path):
    """Bit for bit: the windows of a text are those of its set."""
    one = opened(weighted(tmp_path / "one", {"go left": 1, "go right": 3}, said=(0, 0, 1), lengths=(20, 9, 14)))
    whole = np.load(tmp_path / "one/d.npz")
    sets = {}
    for name, rows, said, lengths in (("a", slice(29), (0, 0), (20, 9)), ("b", slice(29, None), (1,), (14,))):
        sets[name] = weighted(tmp_path / name, None, said, lengths) | {"weight": 1 if name == "a" else 3}
        arrays = {key: whole[key][rows] for key in ("state", "action")}
        np.savez(tmp_path / name / "d.npz", **arrays, said=said, episode_ends=np.cumsum(lengths))
    many = opened({"sets": sets}, MixtureConfig)
    how = {"batch_size": 4, "accumulation": 1, "seed": 3, "rank": 0, "world_size": 1}
    for start in range(0, 400, 4):
        (found,), (expected,) = one.loader(**how).global_batch(start), many.loader(**how).global_batch(start)
        assert torch.equal(found.ids, expected.ids) and torch.equal(found.x, expected.x)
        assert torch.equal(found.cond["told"], expected.cond["told"])


@pytest.mark.parametrize("weight", [None, 1])
def test_in_a_mixture_texts_divide_the_share_of_their_set(tmp_path, weight):
    sets = {
        name: weighted(tmp_path / name, weights, said, lengths) | {"weight": weight and weight * more}
        for name, weights, said, lengths, more in (
            ("a", "balanced", SAID, LENGTHS, 1), ("b", None, (0, 1), (12, 40), 3)
        )
    }  # fmt: skip
    data = opened({"sets": sets}, MixtureConfig)
    n, (first, second) = len(data.train), (len(each.train) for each in data.sets.values())
    texts, counts = texts_of_windows(data), drawn(data, 2)
    of_a = first if weight is None else n / 4
    for text in TEXTS:
        assert abs(sum(counts[i] for i in range(first) if texts[i] == text) / 2 - of_a / 3) <= 1
    of_b = [counts[i] for i in range(first, n)]
    assert abs(sum(of_b) / 2 - (n - of_a)) <= 1 and max(of_b) - min(of_b) <= 1 and len(of_b) == second


def measured(data, **solved):
    """The loader of a data set after a rollout of ten episodes of each text."""
    loader = data.loader(batch_size=4, accumulation=1, seed=5, rank=0, world_size=1)
    texts = {text.replace(" ", "_"): text for text in TEXTS}
    found = [{"instruction": texts[name], "success_rate": n / 10, "episodes": 10} for name, n in solved.items()]
    loader.follow({"rollout/by_instruction": found})
    return loader


def share_of(texts, loader) -> dict[str, float]:
    """The share of each text in an epoch."""
    ids = loader.order.ids(3, 0, len(loader))
    return {text: sum(texts[i] == text for i in ids) / len(ids) for text in TEXTS}


@pytest.mark.parametrize("is_mixture", [False, True])
def test_texts_that_a_rollout_loses_are_drawn_more_often(tmp_path, is_mixture):
    record, kind = weighted(tmp_path / "a", "by_success"), TrajectoriesConfig
    if is_mixture:
        sets = {"a": record | {"weight": 1}, "b": weighted(tmp_path / "b", "by_success") | {"weight": 3}}
        record, kind = {"sets": sets}, MixtureConfig
    data = opened(record, kind)
    texts, n = texts_of_windows(data), len(data.train)
    balanced = data.loader(batch_size=4, accumulation=1, seed=5, rank=0, world_size=1)
    assert share_of(texts, balanced) == pytest.approx(dict.fromkeys(TEXTS, 1 / 3), abs=2 / n)
    of_some = share_of(texts, measured(data, go_left=10, stop=0))  # unmeasured is one half
    for found, weights in (
        (share_of(texts, measured(data, go_left=10, go_right=7, stop=0)), (1 / 12, 4 / 12, 11 / 12)),
        (of_some, (1 / 12, 1 / 2, 11 / 12)),
    ):
        weight_of = dict(zip(("go left", "go right", "stop"), weights, strict=True))
        expected = {text: weight_of[text] / sum(weights) for text in TEXTS}
        assert found == pytest.approx(expected, abs=2 / n)
    assert data.follows.keys() == {"rollout"} and balanced.state() == {}
    assert is_mixture or told(data.summary(), "3 instructions", "rollout", "success")
    counts = Counter(measured(data, go_left=10, go_right=0, stop=0).order.ids(0, 0, n).tolist())
    assert len(counts) > 1  # a solved text may have few samples, or none; that is no error


def test_success_of_other_texts_is_one_clear_line_and_success_of_needs_by_success(tmp_path):
    data = opened(weighted(tmp_path, "by_success"))
    loader = data.loader(batch_size=4, accumulation=1, seed=5, rank=0, world_size=1)
    foreign = [{"instruction": "jump", "success_rate": 0.5, "episodes": 2}]
    with pytest.raises(ConfigError, match=naming("'rollout'", "'jump'", "'go left'")):
        loader.follow({"rollout/by_instruction": foreign})
    record = weighted(tmp_path / "b", "balanced")
    record["language"]["told"]["success_of"] = "other"
    with pytest.raises(ConfigError, match=naming("success_of", "'other'", "by_success")):
        opened(record)
    record["language"]["told"]["weights"] = "by_success"
    assert opened(record).follows == {"other": sorted(set(TEXTS))}
    assert kind_of("data.language.told.success_of") == "schedule-changing"


def test_in_a_mixture_sets_of_which_the_evaluator_plays_no_text_stay_as_they_begin(tmp_path):
    """It knows the instructions of one environment, and a mixture may have the sets of several."""
    a, b = (weighted(tmp_path / name, "by_success") for name in "ab")
    others = ["jump", "run", "sit"]
    b["language"]["told"] |= {"texts": others, "folder": embed(tmp_path / "others", others)}
    data = opened({"sets": {"a": a | {"weight": 1}, "b": b | {"weight": 1}}}, MixtureConfig)
    loader, texts = measured(data, go_left=10, go_right=0, stop=0), texts_of_windows(data.sets["a"])
    counts = Counter(loader.order.ids(3, 0, len(loader)).tolist())
    of_a, of_b = (
        [sum(counts[first + i] for i, own in enumerate(texts) if own == text) for text in TEXTS]
        for first in (0, len(texts))
    )
    assert of_a == pytest.approx([len(texts) * weight / 23 for weight in (1, 11, 11)], abs=1)
    assert of_b == pytest.approx([len(texts) / 3] * 3, abs=1)
    foreign = [{"instruction": "fly", "success_rate": 0.5, "episodes": 2}]
    with pytest.raises(ConfigError, match=naming("'rollout'", "'fly'", "'go left'")):
        loader.follow({"rollout/by_instruction": foreign})


def test_a_text_that_is_not_trained_on_has_no_share_and_new_weights_may_be_resumed_with(tmp_path):
    record = weighted(tmp_path, "balanced") | {"split": {"train": 0.4, "val": 0.6}}
    data = TrajectoriesConfig.from_json(json.dumps(record)).create(8, 2, 4)
    assert len(data.shares) == len(set(texts_of_windows(data))) < 3
    assert sum(share.count for share in data.shares) == len(data.train)
    assert kind_of("data.language.told.weights.go left. Now.") == "schedule-changing"
    assert kind_of("data.language.told.texts") == "data"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({**WEIGHTED, "go up": 1}, ("language.weights", "'go up'", "'go left'")),
        ({"stop": 1}, ("language.weights", "'go left'", "'go right'")),
        ({**WEIGHTED, "stop": 1e-9}, ("language.weights", "'stop'", 64)),
        ({**WEIGHTED, "stop": 0}, ("language.told.weights.stop", 0)),
        ("equal", ("language.told.weights", "'balanced'", "'equal'")),
    ],
)
def test_weights_that_fit_no_data_are_one_clear_line(tmp_path, weights, message):
    with pytest.raises((ConfigError, DataError), match=naming(*message)):
        opened(weighted(tmp_path, weights))


def test_weights_of_two_instructions_or_beside_embeddings_are_refused(tmp_path):
    record = weighted(tmp_path, "balanced")
    two = {"told": record["language"]["told"], "also": record["language"]["told"]}
    with pytest.raises(ConfigError, match=naming("language", "['told', 'also']")):
        opened({**record, "language": two})
    stored = {"embeddings": {"view": {"folder": {"path": "x"}}}}
    with pytest.raises(ConfigError, match=naming("language.told", "weights", "embeddings")):
        opened({**record, **stored})
    plain, own = weighted(tmp_path, None), {"weights": {"episodes": {"0": 2}}}
    with pytest.raises(ConfigError, match=naming("1 problem", "weights", "language.told")):
        opened({**record, **own})
    with pytest.raises(ConfigError, match=naming("1 problem", "weights", "embeddings")):
        opened({**plain, **stored, **own})
    mapped = {**plain, **stored, "obs": {}}
    with pytest.raises(ConfigError, match=naming("sets", "weights", "embeddings")):
        opened({"sets": {"a": {**record, "obs": {"view": {"key": "state"}}}, "b": mapped}}, MixtureConfig)


def test_names_are_told_apart_and_an_instruction_alone_is_no_observation(tmp_path):
    config = {
        "episodes": write_npz(tmp_path / "d.npz"),
        "action": {"key": "action"},
        "language": {"told": {"folder": embed(tmp_path / "e"), "texts": TEXTS}},
    }
    with pytest.raises(ConfigError, match=naming("obs", "embeddings", "images", "empty")):
        TrajectoriesConfig.from_json(json.dumps(config))
    with pytest.raises(ConfigError, match=naming("language", "['told']")):
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
    texts, index = read_texts(record.language["told"], store, ALL_EPISODES.of(store)[0])
    assert len(texts) == n_texts and texts[index[0]].startswith(first)
    config["language"]["told"]["folder"] = embed(tmp_path / "e", texts)
    data = TrajectoriesConfig.from_json(json.dumps(config)).create(16, 2, 8)
    assert data.train.fetch(torch.arange(3)).cond["told"].shape == (3, 2, 8)
    warned = any(told(line, "'told'", "every frame") for line in data.report()["warnings"])
    assert warned == (n_texts == 1)


def test_instructions_that_share_an_embedding_are_told(tmp_path):
    """A bag of words does not know their order; a model that cuts its texts does not know their ends."""
    texts = ["push the block onto the plate", "push the plate onto the block", "lift it"]
    numbers = np.arange(12, dtype=np.float32)[:, None]
    np.savez(tmp_path / "d.npz", state=numbers, action=numbers, episode_ends=[4, 8, 12])
    config = {
        "episodes": {"type": "npz", "path": str(tmp_path / "d.npz")},
        "obs": {"s": {"key": "state"}},
        "action": {"key": "action"},
        "language": {"told": {"texts": texts, "folder": embed(tmp_path / "e", texts)}},
    }
    warnings = TrajectoriesConfig.from_json(json.dumps(config)).create(2, 1, 1).warnings()
    assert any(told(line, "1 of 3", repr(texts[0])) for line in warnings)
    mixed = MixtureConfig.from_json(json.dumps({"sets": {"one": config, "two": config}})).create(2, 1, 1)
    lines = [line for line in mixed.warnings() if told(line, "'told'", "1 of 3", repr(texts[0]))]
    assert [line.partition(": ")[0] for line in lines] == ["one", "two"]


def test_a_text_has_the_first_of_its_embeddings_however_many_are_read_at_once(tmp_path, monkeypatch):
    texts = ["stop", "turn", "go right", "stop", "go left", "go left"]
    values = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    record = EmbeddingsRecord(embedder=HashedConfig(dimension=8), source={"texts": "text"}, rows=6)
    write_embeddings(tmp_path / "e", Job(record, {"text": texts}, lambda first, stop: values[first:stop]))
    np.savez(tmp_path / "d.npz", state=np.zeros((12, 2)), told=np.array(EXPECTED), episode_ends=ENDS)
    store = NpzStoreConfig(path=tmp_path / "d.npz").create()
    for rows in (100, 2):
        monkeypatch.setattr("dp_prior.data.embeddings.metadata.ROWS_AT_ONCE", rows)
        folder = {"path": str(tmp_path / "e"), "format": "parquet"}
        frames = LanguageConfig(key="told", folder=folder).create(store, ALL_EPISODES.of(store)[0])
        assert frames.texts == sorted(TEXTS) == ["go left", "go right", "stop"]
        np.testing.assert_array_equal(frames.table, values[[4, 2, 0]])
