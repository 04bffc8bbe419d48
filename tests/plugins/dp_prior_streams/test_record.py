import errno
import json
import os
import shutil
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError, MissingError, UnwritableError
from dp_prior.job.stop import StoppedEarly
from dp_prior.run.exit_file import classify
from dp_prior_streams import part_cache, record
from dp_prior_streams.record import StreamedLeRobotConfig
from tests.extras import needs
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.damages import DAMAGES, swap
from tests.plugins.dp_prior_streams.recorded_sets import batches_of, data_config, streamed
from tests.plugins.dp_prior_streams.web_store import served

needs("pyarrow", "lerobot")


def store_of(url, cache, **settings):
    return StreamedLeRobotConfig(url=str(url), cache=cache, **{"disk_gb": 1.0, **settings}).create()


def test_the_store_of_a_streamed_set_is_that_of_its_files(small_set, tmp_path):
    from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig

    expected = LeRobotStoreConfig(path=small_set).create()
    with served(small_set) as web:
        for number, url in enumerate((small_set, web.url)):
            store = store_of(url, tmp_path / f"cache{number}", disk_gb=1e-4)  # with room for a table
            assert store.keys() == expected.keys() and store.texts() == expected.texts()
            assert store.metadata() == expected.metadata() and store.describe()["path"] == str(url)
            assert np.array_equal(store.episode_ends, expected.episode_ends)
            for key in ("action", "task_index"):
                assert np.array_equal(store.read(key), expected.read(key))
            some = np.array([0, 3, 23])
            for key in ("action", "task_index"):
                wanted_rows = expected.episodes(key, expected.episode_ends, some)
                assert np.array_equal(store.episodes(key, store.episode_ends, some), wanted_rows)
            assert all(file.is_relative_to(store.path) for file in store.files(["action"]))
            assert not [*(store.cache.folder / "parts").iterdir()]


def test_a_key_of_one_number_a_step_is_fetched_once(small_set, tmp_path):
    with served(small_set) as web:
        first = store_of(web.url, tmp_path).read("task_index")
        web.sent.clear()
        store = store_of(web.url, tmp_path)
        assert np.array_equal(store.read("task_index"), first) and web.sent.total() == 0
        store.read("action")
        assert web.sent.total() > 0


def test_format_v2_is_streamed_in_groups_of_its_tables(tmp_path):
    from tests.data.frames.recordings import pictures, write_lerobot

    lengths = [9, 7, 12, 8]
    folder = write_lerobot(tmp_path / "set", pictures(sum(lengths), 16, 16), lengths, "v2.1", "image")
    with served(folder) as web:
        store = store_of(web.url, tmp_path / "cache")
        assert store.read("action").ravel().tolist() == list(range(sum(lengths)))


def test_a_place_without_a_data_set_is_told(tmp_path):
    (tmp_path / "set").mkdir()
    with served(tmp_path / "set") as web:
        for number, url in enumerate((tmp_path / "set", web.url)):
            with pytest.raises(MissingError, match=naming("data.episodes.url", "meta/info.json")):
                store_of(url, tmp_path / f"cache{number}")


def test_tables_that_the_episode_list_names_must_be_there(small_set, tmp_path):
    folder = shutil.copytree(small_set, tmp_path / "set")
    (folder / "data/chunk-000/file-003.parquet").unlink()
    with served(folder) as web:
        for number, url in enumerate((folder, web.url)):
            with pytest.raises(DataError, match=naming("data/chunk-000/file-003.parquet")):
                store_of(url, tmp_path / f"cache{number}")


def test_metadata_that_were_half_fetched_are_fetched_again(small_set, tmp_path, monkeypatch):
    from dp_prior_streams.manifest import RemoteSet

    fetch, count = RemoteSet.fetch, []

    def dying(self, name, *place):
        count.append(name)
        if len(count) == 2:
            raise KeyboardInterrupt
        fetch(self, name, *place)

    monkeypatch.setattr(RemoteSet, "fetch", dying)
    with pytest.raises(KeyboardInterrupt):
        store_of(small_set, tmp_path)
    assert store_of(small_set, tmp_path).texts()


URLS = ["", "  ", "s3://", "hf:///", "https:///", "https://host:port/set", "http://host:99999/set"]


@pytest.mark.parametrize(
    ("field", "value"), [("disk_gb", 0), ("disk_gb", None), ("url", None), *(("url", url) for url in URLS)]
)
def test_a_wrong_setting_is_named(small_set, tmp_path, field, value):
    document = {"type": "lerobot_stream", "url": str(small_set), "disk_gb": 1, field: value}
    with pytest.raises(ConfigError, match=naming(f"episodes.{field}")):
        data_config(document)


