from urllib.error import HTTPError
from urllib.request import Request

import pytest

from dp_prior.data.errors import UnreachableError
from dp_prior_streams import remote_files
from dp_prior_streams.redirects import SafeRedirects
from dp_prior_streams.remote_files import WebPlace, retried
from tests.messages import naming
from tests.plugins.dp_prior_streams.web_store import served


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://host/a", "ftp://host/a"),
        ("https://host/a", "http://host/a"),
        ("https://host/a", "file:///etc/passwd"),
        ("http://host/a", "FILE:///etc/passwd"),
    ],
)
def test_a_redirect_to_another_protocol_is_refused(url, target):
    with pytest.raises(HTTPError):
        SafeRedirects().redirect_request(Request(url), None, 302, "Found", {}, target)


@pytest.mark.parametrize(
    ("url", "target"), [("http://host/a", "https://other/a"), ("https://host/a", "https://other/a")]
)
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_redirect_is_followed_by_the_same_method(url, target, method):
    followed = SafeRedirects().redirect_request(Request(url, method=method), None, 302, "Found", {}, target)
    assert (followed.full_url, followed.get_method()) == (target, method)


def test_a_server_that_redirects_is_read_and_asked_for_heads_alone(tmp_path):
    (tmp_path / "a b").write_bytes(b"0123456789")
    with served(tmp_path) as store, served(tmp_path) as front:
        front.moved_to = store.url
        place = WebPlace(front.url)
        assert place.version("a b").size == 10
        assert b"".join(place.pieces("a b", 2, 5)) == b"234"
        assert store.methods == ["HEAD", "GET"]


def test_a_server_that_redirects_to_ftp_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_S", 0.0)
    with served(tmp_path) as front:
        front.moved_to = "ftp://127.0.0.1:1"
        with pytest.raises(UnreachableError, match=naming(front.url, "HTTP 302")):
            retried(front.url, lambda: WebPlace(front.url).version("a"))
