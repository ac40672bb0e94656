"""Where the service listens, under which names, and whether that is safe (SRV-3).

Beyond loopback there must be TLS, also on a socket that systemd has opened: an administrator who
writes a socket unit for all addresses has not thereby agreed to send passwords readable.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from cellwall.admin.tls_files import TlsFiles
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, Denied

_BACKLOG = 1024
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The open sockets of a service, and how clients reach it."""

    sockets: tuple[socket.socket, ...]
    public_url: str
    names: tuple[str, ...]
    """Values of `Host` that are accepted, without ports."""
    tls: TlsFiles | None
    context: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a person needs once the service listens."""

    url: str
    sign_in_code: str | None
    """Of the link for the first owner; None once there is a user."""
    link_s: int


def open_listening(
    settings: Settings,
    *,
    host: str | None,
    port: int | None,
    inherited: Sequence[socket.socket] = (),
) -> Listening:
    """Open what the settings say, or take the inherited sockets; refuse what is not safe."""
    server = settings.server
    tls = None
    if server.tls_certificate is not None and server.tls_key is not None:
        tls = TlsFiles(server.tls_certificate, server.tls_key)
    context = None if tls is None else tls.make_context()
    is_safe = context is not None or server.dangerously_without_tls
    if inherited and (host is not None or port is not None):
        raise BadInput(
            "--host and --port have no effect on a socket of the service manager",
            hint="Leave them out, or start the service without its socket unit.",
            code="CW-USAGE",
        )
    wanted = server.host if host is None else host
    wanted = "127.0.0.1" if wanted == "localhost" else wanted
    if not inherited and not is_safe and not _parse(wanted).is_loopback:
        raise _no_tls()  # before the port is open for a moment
    number = server.port if port is None else port
    sockets = tuple(inherited) or (_listen(wanted, number),)
    if not is_safe and not all(_is_local(each) for each in sockets):
        raise _no_tls()
    for each in sockets:
        _send_at_once(each)
    names = list(dict.fromkeys(_names(settings, sockets, tls)))
    url = server.public_url or _url(sockets[0], names, is_tls=context is not None)
    return Listening(sockets=sockets, public_url=url, names=tuple(names), tls=tls, context=context)


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        # With a zone (`fe80::1%eth0`) it is an address of one interface, which no client can name.
        return ipaddress.ip_address("" if "%" in host else host)
    except ValueError:
        raise BadInput(
            f"{host[:60]!r} is not an address of this machine",
            hint="Write for example --host 127.0.0.1 or --host 0.0.0.0.",
            code="CW-USAGE",
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "it failed"
        hint = {
            errno.EADDRINUSE: "Another program listens there: choose another port with --port, or "
            "0 for a free one.",
            errno.EACCES: "Ports below 1024 are for root: use a port above, or a socket unit of "
            "systemd (`cellwall serve --print-unit socket`).",
        }.get(error.errno or 0, "Choose an address of this machine.")
        shown = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        raise BadInput(
            f"cannot listen on {shown}: {reason}", hint=hint, code="CW-SERVE-LISTEN"
        ) from None


def _send_at_once(listener: socket.socket) -> None:
    """Connections inherit the option. asyncio sets it only where the socket names its protocol,
    and a body behind its headers would wait 40 ms for the client's delayed acknowledgement."""
    if listener.family in {socket.AF_INET, socket.AF_INET6}:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_local(found: socket.socket) -> bool:
    """Whether only this machine reaches the socket."""
    if found.family == socket.AF_UNIX:
        return True
    return ipaddress.ip_address(found.getsockname()[0].partition("%")[0]).is_loopback


def _names(settings: Settings, sockets: Sequence[socket.socket], tls: TlsFiles | None) -> list[str]:
    """public_url first, which is the best name; then what is configured, certified and bound."""
    server = settings.server
    names: list[str] = []
    if server.public_url:
        public = urlsplit(server.public_url).hostname or ""
        names.append(f"[{public}]" if ":" in public else public)
    names += server.hosts
    names += tls.read_facts().names if tls is not None else ()
    for each in sockets:
        if each.family == socket.AF_UNIX:
            names += _LOOPBACK_NAMES
            continue
        bound = _parse(each.getsockname()[0].partition("%")[0])
        if bound.is_loopback or bound.is_unspecified:
            names += _LOOPBACK_NAMES
        if not bound.is_unspecified:
            names.append(f"[{bound}]" if bound.version == 6 else str(bound))
    return names


def _url(first: socket.socket, names: Sequence[str], *, is_tls: bool) -> str:
    scheme = "https" if is_tls else "http"
    if first.family == socket.AF_UNIX:
        return f"{scheme}://{names[0]}"
    address, port = first.getsockname()[:2]
    bound = _parse(address.partition("%")[0])
    if is_tls or bound.is_unspecified:
        host = names[0]
    else:
        host = f"[{bound}]" if bound.version == 6 else str(bound)
    return f"{scheme}://{host}:{port}"


def _no_tls() -> Denied:
    return Denied(
        "the service listens beyond loopback only with TLS",
        hint="Set tls_certificate and tls_key in [server]; or keep to 127.0.0.1, behind a proxy "
        "that has TLS; or accept the risk with dangerously_without_tls = true.",
        code="CW-SERVE-NO-TLS",
    )
