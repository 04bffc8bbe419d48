"""Redirects of an HTTP server that are followed: to other addresses of HTTP, never from HTTPS to plain HTTP."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request


class SafeRedirects(HTTPRedirectHandler):
    """A handler of urllib, which itself would also read FTP, and ask for a whole file where its head is asked for."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """The request at the new address, by the same method.

        Raises:
            HTTPError: the address is none of HTTP, or leaves HTTPS.
        """
        schemes = ("https",) if urlsplit(req.full_url).scheme == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in schemes:
            raise HTTPError(req.full_url, code, "redirects to another protocol", headers, fp)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            request.method = req.get_method()
        return request
