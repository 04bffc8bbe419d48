"""Text and image models of the package transformers: CLIP, SigLIP, T5, sentence models, vision transformers.

Nothing in a model's folder is executed, and weights must be safetensors. How a model's outputs become one vector:

    clip, siglip                  their own text and image features
    clip_text_model               the projected text features
    a sentence model, t5, others  the mean over the tokens of a text, or the first token where `1_Pooling` says so
    vision transformers           the model's pooled output; without pooling, the first token

All are scaled to length 1.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from dp_prior.config import Config, Outside
from dp_prior.embedders.model_folder import check_model_folder
from dp_prior.files.entry_points import needing
from dp_prior.files.hub_files import HubError, locate

FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*.json")
"""Patterns of the files of a model's folder that are read and hashed."""

TEXTS_AT_ONCE = 64

FIXED_LENGTH = 64
"""Tokens of a text for SigLIP: padded to this length, without a mask, as in SigLIP's training."""


class TransformersConfig(Config):
    """A pretrained model of the package transformers; needs the extra `clip`."""

    type: Literal["transformers"] = "transformers"

    model: Annotated[str, Outside()]
    """A local folder, as `save_pretrained` writes it, or a Hub repository user/name[@revision]."""

    sha256: str | None = None
    """Hash of the model's files; null until the files are read."""

    @property
    def identity(self) -> str:
        """Equal for records of the same files, wherever the files lie."""
        return self.sha256 or self.model

    def resolve(self) -> Self:
        """The record with the hash of the files; downloads a model of the Hub.

        Raises:
            FileNotFoundError: the model does not exist, or the Hub is out of reach.
        """
        return self.model_copy(update={"sha256": _hash(_folder(self.model))})

    def on_this_machine(self) -> Self:
        """Resolve a record in a policy's files, which may be a stranger's, to the folder of the model on this machine:
        downloads nothing, and refuses a record without a hash.

        Raises:
            FileNotFoundError: the model is not on this machine.
            ValueError: the record has no hash.
        """
        source = locate(self.model, "model")
        if self.sha256 is None:
            raise ValueError(f"nothing says which files model {self.model!r} had; name its folder yourself")
        if isinstance(source, Path):
            return self
        try:
            return self.model_copy(update={"model": str(source.cached(FILES))})
        except HubError as error:
            raise FileNotFoundError(
                f"model {source} is not on this machine, and no policy makes it download a model{source.download_first}"
            ) from error

    def create(self) -> TransformersEmbedder:
        """Load the model.

        Raises:
            FileNotFoundError: the model does not exist, or the Hub is out of reach.
            ValueError: the files do not have the hash `sha256`, or cannot be loaded.
            ImportError: transformers is missing.
        """
        folder = _folder(self.model)
        if self.sha256 not in (None, _hash(folder)):
            raise ValueError(
                f"the files of model {self.model} are not those that the embeddings were made with (SHA-256 "
                f"{self.sha256[:12]}...); give the model as it was, or embed the texts again and train on these"
            )
        return TransformersEmbedder(folder)


