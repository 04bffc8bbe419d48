"""Files of bags: which are one recording, their messages, and what is damaged or cut off."""

import dataclasses
import time

import pytest

from dp_prior.data.errors import DataError, MissingError
from dp_prior_robot.ros2.bags import Bag, bags_at, is_recording
from tests.extras import needs
from tests.messages import naming
from tests.plugins.dp_prior_robot.ros2.ros2_recordings import by_time, film, joints, write_bag, write_split

needs("mcap_ros2", "ros")

MAGIC = b"\x89MCAP0\r\n"
DECLARES_2_GIB = b"\x28\xb5\x2f\xfd\xe0" + (1 << 31).to_bytes(8, "little")
MESSAGES = by_time(joints(50, 1, ["j0"]), film(10, 1))


def read(bag):
    return [(one.topic, one.log_time, one.data) for one in bag.messages()]


def one(path):
    return Bag(path, (path,))


def test_files_that_are_one_recording_give_what_a_single_file_gives(tmp_path):
    whole = read(one(write_bag(tmp_path / "whole.mcap", MESSAGES)))
    assert len(whole) == len(MESSAGES)
    for name, has_metadata in (("take", True), ("named", False)):
        folder = write_split(tmp_path / name, MESSAGES, 12, has_metadata)
        bags = bags_at(folder)
        assert len(bags) == 1 and len(bags[0].files) == 12
        assert read(bags[0]) == whole


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZSTD"])
@pytest.mark.parametrize("chunk_size", [1, 1 << 20])
def test_chunks_of_every_compression_hold_the_same(compression, chunk_size, tmp_path):
    from mcap.writer import CompressionType

    how = {"compression": CompressionType[compression], "chunk_size": chunk_size}
    path = write_bag(tmp_path / "x.mcap", MESSAGES, **how)
    assert read(one(path)) == read(one(write_bag(tmp_path / "plain.mcap", MESSAGES)))


def test_each_file_or_folder_inside_is_an_episode_in_the_order_of_the_numbers(tmp_path):
    for number in (10, 9, 2):
        write_bag(tmp_path / "files" / f"take_{number}.mcap", MESSAGES)
        write_bag(tmp_path / "folders" / f"take_{number}" / "any.mcap", MESSAGES)
        write_split(tmp_path / "mixed" / f"take_{number}", MESSAGES, 2)
    for folder in ("files", "folders", "mixed"):
        assert is_recording(tmp_path / folder)
        assert [bag.path.stem for bag in bags_at(tmp_path / folder)] == ["take_2", "take_9", "take_10"]
    (tmp_path / "none").mkdir()
    assert not is_recording(tmp_path / "none")
    with pytest.raises(MissingError, match=naming("nothing")):
        bags_at(tmp_path / "nothing")
    with pytest.raises(DataError, match=naming("none", ".mcap")):
        bags_at(tmp_path / "none")


def test_metadata_and_files_that_differ_are_refused_and_no_other_file_is_read(tmp_path):
    folder = write_split(tmp_path / "take", MESSAGES, 3)
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    cases = {
        ("metadata.yaml", "take_9.mcap", "ros2 bag reindex"): text.replace("take_1.mcap", "take_9.mcap"),
        ("metadata.yaml", "../take_1.mcap"): text.replace("take_1", "../take_1"),
        ("metadata.yaml", "take_2.mcap"): text.replace("    - take_2.mcap\n", ""),
        ("metadata.yaml", "FILE", "rosbags-convert"): text.replace("mode: ''", "mode: FILE"),
        (str(metadata),): "[" * 9,
        (str(metadata), "rosbag2_bagfile_information"): "{}",
    }
    for parts, changed in cases.items():
        metadata.write_text(changed)
        with pytest.raises(DataError, match=naming(*parts)):
            bags_at(folder)
    metadata.unlink()
    (folder / "take_1.mcap").rename(folder / "other.mcap")
    assert len(bags_at(folder)) == 3  # loose files are episodes
    with pytest.raises(DataError, match=naming("take", "3 files", "metadata.yaml", "ros2 bag reindex")):
        bags_at(tmp_path)


