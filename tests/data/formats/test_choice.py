"""Episodes that are chosen: the result is that of a data set that never had the others, in every format."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ChoiceConfig, episodes_of, leaving_out, named, overlaps, ranges
from dp_prior.data.formats.episode_files import EpisodeFilesConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_foreign.convert import convert
from tests.data.frames.recordings import pictures
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_foreign.test_convert import RECORDS, TARGETS, frames, place

LENGTHS = [6, 3, 9, 4, 7]
N = sum(LENGTHS)
ENDS = np.cumsum(LENGTHS)


def arrays(lengths=LENGTHS, bad=()) -> dict[str, np.ndarray]:
    rng, n = np.random.default_rng(0), sum(lengths)
    state, ends = rng.normal(size=(n, 3)).astype(np.float32), np.cumsum(lengths)
    for number in bad:
        state[ends[number] - 1, 1] = np.nan
    return {
        "state": state,
        "actions": rng.normal(size=(n, 2)).astype(np.float32),
        "done": np.arange(n)[:, None] % 2 == 0,
        "front": pictures(n),
        "episode_ends": ends,
    }


@pytest.fixture
def source(tmp_path):
    np.savez(tmp_path / "plain.npz", **arrays())
    return tmp_path / "plain.npz"


def configuration(kind, path, **fields) -> TrajectoriesConfig:
    camera = {"key": "front", "size": [8, 8]}
    record = {"episodes": {"type": kind, "path": str(path)}, "action": {"key": "actions"}, "images": {"front": camera}}
    return TrajectoriesConfig.from_json(json.dumps({**record, "obs": {"state": {"key": "state"}}, **fields}))


def opened(config, horizon=4):
    return config.create(horizon, 2, 2)


def windows(data, part="train") -> list[bytes]:
    """Every window as bytes, sorted."""
    batch = getattr(data, part).fetch(torch.arange(len(getattr(data, part))))
    columns = [batch.x, batch.mask, *(batch.cond[key] for key in sorted(batch.cond))]
    return sorted(b"".join(one[i].numpy().tobytes() for one in columns) for i in range(len(batch)))


@pytest.mark.parametrize("kind", TARGETS)
def test_a_set_without_some_episodes_is_the_set_that_never_had_them(source, tmp_path, kind):
    everything, fewer, all_train = place(tmp_path, kind, "all"), tmp_path / "fewer.npz", {"train": 1.0, "val": 0.0}
    convert(source, everything, kind, fps=10)
    line = convert(everything, fewer, "npz", choice=ChoiceConfig(leave_out=[1, "3-3"]))
    assert line.startswith("wrote 3 episodes, 22 steps")
    kept = [0, 2, 4]
    expected = np.concatenate([np.arange(ENDS[n] - LENGTHS[n], ENDS[n]) for n in kept])
    written = NpzStoreConfig(path=fewer).create()
    assert np.array_equal(written.read("state"), arrays()["state"][expected])
    assert np.array_equal(frames(written, "front"), pictures(N)[expected])
    for choice in ({"leave_out": [1, "3-3"]}, {"only": ["0-0", 2, 4]}):
        one = opened(configuration(kind, everything, choice=choice, split=all_train))
        other = opened(configuration("npz", fewer, split=all_train))
        assert one.split_ids["train"] == kept and one.fingerprint == other.fingerprint
        assert windows(one) == windows(other)
        mine, theirs = one.statistics(), other.statistics()
        assert all(np.array_equal(mine[key].mean, theirs[key].mean) for key in theirs)
        assert one.report()["episodes"] == 3 and one.report()["steps"] == 22


@pytest.mark.parametrize("kind", TARGETS)
def test_faults_of_episodes_that_are_left_out_are_none(tmp_path, kind):
    np.savez(tmp_path / "bad.npz", **arrays(bad=(1, 2, 3)))
    path = place(tmp_path, kind)
    convert(tmp_path / "bad.npz", path, kind, fps=10)
    with pytest.raises(DataError, match=naming("'state'", "episode 1", "frame 2")) as error:
        opened(configuration(kind, path))
    advice = '"choice": {"leave_out": ["1-3"]} in data'
    assert advice in str(error.value)
    data = opened(configuration(kind, path, choice=json.loads("{" + advice.split(" in ")[0] + "}")["choice"]))
    assert sorted(sum(data.split_ids.values(), [])) == [0, 4] and data.fingerprint


def test_a_choice_of_all_episodes_shares_the_cache_and_the_fingerprint(source):
    plain, chosen = (opened(configuration("npz", source, choice=one)) for one in ({}, {"only": ["0-4"]}))
    assert plain.cache_directories() == chosen.cache_directories() and plain.fingerprint == chosen.fingerprint


def test_an_episode_left_out_moves_no_other_from_part_to_part(source):
    """Ranks of a split are those of all recorded episodes."""
    split = {"train": 0.5, "val": 0.5}
    before = configuration("npz", source, split=split).split.divide(np.arange(40))
    after = configuration("npz", source, split=split).split.divide(np.setdiff1d(np.arange(40), before.val[:1]))
    assert set(after.val) - set(before.val) <= set(before.train) and len(set(before.val) & set(after.val)) >= 18


def test_frames_of_left_out_episodes_need_not_exist(source, tmp_path):
    pytest.importorskip("PIL")
    from PIL import Image

    for number, length in enumerate(LENGTHS):
        (tmp_path / "beside" / str(number)).mkdir(parents=True)
        for frame in range(length - (number == 1)):  # a frame of episode 1 is missing
            picture = pictures(N)[ENDS[number] - length + frame]
            Image.fromarray(picture).save(tmp_path / "beside" / str(number) / f"{frame}.png")
    camera = {"front": {"folder": str(tmp_path / "beside"), "size": [8, 8]}}
    with pytest.raises(DataError, match=naming("2 pictures", "3 rows")):
        opened(configuration("npz", source, images=camera)).fingerprint  # noqa: B018
    data = opened(configuration("npz", source, images=camera, choice={"leave_out": [1]}))
    inside = opened(configuration("npz", source, choice={"leave_out": [1]}))
    assert windows(data) == windows(inside)


def test_a_lost_video_is_answered_by_a_setting_that_helps(tmp_path):
    pytest.importorskip("av")
    from tests.data.frames.recordings import write_lerobot

    root = write_lerobot(tmp_path / "d", pictures(N), LENGTHS, "v2.1", "video")
    lost = sorted(root.glob("videos/*/*/*.mp4"))[3]
    lost.unlink()
    store = RECORDS["lerobot"].model_validate({"path": root}).create()
    camera = next(iter(store.cameras()))
    with pytest.raises(DataError, match=naming('"choice": {"leave_out": [3]}')):
        store.frames(camera, store.episode_ends)
    chosen, _ = ChoiceConfig(leave_out=[3]).of(store)
    source = store.frames(camera, chosen.recorded, numbers=chosen.numbers)
    lengths = [sum(map(len, source.read(part, 0))) for part in source.parts]
    assert lengths == chosen.lengths.tolist() == [6, 3, 9, 7] and lost not in source.files()


def test_episodes_are_chosen_by_a_column(tmp_path):
    success = np.array([True, False, True, True, False])
    flags, grade = np.zeros(N, bool), np.repeat(["good", "bad", "good", "fair", "bad"], LENGTHS)
    flags[ENDS - 1] = success  # said at the last step, as LeRobot's next.success
    np.savez(
        tmp_path / "d.npz", **arrays(), success=success, flags=flags, grade=grade,
        level=np.repeat(success, LENGTHS) * 2,
        quality=np.array([0.1, 0.1, 0.3, 0.7, 0.9], np.float32), session=20261127150635 + np.array([0, 1, 1, 0, 60]),
    )  # fmt: skip

    def chosen(**where):
        return ChoiceConfig(where=where).of(NpzStoreConfig(path=tmp_path / "d.npz").create())[0].numbers.tolist()

    assert chosen(success=True) == chosen(flags=True) == chosen(level=2) == chosen(level=2.0) == [0, 2, 3]
    assert chosen(grade=["good", "fair"], success=True) == [0, 2, 3] and chosen(grade="bad", success=False) == [1, 4]
    assert chosen(quality=0.1) == [0, 1] and chosen(session=20261127150635) == [0, 3]
    for where, words in (
        ({"grade": "best"}, ("none of", "5 episodes")),
        ({"succes": True}, ("choice.where.succes", "'succes'", "'success'")),
        ({"state": 1}, ("choice.where.state", "'state'", "float32", "(3,)")),
    ):
        with pytest.raises(DataError, match=naming(*words)):
            chosen(**where)


def test_episodes_are_chosen_by_texts_of_hdf5_and_not_by_rows_of_numbers(tmp_path):
    h5py = pytest.importorskip("h5py")
    for number, grade in enumerate(("good", "bad", "good")):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["state"] = file["action"] = np.zeros((4, 2))
            file["grade"] = [grade] * 4
            file.create_dataset("uneven", (4,), h5py.vlen_dtype(np.float32))[:] = [np.ones(2)] * 4
    store = EpisodeFilesConfig(path=tmp_path).create()
    assert ChoiceConfig(where={"grade": "good"}).of(store)[0].numbers.tolist() == [0, 2]
    with pytest.raises(DataError, match=naming("choice.where.uneven", "object", "number", "text")):
        ChoiceConfig(where={"uneven": 1}).of(store)


def test_numbers_are_those_of_the_data_set(tmp_path):
    """Published sets have gaps; a position in the order of rows would name another episode."""
    pytest.importorskip("pyarrow")
    np.savez(tmp_path / "plain.npz", **arrays(bad=(2,)))
    root = tmp_path / "d"
    convert(tmp_path / "plain.npz", root, "lerobot", fps=10)
    renumber(root, {0: 3, 1: 7, 2: 8, 3: 20, 4: 21})
    store = RECORDS["lerobot"].model_validate({"path": root}).create()
    assert store.numbers().tolist() == [3, 7, 8, 20, 21]
    assert episodes_of(["8-20"], store, "here").tolist() == [2, 3]
    config = configuration("lerobot", root)
    with pytest.raises(DataError, match=naming("episode 8", "frame 8", '{"leave_out": [8]}')):
        opened(config)
    data = opened(configuration("lerobot", root, choice={"leave_out": [8]}))
    assert sorted(sum(data.split_ids.values(), [])) == [3, 7, 20, 21]
    with pytest.raises(DataError, match=naming("choice.leave_out", 2, 3, 21)):
        opened(configuration("lerobot", root, choice={"leave_out": [2]}))


def renumber(root, numbers):
    """Give the episodes of a LeRobot 3.0 set other numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in [*root.glob("data/*/*.parquet"), *root.glob("meta/episodes/*/*.parquet")]:
        table = pq.read_table(file)
        new = pa.array([numbers[one] for one in table.column("episode_index").to_pylist()])
        where = table.schema.get_field_index("episode_index")
        pq.write_table(table.set_column(where, "episode_index", new), file)


