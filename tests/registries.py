"""A PyPI and an npm registry on loopback that speak the real protocols, for hostile packages too.

Projects are added while the server runs; every request is kept in `seen`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

OLD = "2020-01-01T00:00:00.000000Z"
NO_QUEUE = '[approvals]\nchannels = ["terminal", "callback", "elicitation"]\n'
"""Nobody runs `cellwall approvals`: a question that no test answers is refused at once."""
JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def build_wheel(name, version, files=None, *, requires=(), metadata=None, record=True):
    """A wheel with these files; returns its name and bytes."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = [f"Requires-Dist: {each}" for each in requires]
    described = "\n".join(
        ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
    )
    content = {
        **(
            files
            if files is not None
            else {f"{name.replace('-', '_')}.py": f"VERSION = {version!r}\n"}
        ),
        f"{stem}.dist-info/METADATA": metadata or described,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    data = {
        path: text.encode() if isinstance(text, str) else text for path, text in content.items()
    }
    if record:
        rows = [f"{path},sha256={_urlsafe(raw)},{len(raw)}" for path, raw in data.items()]
        data[f"{stem}.dist-info/RECORD"] = "\n".join(
            [*rows, f"{stem}.dist-info/RECORD,,", ""]
        ).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, raw in data.items():
            archive.writestr(path, raw)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def build_sdist(name, version, files):
    """A source archive with these files; returns its name and bytes."""
    stem = f"{name.replace('-', '_')}-{version}"
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return f"{stem}.tar.gz", _tar(
        {f"{stem}/PKG-INFO": described, **{f"{stem}/{k}": v for k, v in files.items()}}
    )


def build_tarball(name, version, files=None, **manifest):
    """An npm package; returns its name and bytes."""
    described = json.dumps({"name": name, "version": version, "main": "index.js", **manifest})
    content = {"package/package.json": described}
    content |= {
        f"package/{path}": text
        for path, text in (files or {"index.js": "module.exports = 1\n"}).items()
    }
    return f"{name.rpartition('/')[2]}-{version}.tgz", _tar(content)


def _tar(content):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in content.items():
            raw = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(path)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return packed.getvalue()


def _urlsafe(raw):
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()


@dataclass
class Registries:
    """What the server has; `base` is its own URL."""

    base: str = ""
    seen: list[tuple[str, str]] = field(default_factory=list)
    pypi: dict[str, dict[str, Any]] = field(default_factory=dict)
    npm: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    has_json: bool = True
    """Whether the simple index has the JSON form of PEP 691."""

    def add_wheel(
        self,
        name,
        version,
        files=None,
        *,
        uploaded=OLD,
        served=None,
        changes=None,
        described=False,
        **build,
    ):
        """Publish a wheel; `served` are other bytes under the hash of the real ones, `described`
        adds its metadata as a file of its own (PEP 658)."""
        filename, data = build_wheel(name, version, files, **build)
        if described:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                (member,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
                described = archive.read(member)
            self.files[f"/packages/{filename}.metadata"] = described
            digest = hashlib.sha256(described).hexdigest()
            changes = {"core-metadata": {"sha256": digest}, **(changes or {})}
        return self.add_file(
            name, filename, data, uploaded=uploaded, served=served, **(changes or {})
        )

    def add_file(self, name, filename, data, *, uploaded=OLD, served=None, **changes):
        path = f"/packages/{filename}"
        self.files[path] = data if served is None else served
        project = self.pypi.setdefault(
            name, {"name": name, "meta": {"api-version": "1.4"}, "files": []}
        )
        entry = {
            "filename": filename,
            "url": self.base + path,
            "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
            "size": len(data),
            "upload-time": uploaded,
            **changes,
        }
        project["files"].append(entry)
        return entry

    def add_npm(
        self, name, version, files=None, *, uploaded=OLD, served=None, dist=None, **manifest
    ):
        filename, data = build_tarball(name, version, files, **manifest)
        path = f"/npm/{name}/-/{filename}"
        self.files[path] = data if served is None else served
        package = self.npm.setdefault(
            name, {"name": name, "dist-tags": {}, "versions": {}, "time": {"created": OLD}}
        )
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        package["versions"][version] = {
            "name": name,
            "version": version,
            **manifest,
            "dist": {
                "tarball": self.base + path,
                "integrity": f"sha512-{digest}",
                "shasum": hashlib.sha1(data).hexdigest(),
                **(dist or {}),
            },
        }
        package["time"][version] = uploaded
        package["dist-tags"]["latest"] = version


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: with Nagle's algorithm the second waits for a delayed ACK, 40 ms.
    disable_nagle_algorithm = True

    def do_GET(self):
        registries: Registries = self.server.registries
        path = unquote(self.path.partition("?")[0])
        registries.seen.append((self.command, path))
        kind, name = path.strip("/").partition("/")[::2]
        if path in registries.files:
            return self._answer(200, registries.files[path], "application/octet-stream")
        if kind == "simple" and name in registries.pypi:
            return self._simple(registries.pypi[name])
        if (
            kind == "pypi"
            and name.endswith("/json")
            and name.removesuffix("/json") in registries.pypi
        ):
            return self._legacy(registries.pypi[name.removesuffix("/json")])
        if kind == "npm" and name in registries.npm:
            return self._answer(200, json.dumps(registries.npm[name]).encode(), "application/json")
        return self._answer(404, b"not found", "text/plain")

    do_HEAD = do_GET

    def _simple(self, project):
        if self.server.registries.has_json and JSON_TYPE in self.headers.get("accept", ""):
            return self._answer(200, json.dumps(project).encode(), JSON_TYPE)
        links = "".join(
            f'<a href="{each["url"]}#sha256={each["hashes"]["sha256"]}">{each["filename"]}</a>\n'
            for each in project["files"]
        )
        return self._answer(
            200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html"
        )

    def _legacy(self, project):
        releases = {
            "all": [
                {"digests": each["hashes"], "upload_time_iso_8601": each["upload-time"]}
                for each in project["files"]
            ]
        }
        return self._answer(200, json.dumps({"releases": releases}).encode(), "application/json")

    def _answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serve_registries(host="127.0.0.1", *, tls=None):
    """The registries on a free port, until the block ends; `tls`: the server's SSL context."""
    with ThreadingHTTPServer((host, 0), _Handler) as server:
        base = f"{'https' if tls else 'http'}://{host}:{server.server_port}"
        if tls:  # each thread does its own handshake
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        server.registries = Registries(base)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.registries
        finally:
            server.shutdown()
            thread.join()


def write_registry_config(path: Path, base: str, *lines: str) -> str:
    """A configuration in which the registries are those of the tests; `lines` of `[packages]`."""
    urls = f'pypi_url = "{base}"\npypi_file_urls = []\nnpm_url = "{base}/npm"\n'
    path.write_text("[packages]\n" + "".join(f"{line}\n" for line in lines) + urls + NO_QUEUE)
    path.chmod(0o600)
    return str(path)
