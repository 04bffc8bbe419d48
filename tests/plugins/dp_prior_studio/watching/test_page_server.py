"""The server reads only, stays inside its directory, and answers every state of a run without a traceback."""

import contextlib
import http.client
import json
import math
import os
import shutil
import socket
import threading
from urllib.parse import quote

import pytest

from dp_prior_robot.listener import bind
from dp_prior_studio.watching import run_list as module
from dp_prior_studio.watching.page_server import WatchServer
from dp_prior_studio.watching.run_list import Runs
from tests.extras import needs
from tests.messages import told
from tests.plugins.dp_prior_studio.pages.test_report import Outline
from tests.tiny import train, write

needs("matplotlib", "plots")
FILM = bytes(range(256)) * 40


class Site:
    """A server in this process."""

    def __init__(self, root):
        self.runs = Runs(root)
        self.server = WatchServer(self.runs, bind("127.0.0.1", 0, is_protected=False), "127.0.0.1")

    def get(self, path, method="GET", *, searched=True, **headers):
        """Status, headers and body."""
        self.runs._next_search = 0 if searched else math.inf
        connection = http.client.HTTPConnection(*self.server.server_address, timeout=200)
        with contextlib.closing(connection):
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def text(self, path):
        status, _, body = self.get(path)
        assert status == 200, body
        return body.decode()


@contextlib.contextmanager
def serving(root):
    site = Site(root)
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        thread.join()
        site.server.server_close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("watching")
    rollout = {"type": "rollout", "env": {"type": "toy"}, "n_episodes": 2, "videos": 0}
    assert train(write(place, train__steps=4, description="<b>bold", test=[rollout])).exit_code == 0
    film(place / "run")
    return place / "run"


def film(run):
    next((run / "media").glob("rollout_*.json")).with_suffix(".mp4").write_bytes(FILM)


