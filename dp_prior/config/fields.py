"""`Record`: frozen, checked fields. `Config` adds reading and writing JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator


class Record(BaseModel):
    """Frozen fields without unknown keys, and the contradictions between them; `Config` reads and writes them."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def hint(cls, path: Sequence[str | int]) -> str | None:
        """Say where an unknown key belongs, in whole sentences; None if nothing is known of such a key.

        Args:
            path: the key with its path; relative to a record that is asked about one of its own keys.
        """
        return None

    @classmethod
    def other_file(cls, data: dict[str, Any], source: str) -> str | None:
        """Recognise an invalid file of another kind, in a sentence for its author; None by default.

        Args:
            source: name of the file.
        """
        return None

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """Fill in, in place, omitted keys whose default depends on other keys; does nothing by default."""

    def faults(self) -> Iterable[str]:
        """Contradictions between fields that are each valid, one line per fault; none by default.

        The lines of all records are reported together. Called only if all fields, nested records included, are valid,
        so `faults` may rely on valid fields.
        """
        return ()

    @model_validator(mode="after")
    def _has_no_faults(self) -> Self:
        lines = list(self.faults())
        if lines:
            raise ValueError("\n".join(lines))
        return self

    def arguments(self) -> dict[str, Any]:
        """The fields by name without the discriminator `type`: keyword arguments for the class this record makes."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "type"}
