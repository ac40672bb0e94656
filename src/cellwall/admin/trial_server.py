"""The server of a trial: bytes to fetch, a place to send bytes to, and an index with one package.

It listens on loopback, for one run of the probes, and holds nothing of the user.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from cellwall.core.types import Json

HOST = "127.0.0.1"
_CHUNK = bytes(1 << 18)
_INDEX = "application/vnd.pypi.simple.v1+json"


class TrialServer:
    """The server that is running, and what it has received."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received_bytes = 0
        self._projects: dict[str, dict[str, Json]] = {}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def authority(self) -> str:
        return f"{HOST}:{self.port}"

    def publish(self, name: str, versions: Mapping[str, datetime]) -> None:
        """A package with these versions; the index has it, and its files are never asked for."""
        files: list[Json] = []
        for version, uploaded in versions.items():
            file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            files.append(
                {
                    "filename": file,
                    "url": f"{self.url}/packages/{file}",
                    "hashes": {"sha256": hashlib.sha256(file.encode()).hexdigest()},
                    "size": len(file),
                    "upload-time": uploaded.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                }
            )
        self._projects[name] = {"name": name, "meta": {"api-version": "1.4"}, "files": files}

    def project(self, name: str) -> dict[str, Json] | None:
        return self._projects.get(name)


@contextmanager
def trial_server() -> Iterator[TrialServer]:
    """The server on a free port, until the block ends."""
    with http.server.ThreadingHTTPServer((HOST, 0), _TrialHandler) as listener:
        listener.daemon_threads = True
        server = TrialServer(listener.server_port)
        listener.trial = server  # type: ignore[attr-defined]  # for the handlers of requests
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


class _TrialHandler(http.server.BaseHTTPRequestHandler):
    @property
    def _trial(self) -> TrialServer:
        found: TrialServer = self.server.trial  # type: ignore[attr-defined]  # set by `trial_server`
        return found

    def do_GET(self) -> None:
        kind, name = self.path.strip("/").partition("/")[::2]
        project = self._trial.project(name) if kind == "simple" else None
        if kind == "bytes" and name.isdecimal():
            self._send_bytes(int(name))
        elif project is not None:
            body = json.dumps(project).encode()
            self._begin(200, len(body), _INDEX)
            self.wfile.write(body)
        else:
            self._begin(404, 0)

    def do_POST(self) -> None:
        left = int(self.headers.get("Content-Length", "0"))
        try:
            while left > 0 and (part := self.rfile.read1(min(left, len(_CHUNK)))):
                left -= len(part)
                self._trial.received_bytes += len(part)
            self._begin(200 if left <= 0 else 400, 0)
        except OSError:  # the proxy has ended the upload
            self.close_connection = True

    def _send_bytes(self, left: int) -> None:
        self._begin(200, left)
        try:
            while left > 0:
                left -= self.wfile.write(_CHUNK[:left])
        except OSError:  # the proxy has ended the download
            self.close_connection = True

    def _begin(self, status: int, size: int, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return
