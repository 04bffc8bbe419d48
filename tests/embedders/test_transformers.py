"""Models of transformers as embedders: small random ones, loaded by the code that loads published ones."""

import builtins
import json

import numpy as np
import pytest
import torch

from dp_prior.embedders.transformers import TransformersConfig
from dp_prior.inference.text_tower import TextTower
from tests.embedders.models import save_model
from tests.extras import needs
from tests.messages import naming

needs("transformers", "clip")

TEXTS = ["push the block left", "up", "push the block right"]
DIMENSIONS = {"clip": 6, "siglip": 16, "clip_text_model": 6, "t5": 16, "bert": 16}


def load(folder):
    return TransformersConfig(model=str(folder)).create()


@pytest.mark.parametrize(("kind", "dimension"), DIMENSIONS.items())
def test_texts_become_vectors_that_depend_on_their_own_text_alone(tmp_path, kind, dimension):
    model = load(save_model(tmp_path / "m", kind))
    found = model.texts(TEXTS)
    assert found.shape == (3, dimension) and found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(found[1], model.texts(TEXTS[1:2])[0], atol=1e-5)  # other padding, other rounding
    assert np.abs(found[0] - found[2]).max() > 1e-3
    assert model.texts(["left " * 50]).shape == (1, dimension)  # longer than the model reads


@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_frames_become_vectors_of_any_size_of_frame(tmp_path, kind):
    model = load(save_model(tmp_path / "m", kind))
    frames = np.random.default_rng(0).integers(0, 256, (3, 20, 24, 3), np.uint8)
    found = model.frames(frames)
    assert found.shape == (3, DIMENSIONS.get(kind, 16)) and np.abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_allclose(found[1], model.frames(frames[1:2])[0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_sentence_models_are_pooled_as_their_own_record_says(tmp_path):
    import transformers

    folder = save_model(tmp_path / "m", "bert")
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS[:1], return_tensors="pt")
    with torch.no_grad():
        out = transformers.AutoModel.from_pretrained(folder)(**tokens).last_hidden_state[0]
    (folder / "1_Pooling").mkdir()
    for pooled, record in (
        (out.mean(0), {"pooling_mode_cls_token": False}),
        (out[0], {"pooling_mode_cls_token": True}),
        (out.mean(0), {"pooling_mode": "mean"}),  # as sentence-transformers 6 writes it
        (out[0], {"pooling_mode": "cls"}),
    ):
        (folder / "1_Pooling/config.json").write_text(json.dumps(record))
        np.testing.assert_allclose(load(folder).texts(TEXTS[:1])[0], pooled / pooled.norm(), atol=1e-5)


def test_clip_is_what_transformers_computes(tmp_path):
    import transformers

    folder = save_model(tmp_path / "m", "clip")
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS[:1], return_tensors="pt")
    given = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        pixels = torch.zeros(1, 3, 16, 16)
        expected = transformers.AutoModel.from_pretrained(folder)(**given, pixel_values=pixels).text_embeds[0]
    np.testing.assert_allclose(load(folder).texts(TEXTS[:1])[0], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "clip_text_model", "bert", "siglip"])
def test_encodings_are_those_of_each_token_and_zeros_after_the_end(tmp_path, kind):
    embedder = load(save_model(tmp_path / "m", kind))
    found = embedder.encodings(TEXTS)
    assert found.dtype == np.float32 and found.shape[0] == len(TEXTS) and found.shape[2] == 16
    np.testing.assert_allclose(found[1], embedder.encodings(TEXTS[1:2])[0], atol=1e-6)
    if kind == "siglip":  # reads its padding
        return
    ends = [len(text.split()) + 2 for text in TEXTS]  # two tokens stand around a text
    assert [int((one != 0).any(-1).sum()) for one in found] == [min(end, found.shape[1]) for end in ends]
    assert not found[0, ends[0] :].any()


def test_encodings_of_clip_are_those_of_the_text_tower(tmp_path):
    import transformers

    folder = save_model(tmp_path / "m", "clip_text_model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tower = TextTower(transformers.CLIPTextModelWithProjection.from_pretrained(folder), tokenizer)
    expected = tower(TEXTS)["text_encodings"]
    np.testing.assert_allclose(load(folder).encodings(TEXTS), expected, atol=1e-6)


def test_the_hash_names_the_model_wherever_it_lies_and_no_other(tmp_path):
    one = TransformersConfig(model=str(save_model(tmp_path / "a", "bert"))).resolve()
    same = TransformersConfig(model=str(save_model(tmp_path / "b", "bert"))).resolve()
    other = TransformersConfig(model=str(save_model(tmp_path / "c", "bert", seed=1))).resolve()
    assert len(one.sha256) == 64 and one.identity == same.identity != other.identity
    one.model_copy(update={"model": same.model}).create()
    with pytest.raises(ValueError, match=naming("SHA-256", "embed")):
        one.model_copy(update={"model": other.model}).create()


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=naming("no'", "user/name", "@revision")):
        load(tmp_path / "no")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=naming("empty/config.json", "transformers")):
        load(tmp_path / "empty")
    blind = load(save_model(tmp_path / "m", "bert"))
    with pytest.raises(ValueError, match=naming("preprocessor_config.json", "bert", "frames")):
        blind.frames(np.zeros((1, 8, 8, 3), np.uint8))
    mute = load(save_model(tmp_path / "d", "dinov2"))
    with pytest.raises(ValueError, match=naming("dinov2", "tokenizer", "texts")):
        mute.texts(["a"])

    def refuse(name, *args, original=builtins.__import__, **kwargs):
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=naming("embedder", "transformers", 'pip install "dp_prior[clip]"')):
        load(tmp_path / "m")


def test_texts_that_are_longer_than_the_model_reads_are_told(tmp_path):
    """Two instructions that differ only behind the end become one."""
    embedder = load(save_model(tmp_path / "clip", "clip"))
    long = " ".join(["push"] * 30)
    texts = ["push", f"{long} left", f"{long} right"]
    assert embedder.too_long(texts) == [1, 2]
    _, one, other = embedder.texts(texts)
    assert np.array_equal(one, other)
