import errno
import os
import socket
import ssl
from urllib.error import URLError

import pytest

from dp_prior_streams.connection_faults import connection_fault


class ClientError(Exception):
    """As clients wrap errors of the system, with a text that quotes a secret."""

    def __init__(self, *arguments, **options):
        super().__init__("GET https://host/?token=secret failed", *arguments)
        self.kwargs = options


class ConnectTimeoutError(ClientError):
    """As of botocore, which derives it from none of Python's."""


def caused(error, *, is_hidden=False):
    try:
        try:
            raise error
        except Exception as cause:
            raise ClientError from (None if is_hidden else cause)
    except ClientError as wrapped:
        return wrapped


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
WRAPPED = {
    "alone": lambda error: error,
    "urllib": URLError,
    "a cause": caused,
    "a hidden cause": lambda error: caused(error, is_hidden=True),
    "botocore": lambda error: ClientError(error=error),
    "requests": lambda error: ClientError(ClientError(URLError(error))),
}
FAULTS = {
    "name": UNKNOWN,
    "refused": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "certificate": ssl.SSLCertVerificationError(1, "self-signed"),
    "tls": ssl.SSLError(1, "wrong version number"),
    "silence": TimeoutError("timed out"),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_each_fault_has_a_reason_and_a_hint_however_a_client_wraps_it(wrapper):
    texts = {name: connection_fault(WRAPPED[wrapper](error)) for name, error in FAULTS.items()}
    assert len({*texts.values()}) == len(FAULTS) and all(all(pair) for pair in texts.values())
    assert texts == {name: connection_fault(error) for name, error in FAULTS.items()}
    assert "secret" not in str(texts)


def test_other_errors_have_the_reason_of_the_system_or_their_type():
    reset = connection_fault(caused(ConnectionResetError(errno.ECONNRESET, "x")))
    assert reset == (f"ConnectionResetError: {os.strerror(errno.ECONNRESET)}", "")
    assert connection_fault(ClientError()) == ("ClientError", "")
    assert connection_fault(ConnectTimeoutError()) == connection_fault(FAULTS["silence"])


def test_errors_that_hold_each_other_are_looked_at_once():
    first, second = ClientError(), ClientError()
    first.__cause__, second.__cause__ = second, first
    assert connection_fault(first) == ("ClientError", "")
