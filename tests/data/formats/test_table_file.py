"""Episodes in CSV and parquet: columns are keys, numbered columns one key."""

from decimal import Decimal

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats import table_file
from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior.data.formats.episode_files import EpisodeFilesConfig
from dp_prior.data.formats.table_file import TableEpisode
from dp_prior_foreign.recognition import kind_of
from tests.messages import naming, told

LENGTHS = [4, 6]


def written(folder, ending, **columns):
    """A folder with tables of random joints `q.0` to `q.11`, actions and stamps; columns: further ones."""
    random = np.random.default_rng(0)
    folder.mkdir()
    episodes = []
    for number, length in enumerate(LENGTHS):
        table = {"timestamp": np.arange(length) / 10} | {
            f"q.{joint}": random.normal(size=length) for joint in range(12)
        }
        table |= {f"action{joint}": random.normal(size=length) for joint in (2, 1)}
        table |= {name: np.resize(values, length) for name, values in columns.items()}
        episodes.append(table)
        path = folder / f"take_{number}{ending}"
        if ending == ".csv":
            lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
            path.write_text("\n".join(lines) + "\n")
        else:
            pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
            from pyarrow import parquet

            parquet.write_table(pyarrow.table({name: list(values) for name, values in table.items()}), path)
    return episodes


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_numbered_columns_are_a_key_in_the_order_of_their_numbers(ending, tmp_path):
    episodes = written(tmp_path / "d", ending, note=np.array(["far", "near"]), camera_3=np.ones(1))
    assert kind_of(tmp_path / "d") == "episode_files"
    store = EpisodeFilesConfig(path=tmp_path / "d").create()
    assert store.episode_ends.tolist() == np.cumsum(LENGTHS).tolist()
    assert store.keys() == {"timestamp": (), "note": (), "camera_3": (), "q": (12,), "action": (2,)}
    for key, names in {"q": [f"q.{joint}" for joint in range(12)], "action": ["action1", "action2"]}.items():
        expected = np.concatenate([np.stack([one[name] for name in names], axis=1) for one in episodes])
        np.testing.assert_array_equal(store.read(key), expected)
    assert store.read("note").tolist()[:3] == ["far", "near", "far"]


def test_vectors_in_parquet_are_read_and_what_is_none_has_a_line(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from pyarrow import parquet

    rows = {"action": [[0.0, 1.0], [2.0, 3.0]], "uneven": [[1], [1, 2]], "picture": [b"a", b"b"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "0.parquet")
    store = EpisodeFilesConfig(path=tmp_path).create()
    assert store.keys() == {"action": (2,)} and store.read("action").tolist() == rows["action"]
    unread = store.unread()
    assert told(unread["uneven"], "row 1", "2 elements") and told(unread["picture"], "binary")


def test_a_table_beside_other_episodes_is_no_episode(tmp_path):
    written(tmp_path / "d", ".csv")
    np.savez(tmp_path / "d/take.npz", action=np.zeros((5, 2)), state=np.zeros((5, 3)))
    store = EpisodeFilesConfig(path=tmp_path / "d").create()
    assert store.episode_ends.tolist() == [5] and told(store.unread()["*.csv"], "take_0.csv")


@pytest.mark.parametrize("sign", [",", ";"])
@pytest.mark.parametrize("head", ["# a0,a1", "#a0,a1", "# by a logger\n# and so on\na0,a1", "# one, two\n\na0,a1"])
def test_comments_above_the_names_are_skipped_and_names_that_numpy_marks_are_read(head, sign, tmp_path):
    (tmp_path / "0.csv").write_text(f"{head}\n1,2\n3,4\n".replace(",", sign))
    np.testing.assert_array_equal(TableEpisode(tmp_path / "0.csv").rows("a", 0, 2), [[1, 2], [3, 4]])


def test_names_that_numpy_marks_stay_above_texts(tmp_path):
    (tmp_path / "0.csv").write_text("#t,phase,a0,a1\n0,lift,1,2\n1,lift,3,4\n")
    table = TableEpisode(tmp_path / "0.csv")
    np.testing.assert_array_equal(table.rows("a", 0, 2), [[1, 2], [3, 4]])
    assert table.rows("t", 0, 2).tolist() == [0, 1] and table.rows("phase", 0, 2).tolist() == ["lift", "lift"]


@pytest.mark.parametrize("head", ["0,1", ",0"])
def test_numbers_of_columns_that_pandas_writes_in_place_of_names_are_names(head, tmp_path):
    (tmp_path / "0.csv").write_text(f"{head}\n1,2\n3,4\n")
    assert TableEpisode(tmp_path / "0.csv").rows(head[-1], 0, 2).tolist() == [2, 4]


@pytest.mark.parametrize("absent", ["NA", "null", " None ", "N/A", "nan"])
def test_a_word_for_an_absent_number_is_not_finite(absent, tmp_path):
    (tmp_path / "0.csv").write_text(f"a0,a1\n1,{absent}\n3,4\n")
    np.testing.assert_array_equal(TableEpisode(tmp_path / "0.csv").rows("a", 0, 2), [[1, np.nan], [3, 4]])


def test_columns_of_an_action_make_a_folder_of_tables_episodes(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text("ee_x,action_x,action_y\n1,2,3\n4,5,6\n")
    assert kind_of(tmp_path) == "episode_files"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1.5,2\n3,4\n", ("1.5, 2", "q0, q1")),
        ("# by a logger\n", ("CSV",)),
        ("a0,a1\n1,2\n3\n", ("row 1", "1 cells", "names 2")),
        ("a0,a1\n1,2,3\n4,5,6\n", ("row 0", "3 cells", "names 2")),
        ("a0,a0\n1,2\n", ("2 columns", "'a0'")),
        ("", ("CSV",)),
        ("episode,a0,a1\n0,1,2\n1,1,2\n", ("'episode'", "2 episodes", "docs/own_data.md#other-files")),
    ],
)
def test_damaged_tables_and_those_of_several_episodes_are_refused(text, parts, tmp_path):
    (tmp_path / "0.csv").write_text(text)
    with pytest.raises(DataError, match=naming(tmp_path / "0.csv", *parts)):
        TableEpisode(tmp_path / "0.csv").header("a")


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table([[1.0], [2.0]], names=["a", "a"]), tmp_path / "0.parquet")
    with pytest.raises(DataError, match=naming(tmp_path / "0.parquet", "2 columns", "'a'")):
        TableEpisode(tmp_path / "0.parquet").header("a")


