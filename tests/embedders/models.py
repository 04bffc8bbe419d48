"""Tiny models of transformers with random weights, saved as published ones are, and a tokenizer made here."""

from pathlib import Path

import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "push", "the", "block", "left", "right", "up"]
TEXT = {"vocab_size": 10, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
EYES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}


def save_model(folder: Path, kind: str, seed: int = 0) -> Path:
    """Save a model of a kind, with its tokenizer and its image processor, if it has them."""
    import transformers

    torch.manual_seed(seed)
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text, eyes = {**TEXT, **ends, "max_position_embeddings": 8}, {**EYES, "patch_size": 8}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=eyes, projection_dim=6, **ends)
        model = transformers.CLIPModel(config)
    elif kind == "siglip":
        model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=eyes))
    elif kind == "clip_text_model":
        model = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**text, projection_dim=6))
    elif kind == "t5":
        sizes = {"vocab_size": 10, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        model = transformers.T5EncoderModel(transformers.T5Config(**sizes, pad_token_id=0, eos_token_id=3))
    elif kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**TEXT, max_position_embeddings=32))
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(**eyes))
    model.save_pretrained(folder)
    if kind != "dinov2":
        tokenizer(transformers).save_pretrained(folder)
    if kind in ("clip", "siglip", "dinov2"):
        size = {"size": {"height": 16, "width": 16}, "crop_size": {"height": 16, "width": 16}}
        class_name = "SiglipImageProcessorPil" if kind == "siglip" else "CLIPImageProcessorPil"
        getattr(transformers, class_name)(**size).save_pretrained(folder)
    return folder


def tokenizer(transformers):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=8, **marks)
