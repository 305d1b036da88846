"""A small Hugging Face Hub on this machine: the tree, resolve with HEAD and Range, LFS metadata, and failures on demand.

It speaks what huggingface_hub asks at a pinned commit; every request is noted.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.fakes.snapshot import REPO, REVISION, blob_name, git_hash, is_lfs


@dataclass
class Hub:
    """What the server offers, and what happens to which request. kind: models or datasets.

    status: what every answer about the repository is instead, with `headers`. cut: file -> bytes after which its first download is cut
    off. once: the status holds for so many requests only. token: without it all is 401. slow_s: pause after each MiB.
    """

    files: Mapping[str, bytes]
    repo: str = REPO
    kind: str = "models"
    revision: str = REVISION
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    code: str = ""
    once: int = 1 << 30
    cut: dict[str, int] = field(default_factory=dict)
    token: str = ""
    slow_s: float = 0
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def tree(self) -> list[dict[str, Any]]:
        return [_entry(name, content) for name, content in self.files.items()]

    def info(self) -> dict[str, Any]:
        """A dataset at its main branch, which is also called v1."""
        return {"id": self.repo, "sha": self.revision, "siblings": [{"rfilename": name} for name in self.files]}

    def paths(self, method: str = "GET") -> list[str]:
        return [path for verb, path, _ in self.asked if verb == method]

    @contextlib.contextmanager
    def serving(self) -> Iterator[Hub]:
        handler = type("Handler", (_Handler,), {"hub": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_hash(content)}
    if is_lfs(name):
        entry["lfs"] = {"oid": blob_name(name, content), "size": len(content), "pointerSize": 134}
    return entry


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, dict(self.headers.items())))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._send(401, b"{}", body)
        before = "/datasets" if hub.kind == "datasets" else ""
        known = path in self._own_paths() or path.startswith(f"{before}/{hub.repo}/resolve/{hub.revision}/")
        if hub.status and hub.once > 0:
            hub.once -= 1
            more = {**hub.headers, **({"X-Error-Code": hub.code} if hub.code else {})}
            return self._send(hub.status, b'{"error": "no"}', body, more)
        if not known:
            error = "RevisionNotFound" if path.startswith(f"/api/{hub.kind}/{hub.repo}/") else "RepoNotFound"
            return self._send(404, b"{}", body, {"X-Error-Code": error})
        if path.startswith("/api/"):
            about = hub.info() if hub.kind == "datasets" else hub.tree()
            return self._send(200, json.dumps(about).encode(), body, {"Content-Type": "application/json"})
        return self._file(path.split(f"/resolve/{hub.revision}/")[1], body)

    def _own_paths(self) -> list[str]:
        if self.hub.kind == "datasets":
            return [f"/api/datasets/{self.hub.repo}{end}" for end in ("", "/revision/v1", f"/revision/{self.hub.revision}")]
        return [f"/api/models/{self.hub.repo}/tree/{self.hub.revision}"]

    def _file(self, name: str, body: bool) -> None:
        hub = self.hub
        content = hub.files.get(name)
        if content is None:
            return self._send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
        etag = blob_name(name, content)
        headers = {"X-Repo-Commit": hub.revision, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if is_lfs(name):
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self._send(206, content[start:], body, headers)
        return self._send(200, content, body, headers, hub.cut.pop(name, None) if body else None)

    def _send(self, status: int, content: bytes, body: bool, headers: Mapping[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.hub.slow_s:
            with contextlib.suppress(OSError):  # the client may go away
                for at in range(0, len(content), 1 << 20):
                    self.wfile.write(content[at : at + (1 << 20)])
                    time.sleep(self.hub.slow_s)
        elif body:
            self.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            self.close_connection = True