def test_an_empty_cell_is_not_finite(tmp_path):
    (tmp_path / "0.csv").write_text("\ufeffa0, a1\n1,\n3,4\n", encoding="utf-8")
    np.testing.assert_array_equal(TableEpisode(tmp_path / "0.csv").rows("a", 0, 2), [[1, np.nan], [3, 4]])


def test_a_null_is_not_finite_as_pandas_writes_nan(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from pyarrow import parquet

    columns = {"a0": pyarrow.array([1, None], pyarrow.float32()), "a1": pyarrow.array([None, 4], pyarrow.int16())}
    parquet.write_table(pyarrow.table(columns), tmp_path / "0.parquet")
    np.testing.assert_array_equal(TableEpisode(tmp_path / "0.parquet").rows("a", 0, 2), [[1, np.nan], [np.nan, 4]])


def test_decimals_and_categories_of_other_programs_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from pyarrow import parquet

    columns = {
        "decimal": pyarrow.array([[Decimal("1.25")], [Decimal("-3.5")]]),
        "level": pyarrow.array([0.5, 0.25]).dictionary_encode(),
        "word": pyarrow.array(["far", "near"]).dictionary_encode(),
        "absent": pyarrow.array(["far", None]).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "0.parquet")
    episode = TableEpisode(tmp_path / "0.parquet")
    read = {key: episode.rows(key, 0, 2).tolist() for key in episode.layout}
    assert read == {"decimal": [[1.25], [-3.5]], "level": [0.5, 0.25], "word": ["far", "near"]}
    assert told(episode.lost["absent"], "row 1", "null")


def test_numbered_columns_of_parquet_are_episodes_whatever_the_action_is_called(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from pyarrow import parquet

    for number in range(2):
        columns = {f"{key}_{i}": np.arange(4.0) for key in ("joint", "cmd") for i in range(3)}
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{number}.parquet")
    assert kind_of(tmp_path) == "episode_files"


def test_a_column_of_truth_values_is_one_as_pandas_and_others_write_it(tmp_path):
    for number, (closed, done) in enumerate([("False", "true"), ("True", "false")]):
        lines = ["action1,action2,closed,done,note", f"1,2,False,{done},True", f"3,4,{closed},{done},x"]
        (tmp_path / f"{number}.csv").write_text("\n".join(lines))
    store = EpisodeFilesConfig(path=tmp_path).create()
    assert store.read("closed").tolist() == [False, False, False, True] and store.dtype("closed") == "bool"
    assert store.read("note").tolist() == ["True", "x", "True", "x"]
    assert ChoiceConfig(where={"done": True}).of(store)[0].numbers.tolist() == [0]


def test_a_table_is_read_once_for_all_its_keys_and_rows(tmp_path, monkeypatch):
    written(tmp_path / "d", ".csv")
    read, csv_of = [], table_file._csv
    monkeypatch.setattr(table_file, "_csv", lambda path: read.append(path) or csv_of(path))
    store = EpisodeFilesConfig(path=tmp_path / "d").create()
    keys = store.keys()
    for key in keys:
        store.read(key)
    assert len(read) == len(LENGTHS)


@pytest.mark.parametrize(
    ("separator", "comma", "encoding"),
    [(",", ".", "utf-8"), (";", ".", "utf-8"), (";", ",", "utf-8-sig"), ("\t", ",", "utf-16"), (",", ".", "utf-16")],
)
def test_dialects_of_tables_hold_the_same_numbers(tmp_path, separator, comma, encoding):
    numbers = np.random.default_rng(0).normal(size=(6, 3)).round(4)
    lines = [separator.join(("q0", "q1", "action"))]
    lines += [separator.join(str(number).replace(".", comma) for number in row) for row in numbers]
    path = tmp_path / "a.csv"
    path.write_bytes("\r\n".join(lines).encode(encoding))
    episode = TableEpisode(path)
    np.testing.assert_array_equal(episode.rows("q", 0, 6), numbers[:, :2])
    np.testing.assert_array_equal(episode.rows("action", 0, 6), numbers[:, 2])


def test_a_table_in_another_encoding_names_the_one_to_save_it_in(tmp_path):
    (tmp_path / "a.csv").write_bytes("länge,action\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=naming("a.csv", "UTF-8", "0xe4")):
        _ = TableEpisode(tmp_path / "a.csv").layout


@pytest.mark.parametrize("rows", ["1,2,3\n", "1,2,3\n4,5,6\n"])
def test_a_line_of_units_below_the_names_is_the_cause_that_is_told(tmp_path, rows):
    path = tmp_path / "a.csv"
    path.write_text(f"q0,q1,action\nrad,rad,m\n{rows}")
    with pytest.raises(DataError, match=naming("a.csv", "rad", "units", "remove")):
        _ = TableEpisode(path).layout
    with pytest.raises(DataError, match=naming("a.csv", "units")):
        kind_of(tmp_path)