@pytest.fixture
def root(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs" / "group" / "one")
    return tmp_path / "runs"


@pytest.fixture
def site(root, capfd):
    with serving(root) as site:
        yield site
    said = capfd.readouterr()
    assert said.out == said.err == ""


def test_the_table_leads_to_the_page_of_a_run_and_to_its_film(site, root):
    table = Outline(site.text("/"))
    assert {"group/one", "finished", "policy", " 100 %"} <= set(table.texts)
    assert "/run/group/one" in table.addresses
    film = next(address for address in table.addresses if address.endswith(".mp4"))
    assert site.get(film)[2] == FILM
    view = Outline(site.text("/run/group/one"))
    assert film in view.addresses and "/files/group/one/report.html" in view.addresses
    page = Outline(site.text("/files/group/one/report.html"))
    assert "What happened" not in page.texts and "rollout: score" in page.texts
    assert not (root / "group" / "one" / "report.html").exists()


def test_settings_without_room_in_the_table_are_folded(site, root, trained):
    other = shutil.copytree(trained, root / "group" / "two")
    config = json.loads((other / "config.json").read_text())
    changes = {"steps": 9, "max_grad_norm": 0.25, "accumulation": 2}
    (other / "config.json").write_text(json.dumps(config | {"train": config["train"] | changes}))
    page = site.text("/")
    row = page[page.index('id="run:group/two"') :].partition("</tr>")[0]
    _, _, folded = row.partition("<summary>and ")
    shown = row.count("train.")
    assert "</summary>" in folded and shown == 3 and 0 < folded.count("train.") < 3


def test_nothing_on_a_page_leads_elsewhere_or_runs_but_the_own_script(site):
    for path in ("/", "/run/group/one"):
        page = site.text(path)
        assert all(address.startswith(("/", "data:")) for address in Outline(page).addresses)
        assert page.count("<script") == 1 and '<script src="/watch.js" defer></script>' in page
        assert " 'none'; " in site.get(path)[1]["Content-Security-Policy"]
    assert "text/javascript" in site.get("/watch.js")[1]["Content-Type"]


def test_the_directory_itself_may_be_a_run(trained):
    with serving(trained) as site:
        assert "/run/" in Outline(site.text("/")).addresses
        assert "/files/report.html" in Outline(site.text("/run/")).addresses
        assert "finished" in site.text("/files/report.html")


def test_a_page_is_made_once_until_a_file_changes(site, root, monkeypatch):
    made, original = [], module.run_page
    monkeypatch.setattr(module, "run_page", lambda *arguments: made.append(1) or original(*arguments))
    read, reading = [], module.read_story
    monkeypatch.setattr(module, "read_story", lambda *arguments: read.append(1) or reading(*arguments))
    first = site.text("/files/group/one/report.html")
    assert site.text("/files/group/one/report.html") == first and len(made) == 1
    before = len(read)
    site.text("/"), site.text("/"), site.text("/run/group/one")
    assert len(read) == before
    with (root / "group" / "one" / "events.jsonl").open("a") as file:
        file.write('{"step": 4, "samples_seen": 1, "event": "error", "message": "the <dog> ate it"}\n')
    assert "the &lt;dog&gt; ate it" in site.text("/files/group/one/report.html") and len(made) == 2
    film = next((root / "group" / "one" / "media").glob("*.mp4"))
    film.rename(film.with_name("other.mp4"))
    assert ".mp4" not in site.text("/")


def test_requests_that_wait_share_a_page_even_if_files_change_meanwhile(site, root, monkeypatch):
    made, original, events = [], module.run_page, root / "group" / "one" / "events.jsonl"
    clients = [threading.Thread(target=site.text, args=("/files/group/one/report.html",)) for _ in range(8)]
    waiting = threading.Semaphore(0)

    def slow(*arguments):
        if not made:
            for client in clients:
                client.start()
            for _ in range(1 + len(clients)):  # the request that draws waited, too
                assert waiting.acquire(timeout=200)
        events.write_text(f"{len(made)}\n" * (1 + len(made)))
        made.append(1)
        return original(*arguments)

    class Announced:
        """A lock that tells when a client waits for it."""

        def __init__(self):
            self.lock = threading.Lock()

        def acquire(self, timeout):
            waiting.release()
            return self.lock.acquire(timeout=timeout)

        def release(self):
            self.lock.release()

    site.runs._drawing = Announced()
    monkeypatch.setattr(module, "run_page", slow)
    site.text("/files/group/one/report.html")
    for client in clients:
        client.join()
    assert len(made) == 2


def test_the_pages_opened_last_are_kept(site, root, monkeypatch):
    monkeypatch.setattr(module, "PAGES_KEPT", 2)
    made, original = [], module.run_page
    monkeypatch.setattr(
        module, "run_page", lambda story, output: made.append(story.directory.name) or original(story, output)
    )
    for name in "abc":
        shutil.copytree(root / "group" / "one", root / name)
    site.text("/")
    made.clear()
    for name in "abacab":
        site.text(f"/files/{name}/report.html")
    assert "".join(made) == "abcb"


def test_a_run_is_followed_while_it_trains_dies_and_is_moved(site, root):
    run = root / "group" / "one"
    ending = json.loads((run / "exit.json").read_text())
    (run / "result.json").unlink()
    rows = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(rows[0])
    (run / "exit.json").write_text(json.dumps(ending | {"reason": "running", "pid": os.getpid()}))
    texts = Outline(site.text("/")).texts
    assert "running" in texts and " 50 %" in texts and "0:00:00" in texts
    (run / "metrics.jsonl").write_bytes(rows[0] + rows[1] + b'{"step": 9, "half a li')
    assert " 100 %" in Outline(site.text("/")).texts
    (run / "exit.json").write_text(json.dumps(ending | {"reason": "running", "pid": 2**22 - 3}))
    assert "killed" in site.text("/") and "killed" in site.text("/files/group/one/report.html")
    run.rename(root / "moved")
    assert site.get("/run/group/one")[0] == site.get("/files/group/one/report.html")[0] == 404
    assert "/run/moved" in Outline(site.text("/")).addresses
    shutil.rmtree(root)
    assert "no runs" in site.text("/") and site.get("/run/moved")[0] == 404


def test_a_process_that_dies_changes_the_page_though_no_file_does(site, root, monkeypatch):
    path = root / "group" / "one" / "exit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reason": "running", "pid": os.getpid()}))
    assert ">running<" in site.text("/files/group/one/report.html")
    monkeypatch.setattr("dp_prior_studio.pages.story.is_alive", lambda host, pid: False)
    assert ">killed<" in site.text("/files/group/one/report.html") and ">killed<" in site.text("/")


