"""The user whose process holds the other end of a connection on this host.

TCP has no SO_PEERCRED. The kernel's socket diagnostics (sock_diag(7)) name the owner of the socket
with exactly these two addresses; a process in another network namespace has none here.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_SOCKET_ID = struct.Struct("!HH16s16s12s")
"""Ports and addresses, each side of the socket that is looked for; then interface and cookie."""
_ANY = bytes(4) + b"\xff" * 8
_ALL_STATES = 0xFFFFFFFF
_UID_AT = _HEADER.size + 4 + _SOCKET_ID.size + 12
_TIMEOUT_S = 1.0


def owner_of_peer(connection: socket.socket) -> int | None:
    """The uid; None if the kernel does not know the socket or does not answer."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        near, far = connection.getsockname(), connection.getpeername()
        places = [ip_address(each[0]).packed.ljust(16, b"\0") for each in (far, near)]
        wanted = _SOCKET_ID.pack(far[1], near[1], *places, _ANY)
        request = _REQUEST.pack(connection.family, socket.IPPROTO_TCP, 0, _ALL_STATES) + wanted
        size = _HEADER.size + len(request)
        header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as line:
            line.settimeout(_TIMEOUT_S)
            line.sendto(header + request, (0, 0))
            answer = line.recv(4096)
    except (OSError, ValueError):
        return None
    if len(answer) < _UID_AT + 8 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    uid, inode = struct.unpack_from("=II", answer, _UID_AT)
    # A socket that its process has closed has no inode, and in older kernels the uid of root.
    return int(uid) if inode else None
