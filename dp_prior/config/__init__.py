"""Records: JSON in, frozen and fully checked objects out.

Every part of the package is described by a `Config`. Unknown keys and wrong types are refused, and all problems of a
file are reported together, each with its JSON path. A family of interchangeable parts is a union told apart by `type`.
"""

from dp_prior.config.annotations import (
    Change,
    Kind,
    Outside,
    change_of,
    child,
    kinds_in,
    members,
    record_for,
    records_in,
)
from dp_prior.config.errors import MOST_PROBLEMS, ConfigError, PartError, an, errors_of
from dp_prior.config.families import family, member_of
from dp_prior.config.late import late
from dp_prior.config.origins import ORIGINS, changed_code, made, own_version, unknown_type
from dp_prior.config.read import EXTENDS
from dp_prior.config.record import Config

__all__ = [
    "EXTENDS",
    "MOST_PROBLEMS",
    "ORIGINS",
    "Change",
    "Config",
    "ConfigError",
    "Kind",
    "Outside",
    "PartError",
    "an",
    "change_of",
    "changed_code",
    "child",
    "errors_of",
    "family",
    "kinds_in",
    "late",
    "made",
    "member_of",
    "members",
    "own_version",
    "record_for",
    "records_in",
    "unknown_type",
]
