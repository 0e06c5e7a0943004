"""A server on the loopback interface that answers like the Hugging Face hub, as far as a snapshot needs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server(ThreadingHTTPServer):
    request_queue_size = (
        64  # a snapshot opens many connections at once; refused ones would be tried again seconds later
    )


class Hub:
    """Repositories ("models/owner/name" or "datasets/owner/name" -> file name -> bytes) and what was asked for."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.gated: set[str] = set()  # repositories whose files are not for everybody
        self.fetched: list[str] = []  # paths of files that were downloaded
        self.address = ""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def api(self, parts: list[str]) -> None:
            """/api/KIND/OWNER/NAME/revision/REVISION or .../tree/REVISION"""
            files = hub.repositories.get("/".join(parts[1:4]))
            if files is None:
                return self.answer(404, X_Error_Code="RepoNotFound")
            if parts[5] not in ("main", COMMIT):
                return self.answer(404, X_Error_Code="RevisionNotFound")
            if parts[4] == "tree":
                listing: object = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(body),
                        "oid": hashlib.sha1(body, usedforsecurity=False).hexdigest(),
                    }
                    for name, body in files.items()
                ]
            else:
                listing = {
                    "id": "/".join(parts[2:4]),
                    "sha": COMMIT,
                    "siblings": [{"rfilename": name} for name in files],
                }
            return self.answer(200, json.dumps(listing).encode(), Content_Type="application/json")

        def file(self, parts: list[str]) -> None:
            """/[datasets/]OWNER/NAME/resolve/REVISION/FILE"""
            kind, rest = ("datasets", parts[1:]) if parts[0] == "datasets" else ("models", parts)
            name = "/".join(rest[4:])
            repository = "/".join([kind, *rest[:2]])
            if repository in hub.gated:
                return self.answer(403, X_Error_Code="GatedRepo")
            body = hub.repositories.get(repository, {}).get(name)
            if body is None:
                return self.answer(404, X_Error_Code="EntryNotFound")
            if self.command == "GET":
                hub.fetched.append(name)
            return self.answer(
                200, body, ETag=f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"', X_Repo_Commit=COMMIT
            )

        def do_GET(self) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            (self.api if parts[0] == "api" else self.file)(parts)

        do_HEAD = do_GET  # noqa: N815

    return Handler


@contextmanager
def serving(repositories: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """A running hub."""
    hub = Hub(repositories)
    server = Server(("127.0.0.1", 0), _handler(hub))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
