"""InstructionWatch: notices instructions that training did not have, which a policy follows only by luck."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dp_prior_client.onboard.obs_spec import ObsSpec

log = logging.getLogger(__name__)

LONGEST_SHOWN = 200
"""Most characters of an instruction that are compared and shown."""

MOST_REPORTED = 100
"""Different instructions of a robot that are logged; further ones are not."""


class InstructionWatch:
    """Compares the texts of observations with the listed instructions of a policy's training."""

    def __init__(self, reads: ObsSpec, tell: Callable[[str], None] = log.warning):
        """Args: tell: receives each line."""
        self._trained_texts = {key: frozenset(entry.texts) for key, entry in reads.observations.items() if entry.texts}
        self._tell = tell
        self._reported: set[tuple[str, str]] = set()

    def check(self, obs: Mapping[str, Any]) -> None:
        """Tell of each instruction that training did not have, once.

        Args:
            obs: texts, or lists or arrays of texts, by key; embeddings are passed over.
        """
        for key, texts in self._trained_texts.items():
            for text in _texts(obs.get(key)):
                if text in texts or (key, text) in self._reported or len(self._reported) >= MOST_REPORTED:
                    continue
                self._reported.add((key, text))
                nearest = difflib.get_close_matches(text[:LONGEST_SHOWN], sorted(texts), 1, 0.0)[0]
                self._tell(
                    f"instruction {text[:LONGEST_SHOWN]!r} (observation {key!r}) is none of the {len(texts)} of "
                    f"training; the nearest is {nearest!r}"
                )


def _texts(value: Any) -> Iterator[str]:
    """The different texts of an observation."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype.kind in "UTO"):
        yield from dict.fromkeys(text for text in np.ravel(np.asarray(value, object)) if isinstance(text, str))
