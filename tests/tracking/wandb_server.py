"""As much of a W&B server, on loopback, as its client needs to log a run online."""

import gzip
import http.server
import json
import re
import threading


class WandbServer:
    """Keeps what clients send: `history` has the rows by run, `files` the names of uploaded files.

    Attributes:
        is_broken: from now on every request is answered with 503.
    """

    def __init__(self):
        self.history: dict[str, dict[int, dict]] = {}
        self.files: set[str] = set()
        self.is_broken = False
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = {} if server.is_broken else server.answer(self.path, body, self.headers["Host"])
                self.send_response(503 if server.is_broken else 200)
                data = json.dumps(answer).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_PUT = do_GET = do_POST

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path, body, host):
        """What the client is told."""
        if path.startswith("/upload/"):
            self.files.add(path.removeprefix("/upload/"))
            return {}
        if path != "/graphql":
            run = path.split("/")[4]
            sent = (json.loads(body).get("files") or {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            rows = self.history.setdefault(run, {})
            rows |= {sent["offset"] + number: json.loads(line) for number, line in enumerate(sent["content"])}
            return {}
        request = json.loads(body)
        operation = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
        given = request.get("variables") or {}
        project = {"id": "p", "name": "toys", "entity": {"id": "e", "name": "me"}}
        if operation and operation[1] == "UpsertBucket":
            known = len(self.history.get(given.get("name"), {}))
            bucket = {
                **{"id": "b", "name": given.get("name"), "displayName": given.get("displayName"), "config": "{}"},
                **{"project": project, "sweepName": None, "historyLineCount": known},
            }
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": not known}}}
        if operation and operation[1] == "RunResumeStatus":
            rows = self.history.get(given["name"])
            bucket = rows and {
                **{"id": "b", "name": given["name"], "displayName": "toy", "historyLineCount": len(rows)},
                **{
                    "eventsLineCount": 0,
                    "logLineCount": 0,
                    "config": "{}",
                    "summaryMetrics": "{}",
                    "wandbConfig": "{}",
                },
                **{"historyTail": json.dumps([json.dumps(rows[max(rows)])]), "eventsTail": "[]", "tags": []},
            }
            return {"data": {"model": {**project, "bucket": bucket or None}}}
        if operation and operation[1] == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"http://{host}/upload/{name}"} for name in given["files"]]
            return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