DAMAGED = {
    "config.json": [b"", b"[1]", b'{"task": 3}', b'{"train": {"steps": "x"}}', b"\xff\xfe", b"[" * 5000],
    "exit.json": [b"", b"[1]", b'{"reason": 3}', b'{"reason": "running", "pid": "x"}', b'{"started": 5, "ended": 6}'],
    "run.json": [b"", b'{"name": ["a"]}', b'{"name": 7}'],
    "metrics.jsonl": [
        b"",
        b"\x00\xff\n",
        b'{"step": 1, "samples_seen": 8, "train/loss": [1], "a/score": "x", "train/samples_per_second": {}}\n',
        b'{"step": 1, "samples_seen": -8, "train/loss": 1e999}\n{"step": 0, "samples_seen": 0}\n',
    ],
    "events.jsonl": [b'{"step": 1, "event": "error", "message": 5}\n', b'{"step": 2}\n', b"x"],
    "result.json": [b'{"test": 5}', b'{"test": {"a/score": "x"}, "best": 3}', b'{"test": {"a/score": 1}}'],
    "media/rollout_00000004.json": [b"", b'{"settings": 3}', b"[]"],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("config.json", "metrics.jsonl"))) for name in DAMAGED],
)
def test_damaged_files_are_shown_without_a_traceback(site, root, name):
    shutil.copytree(root / "group" / "one", root / "whole")
    for content in DAMAGED[name]:
        (root / "group" / "one" / name).write_bytes(content)
        table = Outline(site.text("/"))
        assert {"group/one", "whole"} <= set(table.texts), content
        status, _, page = site.get("/files/group/one/report.html")
        assert status in (200, 500) and b"Traceback" not in page and len(page.splitlines()) > (status == 200), content
        Outline(site.text("/run/group/one"))


def test_named_pipes_and_folders_in_place_of_files_block_nothing(site, root):
    run = root / "group" / "one"
    for name in ("metrics.jsonl", "config.json", "media/rollout_00000004.mp4", "events.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)
        site.text("/"), site.get("/files/group/one/report.html")
    assert site.get("/files/group/one/media/rollout_00000004.mp4")[0] == 403
    (run / "exit.json").unlink()
    (run / "exit.json").mkdir()
    site.text("/")


@pytest.mark.promise("K9")
def test_a_run_that_takes_long_to_draw_keeps_no_other_page(site, root, monkeypatch):
    shutil.copytree(root / "group" / "one", root / "slow")
    known, drawing, go_on = site.text("/files/group/one/report.html"), threading.Event(), threading.Event()
    original = module.run_page

    def slow(story, output):
        if story.directory.name == "slow":
            drawing.set()
            assert go_on.wait(200)
        return original(story, output)

    monkeypatch.setattr(module, "run_page", slow)
    client = threading.Thread(target=site.text, args=("/files/slow/report.html",))
    client.start()
    assert drawing.wait(200)
    assert site.text("/files/group/one/report.html") == known and "slow" in site.text("/")
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 0.05)
    (root / "group" / "one" / "exit.json").write_text("{}")
    status, _, body = site.get("/files/group/one/report.html")
    assert status == 503 and b"other pages took 0.05 s to draw" in body
    go_on.set()
    client.join()