def test_lists_that_cannot_be_meant_are_refused(source):
    store = NpzStoreConfig(path=source).create()
    for entry, words in ((-1, (-1, 0)), ("9-3", ("'9-3'", "'3-9'")), (1.5, (1.5,))):
        with pytest.raises(ConfigError, match=naming(*words)):
            ChoiceConfig(leave_out=[entry])
    for entry, words in ((5, (5, "0 to 4")), ("train", ("'train'", "'10-19'"))):
        with pytest.raises(DataError, match=naming("choice.only", *words)):
            ChoiceConfig(only=[entry]).of(store)
    with pytest.raises(DataError) as caught:
        ChoiceConfig(only=["train", 1, 7]).of(store)
    assert told_each(caught.value.problems, ("choice.only", "'train'"), ("choice.only", 7))
    with pytest.raises(DataError, match=naming("plain.npz", "5 episodes")):
        ChoiceConfig(leave_out=["0-4"]).of(store)


def test_lists_and_values_are_written_in_one_way():
    assert ranges([5, 1, 2, 3, 9, 10]) == ["1-3", 5, 9, 10] and ranges([]) == []
    assert told(leaving_out([4, 5, 6, 0]), '"choice": {"leave_out": [0, "4-6"]}', "data")
    assert [named(value) for value in (True, np.bool_(False), 1, 1.0, np.float32(0.5), b"a", "b")] == [
        "true", "false", "1", "1", "0.5", "a", "b",
    ]  # fmt: skip
    for kind in (np.float16, np.float32, np.float64, float):
        assert [named(kind(value)) for value in (0.1, 0.3, 1 / 4, 1e3, -0.0)] == ["0.1", "0.3", "0.25", "1000", "0"]
    for number in (2**53 + 1, 2**63 - 1, 20261127150635):
        assert named(number) == named(np.int64(number)) == str(number) != named(number - 1)
    assert named(0.1 + 0.2) == "0.3" and named(1764256235.123) != named(1764256235.124)
    assert told_each(overlaps({"a": [0, 1, 2, 3], "b": [2, 3, 9]}, np.arange(10) + 100), ("a", "b", "102, 103"))


