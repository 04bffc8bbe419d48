"""Whatever lies in a file, a reader answers with what it says or with an error of its own: nothing else comes out.

Each reader gets documents of any shape, and sound files with bytes changed, cut and put in. `FUZZ=100 pytest
tests/test_fuzz.py` tries a hundred times as many, others each time.
"""

import json
import os
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from dp_prior.checkpoints.format import MANIFEST, CheckpointError, Manifest, read_checkpoint, write_checkpoint
from dp_prior.checkpoints.snapshot import Snapshot, file_tensors
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.integrity import Integrity
from dp_prior.files.json_text import seal, unseal
from dp_prior.run.config import TrainConfig
from tests import forks, fuzzing, structures
from tests.examples import examples
from tests.tiny import tiny, write_data

LONGER = int(os.environ.get("FUZZ", "1"))
any_health = {"suppress_health_check": list(HealthCheck), "derandomize": LONGER == 1}
if LONGER > 1:
    any_health["phases"] = [Phase.explicit, Phase.generate]  # what fails is shown as it is found
few, many = examples(40 * LONGER, **any_health), examples(150 * LONGER, **any_health)

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**300]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["F32", "|O", "<f4", "float32", "bytes", "blosc", "pickle", "../x", "/etc/passwd", "os.system"]),
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@st.composite
def damaged(draw, data: bytes) -> bytes:
    """`data` after some bytes were changed, cut out or put in."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["change", "change", "cut", "insert", "truncate", "copy"]))
        if kind == "change" and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=20))
        elif kind == "truncate":
            del data[place:]
        elif kind == "copy":
            data[place:place] = data[: draw(st.integers(1, 60))]
    return bytes(data)


@st.composite
def altered(draw, document):
    """A JSON document in which some values were replaced, removed or renamed."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        here = document
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(here[key], (dict, list)) and draw(st.integers(0, 3)):
                here = here[key]
                continue
            action = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
            if action == "replace":
                here[key] = draw(DOCUMENTS)
            elif action == "remove" or isinstance(here, list):
                del here[key]
            else:
                here[draw(st.text(max_size=5))] = here.pop(key)
            break
    return document


def only(errors, action):
    """Do it; errors of these kinds are answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action()
    except errors as error:
        assert str(error)
        return None


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("config"))


@pytest.mark.promise("I3", "K3")
@many
@given(st.data())
def test_configuration(config, data):
    text = json.dumps(data.draw(altered(config)))
    only(ConfigError, lambda: TrainConfig.from_json(text))
    torn = data.draw(damaged(text.encode()))
    only(ConfigError, lambda: TrainConfig.from_json(torn.decode("latin-1")))


@pytest.mark.promise("I3")
@few
@given(st.data())
def test_override(config, data):
    keys = data.draw(
        st.lists(st.sampled_from(["train", "lr", "data", "obs", "evaluate", "0", "type", "", "é"]), max_size=4)
    )
    override = ".".join(keys) + data.draw(st.sampled_from(["=", ""])) + json.dumps(data.draw(DOCUMENTS))
    only(ConfigError, lambda: TrainConfig.from_json(json.dumps(config), [override]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A directory, its manifest, and the bytes of its tensors."""
    tensors = {"w": torch.arange(12.0).reshape(3, 4), "n": torch.tensor(3), "h": torch.ones(5, dtype=torch.bfloat16)}
    plain = {"sequence": 1, "step": 7, "samples_seen": 70, "world_size": 1, "saved_at": "2026-01-01"}
    snapshot = Snapshot({"model.safetensors": tensors}, {"config.json": {"seed": 0}})
    path = tmp_path_factory.mktemp("checkpoint") / "step_00000007"
    path, _ = write_checkpoint(path, snapshot, Manifest(**plain))
    return path, unseal((path / MANIFEST).read_bytes()), (path / "model.safetensors").read_bytes()


@pytest.mark.promise("K2")
@many
@given(st.data())
def test_manifest(checkpoint, data):
    path, manifest, _ = checkpoint
    sound = (path / MANIFEST).read_bytes()
    document = data.draw(altered(manifest))
    try:
        for text in (seal(document), data.draw(damaged(sound))):
            (path / MANIFEST).write_bytes(text)
            only((CheckpointError, FileNotFoundError), lambda: read_checkpoint(path))
    finally:
        (path / MANIFEST).write_bytes(sound)


