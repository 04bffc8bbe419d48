"""Annotations of LeRobot data sets as texts, and the parts of vectors that GR00T names."""

import errno
import json
import os
import shutil

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="NOT CHECKED: LeRobot stores, the extra dp_prior[lerobot] is not installed")
import pyarrow.parquet as pq  # noqa: E402

from dp_prior.data.errors import DataError, UnreadableError  # noqa: E402
from dp_prior.data.formats.choice import ALL_EPISODES  # noqa: E402
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig  # noqa: E402
from dp_prior.data.recorded.language import LanguageConfig, read_texts  # noqa: E402
from dp_prior_foreign import annotated_lerobot  # noqa: E402
from dp_prior_foreign.annotated_lerobot import AnnotatedLeRobotConfig  # noqa: E402
from dp_prior_foreign.convert import convert  # noqa: E402
from dp_prior_foreign.recognition import known_kind  # noqa: E402
from dp_prior_studio.inspection.inspect import inspect  # noqa: E402
from tests.data.formats.lerobot.test_dataset import (  # noqa: E402
    LENGTHS,
    STATE,
    problem_of,
    write_table,
    write_v2,
    write_v3,
)
from tests.data.formats.lerobot.test_hub import REPO, publish, toy  # noqa: E402
from tests.data.recorded.test_recorded_sets import FOLDER, need  # noqa: E402
from tests.messages import naming, told  # noqa: E402
from tests.tiny import tiny  # noqa: E402

ANNOTATED = (
    *(f"language_persistent.{style}" for style in ("subtask", "plan", "memory", "motion")),
    "language_events.interjection",
)


def store(root):
    return AnnotatedLeRobotConfig(path=root).create()


ENTRY = pa.struct([("role", pa.string()), ("content", pa.string()), ("style", pa.string())])
TIMED = pa.struct([*ENTRY, ("timestamp", pa.float32())])
RATE = 10


def annotate(root, persistent, events) -> None:
    """Add LeRobot's language columns to a data set, in which every row has the first and one row has each event.

    Args:
        persistent: (style, text, second) of each episode.
        events: (style, text, frame) of each episode.
    """
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= {name: {"dtype": "language", "shape": [1], "names": None} for name in COLUMNS}
    info["features"]["task_index"] = {"dtype": "int64", "shape": [1]}
    (root / "meta/info.json").write_text(json.dumps(info))
    write_table(root / "meta/tasks.parquet", {"task": ["tidy up", "wash"], "task_index": [0, 1]})
    for file in sorted((root / "data").glob("*/*.parquet")):
        table = pq.read_table(file)
        stored = {name: [] for name in COLUMNS}
        for episode, frame in zip(
            *(table.column(f"{name}_index").to_pylist() for name in ("episode", "frame")), strict=True
        ):
            rows = [
                {"role": "user", "content": text, "style": style, "timestamp": second}
                for style, text, second in persistent[episode]
            ]
            stored["language_persistent"].append(rows or None)
            stored["language_events"].append(
                [
                    {"role": "user", "content": text, "style": style}
                    for style, text, place in events[episode]
                    if place == frame
                ]
            )
        frames = np.array(table.column("frame_index").to_pylist())
        table = table.append_column("timestamp", pa.array((frames / RATE).astype(np.float32)))
        table = table.append_column("task_index", pa.array(np.array(table.column("episode_index").to_pylist()) % 2))
        for name, kind in (("language_persistent", TIMED), ("language_events", ENTRY)):
            table = table.append_column(name, pa.array(stored[name], pa.list_(kind)))
        pq.write_table(table, file)


COLUMNS = ("language_persistent", "language_events")
PERSISTENT = [
    [("subtask", "wipe", 0.1), ("plan", "1. grasp", 0.0), ("subtask", "grasp", 0.0), ("subtask", None, 0.2)],
    [("memory", "done", 0.1)],
    [("subtask", "lift", 0.3), ("subtask", "turn", 0.11)],
]
EVENTS = [
    [("interjection", "faster", 2)],
    [("vqa", "what?", 0)],
    [("interjection", "stop", 0), ("interjection", "go", 3)],
]


@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_annotations_in_force_are_texts(tmp_path, write):
    root = write(tmp_path)
    if write is write_v2:
        (root / "meta/tasks.jsonl").write_text(
            '{"task_index": 0, "task": "tidy up"}\n{"task_index": 1, "task": "wash"}\n'
        )
    annotate(root, PERSISTENT, EVENTS)
    data = store(root)
    texts = {key: data.read(key).tolist() for key in ANNOTATED}
    washing, tidying = ["wash"] * 3, ["tidy up"] * 5
    assert texts["language_persistent.subtask"] == [
        *("grasp", "wipe", "wipe", "wipe"),
        *washing,
        *("tidy up", "tidy up", "turn", "lift", "lift"),
    ]
    assert texts["language_persistent.plan"] == [*["1. grasp"] * 4, *washing, *tidying]
    assert texts["language_persistent.memory"] == [*["tidy up"] * 4, "wash", "done", "done", *tidying]
    assert texts["language_persistent.motion"] == [*["tidy up"] * 4, *washing, *tidying]
    assert texts["language_events.interjection"] == [
        *("tidy up", "tidy up", "faster", "faster"),
        *washing,
        *("stop", "stop", "stop", "go", "go"),
    ]
    for key, expected in texts.items():
        assert data.dtype(key) == "string" and data.keys()[key] == () and not data.is_number(key)
        ends, part = np.cumsum(LENGTHS), np.array([0, 2])
        assert data.episodes(key, ends, part).tolist() == [*expected[:4], *expected[7:]]


