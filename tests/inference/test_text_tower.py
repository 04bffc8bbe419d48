"""Captions become embeddings and encodings as CLIP makes them; the weights are random, only their use is tested."""

import builtins
import json

import pytest
import torch

from dp_prior.inference.text_tower import load_text_tower
from tests.messages import naming


@pytest.fixture
def folder(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: text towers NOT tested")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    (tmp_path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    config = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8, projection_dim=6, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    place = tmp_path / "clip"
    transformers.CLIPTextModelWithProjection(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def test_captions_become_what_a_prior_reads(folder):
    tower = load_text_tower(folder)
    found = tower(["a dog", "x", "a very long text that is cut"])
    assert found["text_embed"].shape == (3, 6) and found["text_encodings"].shape == (3, 8, 16)
    assert torch.allclose(found["text_embed"].norm(dim=1), torch.ones(3))
    is_there = (found["text_encodings"] != 0).any(-1)
    assert is_there.sum(1).tolist() == [6, 3, 8]  # start, letters, end
    alone = tower(["x"])
    assert torch.allclose(alone["text_embed"], found["text_embed"][1:2], atol=1e-5)
    assert not torch.allclose(found["text_embed"][0], found["text_embed"][1])


def test_a_prior_predicts_from_captions(folder):
    from dp_prior.tasks.prior import PriorConfig
    from dp_prior.tensors.batch import Spec

    config = PriorConfig.from_json(
        '{"backbone": {"embed_dim": 16, "n_layers": 1, "n_heads": 2}, "sampler": {"type": "ddim", "steps": 2}}'
    )
    prior = config.create(Spec(x_shape=(6,), cond_shapes={"text": (6,), "text_encodings": (8, 16)})).eval()
    assert prior.predict(**load_text_tower(folder)(["a dog", "a cat"])).shape == (2, 6)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "no", "CLIP", "save_pretrained")):
        load_text_tower(tmp_path / "no")

    def refuse(name, *args, original=builtins.__import__, **kwargs):
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=naming("CLIP", "transformers", 'pip install "dp_prior[clip]"')):
        load_text_tower(tmp_path)
