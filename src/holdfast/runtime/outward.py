"""The way out as configured: its bounds, its record, what must never leave by it."""

from __future__ import annotations

import ipaddress

from holdfast.audit.log import AuditLog
from holdfast.config.models import Settings
from holdfast.config.outward import read_server
from holdfast.core.errors import BadInput, ConfigError
from holdfast.core.events import Event, EventKind
from holdfast.core.network import KnownValues, Traveller
from holdfast.core.types import Json
from holdfast.egress.allowlist import parse_rule
from holdfast.egress.service import EgressService
from holdfast.egress.settings import EgressSettings


def domains_of(settings: Settings) -> tuple[str, ...]:
    """What every sandbox may reach; raises `ConfigError` for what is not a domain."""
    for text in settings.egress.allow_domains:
        try:
            parse_rule(text)
        except BadInput as problem:
            raise ConfigError(
                f"egress.allow_domains: {problem.message}", mend=problem.mend, code=problem.code
            ) from None
    return settings.egress.allow_domains


def open_egress(settings: Settings, audit: AuditLog, known: KnownValues) -> EgressService:
    """Nothing runs until the first session."""

    def record(body: dict[str, Json], who: Traveller) -> None:
        audit.write(
            Event(
                EventKind.CONNECTION,
                who.action_id,
                who.principal,
                who.interface,
                body,
                who.session_id,
            )
        )

    return EgressService(_bounds(settings), record=record, known=known)


def _bounds(settings: Settings) -> EgressSettings:
    egress = settings.egress
    servers = [read_server(text) for text in egress.dns_servers]
    return EgressSettings(
        max_connections=egress.max_connections,
        max_total_connections=egress.max_total_connections,
        max_upload_bytes=egress.max_upload_bytes,
        max_download_bytes=egress.max_download_bytes,
        bytes_per_s=egress.bytes_per_s,
        connect_timeout_s=egress.connect_timeout_s,
        head_timeout_s=egress.head_timeout_s,
        idle_timeout_s=egress.idle_timeout_s,
        dns_servers=tuple(server for server in servers if server is not None),
        fetch_max_bytes=egress.fetch_max_bytes,
        fetch_timeout_s=egress.fetch_timeout_s,
        dangerously_allow_addresses=tuple(
            map(ipaddress.ip_network, egress.dangerously_allow_addresses)
        ),
    )
