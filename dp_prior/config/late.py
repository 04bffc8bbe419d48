"""Records that are imported when they are used: a place `module:Class` stands for the record."""

from __future__ import annotations

import functools
import json
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from dp_prior.config.annotations import Placed
from dp_prior.config.record import Config
from dp_prior.files.entry_points import imported


def late(place: str) -> Any:
    """The annotation of a field whose record is imported when the field has a value, such as

        images: dict[str, late("dp_prior.data.recorded.camera:ImageConfig")] = {}

    Errors read as for the record itself, and the JSON Schema of `json_schema` is equal.
    """
    return Annotated[Config, _Late(place)]


def checked(validator: SchemaValidator, value: Any, info: ValidationInfo) -> Any:
    """Validate inside a validator function as the schema around does: JSON strictly, where a list may be a tuple, and
    objects of Python leniently.

    pydantic reports every error inside a `ValidationError` that is raised here, with its place below the function's
    place. A strict check of the Python values that pydantic made of JSON would refuse a list for a tuple.
    """
    if info.mode == "json":
        return validator.validate_json(json.dumps(value), strict=True, context=info.context)
    return validator.validate_python(value, context=info.context)


class _Late(Placed):
    def __init__(self, place: str):
        self._place = place

    @functools.cached_property
    def record(self) -> type[Config]:
        return imported(self._place)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        self.record.model_rebuild()  # deferred until here
        return handler(core_schema.with_default_schema(self.record.__pydantic_core_schema__))  # by a reference

    def _validated(self, value: Any, info: ValidationInfo) -> Any:
        return checked(self.record.__pydantic_validator__, value, info)
