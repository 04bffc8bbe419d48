"""Data sets that were cut off while being recorded: exactly the intact episodes are converted, nothing is changed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior_foreign.annotated_lerobot import AnnotatedLeRobotConfig
from dp_prior_foreign.convert import convert
from dp_prior_foreign.lerobot_salvage import intact_episodes
from tests.data.frames.recordings import KEY, pictures, write_lerobot, write_video
from tests.data.frames.sources import NEEDS
from tests.messages import naming, told, told_each

pq = pytest.importorskip("pyarrow.parquet", reason="NOT CHECKED: the extra dp_prior[lerobot] is not installed")
LENGTHS = [3, 4, 2]
FRAMES = pictures(9)
LAST = {"v2.1": "data/chunk-000/episode_000002.parquet", "v3.0": "data/chunk-000/file-001.parquet"}
FIRST = {"v2.1": "data/chunk-000/episode_000000.parquet", "v3.0": "data/chunk-000/file-000.parquet"}
LISTING = {"v2.1": "meta/episodes.jsonl", "v3.0": "meta/episodes/chunk-000/file-001.parquet"}
BOTH = pytest.mark.parametrize("version", ["v2.1", "v3.0"])


@pytest.fixture
def record(tmp_path):
    for package in NEEDS["lerobot"]:
        pytest.importorskip(package)

    def write(version, kind="video"):
        """Episodes of 3, 4 and 2 frames. In v3.0 the last has a table and a file of the list of its own."""
        root = write_lerobot(tmp_path / "set", FRAMES, LENGTHS, version, kind)
        if version == "v3.0":
            split(root / FIRST[version], "episode_index")
            listing = root / LISTING[version].replace("001", "000")
            split(listing, "episode_index")
            edit(root / LISTING[version], lambda columns: columns.update({"data/file_index": [1]}))
        count(root, 3)
        return root

    return write


def split(path, key):
    """Put the last episode of a file into a second one."""
    table = pq.read_table(path)
    is_last = np.array(table[key]) == 2
    pq.write_table(table.filter(is_last), path.with_name("file-001.parquet"))
    pq.write_table(table.filter(~is_last), path)


def edit(path, change):
    import pyarrow as pa

    columns = pq.read_table(path).to_pydict()
    change(columns)
    pq.write_table(pa.table(columns), path)


def count(root, episodes):
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps({**info, "total_episodes": episodes}))


def cut(path, kept=0.7):
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])


def without_row(path, episode, frame):
    table = pq.read_table(path)
    is_row = (np.array(table["episode_index"]) == episode) & (np.array(table["frame_index"]) == frame)
    pq.write_table(table.filter(~is_row), path)


def put_index_first(path):
    import av

    other = path.with_name("other.mp4")
    with av.open(str(path)) as source, av.open(str(other), "w", options={"movflags": "faststart"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    other.rename(path)


def files_in(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def salvaged(root, intact, **how):
    """The lines about other episodes, once it is sure that exactly the intact ones were converted."""
    before, out = files_in(root), root.parent / "out.npz"
    out.unlink(missing_ok=True)
    lines = convert(root, out, "npz", salvage=True, **how).splitlines()
    store = NpzStoreConfig(path=out).create()
    begins = np.cumsum([0, *LENGTHS])
    rows = np.concatenate([np.arange(begins[episode], begins[episode + 1]) for episode in intact])
    assert np.diff(store.episode_ends, prepend=0).tolist() == [LENGTHS[episode] for episode in intact]
    assert store.read("action").ravel().tolist() == rows.tolist()
    if KEY in store.keys():  # noqa: SIM118
        source = store.frames(KEY, store.episode_ends)
        found = np.concatenate([block for part in source.parts for block in source.read(part, 0)])
        assert np.array_equal(found, FRAMES[rows])
    assert files_in(root) == before
    return lines[1:]


def refused(root):
    """A set that is cut off is never read without the option, and the remedy names it."""
    with pytest.raises(DataError, match=naming("--salvage")):
        convert(root, root.parent / "refused.npz", "npz")
    assert not (root.parent / "refused.npz").exists()


def cut_table(root, version):
    cut(root / LAST[version])


def empty_table(root, version):
    cut(root / LAST[version], 0)


def no_table(root, version):
    (root / LAST[version]).unlink()


def no_entry(root, version):
    listing = root / LISTING[version]
    if version == "v3.0":
        listing.unlink()
    else:
        listing.write_text("".join(listing.read_text().splitlines(keepends=True)[:2]))


def cut_entry(root, version):
    cut(root / LISTING[version], 0.9)


def no_rows(root, version):
    table = pq.read_table(root / LAST[version])
    pq.write_table(table.slice(0, 0), root / LAST[version])


@BOTH
@pytest.mark.parametrize("damage", [cut_table, empty_table, no_table, no_entry, cut_entry, no_rows])
def test_a_set_without_its_last_episode_gives_the_others(record, version, damage):
    root = record(version)
    damage(root, version)
    refused(root)
    reason = "episode list" if damage in (no_entry, cut_entry) else LAST[version]
    listing = [LISTING[version]] if damage is cut_entry else []
    assert told_each(salvaged(root, [0, 1]), *listing, ("episode 2", "left out", reason))


@BOTH
@pytest.mark.parametrize("kind", ["video", "image"])
@pytest.mark.parametrize("frame", [0, 2, 3])
def test_an_episode_with_a_hole_is_left_out_in_one_line(record, version, kind, frame):
    root = record(version, kind)
    path = FIRST[version] if version == "v3.0" else "data/chunk-000/episode_000001.parquet"
    without_row(root / path, 1, frame)
    refused(root)
    (line,) = salvaged(root, [0, 2])
    assert told(line, "episode 1", path, "1 of", 4, f"frame {frame}")


@BOTH
def test_an_episode_with_a_row_without_a_picture_is_left_out(record, version):
    root = record(version, "image")
    path = FIRST[version] if version == "v3.0" else "data/chunk-000/episode_000001.parquet"

    def remove(columns):
        columns[KEY][-2] = {"bytes": None, "path": "frame.png"}

    edit(root / path, remove)
    refused(root)
    (line,) = salvaged(root, [0, 2])
    assert told(line, "episode 1", path, "1 of", 4, "frame 2")
    (line,) = salvaged(root, [0, 1, 2], left_out=[KEY])
    assert told(line, "3 episodes", "intact")


@BOTH
def test_doubled_and_exchanged_rows_are_no_episode(record, version):
    root = record(version, "image")

    def exchange(columns):
        columns["frame_index"][:2] = [1, 0]

    edit(root / FIRST[version], exchange)
    last = pq.read_table(root / LAST[version])
    pq.write_table(last.take([0, 1, 1]), root / LAST[version])
    first, doubled = salvaged(root, [1])
    assert told(first, "episode 0", FIRST[version], "sequence") and told(doubled, "episode 2", LAST[version], "3 rows")


@BOTH
@pytest.mark.parametrize(("declared", "named"), [(1, ("3 episodes", "intact")), (7, ("3 to 6", "left out"))])
def test_a_wrong_count_of_episodes_loses_none(record, version, declared, named):
    root = record(version)
    count(root, declared)
    refused(root)
    (line,) = salvaged(root, [0, 1, 2])
    assert told(line, *named)


def test_a_count_of_billions_is_not_enumerated(record):
    root = record("v3.0")
    count(root, 1 << 62)
    (line,) = salvaged(root, [0, 1, 2])
    assert told(line, "3 episodes", "intact")


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_an_episode_whose_own_video_is_cut_or_missing_is_left_out(record, damage):
    root = record("v2.1")
    name = f"videos/chunk-000/{KEY}/episode_000002.mp4"
    damage(root / name)
    refused(root)
    (line,) = salvaged(root, [0, 1])
    assert told(line, "episode 2", name)
    (line,) = salvaged(root, [0, 1, 2], left_out=[KEY])
    assert told(line, "3 episodes", "intact")


def test_an_episode_whose_own_video_has_more_frames_than_rows_is_left_out(record):
    root = record("v2.1")
    name = f"videos/chunk-000/{KEY}/episode_000001.mp4"
    write_video(root / name, pictures(5))
    (line,) = salvaged(root, [0, 2])
    assert told(line, "episode 1", name, "5 frames", "4 rows")


def test_a_shared_video_gives_exactly_the_episodes_before_its_cut_wherever_it_is(record):
    """As LeRobot writes it, with its index at the front. Frames near the cut must not be made up."""
    root = record("v3.0")
    path = root / f"videos/{KEY}/chunk-000/file-000.mp4"
    put_index_first(path)
    whole, counts = path.read_bytes(), []
    for size in [*range(len(whole) // 2, len(whole), len(whole) // 15), len(whole)]:
        path.write_bytes(whole[:size])
        meta, told = intact_episodes(root, [])
        counts.append(len(meta.lengths))
        lost = range(counts[-1], 3)
        assert [line.partition(":")[0] for line in told if "left out" in line] == [
            f"episode {number}" for number in lost
        ]
        salvaged(root, range(counts[-1]))
        if size < len(whole):
            refused(root)
    assert counts == sorted(counts) and {*counts} == {1, 2, 3}


def test_a_set_without_an_intact_episode_is_refused_with_every_reason(record):
    root = record("v3.0")
    shutil.rmtree(root / "videos")
    with pytest.raises(DataError, match=naming("episodes 0 to 2", "file-000.mp4", f"--leave-out {KEY}")):
        convert(root, root.parent / "out.npz", "npz", salvage=True)
    shutil.rmtree(root / "data")
    with pytest.raises(DataError, match=naming("episodes 0 to 1", FIRST["v3.0"], "episode 2", LAST["v3.0"])) as error:
        convert(root, root.parent / "out.npz", "npz", salvage=True)
    assert "--leave-out" not in str(error.value)
    shutil.rmtree(root / "meta/episodes")
    with pytest.raises(DataError, match=naming("meta/episodes", "episodes 0 to 2")):
        convert(root, root.parent / "out.npz", "npz", salvage=True)
    assert not (root.parent / "out.npz").exists()


def test_chosen_episodes_keep_their_numbers_and_the_command_tells_all(record):
    root = record("v2.1")
    cut(root / "data/chunk-000/episode_000000.parquet")
    arguments = ["convert", root, root.parent / "out", "--to", "lerobot", "--salvage", "--episodes", "2"]
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0 and "wrote 1 episodes, 2 steps" in done.output and "episode 0: left out" in done.output
    store = LeRobotStoreConfig(path=root.parent / "out").create()
    assert store.read("action").ravel().tolist() == [7, 8]


def test_a_set_with_annotations_is_salvaged_without_these(record):
    root = record("v2.1")
    cut(root / LAST["v2.1"])
    stores, lines = zip(
        *(kind(path=root).salvage([]) for kind in (LeRobotStoreConfig, AnnotatedLeRobotConfig)), strict=True
    )
    assert lines[0] == lines[1] and [store.episode_ends.tolist() for store in stores] == [[3, 7]] * 2


def test_other_formats_and_faults_do_not_offer_it(record, tmp_path):
    root = record("v2.1")
    with pytest.raises(DataError, match=naming("'absent'")) as error:
        convert(root, tmp_path / "out.npz", "npz", left_out=["absent"])
    assert "--salvage" not in str(error.value)
    convert(root, tmp_path / "plain.npz", "npz")
    done = CliRunner().invoke(
        main, ["convert", str(tmp_path / "plain.npz"), str(tmp_path / "x"), "--to", "npz", "--salvage"]
    )
    assert done.exit_code == 64 and "'npz'" in done.output and "lerobot" in done.output