def test_annotations_are_those_that_a_search_of_each_row_finds(tmp_path):
    root, random = write_v3(tmp_path), np.random.default_rng(0)
    persistent = [
        [
            (str(random.choice(["subtask", "plan"])), f"text {place}", float(random.integers(0, 60)) / 100)
            for place in random.permutation(6)
        ]
        for _ in LENGTHS
    ]
    annotate(root, persistent, [[], [], []])
    expected = []
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            begun = [row for row in persistent[episode] if row[0] == "subtask" and row[2] <= frame / RATE + 1e-6]
            newest = max((row[2] for row in begun), default=None)
            last = [text for _, text, second in begun if second == newest]
            expected.append(last[-1] if last else ["tidy up", "wash"][episode % 2])
    assert store(root).read("language_persistent.subtask").tolist() == expected


def test_annotations_of_another_form_are_explained(tmp_path):
    root = write_v3(tmp_path)
    annotate(root, PERSISTENT, EVENTS)
    file = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file).drop_columns("language_events")
    pq.write_table(table.append_column("language_events", pa.array(["no list"] * len(table))), file)
    problem = problem_of(lambda: store(root).read("language_events.interjection"))
    assert told(problem, file, "language_events", "LeRobot")
    assert len(store(root).read("language_persistent.subtask")) == sum(LENGTHS)


def test_a_policy_reads_the_subtask_of_each_frame_and_a_conversion_leaves_it_out(tmp_path):
    root = write_v3(tmp_path / "set")
    annotate(root, PERSISTENT, EVENTS)
    data = store(root)
    chosen = ALL_EPISODES.of(data)[0]
    record = LanguageConfig.model_validate({"key": "language_persistent.subtask", "folder": {"path": "none"}})
    texts, index = read_texts(record, data, chosen)
    assert texts == ["grasp", "lift", "tidy up", "turn", "wash", "wipe"]
    assert [texts[number] for number in index] == data.read("language_persistent.subtask").tolist()
    assert known_kind(root) == "annotated_lerobot" and LeRobotStoreConfig.is_at(root)
    assert {"language_persistent.subtask", "language_events.interjection"} <= {*data.unread()}
    with pytest.raises(DataError) as refusal:
        convert(root, tmp_path / "out.zarr", "zarr", left_out=["observation.image"])
    assert told(str(refusal.value), "language_events", "--leave-out")
    assert not told(str(refusal.value), "language_events.interjection")


def test_subtasks_of_lerobot_before_its_annotations_have_their_own_texts(tmp_path):
    """Numbers of subtasks would stand for the texts of tasks otherwise."""
    root = write_v3(tmp_path)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= {name: {"dtype": "int64", "shape": [1]} for name in ("task_index", "subtask_index")}
    (root / "meta/info.json").write_text(json.dumps(info))
    write_table(root / "meta/tasks.parquet", {"task": ["tidy up", "wash"], "task_index": [0, 1]})
    write_table(root / "meta/subtasks.parquet", {"subtask": ["reach", "grasp"], "subtask_index": [0, 1]})
    for file in sorted((root / "data").glob("*/*.parquet")):
        table = pq.read_table(file)
        frames = np.array(table.column("frame_index").to_pylist())
        table = table.append_column("subtask_index", pa.array((frames > 1).astype(np.int64)))
        pq.write_table(table.append_column("task_index", pa.array(np.zeros(len(frames), np.int64))), file)
    data = LeRobotStoreConfig(path=root).create()
    record = LanguageConfig.model_validate({"key": "subtask_index", "folder": {"path": "none"}})
    texts, index = read_texts(record, data, ALL_EPISODES.of(data)[0])
    expected = ["reach" if frame < 2 else "grasp" for length in LENGTHS for frame in range(length)]
    assert [texts[number] for number in index] == expected