class TransformersEmbedder:
    """See `TransformersConfig` and `Embedder`."""

    def __init__(self, folder: Path):
        self._folder, self._transformers = folder, _transformers()
        check_model_folder(folder)
        try:
            self._family = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
            kind = {"clip_text_model": "CLIPTextModelWithProjection", "t5": "T5EncoderModel"}.get(self._family)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds no model that transformers can load: {error}") from error
        self._model = self._loaded(kind or "AutoModel", use_safetensors=True)
        self._model.eval().requires_grad_(False)

    def _loaded(self, loader: str, **options: Any) -> Any:
        """Load the folder by a class of transformers, without the network and without code of the folder.

        Raises:
            ValueError: the folder cannot be loaded.
            ImportError: a package is missing.
        """
        options = {"local_files_only": True, "trust_remote_code": False, **options}
        try:
            return getattr(self._transformers, loader).from_pretrained(self._folder, **options)
        except ImportError:
            raise
        except Exception as error:  # safetensors, tokenizers and each model have their own
            reason = " ".join(str(error).split())
            if "trust_remote_code" in reason:
                reason = "it needs code of its own, which is never run; take a model of a type that transformers has"
            raise ValueError(f"{self._folder} holds no model that transformers can load: {reason}") from error

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """See `Embedder`."""
        self._check_reads_texts()
        return self._in_parts(texts, self._embed_texts)

    def encodings(self, texts: Sequence[str]) -> np.ndarray:
        """See `Embedder`; the output of the last layer, as long as the longest text that the model reads."""
        self._check_reads_texts()
        parts = [self._encode_texts(texts[i : i + TEXTS_AT_ONCE]) for i in range(0, len(texts), TEXTS_AT_ONCE)]
        return torch.cat(parts).float().numpy()

    def _check_reads_texts(self) -> None:
        if self._tokenizer is None:
            raise ValueError(f"{self._folder} has no tokenizer, so this {self._family} model reads no texts")

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """See `Embedder`."""
        if self._tokenizer is None:
            return []
        lengths = map(len, self._tokenizer(list(texts), truncation=False, verbose=False)["input_ids"])
        return [place for place, length in enumerate(lengths) if length > self._most_tokens]

    def frames(self, frames: np.ndarray) -> np.ndarray:
        """See `Embedder`."""
        if self._processor is None:
            raise ValueError(
                f"{self._folder} has no preprocessor_config.json: this {self._family} model reads no frames"
            )
        return self._in_parts(frames, self._embed_frames)

    @property
    def _most_tokens(self) -> int:
        """Tokens of a text that the model reads."""
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        if self._family.startswith("siglip"):
            return min(FIXED_LENGTH, limit)
        return min(self._tokenizer.model_max_length, limit or 512)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        if not (self._folder / "tokenizer_config.json").is_file():
            return None
        return self._loaded("AutoTokenizer")

    @functools.cached_property
    def _processor(self) -> Any:
        if not (self._folder / "preprocessor_config.json").is_file():
            return None
        return self._loaded("AutoImageProcessor", backend="pil")

    @functools.cached_property
    def _takes_first(self) -> bool:
        """Whether the first token's output embeds a text; sentence-transformers has two spellings of this setting."""
        path = self._folder / "1_Pooling" / "config.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return bool(record.get("pooling_mode_cls_token")) or record.get("pooling_mode") == "cls"

    @torch.no_grad()
    def _in_parts(self, values: Any, embed: Any) -> np.ndarray:
        parts = [embed(values[i : i + TEXTS_AT_ONCE]).float() for i in range(0, len(values), TEXTS_AT_ONCE)]
        return torch.nn.functional.normalize(torch.cat(parts), dim=-1).numpy()

    def _embed_texts(self, texts: Sequence[str]) -> Tensor:
        is_fixed = self._family.startswith("siglip")
        tokens = self._tokenizer(
            list(texts),
            padding="max_length" if is_fixed else True,
            truncation=True,
            max_length=self._most_tokens,
            return_tensors="pt",
        )
        mask = tokens["attention_mask"]
        inputs = {"input_ids": tokens["input_ids"]} | ({} if is_fixed else {"attention_mask": mask})
        if self._family == "clip_text_model":
            return self._model(**inputs).text_embeds
        if hasattr(self._model, "get_text_features"):
            return self._model.get_text_features(**inputs).pooler_output
        tokens_out = self._model(**inputs).last_hidden_state  # (n, length, D)
        if self._takes_first:
            return tokens_out[:, 0]
        weights = mask[..., None].to(tokens_out)
        return (tokens_out * weights).sum(1) / weights.sum(1)

    @torch.no_grad()
    def _encode_texts(self, texts: Sequence[str]) -> Tensor:
        """(n, tokens, dimension), zeros where the tokenizer pads; SigLIP reads its padding."""
        tokens = self._tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self._most_tokens, return_tensors="pt"
        )
        is_fixed, mask = self._family.startswith("siglip"), tokens["attention_mask"]
        inputs = {"input_ids": tokens["input_ids"]} | ({} if is_fixed else {"attention_mask": mask})
        tower = getattr(self._model, "text_model", self._model)
        encodings = tower(**inputs).last_hidden_state
        return encodings if is_fixed else encodings * mask[..., None].to(encodings)

    def _embed_frames(self, frames: np.ndarray) -> Tensor:
        pixels = self._processor(images=list(frames), return_tensors="pt")["pixel_values"]
        if hasattr(self._model, "get_image_features"):
            return self._model.get_image_features(pixel_values=pixels).pooler_output
        out = self._model(pixel_values=pixels)
        return out.last_hidden_state[:, 0] if out.get("pooler_output") is None else out.pooler_output


def _folder(model: str) -> Path:
    """The folder of the model's files, downloaded for a repository; an existing folder wins."""
    source = locate(model, "model")
    if isinstance(source, Path):
        return source
    try:
        return source.snapshot(FILES)
    except HubError as error:
        raise FileNotFoundError(f"model {error}{source.remedy(error)}") from error


def _hash(folder: Path) -> str:
    """SHA-256 over the names and contents of the files matching `FILES`."""
    digest = hashlib.sha256()
    for path in sorted(itertools.chain.from_iterable(map(folder.glob, FILES))):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _transformers() -> Any:
    with needing("clip", "this embedder needs transformers"):
        import transformers
    return transformers
