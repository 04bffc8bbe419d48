"""Embedders: models that turn texts or camera frames into vectors; training only reads the vectors.

A record names a model. `resolve()` adds the hash of the model's files; the resolved record is stored with the
embeddings and in the spec of every policy trained on the embeddings. `create()` loads the model, so that a robot embeds
an instruction with the model used for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dp_prior.config import family

EmbedderConfig = family(
    "embedders",
    {
        "hashed": "dp_prior.embedders.hashed:HashedConfig",
        "transformers": "dp_prior.embedders.transformers:TransformersConfig",
    },
    needs=("create", "resolve", "identity"),
)


class Embedder(Protocol):
    """A loaded model. An embedding depends on its own text or frame only, not on the rest of the batch."""

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts as (n, dimension) float32 of length 1.

        Raises:
            ValueError: the model reads no texts.
        """

    def encodings(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts as (n, tokens, dimension) float32: a vector for each token, zeros after the end of a text.

        Raises:
            ValueError: the model has no encodings.
        """

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """Indices of the texts that are longer than the model reads."""

    def frames(self, frames: np.ndarray) -> np.ndarray:
        """Embed (n, height, width, 3) uint8 RGB as (n, dimension) float32 of length 1.

        Raises:
            ValueError: the model reads no frames.
        """