@pytest.mark.parametrize("name", ["x.db3", "x.db3.zstd", "x.bag", "x.mcap.zstd"])
def test_other_files_of_bags_are_refused_with_the_way_to_mcap(name, tmp_path):
    (tmp_path / "take").mkdir()
    (tmp_path / "take" / name).touch()
    remedy = "rosbags-convert --src OLD --dst NEW --dst-storage mcap"
    for path in (tmp_path, tmp_path / "take", tmp_path / "take" / name):
        assert is_recording(path)
        with pytest.raises(DataError, match=naming(name, remedy)):
            bags_at(path)


def test_a_file_cut_anywhere_is_refused_or_read_as_far_as_it_goes(tmp_path):
    path = write_bag(tmp_path / "x.mcap", MESSAGES, chunk_size=2000)
    data, whole = path.read_bytes(), read(one(path))
    assert one(path).cut_files() == []
    most = 0
    for length in [0, 5, 8, 9, 100, *range(1000, len(data), 611), len(data) - 9, len(data) - 1]:
        path.write_bytes(data[:length])
        assert one(path).cut_files() == [path]
        with pytest.raises(DataError, match=naming(str(path), "footer")):
            read(one(path))
        found = read(dataclasses.replace(one(path), may_be_cut=True))
        assert found == whole[: len(found)] and len(found) >= most
        most = len(found)
    assert most == len(whole)
    path.write_bytes(data[: len(data) // 2] + bytes(4096))  # blocks that a file system had set aside
    assert read(dataclasses.replace(one(path), may_be_cut=True)) == whole[: len(read_half(path, data))]


def read_half(path, data):
    path.write_bytes(data[: len(data) // 2])
    return read(dataclasses.replace(one(path), may_be_cut=True))


def test_damage_is_told_and_never_taken_for_a_cut(tmp_path):
    path = write_bag(tmp_path / "x.mcap", MESSAGES, chunk_size=2000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    for bag in (one(path), dataclasses.replace(one(path), may_be_cut=True)):
        with pytest.raises(DataError, match=naming(str(path))):
            read(bag)
    path.write_bytes(b"no_bag_at_all")
    with pytest.raises(DataError, match=naming(str(path), "MCAP", "b'no_bag_a")):
        read(one(path))


def test_a_chunk_that_unpacks_to_more_than_it_declares_takes_no_memory(tmp_path):
    import lz4.frame
    import zstandard
    from mcap.data_stream import RecordBuilder
    from mcap.records import Chunk

    bomb = bytes(1 << 26)
    packed = {"zstd": zstandard.compress(bomb), "lz4": lz4.frame.compress(bomb), "rar": b"x"}
    for compression, data in packed.items():
        for size, told in ((1000, "rar" if compression == "rar" else "x.mcap"), (1 << 40, "1,099,511,627,776")):
            builder = RecordBuilder()
            Chunk(compression, data, 0, 0, 0, size).write(builder)
            (tmp_path / "x.mcap").write_bytes(MAGIC + builder.end() + MAGIC)
            with pytest.raises(DataError, match=naming(told)):
                read(one(tmp_path / "x.mcap"))


@pytest.mark.parametrize("compression", ["", "zstd", "lz4"])
def test_a_chunk_of_another_size_than_declared_and_a_message_of_no_channel_are_damage(compression, tmp_path):
    import lz4.frame
    import zstandard
    from mcap.data_stream import RecordBuilder
    from mcap.records import Chunk, Message

    data = bytes(1000)
    packed = {"zstd": zstandard.compress, "lz4": lz4.frame.compress, "": bytes}[compression](data)
    chunk = Chunk(compression, packed, 0, 0, 0, 1010)
    message = Message(channel_id=3, log_time=5, data=b"x", publish_time=5, sequence=0)
    for record, told in ((chunk, ("1,000 bytes", "1,010")), (message, ("channel 3",))):
        builder = RecordBuilder()
        record.write(builder)
        (tmp_path / "x.mcap").write_bytes(MAGIC + builder.end() + MAGIC)
        with pytest.raises(DataError, match=naming(tmp_path / "x.mcap", *told, "copy")):
            read(one(tmp_path / "x.mcap"))


def test_messages_that_are_compressed_one_by_one_hold_the_same(tmp_path):
    import zstandard

    folder = write_split(tmp_path / "take", MESSAGES, 1)
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    for mode in ("NONE", "none", "MESSAGE\n  compression_format: zstd"):
        metadata.write_text(text.replace("mode: ''", f"mode: {mode}"))
        plain = [*bags_at(folder)[0].messages()]
        packed = [dataclasses.replace(message, data=zstandard.compress(message.data)) for message in plain]
        assert [str(message.decode()) for message in packed] == [str(message.decode()) for message in plain]
    for damaged, told in ((packed[0].data[:30], "decoded"), (DECLARES_2_GIB, "2,147,483,648")):
        with pytest.raises(DataError, match=naming(packed[0].topic, told)):
            dataclasses.replace(packed[0], data=damaged).decode()
    metadata.write_text(text.replace("mode: ''", "mode: MESSAGE\n  compression_format: lz4"))
    with pytest.raises(DataError, match=naming("MESSAGE", "rosbags-convert")):
        bags_at(folder)


def test_representations_of_cdr_that_move_numbers_are_refused(tmp_path):
    """XCDR2 aligns numbers of 64 bits by 4 bytes; pictures without such numbers are the same in both."""
    of_topic = {message.topic: message for message in one(write_bag(tmp_path / "x.mcap", MESSAGES)).messages()}
    for topic, kind, is_read in (
        ("/front/image_raw", b"\7", True), ("/front/image_raw", b"\1", True), ("/front/image_raw", b"\3", False),
        ("/front/image_raw", b"\x09", False), ("/joint_states", b"\7", False), ("/joint_states", b"\1", True),
    ):  # fmt: skip
        message = of_topic[topic]
        other = dataclasses.replace(message, data=message.data[:1] + kind + message.data[2:])
        if is_read:
            assert str(other.decode()) == str(message.decode())
        else:
            with pytest.raises(DataError, match=naming(topic, kind.hex(), "#other-files")):
                other.decode()


def test_messages_of_another_encoding_and_damaged_ones_name_topic_and_type(tmp_path):
    message = next(iter(one(write_bag(tmp_path / "x.mcap", MESSAGES)).messages()))
    other = dataclasses.replace(message, schema=dataclasses.replace(message.schema, encoding="ros2idl"))
    with pytest.raises(DataError, match=naming(message.topic, message.type, "ros2idl", "ros2msg", "rosbags-convert")):
        other.decode()
    with pytest.raises(DataError, match=naming(message.topic, "cdr, None", "record")):
        dataclasses.replace(message, schema=None).decode()
    with pytest.raises(DataError, match=naming(message.topic, "json", "cdr", "#other-files")):
        channel = dataclasses.replace(message.channel, message_encoding="json")
        dataclasses.replace(message, channel=channel).decode()
    with pytest.raises(DataError, match=naming(message.topic, message.type)):
        dataclasses.replace(message, data=message.data[:20]).decode()


@pytest.mark.promise("K12")
@pytest.mark.parametrize("kind", ["merge keys", "empty maps", "empty lists", "texts"])
def test_metadata_that_repeat_themselves_are_refused_at_once(kind, tmp_path):
    """Ten lines, each ten times the line before it: 10^10 parts of which none is in the file."""
    first, line = {
        "merge keys": ("{x: 1}", "{{<<: [{0}]}}"),
        "empty maps": ("{}", "{{a: [{0}]}}"),
        "empty lists": ("[]", "[{0}]"),
        "texts": ("[take_0.mcap]", "[{0}]"),
    }[kind]
    repeats = (line.format(", ".join([f"*a{number}"] * 10)) for number in range(9))
    lines = [f"a0: &a0 {first}", *(f"a{number}: &a{number} {text}" for number, text in enumerate(repeats, 1))]
    folder = write_split(tmp_path / "take", MESSAGES, 1)
    text = "\n".join(lines).replace("a9: &a9", "rosbag2_bagfile_information: &a9")
    (folder / "metadata.yaml").write_text(text)
    begun = time.process_time()
    with pytest.raises(DataError, match=naming("metadata.yaml", "aliases")):
        bags_at(folder)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(("depth", "words"), [(100, ("nests", 32)), (200_000, ())])  # libyaml has a limit too
def test_metadata_that_nest_deeply_are_refused(tmp_path, depth, words):
    folder = write_split(tmp_path / "take", MESSAGES, 1)
    for opening, closing in (("[", "]"), ("{a: ", "}")):
        (folder / "metadata.yaml").write_text(opening * depth + closing * depth)
        with pytest.raises(DataError, match=naming("metadata.yaml", *words)):
            bags_at(folder)
