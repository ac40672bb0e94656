"""The sections about what leaves: the way out of the sandboxes, and the secrets on it."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import (
    PATH_MOST_BYTES,
    Section,
    Size,
    listed,
    number,
    one_of,
    size,
    word,
)
from cellwall.core.limits import GIB, KIB, MIB

_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+)(?::(\d{1,5}))?")
_DNS_PORT = 53


def read_server(text: str) -> tuple[str, int] | None:
    """An address with an optional port: `192.0.2.1`, `[2001:db8::1]:5353`."""
    found = _SERVER.fullmatch(text)
    if found is None:
        return None
    host, port = found[1].strip("[]"), int(found[2] or _DNS_PORT)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return (host, port) if 0 < port < 65_536 else None


def _check_server(text: str) -> str:
    if read_server(text) is None:
        raise PydanticCustomError(
            "server", 'is not the address of a server. Write for example "192.0.2.53:53".'
        )
    return text


def _check_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise PydanticCustomError(
            "network", 'is not a network. Write for example "10.1.2.0/24" or "10.1.2.3/32".'
        ) from None
    return text


class EgressSection(Section):
    """The way out of the sandboxes, for those that have one (NET-2 to NET-7)."""

    allow_domains: tuple[Annotated[str, Field(max_length=1024)], ...] = listed(
        (),
        "what every sandbox and fetch may reach, beside what a person names for one of them",
        most=10_000,
    )
    header_rules: tuple[Annotated[str, Field(max_length=2048)], ...] = listed(
        (),
        "headers that requests must have, must not have or are given, as in "
        "`api.example.com forbid x-admin`; TLS to such hosts is opened",
        most=1000,
    )
    max_connections: int = number(
        256, "connections of one sandbox at a time; ends floods", least=1, most=65_536
    )
    max_total_connections: int = number(
        10_000, "connections of one sandbox in its whole life", least=1, most=100_000_000
    )
    max_upload_bytes: Size = size(
        64 * MIB,
        "what one sandbox may send in all; bounds what can be carried out",
        least=KIB,
        most=1024 * GIB,
    )
    max_download_bytes: Size = size(
        4 * GIB, "what one sandbox may receive in all", least=KIB, most=1024 * GIB
    )
    bytes_per_s: Size = size(
        512 * MIB, "bandwidth of one sandbox, both ways together", least=KIB, most=1024 * GIB
    )
    connect_timeout_s: float = number(
        10.0, "for the name's addresses and the connection to one of them", least=0.1, most=300.0
    )
    head_timeout_s: float = number(
        15.0,
        "for the first words of a connection or request; ends slow ones",
        least=0.1,
        most=300.0,
    )
    idle_timeout_s: float = number(
        120.0, "a connection on which nothing moves is closed", least=0.1, most=86_400.0
    )
    dns_servers: tuple[Annotated[str, AfterValidator(_check_server)], ...] = listed(
        (), "servers that resolve names; left out, the system's own", most=8
    )
    fetch_max_bytes: Size = size(
        10 * MIB, "a fetched page is cut at this size", least=KIB, most=GIB
    )
    fetch_timeout_s: float = number(
        30.0, "for a page with all its redirects", least=0.1, most=3600.0
    )
    dangerously_allow_addresses: tuple[Annotated[str, AfterValidator(_check_network)], ...] = (
        listed(
            (),
            "private networks that allowed names may lead to, such as a mirror's; all else that is "
            "not public stays refused",
            most=64,
        )
    )


def _check_absolute(text: str) -> str:
    if not text.startswith("/") or not text.isprintable() or len(text.encode()) > PATH_MOST_BYTES:
        raise PydanticCustomError("path", "is not an absolute path.")
    return text


class VaultSection(Section):
    """The vault (SEC-1). What opens it is chosen with `vault init` and stands in the vault."""

    key: Annotated[str, one_of("passphrase", "file", "keyring", "command")] = word(
        "what opens it: a passphrase, a file with a key, the system's key ring, or what a command "
        "prints",
        "passphrase",
        "file",
        "keyring",
        "command",
    )
    key_file: Annotated[str, AfterValidator(_check_absolute)] | None = Field(
        default=None, description="the file with the key, of mode 0600", max_length=4096
    )
    key_command: tuple[Annotated[str, Field(max_length=4096)], ...] = listed(
        (),
        "a program and its arguments that print the key, such as a client of a KMS; its absolute "
        "path, or a name in the system's own places (PATH is not searched)",
        most=32,
    )
    argon2_memory_kib: int = number(
        65_536, "memory for one guess of the passphrase", least=8, most=4_194_304
    )
    argon2_passes: int = number(3, "passes over it", least=1, most=100)
    argon2_lanes: int = number(4, "lanes at once", least=1, most=64)
