"""Files of a published policy: hashed as read, equal from a directory and from the Hub, refused by name and cause."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import save

from dp_prior.config import Config, ConfigError
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from tests.messages import naming


class Document(Config):
    """A small record."""

    width: int = 1


TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False])}
CONTENT = {"config.json": json.dumps({"width": 7}).encode(), "model.safetensors": save(TENSORS)}


@pytest.fixture
def place(tmp_path):
    for name, data in CONTENT.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def read_all(files):
    return files.document("config.json", Document), files.tensors("model.safetensors")


def assert_is_content(files):
    document, tensors = read_all(files)
    assert document == Document(width=7)
    assert tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert files.hashes == {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


def test_a_directory_gives_its_files_and_their_hashes(place):
    files = PublishedFiles(str(place))
    assert_is_content(files)
    assert files.revision is None and files.place == str(place.resolve())


@pytest.mark.parametrize("wrapped", ["module.{}", "_orig_mod.{}", "_orig_mod.module.{}", "module._orig_mod.{}"])
def test_names_of_a_network_in_parallel_or_compiled_are_those_of_the_network(place, wrapped):
    wrapped_tensors = {wrapped.format(name): tensor for name, tensor in TENSORS.items()}
    wrapped_tensors["net.module._orig_mod.c"] = torch.ones(1)
    (place / "model.safetensors").write_bytes(save(wrapped_tensors))
    assert PublishedFiles(str(place)).tensors("model.safetensors").keys() == {*TENSORS, "net.module.c"}


@pytest.mark.parametrize("reference", ["me/x", "hf://me/x", "me/x@v1"])
def test_a_repository_gives_the_same_and_its_commit(hub, reference):
    repo = hub.create("me/x", files=CONTENT)
    repo.tags["v1"] = repo.head
    files = PublishedFiles(reference)
    assert_is_content(files)
    assert files.revision == repo.head and files.place == "hf://me/x"
    assert files.has("config.json") and not files.has("none.json")


def test_only_what_is_read_is_hashed(place):
    files = PublishedFiles(str(place))
    assert files.has("config.json") and not files.has("none.json") and files.hashes == {}
    with pytest.raises(FileNotFoundError, match=naming("none.json")):
        files.document("none.json", Document)
    assert files.hashes == {}


@pytest.mark.parametrize("inside", ["checkpoints/000100/pretrained_model", "pretrained_model"])
def test_a_directory_of_a_training_gives_its_last_policy(tmp_path, inside):
    saved = tmp_path / inside
    saved.mkdir(parents=True)
    if inside.startswith("checkpoints"):
        (tmp_path / "checkpoints/last").symlink_to("000100")
    for name, data in CONTENT.items():
        (saved / name).write_bytes(data)
    files = PublishedFiles(str(tmp_path))
    assert_is_content(files)
    assert files.place == str(saved)


def test_a_missing_file_is_named_beside_those_that_there_are(tmp_path):
    for held in ("no file", "model-00001-of-00002.safetensors"):
        with pytest.raises(FileNotFoundError, match=naming(str(tmp_path), "config.json", held, "docs/import.md")):
            PublishedFiles(str(tmp_path)).document("config.json", Document)
        (tmp_path / "model-00001-of-00002.safetensors").touch()


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[1]", b'{"width": "7"}', b'{"wdth": 7}', b"[" * 100_000])
def test_a_document_that_is_none_is_refused_with_its_path(place, data):
    (place / "config.json").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        PublishedFiles(str(place)).document("config.json", Document)
    assert caught.value.source == f"{place}/config.json"


@pytest.mark.parametrize("data", [b"", b"\x80\x05.", CONTENT["model.safetensors"][:-1], (1 << 62).to_bytes(8) + b"{}"])
def test_weights_that_are_none_are_refused_with_their_path(place, data):
    (place / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        PublishedFiles(str(place)).tensors("model.safetensors")
    assert caught.value.source == f"{place}/model.safetensors"


def test_what_is_neither_directory_nor_repository_is_named(place):
    for reference, said in [
        (str(place / "config.json"), "directory"),
        ("nowhere", "user/name"),
        ("a/b/c", "user/name"),
    ]:
        with pytest.raises(FileNotFoundError, match=naming(reference, said)):
            PublishedFiles(reference)
