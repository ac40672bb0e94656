"""The sections of egress and of the vault."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import (
    Section,
    Size,
    absolute_path,
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
    """Network access of sandboxes (NET-2 to NET-7)."""

    allow_domains: tuple[Annotated[str, Field(max_length=1024)], ...] = listed(
        (),
        "domains that every sandbox and fetch may reach, beside those named for one run",
        most=10_000,
    )
    header_rules: tuple[Annotated[str, Field(max_length=2048)], ...] = listed(
        (),
        "headers that requests must have, must not have or get added, as in "
        "`api.example.com forbid x-admin`; TLS to such hosts is intercepted",
        most=1000,
    )
    max_connections: int = number(
        256, "concurrent connections of one sandbox; ends floods", least=1, most=65_536
    )
    max_total_connections: int = number(
        10_000, "connections of one sandbox in its lifetime", least=1, most=100_000_000
    )
    max_upload_bytes: Size = size(
        64 * MIB,
        "total upload of one sandbox; bounds exfiltration",
        least=KIB,
        most=1024 * GIB,
    )
    max_download_bytes: Size = size(
        4 * GIB, "total download of one sandbox", least=KIB, most=1024 * GIB
    )
    bytes_per_s: Size = size(
        512 * MIB, "bandwidth of one sandbox, both directions together", least=KIB, most=1024 * GIB
    )
    connect_timeout_s: float = number(
        10.0, "for the DNS lookup and the connection to one address", least=0.1, most=300.0
    )
    head_timeout_s: float = number(
        15.0,
        "for the first bytes of a connection or request; ends slow-loris clients",
        least=0.1,
        most=300.0,
    )
    idle_timeout_s: float = number(
        120.0, "an idle connection is closed after this time", least=0.1, most=86_400.0
    )
    dns_servers: tuple[Annotated[str, AfterValidator(_check_server)], ...] = listed(
        (), "DNS servers; left out, those of the system", most=8
    )
    fetch_max_bytes: Size = size(
        10 * MIB, "a fetched page is truncated at this size", least=KIB, most=GIB
    )
    fetch_timeout_s: float = number(
        30.0, "for a page with all its redirects", least=0.1, most=3600.0
    )
    dangerously_allow_addresses: tuple[Annotated[str, AfterValidator(_check_network)], ...] = (
        listed(
            (),
            "private networks to which allowed names may resolve, such as a mirror's; other "
            "addresses that are not public stay blocked",
            most=64,
        )
    )


class VaultSection(Section):
    """The vault (SEC-1). `vault init` chooses the key source, and the vault stores it."""

    key: Annotated[str, one_of("passphrase", "file", "keyring", "command")] = word(
        "the key source: a passphrase, a file with a key, the system's keyring, or the output of "
        "a command",
        "passphrase",
        "file",
        "keyring",
        "command",
    )
    key_file: Annotated[str, absolute_path()] | None = Field(
        default=None, description="the file with the key, of mode 0600", max_length=4096
    )
    key_command: tuple[Annotated[str, Field(max_length=4096)], ...] = listed(
        (),
        "a program and its arguments that print the key, such as a client of a KMS; its absolute "
        "path, or a name in the system's program directories (PATH is not searched)",
        most=32,
    )
    argon2_memory_kib: int = number(
        65_536, "Argon2id memory for one passphrase guess", least=8, most=4_194_304
    )
    argon2_passes: int = number(3, "Argon2id passes", least=1, most=100)
    argon2_lanes: int = number(4, "Argon2id lanes", least=1, most=64)
