"""A small Hugging Face Hub on this machine: the requests of pushes, with their errors, and what was pushed."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import override

TOKEN = "hf_writes"
COMMIT = "a" * 40


@dataclass
class Repository:
    """A repository: its visibility, its files, and the message and the files of each commit."""

    private: bool = True
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: list[str] = field(default_factory=list[str])


@dataclass
class Hub:
    """What the server knows, and how it misbehaves.

    Attributes:
        repositories: The repositories by name.
        requests: How often each kind of request came: "whoami", "commit", "upload" and so on.
        statuses: The HTTP statuses of the next requests of a kind, instead of an answer.
        before: What is called before a kind of request is answered.
        end: Set when the server ends, so that a request that hangs ends too.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict[str, Repository])
    requests: Counter[str] = field(default_factory=Counter[str])
    statuses: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    before: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    end: threading.Event = field(default_factory=threading.Event)
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def environment(self, home: Path, token: str = TOKEN) -> dict[str, str]:
        """The environment variables of a process that pushes to this server."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": token,
        }


@contextmanager
def serving() -> Generator[Hub]:
    """Serve until the context ends."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.end.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        """Answer a request."""
        body = self._body()
        kind, repo_id = _kind_of(self.command, self.path)
        self.state.requests[kind] += 1
        self.state.before.get(kind, lambda: None)()
        if statuses := self.state.statuses.get(kind):
            self._reply({"error": f"The server says {statuses[0]}."}, statuses.pop(0))
        elif kind not in ("put", "other") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._reply({"error": "Invalid user token."}, 401)
        else:
            getattr(self, f"_{kind}")(repo_id, body)

    do_HEAD = do_POST = do_PUT = do_GET

    def _whoami(self, repo_id: str, body: bytes) -> None:
        self._reply({"type": "user", "name": "me", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def _create(self, repo_id: str, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        if not name.startswith("me/"):
            self._reply({"error": "You don't have the rights to create a model under this namespace"}, 403)
            return
        status = 409 if name in self.state.repositories else 200
        self.state.repositories.setdefault(name, Repository(asked.get("visibility") != "public"))
        self._reply({"error": "You already created this model repo", "url": f"{self.state.url}/{name}"}, status)

    def _auth(self, repo_id: str, body: bytes) -> None:
        mine = repo_id.startswith("me/")
        self._reply({} if mine else {"error": "Forbidden: you may not write"}, 200 if mine else 403)

    def _info(self, repo_id: str, body: bytes) -> None:
        if (repository := self.state.repositories.get(repo_id)) is None:
            self._reply({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [{"rfilename": name} for name in repository.files]
        self._reply({"id": repo_id, "private": repository.private, "sha": COMMIT, "siblings": siblings})

    def _tree(self, repo_id: str, body: bytes) -> None:
        files = self.state.repositories[repo_id].files
        self._reply([_entry(name, content) for name, content in files.items()])

    def _yaml(self, repo_id: str, body: bytes) -> None:
        self._reply({"errors": [], "warnings": []})

    def _download(self, repo_id: str, body: bytes) -> None:
        name = self.path.partition("/main/")[2] or self.path.partition(f"/{COMMIT}/")[2]
        content = self.state.repositories[repo_id].files.get(name)
        if content is None:
            self._reply({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._reply(content, headers={"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'})

    def _preupload(self, repo_id: str, body: bytes) -> None:
        files = self.state.repositories[repo_id].files
        answers = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if _is_large(file["path"]) else "regular",
                "shouldIgnore": False,
                "oid": _oid(file["path"], files[file["path"]]) if file["path"] in files else None,
            }
            for file in json.loads(body)["files"]
        ]
        self._reply({"files": answers})

    def _batch(self, repo_id: str, body: bytes) -> None:
        objects = [
            {"oid": wanted["oid"], "size": wanted["size"], **self._where_to_put(wanted["oid"])}
            for wanted in json.loads(body)["objects"]
        ]
        self._reply({"transfer": "basic", "objects": objects})

    def _where_to_put(self, oid: str) -> dict[str, Any]:
        if oid in self.state.objects:
            return {}
        return {"actions": {"upload": {"href": f"{self.state.url}/put/{oid}", "header": {}}}}

    def _put(self, repo_id: str, body: bytes) -> None:
        self.state.objects[self.path.rpartition("/")[2]] = body
        self._reply({})

    def _commit(self, repo_id: str, body: bytes) -> None:
        repository = self.state.repositories[repo_id]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repository.commits.append(value["summary"])
            elif line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.state.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del repository.files[value["path"]]
        url = f"{self.state.url}/{repo_id}/commit/{len(repository.commits)}"
        self._reply({"commitUrl": url, "commitOid": COMMIT, "success": True})

    def _other(self, repo_id: str, body: bytes) -> None:
        self._reply({"error": "Unknown here"}, 404)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while length := int(self.rfile.readline(), 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _reply(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _kind_of(command: str, path: str) -> tuple[str, str]:
    """The kind of a request, and the repository that it is about."""
    path = path.partition("?")[0]
    if path.startswith("/put/"):
        return "put", ""
    known = {"/api/whoami-v2": "whoami", "/api/repos/create": "create", "/api/validate-yaml": "yaml"}
    if path in known:
        return known[path], ""
    repo_id = "/".join(path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
    parts = {"preupload": "preupload", "objects": "batch", "commit": "commit", "tree": "tree", "resolve": "download"}
    parts |= {"auth-check": "auth", "revision": "info"}
    kinds = [kind for part, kind in parts.items() if f"/{part}/" in f"{path}/"]
    if not kinds and path == f"/api/models/{repo_id}":
        kinds = ["info"]
    return (kinds or ["other"])[0], repo_id


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": _oid(name, content)}


def _is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def _oid(name: str, content: bytes) -> str:
    if _is_large(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
