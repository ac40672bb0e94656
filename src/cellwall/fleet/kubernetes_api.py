"""The API of a Kubernetes cluster, as far as the driver of agent-sandbox and pods that join use it.

The token is read for each request, since the kubelet renews the file. Only the cluster's own
authority is trusted. Answers are bounded in size and time, and what they hold is data: a wrong type
counts as a malformed answer.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from cellwall.core.errors import Busy, CellwallError, ConfigError

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MAX_BYTES = 16 * 1024 * 1024
_MAX_LINE_BYTES = 1024 * 1024
_MAX_TOKEN_BYTES = 16 * 1024
_MAX_PAUSE_S = 10.0
_TRIES = 4
_PATCH = "application/merge-patch+json"
Resource = dict[str, Any]


class KubernetesFailed(CellwallError):
    """The API of the cluster refused a request, or gave an answer that is none."""

    default_code = "CW-KUBERNETES"


class Conflict(Exception):
    """Another writer was first (409): read again, then decide again."""


class WatchExpired(Exception):
    """The version to watch from is too old (410): list again."""


class Missing(Exception):
    """There is no such resource (404)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Where the API is, and who asks."""

    url: str = "https://kubernetes.default.svc"
    namespace: str = "cellwall"
    token_file: str = f"{_ACCOUNT}/token"
    ca_file: str = f"{_ACCOUNT}/ca.crt"
    timeout_s: float = 10.0
    watch_s: int = 240
    """The server ends a watch after this, and the driver begins another."""


class KubernetesApi:
    """Custom resources of one namespace. To be used in one event loop, and closed there."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._client = httpx2.AsyncClient(
            base_url=settings.url,
            verify=trusting(settings.ca_file),
            timeout=settings.timeout_s,
            trust_env=False,
            follow_redirects=False,
            headers={"accept": "application/json", "accept-encoding": "identity"},
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def create(self, kind: str, resource: Resource) -> Resource:
        """Never repeated where an answer is missing: the resource may have been made."""
        return await self._ask("POST", self._path(kind), body=resource, tries=1)

    async def read(self, kind: str, name: str) -> Resource:
        return await self._ask("GET", self._path(kind, name))

    async def list(self, kind: str, *, selector: str) -> tuple[list[Resource], str]:
        """All resources with a label, and the version of the list to watch from."""
        found = await self._ask("GET", self._path(kind), query={"labelSelector": selector})
        items, version = found.get("items"), _text(found.get("metadata"), "resourceVersion")
        if not isinstance(items, list) or not version:
            raise _malformed("a list without items or version")
        return [each for each in items if isinstance(each, dict)], version

    async def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> Resource:
        """Merge; a `resourceVersion` in it makes the write conditional."""
        return await self._ask("PATCH", self._path(kind, name), body=change, kind=_PATCH)

    async def delete(self, kind: str, name: str) -> None:
        """Also where it is gone already."""
        try:
            await self._ask("DELETE", self._path(kind, name))
        except Missing:
            return

    async def review_token(self, token: str, *, audience: str) -> Resource:
        """What the cluster says about a token: the `status` of a TokenReview."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        status = (await self._ask("POST", path, body=body)).get("status")
        if not isinstance(status, dict):
            raise _malformed("a review without status")
        return status

    async def watch(
        self, kind: str, *, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Resource]]:
        """Events since a version, until the server ends the stream; raises `WatchExpired`."""
        query = {
            "labelSelector": selector, "resourceVersion": version, "watch": "true",
            "timeoutSeconds": str(self._settings.watch_s), "allowWatchBookmarks": "true",
        }  # fmt: skip
        silent_s = self._settings.watch_s + self._settings.timeout_s
        timeout = httpx2.Timeout(self._settings.timeout_s, read=silent_s)
        try:
            async with self._client.stream(
                "GET", self._path(kind), params=query, headers=self._who(), timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refusal(answer.status_code)
                async for line in _lines(answer):
                    event = _object(line)
                    what, about = event.get("type"), event.get("object")
                    if not isinstance(what, str) or not isinstance(about, dict):
                        raise _malformed("an event without type or object")
                    if what == "ERROR":
                        raise _refusal(about.get("code"))
                    yield what, about
        except httpx2.HTTPError as error:
            raise _unreachable(error) from None

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
        tries: int = _TRIES,
    ) -> Resource:
        content = None if body is None else json.dumps(body).encode()
        for left in reversed(range(tries)):
            headers = {**self._who(), **({} if content is None else {"content-type": kind})}
            try:
                async with self._client.stream(
                    method, path, content=content, params=query, headers=headers
                ) as answer:
                    text = await _bounded(answer)
            except httpx2.HTTPError as error:
                raise _unreachable(error) from None
            if answer.status_code < 300:
                return _object(text)
            if answer.status_code != 429 or not left:
                raise _refusal(answer.status_code)
            await anyio.sleep(_pause_s(answer.headers.get("retry-after")))
        raise AssertionError

    def _path(self, kind: str, name: str = "") -> str:
        """`kind`: group, version and plural, such as `agents.x-k8s.io/v1beta1/sandboxes`."""
        group, version, plural = kind.split("/")
        base = f"/apis/{group}/{version}/namespaces/{self._settings.namespace}/{plural}"
        return f"{base}/{name}" if name else base

    def _who(self) -> dict[str, str]:
        try:
            with open(self._settings.token_file, encoding="ascii") as file:
                token = file.read(_MAX_TOKEN_BYTES).strip()
        except (OSError, UnicodeDecodeError):
            token = ""
        if not token or not token.isprintable():
            raise KubernetesFailed(
                "the token of the service account cannot be read",
                hint="Give the pod of the front a service account, and mount its token.",
                code="CW-KUBERNETES-TOKEN",
            )
        return {"authorization": f"Bearer {token}"}


def trusting(ca_file: str) -> ssl.SSLContext:
    """Trusts the authority of this file and no other; raises `ConfigError` without one."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "the certificate of an authority cannot be read",
            hint="Check ca_file and service_ca_file in [kubernetes], and the mounts of this pod.",
            code="CW-KUBERNETES-CA",
            detail=str(error),
        ) from None


