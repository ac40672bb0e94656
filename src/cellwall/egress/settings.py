"""The limits of egress, from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from cellwall.core.limits import GIB, MIB
from cellwall.egress.destinations.header_rules import HeaderRule


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSettings:
    """The same for each session; `[egress]` in the configuration gives the reasons."""

    max_connections: int = 256
    max_total_connections: int = 10_000
    max_upload_bytes: int = 64 * MIB
    max_download_bytes: int = 4 * GIB
    bytes_per_s: int = 512 * MIB
    connect_timeout_s: float = 10.0
    head_timeout_s: float = 15.0
    idle_timeout_s: float = 120.0
    dns_servers: tuple[tuple[str, int], ...] = ()
    """Empty: the system's resolver."""
    fetch_max_bytes: int = 10 * MIB
    fetch_timeout_s: float = 30.0
    dangerously_allow_addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    header_rules: tuple[HeaderRule, ...] = ()
