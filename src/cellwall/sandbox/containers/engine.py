"""The API of a container engine, over its unix socket: Docker's, which Podman serves as well."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from cellwall.core.errors import CellwallError, LayerMissing, SandboxFailed
from cellwall.core.types import Json

_VERSION = "v1.40"  # Docker 19.03 and later, Podman 3 and later
_ANSWER_WITHIN_S = 30.0
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_MAX_MESSAGE = 300
_PODMAN = "Podman"
_NOT_FOUND, _CONFLICT = 404, 409
_ENDED = (_NOT_FOUND, _CONFLICT)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says about itself."""

    version: str
    has_user_namespace: bool
    """Containers get a user namespace: of `userns-remap`, or of a rootless engine."""
    is_rootless: bool
    runtimes: frozenset[str]
    has_limits: bool
    """The engine can enforce memory, process and processor limits."""
    is_podman: bool = False
    root_ids: tuple[int, int] | None = None
    """The host's uid and gid of root in a container, where the engine names them."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER_WITHIN_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """May be used by many threads: each request has a connection of its own."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path

    def facts(self) -> EngineFacts:
        """Raises `LayerMissing` if no engine answers."""
        try:
            info = self._ask("GET", "/info")
            version = self._ask("GET", "/version")
        except SandboxFailed as error:
            raise self._no_engine(error.detail or error.message) from error
        if not isinstance(info, dict) or not isinstance(version, dict):
            raise self._no_engine("the answer is no object")
        options = [str(each) for each in _entries(info, "SecurityOptions")]
        # Docker names it among its options, Podman in a field of its own.
        is_rootless = info.get("Rootless") is True or any(
            "name=rootless" in each for each in options
        )
        name = _name_of(version)
        return EngineFacts(
            is_podman=name == _PODMAN,
            version=f"{name} {str(version.get('Version', ''))[:40]}".strip(),
            has_user_namespace=is_rootless or any("name=userns" in each for each in options),
            is_rootless=is_rootless,
            runtimes=frozenset(map(str, _entries(info, "Runtimes"))),
            # Podman claims them also as an ordinary user on cgroup v1, and ignores them there.
            has_limits=not (is_rootless and info.get("CgroupVersion") == "1")
            and all(info.get(name) is True for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota")),
            root_ids=_root_ids(str(info.get("DockerRootDir", ""))),
        )

    def has_image(self, name: str) -> bool:
        status, _body = self._request("GET", f"/images/{name}/json")
        return status == http.client.OK

    def load_image(self, name: str, archive: bytes) -> None:
        """Make an image of one layer from a tar archive."""
        path = f"/images/create?fromSrc=-&repo={name}"  # Podman 4 ignores a parameter `tag`
        status, body = self._request("POST", path, archive, kind="application/x-tar")
        if status != http.client.OK:
            raise _refusal(status, body)

    def create(self, name: str, request: Mapping[str, Json]) -> str:
        """Returns the id of the container, which is not started."""
        made = self._ask("POST", f"/containers/create?name={name}", request)
        if not isinstance(made, dict) or not isinstance(made.get("Id"), str):
            raise SandboxFailed("the container engine gave no id", code="CW-ENGINE-ANSWER")
        return str(made["Id"])

    def not_running(self, label: str) -> list[tuple[str, str]]:
        """(name, id) of each container with this label that was not started, or was not removed."""
        # Not filtered by state: Podman refuses a name of a state that it does not know (`dead`).
        filters = {"label": [label]}
        query = urlencode({"all": 1, "filters": json.dumps(filters)})
        listed = self._ask("GET", f"/containers/json?{query}")
        found = []
        for each in listed if isinstance(listed, list) else ():
            match each:
                case {"State": "running" | "paused" | "restarting" | "removing" | "stopping"}:
                    continue
                case {"Names": [str(name), *_], "Id": str(container)}:
                    found.append((name.lstrip("/"), container))
        return found

    def start(self, container: str) -> None:
        self._ask("POST", f"/containers/{container}/start")

    def remove(self, container: str) -> None:
        """Kill and remove; one that is gone, or is being removed, is no error."""
        status, body = self._request("DELETE", f"/containers/{container}?force=1&v=1")
        if status >= http.client.BAD_REQUEST and status not in _ENDED:
            raise _refusal(status, body)

    def wait_removed(self, container: str) -> None:
        """Until the engine has removed an ended container."""
        path = f"/containers/{container}/wait?condition=removed"
        status, body = self._request("POST", path)
        if status >= http.client.BAD_REQUEST and status != _NOT_FOUND:
            raise _refusal(status, body)

    def _ask(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> Any:  # noqa: ANN401  # JSON of the engine
        data = None if body is None else json.dumps(body).encode()
        status, answer = self._request(method, path, data)
        if status >= http.client.BAD_REQUEST:
            raise _refusal(status, answer)
        try:
            return json.loads(answer) if answer else None
        except (ValueError, RecursionError) as error:
            raise SandboxFailed(
                "the container engine gave an answer that is no JSON",
                hint="Check that the socket is that of Docker or Podman.",
                code="CW-ENGINE-ANSWER",
            ) from error

    def _request(
        self, method: str, path: str, body: bytes | None = None, *, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        connection = _UnixConnection(self._socket_path)
        try:
            connection.request(method, f"/{_VERSION}{path}", body, {"Content-Type": kind})
            response = connection.getresponse()
            return response.status, response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise SandboxFailed(
                "the container engine does not answer, or not in HTTP",
                hint="Check that its daemon runs: docker info, or podman info.",
                code="CW-ENGINE-ANSWER",
                detail=f"{self._socket_path}: {error!r:.{_MAX_MESSAGE}}",
            ) from error
        finally:
            connection.close()

    def _no_engine(self, why: str) -> LayerMissing:
        return LayerMissing(
            "no container engine answers on its socket",
            hint="Start Docker (systemctl start docker) or Podman's service (systemctl --user "
            "start podman.socket), and set sandbox.engine_socket; the user needs access to it.",
            code="CW-LAYER-ENGINE",
            detail=f"{self._socket_path}: {why}",
        )


def _entries(answer: Mapping[str, Any], name: str) -> list[Any]:
    """The elements of a list, or the names of an object; empty for anything else."""
    value = answer.get(name)
    return list(value) if isinstance(value, (list, dict)) else []


def _name_of(version: Mapping[str, Any]) -> str:
    components = _entries(version, "Components")
    names = [str(each.get("Name", "")) for each in components if isinstance(each, dict)]
    return _PODMAN if any(_PODMAN in name for name in names) else "Docker"


def _root_ids(directory: str) -> tuple[int, int] | None:
    """With `userns-remap`, Docker's data directory ends in `.../UID.GID`."""
    uid, dot, gid = os.path.basename(directory).partition(".")
    return (int(uid), int(gid)) if dot and uid.isdigit() and gid.isdigit() else None


def _refusal(status: int, body: bytes) -> CellwallError:
    try:
        message = str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError, RecursionError):
        message = body.decode("utf-8", "replace")
    return SandboxFailed(
        "the container engine refused a request",
        hint="Run `cellwall doctor`; the audit record holds the engine's message.",
        code="CW-ENGINE-REFUSED",
        detail=f"{status}: {message[:_MAX_MESSAGE]}",
    )


def is_socket(path: str) -> bool:
    """Whether a unix socket is there."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