async def _bounded(answer: httpx2.Response) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > _MAX_BYTES:
            raise _malformed("a longer answer than is read")
        parts.append(part)
    return b"".join(parts)


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    waiting = b""
    async for part in answer.aiter_bytes():
        waiting += part
        *whole, waiting = waiting.split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(waiting) > _MAX_LINE_BYTES:
            raise _malformed("a longer event than is read")


def _object(text: bytes) -> Resource:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed("no JSON") from None
    if not isinstance(found, dict):
        raise _malformed("no object")
    return found


def _text(part: object, name: str) -> str:
    value = part.get(name) if isinstance(part, dict) else None
    return value if isinstance(value, str) else ""


def _pause_s(told: str | None) -> float:
    """As the server asks, within bounds."""
    return min(float(told), _MAX_PAUSE_S) if told is not None and told.isdecimal() else 1.0


def _refusal(status: object) -> Exception:
    match status:
        case 404:
            return Missing()
        case 409:
            return Conflict()
        case 410:
            return WatchExpired()
        case 401 | 403:
            return KubernetesFailed(
                "the cluster refused the service account of the front",
                hint="Apply the Role of deploy/kubernetes to it.",
                code="CW-KUBERNETES-DENIED",
            )
        case 429:
            return Busy(
                "the API of the cluster has too many requests",
                hint="Try again in a moment.",
                code="CW-KUBERNETES-BUSY",
            )
    shown = status if isinstance(status, int) else "none"
    return KubernetesFailed(
        f"the API of the cluster refused a request (status {shown})",
        hint="See the log of the API server.",
    )


def _unreachable(error: Exception) -> Busy:
    return Busy(
        f"the API of the cluster does not answer ({type(error).__name__})",
        hint="Try again in a moment; check the address and the authority of the cluster.",
        code="CW-KUBERNETES-AWAY",
    )


def _malformed(what: str) -> KubernetesFailed:
    return KubernetesFailed(
        f"the API of the cluster gave an answer that cannot be read: {what}",
        hint="Check that the address is that of the API server.",
        code="CW-KUBERNETES-ANSWER",
    )