def test_convert_chooses_thins_and_says_what_it_relabels(source, tmp_path):
    said = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "ten.npz"), "--to", "npz", "--fps", "10"])
    assert said.exit_code == 0 and "declared" not in said.output
    ten = str(tmp_path / "ten.npz")

    def converted(name, *options):
        said = CliRunner().invoke(main, ["convert", ten, str(tmp_path / name), "--to", "npz", *options])
        assert said.exit_code == 0, said.output
        return said.output, NpzStoreConfig(path=tmp_path / name).create()

    output, store = converted("relabelled.npz", "--fps", "5")
    assert told(output, "rate", 10, 5, "--stride")
    assert store.metadata()["fps"] == 5 and store.episode_ends[-1] == N
    output, store = converted("thinned.npz", "--stride", "3", "--episodes", "0-3", "--without", "1")
    rows = [row for n in (0, 2, 3) for row in range(ENDS[n] - LENGTHS[n], ENDS[n], 3)]
    assert store.metadata()["fps"] == pytest.approx(10 / 3) and store.episode_ends.tolist() == [2, 5, 7]
    assert np.array_equal(store.read("state"), arrays()["state"][rows])
    assert np.array_equal(frames(store, "front"), pictures(N)[rows]) and "declared" not in output
    assert converted("ended.npz", "--where", "done=true")[1].episode_ends[-1] < N


def test_a_change_of_the_choice_is_a_change_of_the_data(source):
    from dp_prior.run.changes import kind_of

    assert {kind_of(f"data.{name}") for name in ("choice.leave_out", "choice.only", "choice.where", "stride")} == {
        "data"
    }


def test_an_episode_without_steps_names_itself_and_can_be_left_out(tmp_path):
    np.savez(tmp_path / "d.npz", **{**arrays(), "episode_ends": np.array([6, 6, 18, 29])})
    with pytest.raises(DataError, match=naming("episode 1", "row 6", '{"leave_out": [1]}')) as error:
        opened(configuration("npz", tmp_path / "d.npz", images={}))
    assert leaving_out([1]) in str(error.value)
    data = opened(configuration("npz", tmp_path / "d.npz", choice={"leave_out": [1]}))
    assert sorted(sum(data.split_ids.values(), [])) == [0, 2, 3] and data.fingerprint