def test_a_password_in_the_url_is_refused_without_being_shown():
    with pytest.raises(ConfigError, match=naming("url", "host/set")) as caught:
        StreamedLeRobotConfig(url="https://me:secret@host/set/", disk_gb=1)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("end", ["?x=1", "/?sv=2&sig=secret", "#part", "?"])
def test_a_url_with_a_query_is_refused_with_the_folder_and_without_the_secret(end):
    with pytest.raises(ConfigError, match=naming("url", "https://host/set")) as caught:
        StreamedLeRobotConfig(url=f"https://host/set{end}", disk_gb=1)
    assert "secret" not in str(caught.value)
    assert StreamedLeRobotConfig(url="/disk/a?b#c", disk_gb=1).url == "/disk/a?b#c"  # a path may have any name


@pytest.mark.parametrize("is_second", [False, True], ids=["at the first start", "at a later start"])
def test_a_cache_that_cannot_be_written_is_named_with_its_setting(small_set, tmp_path, is_second, monkeypatch):
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", tmp_path / "file/below", *([Path("/proc/x")] if sys.platform == "linux" else [])):
        with pytest.raises(UnwritableError, match=naming(cache, "data.episodes.cache")) as caught:
            store_of(small_set, cache)
        assert classify(caught.value)[1] == 74
    if is_second:
        store_of(small_set, tmp_path / "cache")

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(part_cache, "try_writing", refuse)
    with pytest.raises(UnwritableError, match=naming(tmp_path / "cache", "data.episodes.cache", "Permission denied")):
        StreamedLeRobotConfig(url=str(small_set), cache=tmp_path / "cache", disk_gb=1).local({}, ())


def test_a_lock_of_another_user_is_named_with_the_setting_of_the_cache(small_set, tmp_path):
    store = store_of(small_set, tmp_path)
    lock = store.cache.folder / "locks/budget.lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(UnwritableError, match=naming(lock, "data.episodes.cache")):
        store.cache.used()


def test_the_cache_is_named_by_the_url_and_every_setting_has_an_effect(small_set, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    default = StreamedLeRobotConfig(url=str(small_set), disk_gb=1)
    assert default.folder.is_relative_to(tmp_path / ".cache/dp_prior/streams")
    assert default.folder != StreamedLeRobotConfig(url="s3://b/x", disk_gb=1).folder
    monkeypatch.chdir(small_set.parent)
    assert StreamedLeRobotConfig(url=small_set.name, disk_gb=1).folder == default.folder
    data = streamed(small_set, tmp_path / "elsewhere")
    assert data._parts.store.cache.folder.is_relative_to(tmp_path / "elsewhere")
    assert data._parts.store.cache._budget == 10**9


def test_a_mixture_refuses_a_streamed_set(small_set):
    from dp_prior.data.recorded.mixture import MixtureConfig

    keys = {"obs": {"state": {"key": "observation.state"}}, "action": {"key": "action"}}
    episodes = {"type": "lerobot_stream", "url": str(small_set), "disk_gb": 1}
    document = {"type": "mixture", "sets": {"far": {"episodes": episodes, **keys}}}
    with pytest.raises(ConfigError, match=naming("far")):
        MixtureConfig.from_json(json.dumps(document), source="data")


def test_names_that_lead_out_of_the_data_set_are_refused(small_set, tmp_path):
    files = fsspec.filesystem("memory")
    for path in small_set.rglob("*.*"):
        files.pipe_file(f"/out/{path.relative_to(small_set).as_posix()}", path.read_bytes())
    files.store["/out/meta/../../../../evil.txt"] = files.store["/out/meta/info.json"]
    with pytest.raises(DataError, match=naming("meta/../../../../evil.txt")):
        streamed("memory://out", tmp_path / "a/b/c/cache")
    assert not list(tmp_path.rglob("evil*"))


def test_a_page_that_asks_for_a_password_is_no_data_set_and_is_not_kept(small_set, tmp_path):
    with served(small_set) as web:
        web.page = b"<html>please log in</html>"
        with pytest.raises(DataError, match=naming(f"{web.url}/meta/info.json")):
            streamed(web.url, tmp_path / "cache")
        web.page = None
        assert len(streamed(web.url, tmp_path / "cache").train)


@pytest.mark.parametrize("most", [0, record.MOST_METADATA])
def test_metadata_larger_than_the_budget_are_not_left_in_the_cache(small_set, tmp_path, most, monkeypatch):
    monkeypatch.setattr(record, "MOST_METADATA", most)
    folder = shutil.copytree(small_set, tmp_path / "set")
    with (folder / "meta/padding.json").open("wb") as file:
        file.truncate(3_000_000)
    with pytest.raises(ConfigError, match=naming("disk_gb", "0.002")):
        streamed(folder, tmp_path / "cache", 0.002)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) < 100_000


