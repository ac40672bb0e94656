"""Clients of the standalone proxy: sockets, tokens, and the files and variables of each (NET-8)."""

# ruff: noqa: PLC0415  # late imports: egress loads with the first client

from __future__ import annotations

import errno
import fcntl
import hashlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cellwall.core.errors import BadInput

_TOKEN_BYTES = 32
_BACKLOG = 256
_FOLDER = "proxy"


@dataclass(frozen=True, slots=True)
class ClientToken:
    """A new token. It exists in this process and in its client, never on disk."""

    text: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES), repr=False)

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.text.encode("ascii")).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """All that a client needs: `env` has its token, and placeholders in place of secrets."""

    client: str
    env: Mapping[str, str] = field(repr=False)
    folder: str
    """The host folder with its certificate authority; empty if no TLS is intercepted."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address and port of this host."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """`127.0.0.1:3128`, `[::1]:3128` or `localhost:0`; port 0 takes a free one."""
        host, colon, port = text.rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else -1
        is_one = address is not None and not (address.is_unspecified or address.is_multicast)
        if not (colon and is_one and 0 <= number <= 0xFFFF):
            raise BadInput(
                f"{text[:60]!r} is not one address and port of this host",
                hint="Write --listen 127.0.0.1:3128; port 0 takes a free one. Clients are told "
                "this address, so it cannot be 0.0.0.0.",
                code="CW-PROXY-LISTEN",
            )
        return cls(str(address), number)

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """A listening socket."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else "it failed"
            hint = "Choose an address of this host."
            if error.errno == errno.EADDRINUSE:
                hint = "Another program listens there: choose another port, or 0 for a free one."
            raise BadInput(
                f"cannot listen on {self}: {reason}", hint=hint, code="CW-PROXY-LISTEN"
            ) from None


@contextmanager
def client_folders(home: str, clients: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """A folder for each client, locked: two proxies must not replace each other's authority.

    The path is the same in every run, so that a container can mount it. The files are public; those
    of a killed proxy stay until the next one replaces them.
    """
    folders: dict[str, str] = {}
    with ExitStack() as stack:
        for client in clients:
            folder = os.path.join(home, _FOLDER, client)
            os.makedirs(folder, mode=0o755, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"another proxy serves the client {client}",
                    hint="End that one first, or choose another name with --client.",
                    code="CW-BAD-CLIENT",
                ) from None
            _remove_files(folder)
            stack.callback(_remove_files, folder)
            folders[client] = folder
        yield folders


def client_access(
    client: str,
    files: Mapping[str, bytes],
    env: Mapping[str, str],
    *,
    url: str,
    folder: str,
    seen_at: str | None,
) -> ClientAccess:
    """Write the client's files; returns its variables.

    `files` and `env` are those of a cell. `seen_at` is where the client sees the folder.
    """
    from cellwall.egress.proxy.cell_network import (
        authority_environment,
        proxy_environment,
        wget_settings,
    )

    variables = {**env, **proxy_environment(url)}
    authority = files.get("ca.pem")
    if authority is None:
        return ClientAccess(client=client, env=variables, folder="")
    shown = seen_at or folder
    _write(folder, "ca.pem", authority)
    _write(folder, "wgetrc", wget_settings(shown))
    return ClientAccess(
        client=client, env={**variables, **authority_environment(shown)}, folder=folder
    )


def _write(folder: str, name: str, content: bytes) -> None:
    """A client that reads meanwhile sees the whole old file or the whole new one."""
    path = os.path.join(folder, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(f"{path}.new", flags, 0o644), "wb") as file:
        file.write(content)
    os.replace(f"{path}.new", path)


def _remove_files(folder: str) -> None:
    for name in ("ca.pem", "wgetrc", "ca.pem.new", "wgetrc.new"):
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue
