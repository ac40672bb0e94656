"""A session as its cell sees it: environment variables, files, sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cellwall.core.errors import EgressRefused
from cellwall.core.forks import OwnerProcess
from cellwall.core.network import (
    NETWORK_INSIDE,
    PROXY_PORT,
    EgressContext,
    EgressUsage,
    SecretUse,
)
from cellwall.core.outcomes import Finding
from cellwall.egress.proxy.listeners import (
    CellDnsServer,
    CellListener,
    serve_proxy,
    serve_transparent,
)
from cellwall.egress.proxy.session import EgressSession

if TYPE_CHECKING:
    from cellwall.egress.proxy.gateway import GatewayClient

_END_TIMEOUT_S = 10.0
_MAX_PORTS = 32
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_NO_PROXY = "localhost,127.0.0.1,::1"
_PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_CA_NAMES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "NPM_CONFIG_CAFILE",
    "DENO_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
)
_RESOLV_CONF = b"nameserver 127.0.0.1\noptions attempts:2 timeout:3\n"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


def proxy_environment(url: str) -> dict[str, str]:
    """The variables by which programs find a proxy."""
    return {
        **dict.fromkeys(_PROXY_NAMES, url),
        **{name.upper(): url for name in _PROXY_NAMES},
        "no_proxy": _NO_PROXY,
        "NO_PROXY": _NO_PROXY,
        # npm reads its own variables first; node's fetch needs NODE_USE_ENV_PROXY to read any.
        "npm_config_proxy": url,
        "npm_config_https_proxy": url,
        "npm_config_noproxy": _NO_PROXY,
        "NODE_USE_ENV_PROXY": "1",
    }


def authority_environment(folder: str) -> dict[str, str]:
    """The variables by which programs trust the authority in this folder."""
    # wget reads a settings file only.
    return {**dict.fromkeys(_CA_NAMES, f"{folder}/ca.pem"), "SYSTEM_WGETRC": f"{folder}/wgetrc"}


def wget_settings(folder: str) -> bytes:
    """The settings file of wget that names the authority in this folder."""
    return os.fsencode(f"ca_certificate = {folder}/ca.pem\n")


_ENV = proxy_environment(_PROXY)
_CA_ENV = authority_environment(NETWORK_INSIDE)
_WGETRC = wget_settings(NETWORK_INSIDE)

CallOnLoop = Callable[[Coroutine[Any, Any, None]], Future[None]]
_Server: TypeAlias = "CellListener | CellDnsServer | GatewayClient"


class ProxyNetwork:
    """Implements `CellNetwork`; thread-safe."""

    def __init__(self, session: EgressSession, call: CallOnLoop) -> None:
        """`call` runs a coroutine on the session's loop."""
        self.session = session
        self._call = call
        self._lock = threading.Lock()
        self._owner = OwnerProcess()
        self._servers: list[_Server] = []
        self._has_ended = False
        self._taken_bytes = 0

    @property
    def env(self) -> Mapping[str, str]:
        return _ENV if self.session.authority is None else {**_ENV, **_CA_ENV}

    @property
    def files(self) -> Mapping[str, bytes]:
        files = {"resolv.conf": _RESOLV_CONF}
        if self.session.authority is not None:
            files["ca.pem"] = _host_authorities() + self.session.authority.pem
            files["wgetrc"] = _WGETRC
        return files

    @property
    def offered(self) -> Mapping[str, bytes]:
        return self.session.offered

    @property
    def ports(self) -> tuple[int, ...]:
        ports = self.session.ports - {PROXY_PORT}
        return tuple(sorted(ports))[:_MAX_PORTS]

    def adopt(self, listeners: Mapping[str, socket.socket]) -> None:
        """Serve these sockets; the network owns them from now on."""
        with self._lock:
            if not self._is_over():
                servers = [self._server_for(name, sock) for name, sock in listeners.items()]
                self._servers += servers
                self._call(_open(servers))
                return
        for sock in listeners.values():
            sock.close()

    def join(self, client: GatewayClient) -> None:
        """Serve a client outside of any sandbox; returns once it can connect."""
        with self._lock:
            if self._is_over():
                return
            self._servers.append(client)
            opened = self._call(_open([client]))
        opened.result(_END_TIMEOUT_S)

    @property
    def usage(self) -> EgressUsage:
        return self.session.budget.usage

    def _server_for(self, name: str, sock: socket.socket) -> _Server:
        if name == "dns":
            return CellDnsServer(self.session, sock)
        if name == "proxy":
            return CellListener(self.session, sock, serve_proxy, via="proxy")
        return CellListener(self.session, sock, serve_transparent, via="transparent")

    def take_sent_bytes(self) -> int:
        sent = self.usage.bytes_up
        taken, self._taken_bytes = self._taken_bytes, sent
        return sent - taken

    def take_findings(self) -> tuple[Finding, ...]:
        return self.session.audit.take_findings()

    def renew(self, context: EgressContext, secrets: Sequence[SecretUse]) -> None:
        """Start another action in a live sandbox: new connections are recorded under it."""
        self.session.audit.context = context
        self.session.add_secrets(secrets)

    def end(self) -> None:
        """Abort open connections and wait until all events are written. Blocks briefly."""
        if self._is_over():
            return
        with self._lock:
            servers, self._servers = self._servers, []
            self._has_ended = True
        try:
            self._call(self._end(servers)).result(_END_TIMEOUT_S)
        except FutureTimeout:
            raise EgressRefused(
                "the connections of a sandbox could not be closed",
                hint="Stop this process: no connection may continue without an audit record.",
                code="CW-EGRESS-STUCK",
            ) from None

    def _is_over(self) -> bool:
        # In a forked process the session belongs to the parent.
        return self._has_ended or not self._owner.is_current

    async def _end(self, servers: Sequence[_Server]) -> None:
        await asyncio.gather(*(server.close() for server in servers))
        await self.session.service_connections.end()
        self.session.pool.close()
        await self.session.audit.drain()


async def _open(servers: Sequence[_Server]) -> None:
    for server in servers:
        server.open()


@cache
def _host_authorities() -> bytes:
    """The authorities that this host trusts: TLS that is not intercepted must keep working."""
    paths = ssl.get_default_verify_paths()
    for name in (paths.cafile, paths.openssl_cafile, *_BUNDLES):
        if name and Path(name).is_file():
            return Path(name).read_bytes().rstrip() + b"\n"
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in certificates).encode("ascii")