@pytest.mark.promise("K9")
def test_pipes_among_the_media_block_no_page(site, root):
    media = root / "group" / "one" / "media"
    report = next(media.glob("*.json"))
    for name in (f"{report.stem}_a.png", "z.json", f"{report.stem}_m_chunks.npy"):
        os.mkfifo(media / name)
    texts = Outline(site.text("/files/group/one/report.html")).texts
    assert any(told(text, "media/z.json", "no report") for text in texts)


def test_names_are_escaped_and_every_name_has_an_address(site, root):
    names = ["<script>alert(1)", "a b&c=d'e\"f", "100%41", "ü?#x", os.fsdecode(b"\xff\xfe"), "report.html", "media"]
    for name in names:
        shutil.copytree(root / "group" / "one", root / name)
    (root / names[0] / "run.json").write_text(json.dumps({"id": "a", "name": "</title><img src=x onerror=y>"}))
    page = site.text("/")
    table = Outline(page)
    assert page.count("<script") == 1 and "<img src=x" not in page and "</title><img src=x onerror=y>" in table.texts
    for name in names:
        address = f"/run/{quote(os.fsencode(name))}"
        assert address in table.addresses
        page = next(one for one in Outline(site.text(address)).addresses if one.endswith("/report.html"))
        Outline(site.text(page))
        assert site.get(page.removesuffix("report.html") + "media/rollout_00000004.mp4")[2] == FILM


def test_no_path_leads_out(site, root, tmp_path):
    secret = tmp_path / "secret"
    shutil.copytree(root / "group" / "one", secret)
    for name in ("secret.png", "secret.json"):
        (tmp_path / name).write_bytes(b"secret")
    steps = ("..", "%2e%2e", ".%2E", "%2e%2e%2f", "..%5c", "%252e%252e", "....//", "%00..", "\\..")
    for step in steps:
        for path in (
            f"/files/{step}/secret/report.html",
            f"/run/{step}/secret",
            f"/files/group/{step}/{step}/secret/report.html",
            f"/files/group/one/media/{step}/{step}/{step}/{step}/secret.png",
            f"/files/group/one/{step}/one/media/rollout_00000004.mp4",
            f"/files/group/one/media/{step}%2fsecret.png",
            f"/{step}/{step}/etc/passwd",
        ):
            status, _, body = site.get(path)
            assert status == 404 and b"<" not in body, path
    for path in (
        "//etc/passwd",
        "/files/%2fetc/report.html",
        "/files//report.html",
        "/files",
        "/run",
        "/files/one/x.py",
    ):
        assert site.get(path)[0] == 404, path
    for name in ("config.json", "metrics.jsonl", "media/rollout_00000004.json", "checkpoints/index.json", "run.lock"):
        assert site.get(f"/files/group/one/{name}")[0] == 404