@pytest.mark.parametrize("damage", ["removed", "cut", "a flipped bit", "replaced", "without a manifest"])
@pytest.mark.parametrize("kind", ["folder", "web"])
def test_metadata_that_were_damaged_in_the_cache_arrive_again(small_set, tmp_path, damage, kind, caplog):
    with served(small_set) as web:
        url = small_set if kind == "folder" else web.url
        first = len(streamed(url, tmp_path / "cache").train)
        [folder] = (tmp_path / "cache").glob("*/set")
        content = {path: path.read_bytes() for path in folder.rglob("*.*")}
        streamed(url, tmp_path / "cache")
        assert not caplog.messages
        for path in content:
            if damage in DAMAGES:
                DAMAGES[damage](path)
            else:
                os.truncate(path, 7) if damage == "cut" else path.unlink()
        if damage == "without a manifest":
            next((tmp_path / "cache").glob("*/manifest.json")).unlink()
        assert len(streamed(url, tmp_path / "cache").train) == first
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == content
    assert damage == "without a manifest" or [told(line, folder) for line in caplog.messages] == [True]


def test_numbers_and_tables_that_were_damaged_in_the_cache_arrive_again(small_set, tmp_path):
    data = streamed(small_set, tmp_path / "cache")
    before = batches_of(data, data.order(0), 3)
    for path in (tmp_path / "cache").rglob("*"):
        if path.suffix in (".npy", ".npz"):
            os.truncate(path, path.stat().st_size // 2)
    with next((tmp_path / "cache").glob("*/hashes.jsonl")).open("ab") as file:
        file.write(b'["data/chunk')  # as a full disk leaves it
    after = streamed(small_set, tmp_path / "cache")
    assert batches_of(after, after.order(0), 3) == before


def test_a_stop_in_a_wait_names_the_file_on_its_way_and_what_follows(small_set, tmp_path):
    name = "data/chunk-000/file-003.parquet"

    def look():
        if web.is_hanging.is_set():
            raise StoppedEarly("SIGTERM", 1)

    with served(small_set) as web:
        store = store_of(web.url, tmp_path / "cache")
        store.watch(look)
        web.fault = lambda number, name: "hang"
        with pytest.raises(StoppedEarly, match=naming("SIGTERM", f"{web.url}/{name}", "checkpoint")) as stopped:
            store.remote.fetch(name, tmp_path / "table")
        with pytest.raises(StoppedEarly, match=naming("SIGTERM", web.url)), store.cache._locked("a"):
            store.cache.look()  # while another process fetches
    assert (stopped.value.reason, stopped.value.rank) == ("SIGTERM", 1)


@pytest.mark.parametrize("kind", ["of this version", "of an older version"])
def test_a_key_that_was_kept_is_read_again_where_any_byte_of_it_changed(small_set, tmp_path, kind):
    store = store_of(small_set, tmp_path)
    expected = store.read("task_index")
    [path] = tmp_path.glob("*/columns/*.npz")
    if kind == "of an older version":
        np.savez_compressed(path, values=expected)
    content = path.read_bytes()

    assert np.array_equal(store._cached_column(path.relative_to(store.cache.folder).as_posix()), expected)
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        values = store._cached_column(path.relative_to(store.cache.folder).as_posix())
        assert values is None or np.array_equal(values, expected), place


def test_a_key_that_was_kept_and_that_the_system_refuses_to_read_is_told_with_the_reason(
    small_set, tmp_path, monkeypatch, caplog
):
    store = store_of(small_set, tmp_path)
    expected = store.read("task_index")

    def refused(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(record, "load_npz", refused)
    assert np.array_equal(store.read("task_index"), expected)
    [path] = tmp_path.glob("*/columns/*.npz")
    assert told(caplog.text, path, os.strerror(errno.EMFILE))


def test_a_key_that_was_kept_under_the_name_of_another_one_is_read_again(small_set, tmp_path):
    store = store_of(small_set, tmp_path)
    expected = {key: store.read(key) for key in ("task_index", "episode_index")}
    first, second = tmp_path.glob("*/columns/*.npz")
    swap(first, second)
    for key, values in expected.items():
        assert np.array_equal(store.read(key), values)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/episodes/chunk-000/file-000.parquet"])
def test_metadata_that_arrived_and_cannot_be_read_are_fetched_once_more(small_set, tmp_path, name):
    answers = []

    def fault(number, file):
        if file == name:
            answers.append(file)
        return "zeros" if file == name and len(answers) in places else None

    with served(small_set) as web:
        web.fault = fault
        # of a table, the first answer is its beginning, by which it is told from a page
        places = {1} if name.endswith("json") else {2}
        assert len(store_of(web.url, tmp_path).episode_ends) == 24
        assert len(answers) == 2 * max(places)
