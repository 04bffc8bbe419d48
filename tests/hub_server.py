"""A small Hugging Face Hub on loopback: the protocol that `huggingface_hub` speaks, and faults on script.

Uploads go through Git LFS, so clients set HF_HUB_DISABLE_XET=1 before they import huggingface_hub; with Xet, a client
sends chunks of its own format to a second service, which is not imitated. `environment` has all that a client needs.

    with HubServer() as hub:
        hub.fail("commit", status=503, times=2, headers={"Retry-After": "1"})
        ... subprocess with env=os.environ | hub.environment(home) ...
        hub.files("me/pusht")            # {path: bytes} at the head of main
        hub.requests                     # every request: kind, method, path, headers, body
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_" + "canary0123456789abcdefghijklmnopqr"[:34]
LFS_SUFFIXES = (".safetensors", ".png", ".gif", ".mp4", ".bin")
ROUTES = [  # (method, path) -> kind; the first match counts
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<rev>[^/]+)", "preupload"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<rev>[^/]+)", "commit"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/tag/(?P<rev>[^/]+)", "tag"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/branch/(?P<rev>[^/]+)", "branch"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/auth-check(?P<rest>/.*)?", "auth"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/refs", "refs"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<rev>[^/]+)(?P<path>/.*)?", "tree"),
    ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/paths-info/(?P<rev>[^/]+)", "paths"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<rev>[^/]+)", "info"),
    ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)", "info"),
    ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "lfs"),
    ("PUT", r"/lfs/(?P<repo>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})", "put"),
    ("POST", r"/lfs/(?P<repo>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})/verify", "verify"),
    ("(?:GET|HEAD)", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)", "resolve"),
]


@dataclass
class Fault:
    """What happens to the next `times` requests of a kind, after `skip` of them went well."""

    kind: str
    times: int = 1
    skip: int = 0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False  # the connection is reset before anything happens
    lost: bool = False  # the request is carried out, its answer is lost
    cut: int | None = None  # the answer breaks off after so many bytes of its body
    silent: bool = False  # the request is read and never answered
    slow: float = 0.0  # seconds before the answer


@dataclass
class Request:
    """One request as it came."""

    kind: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Repo:
    """Commits hold whole trees: path -> (content, whether it went through LFS)."""

    private: bool
    commits: dict[str, dict[str, tuple[bytes, bool]]] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)  # (commit, summary) of main, oldest first
    branches: dict[str, str] = field(default_factory=dict)  # the others, and the head of each
    tags: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return self.log[-1][0]

    def commit(self, tree: dict[str, tuple[bytes, bool]], summary: str, branch: str = "main") -> str:
        number = hashlib.sha1(f"{len(self.commits)} {summary} {sorted(tree)}".encode()).hexdigest()
        self.commits[number] = tree
        if branch == "main":
            self.log.append((number, summary))
        else:
            self.branches[branch] = number
        return number

    def find(self, revision: str) -> str | None:
        if revision == "main":
            return self.head
        named = self.branches | self.tags
        return named.get(revision) or (revision if revision in self.commits else None)


class HubServer(ThreadingHTTPServer):
    """The server; one user `me`, one organisation `team`. Use it in a `with` statement."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, role: str = "write"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.role = role
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.after: list[Any] = []  # called with each request once it was answered
        self.lock = threading.RLock()
        self._closing = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self.shutdown()
        self.server_close()

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Variables for a client that talks to this server and keeps everything in `home`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": token or "",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def fail(self, kind: str, **fault: Any) -> None:
        """Script a fault; `kind` is one of ROUTES, or `any`."""
        with self.lock:
            self.faults.append(Fault(kind, **fault))

    def heal(self) -> None:
        """Forget all faults."""
        with self.lock:
            self.faults.clear()

    def count(self, kind: str) -> int:
        """Requests of a kind so far."""
        return sum(request.kind == kind for request in self.requests)

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Contents by path."""
        with self.lock:
            one = self.repos[repo]
            return {path: content for path, (content, _) in one.commits[one.find(revision)].items()}

    def create(self, repo: str, private: bool = False, files: dict[str, bytes] | None = None) -> Repo:
        """A repository with one commit."""
        with self.lock:
            self.repos[repo] = Repo(private)
            contents = {".gitattributes": b"*.safetensors filter=lfs\n", **(files or {})}
            self.repos[repo].commit({p: (c, p.endswith(LFS_SUFFIXES)) for p, c in contents.items()}, "initial commit")
            return self.repos[repo]

    def fault_for(self, kind: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.kind in (kind, "any") and fault.times > 0:
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def wait(self) -> None:
        """Say nothing until the server closes."""
        self._closing.wait(600)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HubServer

    def log_message(self, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        path = re.sub("^(/api)?/datasets/", lambda api: "/api/models/" if api[1] else "/", parts.path)  # one name space
        matches = (
            (kind, found)
            for method, pattern, kind in ROUTES
            if re.fullmatch(method, self.command) and (found := re.fullmatch(pattern, path))
        )
        kind, found = next(matches, ("unknown", None))
        request = Request(kind, self.command, self.path, dict(self.headers), body)
        with self.server.lock:
            self.server.requests.append(request)
        self.fault = self.server.fault_for(kind)
        try:
            self._answer(kind, found, parts, body)
        finally:
            for call in self.server.after:
                call(request)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, kind: str, found: Any, parts: Any, body: bytes) -> None:
        fault = self.fault
        if fault is not None:
            if fault.silent:
                self.server.wait()
                return self._reset()
            if fault.reset:
                return self._reset()
            if fault.status is not None:
                self._json({"error": f"scripted {fault.status}"}, fault.status, fault.headers)
                return None
            time.sleep(fault.slow)
        groups = {name: unquote(value or "") for name, value in (found.groupdict() if found else {}).items()}
        is_open = kind in ("resolve", "info", "tree", "paths", "refs", "put", "verify")
        if not is_open and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid credentials"}, 401)
        repo = self.server.repos.get(groups.get("repo", ""))
        if "repo" in groups and (
            repo is None or (repo.private and kind not in ("put", "verify") and not self._knows_token())
        ):
            return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        is_ours = self.server.role != "read" and groups.get("repo", "").split("/")[0] in ("me", "team")
        if kind in ("preupload", "commit", "lfs", "tag", "auth") and not is_ours:
            return self._json({"error": "You have no write access to this repository"}, 403)
        if kind == "unknown":
            return self._json({"error": f"no route for {self.command} {self.path}"}, 501)
        with self.server.lock:
            return getattr(self, f"_on_{kind}")(groups, repo, parts, body)

    def _knows_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _json(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        kind = "application/vnd.git-lfs+json" if "/info/lfs/" in self.path else "application/json"
        self._send(json.dumps(content).encode(), status, {"Content-Type": kind, **(headers or {})})

    def _send(self, data: bytes, status: int, headers: dict[str, str], length: int | None = None) -> None:
        fault = self.fault
        if fault is not None and fault.lost:
            return self._reset()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        if status >= 400 and "X-Error-Message" not in headers:
            self.send_header("X-Error-Message", json.loads(data or b"{}").get("error", ""))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault is not None and fault.cut is not None:
            self.wfile.write(data[: fault.cut])
            self.wfile.flush()
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        self.wfile.write(data)
        return None

    def _on_whoami(self, groups: dict, repo: None, parts: Any, body: bytes) -> None:
        token = {"displayName": "test", "role": self.server.role}
        self._json({"type": "user", "name": "me", "fullname": "Me", "orgs": [{"name": "team"}],
                    "auth": {"type": "access_token", "accessToken": token}})  # fmt: skip

    def _on_create(self, groups: dict, repo: None, parts: Any, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        url = {"url": f"{self.server.url}/{name}"}
        if name in self.server.repos:
            return self._json({"error": "You already created this model repo", **url}, 409)
        if self.server.role == "read" or name.split("/")[0] not in ("me", "team"):
            return self._json({"error": "You don't have the rights to create a model under this namespace"}, 403)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.server.create(name, private)
        self._json(url)
        return None

    def _on_validate(self, groups: dict, repo: None, parts: Any, body: bytes) -> None:
        self._json({"errors": [], "warnings": []})

    def _on_auth(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        self._json({})

    def _on_preupload(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        tree = repo.commits[repo.find(groups["rev"])]
        answers = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            is_lfs = path.endswith(LFS_SUFFIXES) or file["size"] > 10_000_000
            answer = {"path": path, "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False}
            answers.append(answer | ({"oid": _oid(*tree[path])} if path in tree else {}))
        self._json({"files": answers})

    def _on_lfs(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        objects = []
        for asked in json.loads(body)["objects"]:
            href = f"{self.server.url}/lfs/{groups['repo']}/{asked['oid']}"
            actions = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
            objects.append(dict(asked) | ({} if asked["oid"] in repo.objects else {"actions": actions}))
        self._json({"transfer": "basic", "objects": objects})

    def _on_put(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != groups["oid"]:
            return self._json({"error": "content does not have this hash"}, 400)
        repo.objects[groups["oid"]] = body
        self._json({})
        return None

    def _on_verify(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        self._json({}, 200 if groups["oid"] in repo.objects else 404)

    def _on_commit(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines() if line]
        header = lines[0]["value"]
        branch = groups["rev"]
        if branch not in ("main", *repo.branches):
            return self._no_revision(groups)
        if header.get("parentCommit") not in (None, repo.find(branch)):
            return self._json({"error": f"The parent commit is not the head of {branch}"}, 412)
        tree = dict(repo.commits[repo.find(branch)])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = (base64.b64decode(value["content"]), False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in repo.objects:
                    return self._json({"error": f"LFS object {value['oid']} is missing"}, 400)
                tree[value["path"]] = (repo.objects[value["oid"]], True)
            elif line["key"] == "deletedFile":
                tree.pop(value["path"], None)
            else:
                prefix = value["path"].rstrip("/") + "/"
                tree = {path: content for path, content in tree.items() if not path.startswith(prefix)}
        number = repo.commit(tree, header["summary"], branch)
        url = f"{self.server.url}/{groups['repo']}/commit/{number}"
        self._json({"success": True, "commitOid": number, "commitUrl": url})
        return None

    def _on_tag(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        name, found = json.loads(body)["tag"], repo.find(groups["rev"])
        if name in repo.tags:
            return self._json({"error": "Tag reference exists already"}, 409)
        if found is None:
            return self._no_revision(groups)
        repo.tags[name] = found
        self._json({})
        return None

    def _on_branch(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        found = repo.find(json.loads(body).get("startingPoint", "main"))
        if groups["rev"] in ("main", *repo.branches):
            return self._json({"error": "Reference already exists"}, 409)
        if found is None:
            return self._no_revision(groups)
        repo.branches[groups["rev"]] = found
        self._json({})
        return None

    def _on_refs(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": c} for n, c in repo.tags.items()]
        heads = {"main": repo.head, **repo.branches}
        branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in heads.items()]
        self._json({"branches": branches, "tags": tags, "converts": []})

    def _on_info(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        commit = repo.find(groups.get("rev") or "main")
        if commit is None:
            return self._no_revision(groups)
        siblings = [{"rfilename": path} for path in sorted(repo.commits[commit])]
        about = {"id": groups["repo"], "modelId": groups["repo"], "sha": commit, "private": repo.private, "tags": []}
        self._json({**about, "siblings": siblings, "downloads": 0, "likes": 0})
        return None

    def _on_tree(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        commit = repo.find(groups["rev"])
        if commit is None:
            return self._no_revision(groups)
        tree, prefix = repo.commits[commit], groups.get("path", "").strip("/")
        below = {path: file for path, file in tree.items() if not prefix or path.startswith(f"{prefix}/")}
        if prefix and not below:
            return self._json({"error": "no such folder"}, 404, {"X-Error-Code": "EntryNotFound"})
        if parse_qs(parts.query).get("recursive", ["false"])[0].lower() not in ("true", "1"):
            depth = prefix.count("/") + 1 if prefix else 0
            below = {path: file for path, file in below.items() if path.count("/") == depth}
        self._json([_entry(path, *file) for path, file in sorted(below.items())])
        return None

    def _on_paths(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        commit = repo.find(groups["rev"])
        if commit is None:
            return self._no_revision(groups)
        text = body.decode()
        asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text)["paths"]
        asked = [asked] if isinstance(asked, str) else asked
        tree = repo.commits[commit]
        self._json([_entry(path, *tree[path]) for path in asked if path in tree])
        return None

    def _on_resolve(self, groups: dict, repo: Repo, parts: Any, body: bytes) -> None:
        commit = repo.find(groups["rev"])
        if commit is None:
            return self._no_revision(groups)
        if groups["path"] not in repo.commits[commit]:
            error = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            return self._json({"error": "Entry not found"}, 404, error)
        content, is_lfs = repo.commits[commit][groups["path"]]
        etag = f'"{_oid(content, is_lfs)}"'
        headers = {"X-Repo-Commit": commit, "ETag": etag, "Accept-Ranges": "bytes"}
        if is_lfs:
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content))}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.command == "GET":
            start, end = int(asked[1]), int(asked[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            return self._send(content[start : end + 1], 206, headers)
        return self._send(content, 200, headers)

    def _no_revision(self, groups: dict) -> None:
        self._json({"error": f"no revision {groups['rev']}"}, 404, {"X-Error-Code": "RevisionNotFound"})


def _oid(content: bytes, is_lfs: bool) -> str:
    if is_lfs:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(path: str, content: bytes, is_lfs: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": _oid(content, False)}
    if is_lfs:
        entry["lfs"] = {"oid": _oid(content, True), "size": len(content), "pointerSize": 130}
    return entry
