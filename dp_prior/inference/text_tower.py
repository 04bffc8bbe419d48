"""Text conditions of a prior from captions: the text tower of CLIP, from the package transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dp_prior.embedders.model_folder import check_model_folder
from dp_prior.files.entry_points import needing


class TextTower:
    """A frozen text tower with its tokenizer; `prior.predict(**tower(captions))`."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Embeddings and encodings of B captions.

        Returns:
            text_embed (B, D) of length 1, and text_encodings (B, n, E), n being the tower's maximum; zeros after the
            end of a text. Longer texts are truncated.
        """
        length = self.model.config.max_position_embeddings
        tokens = self.tokenizer(
            list(captions), padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        )
        tokens = tokens.to(next(self.model.parameters()).device)
        out = self.model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        is_there = tokens["attention_mask"][..., None].to(out.last_hidden_state.dtype)
        return {
            "text_embed": F.normalize(out.text_embeds.float(), dim=-1),
            "text_encodings": (out.last_hidden_state * is_there).float(),
        }


def load_text_tower(folder: str | Path, *, device: torch.device | str = "cpu") -> TextTower:
    """Load a CLIP text tower and its tokenizer from a local folder, as `save_pretrained` writes them.

    Nothing is downloaded and nothing in the folder is executed: the weights must be safetensors.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: its files name something outside of it, see `check_model_folder`.
        ImportError: transformers is not installed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; expected a CLIP model as save_pretrained writes it")
    with needing("clip", "CLIP text towers need transformers"):
        from transformers import CLIPTextModelWithProjection, CLIPTokenizer
    check_model_folder(folder)
    options = {"local_files_only": True, "trust_remote_code": False}
    model = CLIPTextModelWithProjection.from_pretrained(folder, use_safetensors=True, **options)
    return TextTower(model.to(device), CLIPTokenizer.from_pretrained(folder, **options))
