"""The connection to a registry, from the host: bounded answers, from the configured hosts alone.

An index is untrusted: the URL of a file in it may name any host. Only the hosts that the
configuration gives for this registry are reached, over the schemes that the configuration uses.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx2

from cellwall import __version__
from cellwall.core.errors import EgressRefused
from cellwall.packages.registry.downloads import RegistryDocument

_MAX_REDIRECTS = 3
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
_DOCUMENT_DEADLINE_S = 60.0
_FILE_DEADLINE_S = 900.0
"""The timeouts above are for each read: a server that sends single bytes never exceeds them."""
_LIMITS = httpx2.Limits(max_connections=48, max_keepalive_connections=16)
_FILE_CHUNK_BYTES = 1024 * 1024
_CERT_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@cache
def _host_tls(*_places: str | None) -> ssl.SSLContext:
    """To read the authorities of the host takes 60 ms, and a process makes many clients. Made anew
    for other values of the variables that name the places."""
    return httpx2.create_ssl_context()


class HttpUpstream:
    """Implements `Upstream`. To be used in one event loop, and closed there.

    The host's own proxy settings and certificates apply (HTTPS_PROXY, SSL_CERT_FILE), as they do
    for pip and npm on this host.
    """

    def __init__(self, origins: Collection[str], *, verify: bool | str = True) -> None:
        """`origins` as scheme://host[:port], such as https://pypi.org."""
        self._origins = frozenset(origins)
        self._client = httpx2.AsyncClient(
            headers={"user-agent": f"cellwall/{__version__}"},
            timeout=_TIMEOUT,
            limits=_LIMITS,
            follow_redirects=False,
            verify=_host_tls(*map(os.environ.get, _CERT_VARIABLES)) if verify is True else verify,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def get(self, url: str, *, accept: str, max_bytes: int) -> RegistryDocument:
        async with _deadline(_DOCUMENT_DEADLINE_S), self._open(url, accept) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > max_bytes:
                    raise EgressRefused(
                        f"the registry's answer is larger than {max_bytes:,} bytes",
                        code="CW-PACKAGE-TOO-LARGE",
                    )
            kind = response.headers.get("content-type", "")
            return RegistryDocument(response.status_code, kind, bytes(body))

    async def download(self, url: str) -> AsyncGenerator[bytes]:
        """The raw bytes: a content coding would change what the hash is of."""
        async with (
            _deadline(_FILE_DEADLINE_S),
            self._open(url, "*/*", coding="identity") as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise EgressRefused(
                    f"the registry answered {response.status_code} for a file of its index",
                    code="CW-PACKAGE-UNAVAILABLE",
                )
            async for chunk in response.aiter_raw(_FILE_CHUNK_BYTES):
                yield chunk

    @asynccontextmanager
    async def _open(
        self, url: str, accept: str, *, coding: str = "gzip, identity"
    ) -> AsyncIterator[httpx2.Response]:
        headers = {"accept": accept, "accept-encoding": coding}
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                self._check_origin(url)
                async with self._client.stream("GET", url, headers=headers) as response:
                    if response.next_request is None:
                        yield response
                        return
                    url = str(response.next_request.url)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EgressRefused(
                "the registry cannot be reached",
                hint="Check the network of this host, and [packages] in the configuration.",
                code="CW-PACKAGE-UNAVAILABLE",
                detail=repr(error),
            ) from None
        raise EgressRefused("the registry redirects too often", code="CW-PACKAGE-UNAVAILABLE")

    def _check_origin(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if f"{parts.scheme}://{parts.netloc}" not in self._origins:
            raise EgressRefused(
                "the index names a file on a host that is not part of this registry",
                hint="Add the host to [packages] in the configuration if it is.",
                code="CW-PACKAGE-HOST",
            )


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise EgressRefused(
            f"the registry did not answer within {seconds:.0f} seconds",
            code="CW-PACKAGE-UNAVAILABLE",
        ) from None
