"""A loopback HTTP server of a folder, with ranges, counts of its bytes, and faults on script."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class WebStore:
    """Attributes: url; sent: bytes by name; requests; fault: called with the number and name of a request for bytes,
    returns None, a status, or "cut", "reset", "hang", "drip" or "zeros"; page: sent instead of every file; moved_to:
    answers redirect there; is_whole: ranges are ignored; shift: added to the place of every range; headers: called with
    a path, returns further headers, by default the time of the last change."""

    def __init__(self, folder):
        self.folder, self.sent, self.requests, self.fault = folder, Counter(), 0, lambda number, name: None
        self.lock = threading.Lock()
        self.page, self.moved_to, self.is_whole, self.shift = None, None, False, 0
        self.headers = lambda path: {"Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
        self.methods, self.is_hanging, self.ends = [], threading.Event(), threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *line):
                pass

            def do_HEAD(self):
                self.answer(False)

            def do_GET(self):
                self.answer(True)

            def answer(self, has_body):
                name = unquote(self.path.lstrip("/"))
                path = store.folder / name
                store.methods.append(self.command)
                if store.moved_to is not None:
                    self.send_response(302)
                    self.send_header("Location", f"{store.moved_to}{self.path}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if not path.is_file() and store.page is None:
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data = path.read_bytes() if store.page is None else store.page
                begin, end, fault = 0, len(data), None
                if has_body:
                    with store.lock:
                        store.requests += 1
                        fault = store.fault(store.requests, name)
                if fault == "zeros":
                    data, fault = bytes(len(data)), None
                if isinstance(fault, int):
                    self.send_response(fault)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if store.is_whole:
                    span = None
                if span:
                    begin, end = int(span[1]) + store.shift, int(span[2]) + 1 + store.shift
                self.send_response(206 if span else 200)
                self.send_header("Content-Length", str(len(data[begin:end])))
                if span:
                    self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
                for header, value in (store.headers(path) if path.is_file() else {}).items():
                    self.send_header(header, value)
                self.end_headers()
                if not has_body:
                    return
                if fault == "hang":
                    store.is_hanging.set()
                    store.ends.wait()
                    return
                if fault == "drip":  # never silent, and never done
                    for place in range(begin, end):
                        if store.ends.wait(0.05):
                            return
                        self.wfile.write(data[place : place + 1])
                        self.wfile.flush()
                    return
                if fault is not None:
                    self.wfile.write(data[begin : (begin + end) // 2])
                    self.close_connection = True
                    if fault == "reset":
                        self.connection.shutdown(2)
                    return
                with store.lock:
                    store.sent[name] += end - begin
                self.wfile.write(data[begin:end])

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def bytes_sent(self, beginning=""):
        return sum(count for name, count in self.sent.items() if name.startswith(beginning))


@contextlib.contextmanager
def served(folder):
    store = WebStore(folder)
    thread = threading.Thread(target=store.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.ends.set()
        store.server.shutdown()
        store.server.server_close()
