"""Why a place could not be reached, and what to check, told from the types of a client's errors.

Each client wraps the error of the operating system in errors of its own, whose text may quote a secret.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from itertools import chain

from dp_prior.files.client_errors import kind_of

_FAULTS: list[tuple[type[Exception], str, str]] = [
    (socket.gaierror, "the name of the host is not known here", "check the host in data.episodes.url, and the network"),
    (
        ConnectionRefusedError,
        "the host refuses the connection",
        "check host and port in data.episodes.url, and that the server runs",
    ),
    (
        ssl.SSLCertVerificationError,
        "the certificate of the host is not trusted here",
        "check the clock, and name further certificates in SSL_CERT_FILE",
    ),
    (ssl.SSLError, "the host does not speak TLS", "check https and the port in data.episodes.url"),
    (TimeoutError, "no answer in time", "check the network, a proxy and a firewall"),
]

MOST_ERRORS = 50
"""Errors in the chain behind an error that are looked at."""


def connection_fault(error: Exception) -> tuple[str, str]:
    """Name the reason of an error of a client, and what to check; an empty text where only time helps."""
    causes = list(_causes(error))
    for kind, reason, hint in _FAULTS:
        if any(isinstance(cause, kind) for cause in causes):
            return reason, hint
    if any("timeout" in type(cause).__name__.lower() for cause in causes):
        return _FAULTS[-1][1:]
    systems = [cause for cause in causes if isinstance(cause, OSError) and isinstance(cause.errno, int)]
    return kind_of(systems[0] if systems else error), ""


def _causes(error: Exception) -> Iterator[Exception]:
    """The error, and the errors that it wraps: as its cause, or as an argument or attribute."""
    waiting, known = [error], {id(error)}
    while waiting and len(known) < MOST_ERRORS:
        cause = waiting.pop(0)
        yield cause
        wrapped = (getattr(cause, name, None) for name in ("__cause__", "__context__", "reason", "os_error"))
        options = getattr(cause, "kwargs", None)
        named = options.values() if isinstance(options, dict) else ()
        for inner in chain(wrapped, cause.args, named):
            if isinstance(inner, Exception) and id(inner) not in known:
                known.add(id(inner))
                waiting.append(inner)
