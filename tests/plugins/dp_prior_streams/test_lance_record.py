import json
import shutil
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.files.json_text import unseal
from dp_prior_streams import lance_record
from dp_prior_streams.lance_record import LanceConfig
from dp_prior_streams.sealed_folder import SIZES
from tests.extras import needs
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.damages import DAMAGES

needs("pyarrow", "lerobot")

from tests.plugins.dp_prior_streams.recorded_sets import CAMERA, add_videos, batches_of, data_config, write_v3  # noqa: E402
from tests.s3_server import s3_bucket, upload_folder  # noqa: E402

with_lance = pytest.mark.skipif(
    find_spec("lance") is None, reason="NOT CHECKED: the extra dp_prior[lance] is not installed"
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A data set with videos, which no test changes, and the same in Lance tables."""
    from tests.plugins.dp_prior_streams.lance_sets import write_lance

    folder = tmp_path_factory.mktemp("lance")
    source = add_videos(write_v3(folder / "v3", files=6, episodes_per_file=3))
    return source, write_lance(source, folder / "lance")


def opened_as(record, cache, **settings):
    """Data whose episodes are a record, which need not be of an installed package."""
    config = data_config({"type": "lerobot", "path": "unused"}, frame_cache=str(cache), **settings)
    return config.model_copy(update={"episodes": record}).create(8, 2, 4)


@with_lance
@pytest.mark.parametrize("choice", [{}, {"leave_out": [0, 7, 8]}])
def test_batches_are_those_of_the_files_bit_for_bit(sets, tmp_path, choice):
    settings = {"images": {"front": {"key": CAMERA, "size": [24, 32]}}, "choice": choice}
    batches, fingerprints = [], []
    for record in (LeRobotStoreConfig(path=sets[0]), LanceConfig(path=sets[1])):
        data = opened_as(record, tmp_path / record.type, **settings)
        data.build_caches(lambda line: None)
        batches.append(batches_of(data, data.order(0)))
        fingerprints.append(data.fingerprint)
    assert len(batches[0]) > 3 and batches[0] == batches[1]
    assert fingerprints[0] == fingerprints[1]


@with_lance
def test_every_column_is_that_of_the_files(sets, monkeypatch):
    from dp_prior_streams import lance_record

    monkeypatch.setattr(lance_record, "ROWS_AT_ONCE", 60)
    expected, store = LeRobotStoreConfig(path=sets[0]).create(), LanceConfig(path=sets[1]).create()
    assert len(store.meta.tables) > len(expected.meta.tables)
    assert store.keys() == expected.keys() and store.texts() == expected.texts()
    assert np.array_equal(store.episode_ends, expected.episode_ends)
    some = np.array([0, 4, 5, 17])
    for key in ("observation.state", "action", "task_index", "frame_index"):
        values, rows = expected.read(key), expected.episodes(key, expected.episode_ends, some)
        assert np.array_equal(store.read(key), values) and store.read(key).dtype == values.dtype
        assert np.array_equal(store.episodes(key, store.episode_ends, some), rows)
    assert {file.relative_to(sets[1]).parts[0] for file in store.files([])} == {"frames.lance", "meta"}
    assert told(store.locate("action", 100), "frames.lance", "rows")


@with_lance
def test_a_folder_is_recognised_and_read_as_lance_alone(sets):
    assert LanceConfig.is_at(sets[1]) and not LanceConfig.is_at(sets[0])
    assert LeRobotStoreConfig.is_at(sets[0]) and not LeRobotStoreConfig.is_at(sets[1])
    with pytest.raises(DataError, match=naming(str(sets[1]), '"type": "lance"')):
        LeRobotStoreConfig(path=sets[1]).create()


@with_lance
def test_tables_that_do_not_fit_the_metadata_are_refused(sets, tmp_path):
    import lance

    target = shutil.copytree(sets[1], tmp_path / "fewer")
    rows = lance.dataset(str(target / "frames.lance")).count_rows()
    lance.dataset(str(target / "frames.lance")).delete("episode_index = 3 AND frame_index < 2")
    with pytest.raises(DataError, match=naming("frames.lance", f"{rows - 2} rows", rows)):
        LanceConfig(path=target).create()
    target = shutil.copytree(sets[1], tmp_path / "disordered")
    table = lance.dataset(str(target / "frames.lance")).to_table()
    lance.write_dataset(table.sort_by("frame_index"), str(target / "frames.lance"), mode="overwrite")
    with pytest.raises(DataError, match=naming("frames.lance", "rows 0 to 138", "row 1", "episode_index", 0, 1)):
        LanceConfig(path=target).create().read("action")
    target = shutil.copytree(sets[1], tmp_path / "old")
    info = json.loads((target / "meta/info.json").read_text())
    (target / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v2.1", "total_episodes": 1}))
    (target / "meta/episodes.jsonl").write_text('{"episode_index": 0, "length": 3}\n')
    with pytest.raises(DataError, match=naming("'v2.1'", "v3.0")):
        LanceConfig(path=target).create()


def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch):
    write_v3(tmp_path / "set", files=1, episodes_per_file=1)
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ImportError, match=naming("pylance", 'pip install "dp_prior[lance]"')):
        LanceConfig(path=tmp_path / "set").create()


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, ("path", "url")),
        ({"path": "x", "url": "s3://x"}, ("path", "url")),
        ({"url": "/data/set"}, ("'/data/set'", '"path"')),
        ({"url": "hf://datasets/user/name"}, ("'hf://datasets/user/name'", "s3://", "hf download")),
    ],
)
def test_a_place_that_cannot_be_read_is_refused(fields, parts):
    with pytest.raises(ConfigError, match=naming(*parts)):
        LanceConfig.from_json(json.dumps({"type": "lance", **fields}), source="data.episodes")


@pytest.fixture
def bucket(sets, monkeypatch):
    """The data set in a local imitation of S3."""
    with s3_bucket(monkeypatch) as client:
        upload_folder(client, sets[1], "set")
        yield client


@with_lance
def test_tables_in_s3_are_read_at_the_versions_of_the_first_opening(sets, bucket, tmp_path, monkeypatch):
    import lance

    from dp_prior_streams import lance_record

    monkeypatch.setattr(lance_record, "CACHE", tmp_path / "metadata")
    settings = {"images": {"front": {"key": CAMERA, "size": [24, 32]}}}
    batches = []
    for record in (LeRobotStoreConfig(path=sets[0]), LanceConfig(url="s3://bucket/set/")):
        data = opened_as(record, tmp_path / record.type, **settings)
        data.build_caches(lambda line: None)
        batches.append(batches_of(data, data.order(0)))
    assert batches[0] == batches[1]
    table = lance.dataset(str(sets[1] / "frames.lance")).to_table(limit=1)
    lance.write_dataset(table, "s3://bucket/set/frames.lance", mode="append")
    expected = LeRobotStoreConfig(path=sets[0]).create().read("action")
    assert np.array_equal(LanceConfig(url="s3://bucket/set").create().read("action"), expected)
    with pytest.raises(DataError, match=naming("s3://bucket/nothing/meta.lance", "data.episodes.url")):
        LanceConfig(url="s3://bucket/nothing").create()


class StandIn:
    """Tables whose metadata are a few files, at two versions."""

    content = {1: b"first", 2: b"second"}

    def __init__(self, place, versions=None):
        self.place, self.versions = place, versions or {}

    def version(self, name):
        return self.versions.get(name, 2 if StandIn.is_newer else 1)

    def where(self, name):
        return f"{self.place}/{name}.lance"

    def read(self, name, columns):
        import pyarrow as pa

        content = self.content[self.version(name)]
        return pa.table({"path": ["info.json", "episodes/a"], "data": [content, content * 2]})


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """The folder of a record whose metadata were copied at version 1, and the record."""
    monkeypatch.setattr(StandIn, "is_newer", False, raising=False)
    monkeypatch.setattr(lance_record, "LanceTables", StandIn)
    monkeypatch.setattr(lance_record, "CACHE", tmp_path / "metadata")
    record = LanceConfig(url="s3://bucket/set")
    folder = record.local({}, ()).path
    monkeypatch.setattr(StandIn, "is_newer", True)
    return folder, record


def _as_older_versions_wrote(path):
    versions = unseal(path.read_bytes())["versions"]
    path.write_text(json.dumps(versions))
    (path.parent / "meta" / SIZES).unlink()


METADATA_DAMAGES = {
    **{name: (lambda path, change=change: change(path.parent / "meta/episodes/a")) for name, change in DAMAGES.items()},
    "removed": lambda path: (path.parent / "meta/info.json").unlink(),
    "of an older version": _as_older_versions_wrote,
}


@pytest.mark.parametrize("damage", METADATA_DAMAGES)
def test_metadata_that_were_damaged_are_copied_again_at_the_version_of_the_first_opening(copied, damage, caplog):
    folder, record = copied
    record.local({}, ())
    assert not caplog.messages
    METADATA_DAMAGES[damage](folder / "versions.json")
    for _ in range(2):
        assert record.local({}, ()).path == folder
    assert (folder / "meta/info.json").read_bytes() == b"first"
    assert (folder / "meta/episodes/a").read_bytes() == b"firstfirst"
    assert [told(line, folder / "meta") for line in caplog.messages] == [True]


def test_versions_that_were_damaged_are_told_with_the_remedy(copied):
    folder, record = copied
    content = (folder / "versions.json").read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (folder / "versions.json").write_bytes(damaged)
        with pytest.raises(DataError, match=naming(folder / "versions.json", f"delete {folder}")):
            record.local({}, ())