def image_of(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


@pytest.mark.promise("K2", "K8")
@many
@given(st.data())
def test_safetensors(checkpoint, data):
    content = checkpoint[2]
    only(ValueError, lambda: file_tensors(image_of(data.draw(damaged(content)))))
    length = int.from_bytes(content[:8], "little")
    head = json.dumps(data.draw(altered(json.loads(content[8 : 8 + length])))).encode()
    only(ValueError, lambda: file_tensors(image_of(len(head).to_bytes(8, "little") + head + content[8 + length :])))


def read_all(store):
    """What training reads of an episode store."""
    only(DataError, lambda: [store.read(key) for key in list(store.keys())])
    return np.asarray(store.episode_ends)


@pytest.mark.promise("K3", "H7")
@many
@given(st.data())
def test_npz(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npz") / "set.npz"
    sound = write_data(path).read_bytes()
    path.write_bytes(data.draw(damaged(sound)))
    only(DataError, lambda: read_all(NpzStoreConfig(path=path).create()))


@pytest.fixture(scope="module", params=[2, 3])
def zarr_set(request, tmp_path_factory):
    from tests.data.formats.zarr import test_replay_buffer as test_zarr

    return test_zarr.write(tmp_path_factory.mktemp("zarr") / "set.zarr", request.param)


@pytest.mark.promise("K3", "H7")
@few
@given(st.data())
def test_zarr(zarr_set, data):
    file = data.draw(st.sampled_from(sorted(file for file in zarr_set.rglob("*") if file.is_file())))
    sound = file.read_bytes()
    try:
        try:
            content = json.dumps(data.draw(altered(json.loads(sound)))).encode()
        except ValueError:
            content = data.draw(damaged(sound))
        file.write_bytes(content)
        only(DataError, lambda: read_all(ZarrStoreConfig(path=zarr_set).create()))
    finally:
        file.write_bytes(sound)


@pytest.fixture(scope="module", params=["v2.1", "v3.0"])
def lerobot_set(request, tmp_path_factory):
    from tests.data.formats.lerobot import test_dataset as test_lerobot

    return test_lerobot.WRITERS[request.param](tmp_path_factory.mktemp("lerobot"))


@pytest.mark.promise("K3", "H7")
@few
@given(st.data())
def test_lerobot(lerobot_set, data):
    file = data.draw(st.sampled_from(sorted(file for file in lerobot_set.rglob("*") if file.is_file())))
    sound = file.read_bytes()
    try:
        content = data.draw(damaged(sound))
        if file.suffix == ".json":
            content = json.dumps(data.draw(altered(json.loads(sound)))).encode()
        elif file.suffix == ".jsonl":
            lines = [json.loads(line) for line in sound.splitlines()]
            content = "\n".join(json.dumps(line) for line in data.draw(altered(lines))).encode()
        file.write_bytes(content)
        only(DataError, lambda: read_all(LeRobotStoreConfig(path=lerobot_set).create()))
    finally:
        file.write_bytes(sound)


@few
@given(st.data())
def test_data_manifest(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("manifest")
    (place / "set").write_text("data")
    integrity = Integrity(place / "m.json", place / "set", "hashes")
    integrity.note([place / "set"])
    document = data.draw(altered(unseal((place / "m.json").read_bytes())))
    for text in (seal(document), data.draw(damaged((place / "m.json").read_bytes()))):
        (place / "m.json").write_bytes(text)
        only(DataError, integrity.check)


def fuzzed(count, *kinds):
    """Damage files of these formats and read them in a process of its own, see `tests.fuzzing`."""
    done = forks.call([fuzzing.__file__, count, *kinds], timeout=880)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")
@pytest.mark.promise("K15")
@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_damaged_files_of_every_format_have_an_answer(count):
    for kind, told in fuzzed(count).items():
        assert sum(told.values()) == count, kind


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")
@pytest.mark.promise("K12", "K15")
@pytest.mark.parametrize("count", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_well_formed_files_that_say_absurd_things_have_an_answer(count):
    """Of every format sizes, counts, types, attributes, nesting and repeats, which flipped bytes never find."""
    for kind, told in fuzzed(count, *(f"{fuzzing.ABSURD}{kind}" for kind in structures.CHANGES)).items():
        assert sum(told.values()) == count, kind


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")
@pytest.mark.promise("K15")
@pytest.mark.parametrize("kind", sorted(fuzzing.READERS))
def test_two_thousand_damaged_files_have_an_answer(kind):
    found = fuzzed(2000 * LONGER, kind)
    if not found:
        pytest.skip(f"{fuzzing.needed(kind)} is not installed")
    assert sum(found[kind].values()) == 2000 * LONGER