@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_parts_that_gr00t_names_are_keys(tmp_path, write):
    root = write(tmp_path)
    content = {
        "state": {"x": {"start": 0, "end": 1}, "both": {"start": 0, "end": 2}},
        "action": {"y": {"start": 1, "end": 2}, "state_y": {"start": 1, "end": 2, "original_key": "observation.state"}},
        "annotation": {"reward": {"original_key": "next.reward"}},
        "video": {"front": {"original_key": "observation.image"}},
    }
    (root / "meta/modality.json").write_text(json.dumps(content))
    data = store(root)
    assert known_kind(root) == "annotated_lerobot"
    assert np.array_equal(data.read("state.x"), STATE[:, :1]) and np.array_equal(data.read("state.both"), STATE)
    assert np.array_equal(data.read("action.y"), STATE[:, 1:] + 0.5)
    assert np.array_equal(data.read("action.state_y"), STATE[:, 1:])
    assert np.array_equal(data.read("annotation.reward").ravel(), np.arange(12))
    assert {key: data.keys()[key] for key in ("state.x", "state.both")} == {"state.x": (1,), "state.both": (2,)}
    assert data.dtype("action.y") == "float64" and not data.remarks()
    assert told(data.unread()["state.x"], "observation.state[0:1]", "modality.json")
    assert "state.x" in data.counted and "observation.state" not in data.counted


def test_a_part_that_a_configuration_reads_is_not_called_unused(tmp_path):
    root = write_v2(tmp_path)
    parts = {"x": {"start": 0, "end": 1}, "y": {"start": 1, "end": 2}}
    (root / "meta/modality.json").write_text(json.dumps({"state": parts, "action": parts}))
    data = {
        "episodes": {"type": "annotated_lerobot", "path": str(root)},
        "obs": {"arm": {"key": "state.x"}},
        "action": {"key": ["action.x", "action.y"]},
    }
    (tmp_path / "mine.json").write_text(json.dumps(tiny(tmp_path) | {"data": data}))
    (inspection,) = inspect(str(tmp_path / "mine.json"))
    assert "state.y" in inspection.survey.unused
    assert {"state.x", "action.x", "action.y"}.isdisjoint(inspection.survey.unused)


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        {"start": 0},
        {"start": 1, "end": 1},
        {"start": 0, "end": 3},
        {"start": -1, "end": 1},
        {"start": 0, "end": 1, "original_key": "observation.image"},
        {"start": 0, "end": 1, "original_key": "x"},
    ],
)
def test_parts_of_another_form_are_remarks(tmp_path, entry):
    root = write_v3(tmp_path)
    (root / "meta/modality.json").write_text(json.dumps({"state": {"x": entry}}))
    data = store(root)
    (line,) = data.remarks()
    assert told(line, "state.x", "modality.json", "meta/info.json") and "state.x" not in {*data.keys()}


@pytest.mark.parametrize("content", ["{", "[]", '{"state": [1]}', "null"])
def test_a_damaged_modality_file_takes_nothing_away(tmp_path, content):
    root = write_v3(tmp_path)
    (root / "meta/modality.json").write_text(content)
    assert np.array_equal(store(root).read("observation.state"), STATE)
    assert len(store(root).remarks()) == (content != '{"state": [1]}')


def test_a_modality_file_that_the_system_refuses_to_read_holds_no_other_content(tmp_path, monkeypatch):
    root = write_v3(tmp_path)
    (root / "meta/modality.json").write_text(json.dumps({"state": {}}))

    def refused(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(annotated_lerobot, "read_small", refused)
    with pytest.raises(UnreadableError, match=naming(root / "meta/modality.json", os.strerror(errno.EMFILE))):
        store(root)


def test_a_recorded_set_of_gr00t_has_the_parts_and_texts_of_its_file(tmp_path):
    root = FOLDER / "gr00t_gr1_picknplace/lerobot"
    need(root)
    shutil.copytree(root, tmp_path / "set", ignore=shutil.ignore_patterns("*.mp4"))
    data = store(tmp_path / "set")
    whole = data.read("observation.state")
    assert data.keys()["state.right_arm"] == (7,)
    assert np.array_equal(data.read("state.right_arm"), whole[:, 22:29])
    assert np.array_equal(data.read("action.waist"), data.read("action")[:, 41:44])
    for key, first in {"annotation.human.coarse_action": "pick the pear", "annotation.human.validity": "valid"}.items():
        record = LanguageConfig.model_validate({"key": key, "folder": {"path": "none"}})
        texts, index = read_texts(record, data, ALL_EPISODES.of(data)[0])
        assert texts[index[0]].startswith(first)


def test_a_repository_of_the_hub_has_the_keys_of_its_revision(hub, tmp_path):
    contents, part = toy(tmp_path), {"start": 0, "end": 1, "original_key": "state"}
    first = publish(hub, contents)
    publish(hub, {**contents, "meta/modality.json": json.dumps({"state": {"x": part}}).encode()})
    data = AnnotatedLeRobotConfig(repo=REPO).create()
    assert np.array_equal(data.read("state.x"), data.read("state")[:, :1])
    assert "state.x" not in {*AnnotatedLeRobotConfig(repo=REPO, revision=first).create().keys()}
