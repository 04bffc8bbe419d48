"""Instructions at acting time: texts among observations become the embeddings that the policy was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.config import Config
from dp_prior.embedders import Embedder
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.batch import Spec

LONGEST = 4096
"""Most characters of an instruction."""

REMEMBERED = 1024
"""Most texts whose embeddings are kept."""


class Instructions:
    """Embeds the texts that a policy reads, by the model that made its embeddings, which is loaded at the first text
    or by `warm_up`. A policy may be a stranger's: no model is downloaded because of it.

    Embeddings given in place of texts are left as they are.
    """

    def __init__(self, spec: Spec, source: str | Path | None = None):
        """
        Args:
            spec: of the policy.
            source: a folder that `dp-prior embed` wrote (then only its texts are known, and no model is needed), or a
                folder with the model, if the model lies elsewhere than in training; None for the model of the policy's
                spec, if it lies there or in the cache of the Hub's client.

        Raises:
            FileNotFoundError: there is no such folder.
            ValueError: the folder is of another model than the policy's embeddings, or nothing in it would be read.
        """
        self._keys = [key for key in spec.cond_shapes if spec.kind(key) == "text"]
        self._spec = spec
        self._source = None if source is None else expanded(source)
        self._embedders: dict[str, Embedder] = {}  # by the identity of the model
        self._known: dict[str, np.ndarray] | None = None
        if self._source is not None:
            if not self._source.is_dir():
                raise FileNotFoundError(f"there is no folder {self._source}; expected one of embeddings, or of a model")
            self._known = self._read(self._source)
        self._embed = lru_cache(REMEMBERED)(self._embed_one)

    def _read(self, folder: Path) -> dict[str, np.ndarray] | None:
        """The embeddings of a folder by text; None if it holds none."""
        from dp_prior.data.embeddings.folder import FolderConfig  # acting without such a folder needs no reader of data
        from dp_prior.data.embeddings.written import read_record

        if not self._keys:
            raise ValueError(f"the policy reads no instructions, so nothing in {folder} is used; leave it out")
        record = read_record(folder)
        if record is None:
            if not any(map(self._may_lie_elsewhere, self._keys)):
                raise ValueError(f"{folder} holds no embeddings of texts; write them with dp-prior embed")
            return None
        for key in self._keys:
            embedder = self._spec.embedders.get(key)
            if embedder is None or embedder.identity != record.embedder.identity:
                raise ValueError(
                    f"the embeddings in {folder} are of {_called(record.embedder)}, but the policy reads {key!r} of "
                    f"{_called(embedder)}; embed the texts by the policy's model"
                )
        column = str(record.source.get("texts", ""))
        if not column:
            raise ValueError(f"{folder} holds embeddings of frames; expected those of texts")
        opened = FolderConfig(path=str(folder), format="parquet").create()
        texts = chain.from_iterable(part[column] for part in opened.columns([column], as_text=True))
        return dict(zip(texts, opened.rows.read(0, opened.count), strict=True))

    def embedded(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """The observations with embeddings (*shape, dimension) in place of texts (*shape); the others as they are.

        Raises:
            ValueError: a text is empty, too long or unknown, or its model is not known or not the policy's.
        """
        return {key: self._replaced(key, value) if key in self._keys else value for key, value in obs.items()}

    def warm_up(self) -> str | None:
        """Embed a text of each key, so that no later one waits for its model. Returns why texts are refused, if so."""
        try:
            for key in self._keys if self._known is None else ():
                self._embed_one(key, "warm up")
        except ValueError as error:
            return str(error)
        return None

    def _replaced(self, key: str, value: Any) -> Any:
        if not _is_text(value):
            return value
        texts = np.asarray(value)
        embeddings = [self._embed(key, str(text)) for text in texts.ravel()]
        return np.stack(embeddings).reshape(*texts.shape, *embeddings[0].shape)

    def _embed_one(self, key: str, text: str) -> np.ndarray:
        if not text.strip():
            raise ValueError(f"observation {key!r} is an empty text; say what to do, or give its embedding")
        if len(text) > LONGEST:
            raise ValueError(f"observation {key!r} is a text of {len(text)} characters; at most {LONGEST} are read")
        if self._known is not None:
            if text not in self._known:
                from dp_prior.data.errors import nearest_name  # of the room of data, which acting does not load

                hint = nearest_name(text, self._known)
                raise ValueError(f"observation {key!r} is {text!r}, which has no embedding in {self._source}. {hint}")
            return self._known[text]
        try:
            return self._embedder(key).texts([text])[0]
        except (ImportError, FileNotFoundError) as error:
            raise ValueError(f"observation {key!r} is a text, but {error}; or give its embedding") from error

    def _embedder(self, key: str) -> Embedder:
        record = self._spec.embedders.get(key)
        if record is None:
            raise ValueError(
                f"observation {key!r} is a text, but nothing says which model embeds it: the embeddings of training "
                f"were not made by dp-prior embed; give its embedding, shape {self._spec.cond_shapes[key][1:]}"
            )
        if record.identity not in self._embedders:
            self._embedders[record.identity] = self._located(key).create()
        return self._embedders[record.identity]

    def _located(self, key: str) -> Config:
        """The record of the model of a text, which lies where the user says or is on this machine already."""
        record = self._spec.embedders[key]
        if not self._may_lie_elsewhere(key):
            return record
        if self._source is not None:
            return record.model_copy(update={"model": str(self._source)})
        return record.on_this_machine()

    def check_located(self) -> None:
        """Look for the models that embed texts, without loading one.

        Raises:
            FileNotFoundError: a model is not on this machine.
            ValueError: a policy's files name a folder without its hash.
        """
        if self._known is None:
            for key in filter(self._may_lie_elsewhere, self._keys):
                self._located(key)

    def _may_lie_elsewhere(self, key: str) -> bool:
        """Whether the model of a text lies in a folder, which may be another one than in training."""
        from dp_prior.embedders.transformers import TransformersConfig

        return isinstance(self._spec.embedders.get(key), TransformersConfig)


def _is_text(value: Any) -> bool:
    """Whether an observation is a text or an array of texts."""
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and _is_text(value[0])
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind in "UT")


def _called(record: Any) -> str:
    return "an unknown model" if record is None else f"{record.type} {record.identity[:40]}"