def test_links_that_lead_out_are_not_followed(site, root, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(root / "group" / "one", outside)
    (outside / "secret.png").write_bytes(b"secret")
    (root / "linked").symlink_to(outside)
    assert site.get("/run/linked")[0] == 404 and "linked" not in site.text("/")
    run = root / "group" / "one"
    for name in ("config.json", "events.jsonl", "media"):
        kept = tmp_path / "kept"
        (run / name).rename(kept)
        (run / name).symlink_to(outside / name)
        assert any(told(text, f"group/one/{name}", "link", root) for text in Outline(site.text("/")).texts)
        for path in ("report.html", "media/rollout_00000004.mp4", "media/secret.png"):
            status, _, body = site.get(f"/files/group/one/{path}")
            assert status == 403 and told(body.decode(), f"group/one/{name}", "link", root)
        (run / name).unlink()
        kept.rename(run / name)
    (run / "media" / "stolen.png").symlink_to(outside / "secret.png")
    assert site.get("/files/group/one/media/stolen.png")[0] == 403
    (run / "media" / "stolen.png").unlink()
    (run / "media" / "loop.png").symlink_to(run / "media" / "loop.png")
    (run / "media" / "nothing.png").symlink_to(run / "media" / "none.png")
    assert "finished" in site.text("/") and site.get("/files/group/one/media/nothing.png")[0] == 404
    assert site.get("/files/group/one/media/loop.png")[0] == 500
    (run / "media" / "again.png").symlink_to(run / "media" / "rollout_00000004.mp4")
    assert site.get("/files/group/one/media/again.png")[2] == FILM


def test_a_run_that_becomes_a_link_is_not_followed(site, root, tmp_path):
    site.text("/")
    (root / "group").rename(tmp_path / "elsewhere")
    (root / "group").symlink_to(tmp_path / "elsewhere")
    for path in ("report.html", "media/rollout_00000004.mp4"):
        assert site.get(f"/files/group/one/{path}", searched=False)[0] == 403
    texts = Outline(site.get("/", searched=False)[2].decode()).texts
    assert any(told(text, "group/one", "link") for text in texts)


def test_films_in_parts(site):
    path, size = "/files/group/one/media/rollout_00000004.mp4", len(FILM)
    for asked, start, stop in (
        *(("bytes=0-", 0, size), ("bytes=0-0", 0, 1), ("bytes=5-99", 5, 100), (f"bytes={size - 1}-", size - 1, size)),
        *(("bytes=-7", size - 7, size), (f"bytes=10-{size + 99}", 10, size)),
    ):
        status, headers, body = site.get(path, Range=asked)
        assert body == FILM[start:stop] and int(headers["Content-Length"]) == stop - start
        assert status == 206 or (start, stop) == (0, size)
        assert status == 200 or headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
    for asked in (f"bytes={size}-", "bytes=9-5", "bytes=-0"):
        status, headers, body = site.get(path, Range=asked)
        assert (status, headers["Content-Range"], body) == (416, f"bytes */{size}", b"")
    for asked in ("bytes=-", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b", f"bytes={'9' * 50}-", "bytes=1--2"):
        status, headers, body = site.get(path, Range=asked)
        assert (status, body) == (200, FILM) and headers["Accept-Ranges"] == "bytes"
    assert site.get(path, "HEAD")[1]["Content-Length"] == str(size) and not site.get(path, "HEAD")[2]


def test_an_empty_film_has_no_parts(site, root):
    (root / "group" / "one" / "media" / "rollout_00000004.mp4").write_bytes(b"")
    for asked, status in (("bytes=0-", 200), ("bytes=5-9", 416), ("", 200), ("bytes=-5", 200)):
        assert site.get("/files/group/one/media/rollout_00000004.mp4", Range=asked)[::2] == (status, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "<b>"])
def test_other_methods_are_refused(site, method):
    status, _, body = site.get("/", method)
    assert status == 501 and b"<b>" not in body


def test_hosts(site):
    port = site.server.server_address[1]
    for host in ("localhost", "LOCALHOST:8000", f"127.0.0.1:{port}", "[::1]:9", "192.168.0.7", socket.gethostname()):
        assert site.get("/", Host=host)[0] == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
    ):
        for path in ("/", "/watch.js", "/files/group/one/report.html"):
            assert site.get(path, Host=host)[0] == 421, host


def test_a_client_that_hangs_up_or_talks_nonsense_costs_nothing(site, root):
    path = root / "group" / "one" / "media" / "rollout_00000004.mp4"
    os.truncate(path, 50_000_000)
    for sent in (
        b"GET /files/group/one/media/rollout_00000004.mp4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00\xff\r\n\r\n" * 9,
    ):
        with socket.create_connection(site.server.server_address) as client:
            client.sendall(sent)
            client.recv(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes with a reset
    site.text("/")
