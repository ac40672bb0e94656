"""What a session looks like from the cell's side: its environment, its files, its sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from pathlib import Path
from typing import Any

from cellwall.core.errors import EgressRefused
from cellwall.core.forks import OwnerProcess
from cellwall.core.network import NETWORK_INSIDE, PROXY_PORT, SecretUse, Traveller
from cellwall.core.outcomes import Finding
from cellwall.egress.proxy.door import Door, serve_proxy
from cellwall.egress.proxy.session import Session
from cellwall.egress.proxy.transparent import NameServer, serve_transparent

_END_TIMEOUT_S = 10.0
_MAX_PORTS = 32
_CA = f"{NETWORK_INSIDE}/ca.pem"
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_NO_PROXY = "localhost,127.0.0.1,::1"
_PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_ENV: dict[str, str] = {
    **dict.fromkeys(_PROXY_NAMES, _PROXY),
    **{name.upper(): _PROXY for name in _PROXY_NAMES},
    "no_proxy": _NO_PROXY,
    "NO_PROXY": _NO_PROXY,
    # npm reads its own names first, and node's fetch looks at none unless it is told to.
    "npm_config_proxy": _PROXY,
    "npm_config_https_proxy": _PROXY,
    "npm_config_noproxy": _NO_PROXY,
    "NODE_USE_ENV_PROXY": "1",
}
_CA_ENV: dict[str, str] = dict.fromkeys(
    (
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
    ),
    _CA,
)
_CA_ENV["SYSTEM_WGETRC"] = f"{NETWORK_INSIDE}/wgetrc"  # wget takes a file of settings only
_WGETRC = f"ca_certificate = {_CA}\n".encode()
_RESOLV_CONF = b"nameserver 127.0.0.1\noptions attempts:2 timeout:3\n"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)

Call = Callable[[Coroutine[Any, Any, None]], Future[None]]


class BuiltIn:
    """Implements `CellNetwork`. May be used from any thread."""

    def __init__(self, session: Session, call: Call) -> None:
        """`call` does work on the session's loop."""
        self.session = session
        self._call = call
        self._lock = threading.Lock()
        self._owner = OwnerProcess()
        self._doors: list[Door | NameServer] = []
        self._has_ended = False

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
    def ports(self) -> tuple[int, ...]:
        ports = self.session.allowlist.ports - {PROXY_PORT}
        return tuple(sorted(ports))[:_MAX_PORTS]

    def adopt(self, listeners: Mapping[str, socket.socket]) -> None:
        """Serve what comes in by these sockets, which are ours from now on."""
        with self._lock:
            if not self._is_over():
                doors = [self._door(name, sock) for name, sock in listeners.items()]
                self._doors += doors
                self._call(_open(doors))
                return
        for sock in listeners.values():
            sock.close()

    def _door(self, name: str, sock: socket.socket) -> Door | NameServer:
        if name == "dns":
            return NameServer(self.session, sock)
        if name == "proxy":
            return Door(self.session, sock, serve_proxy, via="proxy")
        return Door(self.session, sock, serve_transparent, via="transparent")

    def noticed(self) -> tuple[Finding, ...]:
        return self.session.ledger.noticed()

    def renew(self, traveller: Traveller, secrets: Sequence[SecretUse]) -> None:
        """One more action in a live sandbox: its connections are recorded as its own."""
        self.session.ledger.traveller = traveller
        self.session.lend(secrets)

    def end(self) -> None:
        """Cut what is open, and return once all of it is on record. Blocks for a moment."""
        if self._is_over():
            return
        with self._lock:
            doors, self._doors = self._doors, []
            self._has_ended = True
        try:
            self._call(self._end(doors)).result(_END_TIMEOUT_S)
        except FutureTimeout:
            raise EgressRefused(
                "the connections of a sandbox could not be ended",
                hint="Stop this process: nothing may go on without a record.",
                code="CW-EGRESS-STUCK",
            ) from None

    def _is_over(self) -> bool:
        # In a process that was forked off, all of this is the parent's.
        return self._has_ended or not self._owner.is_current

    async def _end(self, doors: Sequence[Door | NameServer]) -> None:
        await asyncio.gather(*(door.close() for door in doors))
        self.session.spares.close()
        await self.session.ledger.drain()


async def _open(doors: Sequence[Door | NameServer]) -> None:
    for door in doors:
        door.open()


@cache
def _host_authorities() -> bytes:
    """Those that this host trusts: TLS that is not opened must go on working beside ours."""
    paths = ssl.get_default_verify_paths()
    for name in (paths.cafile, paths.openssl_cafile, *_BUNDLES):
        if name and Path(name).is_file():
            return Path(name).read_bytes().rstrip() + b"\n"
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in found).encode("ascii")
