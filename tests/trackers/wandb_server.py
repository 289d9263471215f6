"""A small server of Weights & Biases on this machine: the requests of a run that is logged online, and what arrives."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from tests.trackers.offline_runs import Point

HISTORY = "wandb-history.jsonl"
ME: dict[str, Any] = {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
PROJECT: dict[str, Any] = {"id": "p", "name": "digits", "entity": {"id": "e", "name": "me"}}


@dataclass
class Server:
    """What the server knows.

    Attributes:
        url: Its address.
        runs: The lines of the files of each run.
    """

    url: str = ""
    runs: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])

    def environment(self) -> dict[str, str]:
        """The environment variables of a process that logs to this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "a" * 40, "WANDB_CONSOLE": "off", "WANDB_SILENT": "true"}

    def points(self) -> Iterator[Point]:
        """Read the only run."""
        (files,) = self.runs.values()
        for row in map(json.loads, files[HISTORY]):
            yield from ((name, row["_step"], value) for name, value in row.items() if not name.startswith("_"))


@contextmanager
def serving() -> Generator[Server]:
    """Serve until the context ends."""
    state = Server()

    class Handler(_Handler):
        server_state = state

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_state: Server
    protocol_version = "HTTP/1.1"

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    @override
    def handle(self) -> None:
        """Answer the requests of a connection, which a killed process resets."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def do_GET(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            query = json.loads(body)
            answer = {"data": self._data(query["operationName"], query.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            self._store(self.path.split("/")[-2], json.loads(body).get("files") or {})
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_GET

    def _data(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        runs = self.server_state.runs
        if operation == "Viewer":
            return {"viewer": ME}
        if operation == "RunResumeStatus":
            name = variables["name"]
            return {"model": {**PROJECT, "bucket": _described(name, runs[name]) if name in runs else None}}
        if operation == "UpsertBucket":
            name = variables.get("name") or variables["id"].removeprefix("id of ")
            is_new = name not in runs
            return {"upsertBucket": {"bucket": _described(name, runs.setdefault(name, {})), "inserted": is_new}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.server_state.url}/put/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return {}

    def _store(self, run: str, files: dict[str, Any]) -> None:
        for name, piece in files.items():
            lines = self.server_state.runs[run].setdefault(name, [])
            lines[piece["offset"] :] = piece["content"]


def _described(name: str, files: dict[str, list[str]]) -> dict[str, Any]:
    """A run as the server describes it, from which a resumed run learns its first step."""
    history, events = files.get(HISTORY, []), files.get("wandb-events.jsonl", [])
    return {
        "id": f"id of {name}",
        "name": name,
        "displayName": name,
        "project": PROJECT,
        "config": "{}",
        "wandbConfig": '{"t": 1}',
        "tags": [],
        "summaryMetrics": history[-1] if history else "{}",
        "historyLineCount": len(history),
        "historyTail": json.dumps(history[-1:]),
        "eventsLineCount": len(events),
        "eventsTail": json.dumps(events[-1:]),
        "logLineCount": len(files.get("output.log", [])),
    }
