"""Errors of remote clients, told by their kind and with what to do, never by their text."""

import errno
import os

import pytest

from dp_prior.files.client_errors import is_denied, kind_of, remedy
from tests.messages import told


def named(name, *arguments):
    return type(name, (Exception,), {})(*arguments)


@pytest.mark.parametrize(
    ("error", "kind", "is_refusal", "said"),
    [
        (PermissionError("key=canary"), ("PermissionError",), True, ("credentials",)),
        (named("NoCredentialsError", "key=canary"), ("NoCredentialsError",), True, ("credentials",)),
        (OSError(errno.EINVAL, "canary"), ("OSError", os.strerror(errno.EINVAL)), False, ("credentials", "region")),
        (OSError(errno.EBUSY, "canary"), ("OSError", os.strerror(errno.EBUSY)), False, None),
        (OSError(errno.EINVAL, "canary", "/disk/file"), ("OSError", os.strerror(errno.EINVAL)), False, None),
        (named("EndpointConnectionError", "canary"), ("EndpointConnectionError",), False, None),
    ],
)
def test_an_error_is_told_by_its_kind_and_what_to_do(error, kind, is_refusal, said):
    assert told(kind_of(error), *kind) and is_denied(error) == is_refusal
    assert told(remedy(error), *said) if said else not remedy(error)
    assert "canary" not in kind_of(error) + remedy(error)
