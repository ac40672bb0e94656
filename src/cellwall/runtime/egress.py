"""Egress as configured: allowed domains, bounds, the audit record, values that must not leave."""

# ruff: noqa: PLC0415  # late imports: most runs have no egress, so its modules load with the first session

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cellwall.audit.log import AuditLog
from cellwall.config.egress_sections import read_server
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.core.network import (
    CellNetwork,
    ContentCheck,
    EgressContext,
    KnownValues,
    Page,
    SecretUse,
    ServiceRequest,
    ServiceResponse,
)
from cellwall.core.outcomes import Event, EventKind, Finding, PackageUse, RunResult
from cellwall.core.ports import ApproverPort, EgressPort, PackagesPort, VaultPort
from cellwall.core.types import (
    Action,
    FetchUrl,
    Json,
    Permission,
    Principal,
    Role,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
)
from cellwall.secrets.ownership import shown_name

if TYPE_CHECKING:
    from cellwall.egress.destinations.header_rules import HeaderRule
    from cellwall.egress.limits import EgressSettings
    from cellwall.egress.service import EgressService
    from cellwall.packages.kept_trees import RegistryAnswer
    from cellwall.runtime.destination_questions import DestinationQuestions
    from cellwall.runtime.package_record import PackageRecord
    from cellwall.runtime.package_sessions import PackageSessions
    from cellwall.runtime.registries import RegistryHost

_REACHING = (RunCommand, RunCode, FetchUrl, SetDomains, ServeClient)
"""Operations that reach the network themselves."""
_ASKING = (RunCommand, RunCode, ServeClient)
"""Of them, those whose code may connect to what no rule names."""


@dataclass(frozen=True, slots=True)
class ConfiguredReach:
    """What the configuration gives to every sandbox whose user's role permits it."""

    domains: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    """Package registries."""
    asks_destinations: bool = False
    """A person is asked about destinations that no rule names (NET-9)."""


def domains_of(settings: Settings) -> tuple[str, ...]:
    """The domains that every sandbox may reach; raises `ConfigError` for an invalid one."""
    for text in settings.egress.allow_domains:
        try:
            check_domain(text)
        except BadInput as problem:
            raise ConfigError(
                f"egress.allow_domains: {problem.message}", hint=problem.hint, code=problem.code
            ) from None
    return settings.egress.allow_domains


def check_domain(text: str) -> None:
    """Raise `BadInput` for a text that is not a domain rule."""
    from cellwall.egress.destinations.allowlist import parse_rule

    parse_rule(text)


def with_configuration(action: Action, role: Role, reach: ConfiguredReach) -> Action:
    """The action with what the configuration gives, as far as the role permits it."""
    action = with_configured_domains(action, role, reach.domains)
    action = with_configured_registries(action, role, reach.registries)
    asks = reach.asks_destinations and isinstance(action.operation, _ASKING)
    asks = asks and Permission.NETWORK_USE in role.permissions
    return replace(action, asks_destinations=asks) if action.asks_destinations != asks else action


def with_configured_domains(action: Action, role: Role, domains: tuple[str, ...]) -> Action:
    """The action with the configured domains, if the role permits the network."""
    is_permitted = Permission.NETWORK_USE in role.permissions
    if not is_permitted or not isinstance(action.operation, _REACHING):
        return action
    own = action.allow_domains
    if isinstance(action.operation, FetchUrl) and not own:
        from cellwall.egress.destinations.hostnames import domain_of

        # Exactly this URL was judged and allowed; the targets of its redirects were not.
        own = (domain_of(action.operation.url),)
    return replace(action, allow_domains=(*own, *domains)) if own or domains else action


def with_configured_registries(action: Action, role: Role, registries: tuple[str, ...]) -> Action:
    """The action with the configured package registries, if the role permits to install."""
    is_permitted = Permission.PACKAGES_INSTALL in role.permissions
    if not registries or not is_permitted or not isinstance(action.operation, RunCommand | RunCode):
        return action
    return replace(action, registries=tuple(dict.fromkeys((*action.registries, *registries))))


def open_egress(
    vault: VaultPort,
    egress: EgressPort,
    action: Action,
    *,
    packages: PackagesPort | None = None,
    near: ApproverPort | None = None,
) -> AbstractAsyncContextManager[tuple[CellNetwork | None, Mapping[str, str]]]:
    """The cell's network and environment: placeholders of secrets, never values (SEC-5)."""
    if not (
        action.allow_domains or action.registries or action.secrets or action.asks_destinations
    ):
        return nullcontext((None, action.env))
    return _open_network(vault, egress, action, packages, near)


@asynccontextmanager
async def _open_network(
    vault: VaultPort,
    egress: EgressPort,
    action: Action,
    packages: PackagesPort | None,
    near: ApproverPort | None,
) -> AsyncIterator[tuple[CellNetwork | None, Mapping[str, str]]]:
    asking = nullcontext({}) if packages is None else packages.open(action, near=near)
    async with (
        asking as timeouts,
        vault.lease(action) as secrets,
        egress.session(action, secrets) as network,
    ):
        lent = {shown_name(use.name): use.placeholder for use in secrets}
        yield network, {**network.env, **timeouts, **action.env, **lent}


async def hold_client(
    vault: VaultPort, egress: EgressPort, action: Action, operation: ServeClient
) -> RunResult:
    """Serve a client outside of any sandbox until its operation returns (NET-8).

    The refused connections are findings; no connection is open any more.
    """
    async with open_egress(vault, egress, action) as (network, env):
        if network is None:
            raise BadInput(
                f"the client {operation.client} may reach nothing",
                hint="Name at least one domain with --allow-domain, or in egress.allow_domains.",
                code="CW-BAD-CLIENT",
            )
        await operation.hold(network.files, env)
    return RunResult(None, payload=network.usage, findings=tuple(network.take_findings()))


class ConfiguredEgress:
    """Implements `EgressPort`; the proxy starts with the first session."""

    def __init__(
        self,
        settings: Settings,
        audit: AuditLog,
        known: KnownValues,
        home: str,
        packages: PackageSessions,
        package_record: PackageRecord,
        destinations: DestinationQuestions,
        checks: Sequence[ContentCheck] = (),
    ) -> None:
        self._checks = tuple(checks)
        self._settings, self._audit, self._known = settings, audit, known
        self._home = home
        self._packages = packages
        self._header_rules = _header_rules(settings)
        self._package_record = package_record
        self._destinations = destinations
        self._lock = threading.Lock()
        self._service: EgressService | None = None
        self._registries: Mapping[str, RegistryHost] = {}

    def session(
        self, action: Action, secrets: Sequence[SecretUse]
    ) -> AbstractAsyncContextManager[CellNetwork]:
        return self._open_service().session(action, secrets)

    async def fetch(self, action: Action, secrets: Sequence[SecretUse]) -> Page:
        return await self._open_service().fetch(action, secrets)

    async def request(
        self, action: Action, secrets: Sequence[SecretUse], request: ServiceRequest
    ) -> ServiceResponse:
        return await self._open_service().request(action, secrets, request)

    def allow(self, session_id: str, domains: Sequence[str]) -> None:
        self._open_service().allow(session_id, domains)

    def open_gateway(
        self, who: Principal, listener: socket.socket, *, tokenless: Mapping[str, socket.socket]
    ) -> None:
        """Listen for clients outside of any sandbox; an action admits each of them (NET-8)."""
        context = EgressContext(action_id="", principal=who.name, interface=who.interface)
        self._open_service().open_gateway(context, listener, tokenless=tokenless)

    def end_session(self, session_id: str) -> None:
        if self._service is not None:
            self._service.end_session(session_id)

    def count_packages(self, action_id: str) -> int:
        """How many packages a running action has got from registries so far."""
        return len(self._package_record.served(action_id))

    def take_packages(self, action_id: str) -> tuple[PackageUse, ...]:
        return self._package_record.take(action_id)

    async def repeats(
        self, action: Action, answers: Sequence[RegistryAnswer]
    ) -> tuple[Finding, ...] | None:
        """What the registry of PyPI would report to a cell of the action that makes these requests,
        if each got the same answer now; else None. The packages are then those of the action."""
        findings: dict[str, Finding] = {}

        def report(error: CellwallError) -> None:
            text = f"{error.message} {error.hint}".rstrip()
            findings.setdefault(text, Finding("packages", "medium", text, rule=error.code))

        service = self._open_service()
        ask = partial(self._registries["pypi"].repeats, answers, report=report)
        return tuple(findings.values()) if await service.ask_service(action, ask) else None

    def close(self) -> None:
        if self._service is not None:
            self._service.close()

    def _open_service(self) -> EgressService:
        from cellwall.egress.service import EgressService
        from cellwall.runtime.registries import registry_services

        with self._lock:
            if self._service is None:
                bounds = replace(
                    _bounds(self._settings), header_rules=self._header_rules, checks=self._checks
                )
                self._registries = registry_services(
                    self._settings, self._home, self._packages, self._package_record
                )
                self._service = EgressService(
                    bounds,
                    record=self._record,
                    known=self._known,
                    services=self._registries,
                    consent=self._destinations,
                )
            return self._service

    async def _record(self, body: dict[str, Json], who: EgressContext) -> None:
        await self._audit.record(
            Event(
                EventKind.CONNECTION,
                who.action_id,
                who.principal,
                who.interface,
                {"client": who.client, **body} if who.client else body,
                who.session_id,
            )
        )


def _header_rules(settings: Settings) -> tuple[HeaderRule, ...]:
    """The configured header rules; raises `ConfigError` for an invalid one."""
    if not settings.egress.header_rules:
        return ()
    from cellwall.egress.destinations.header_rules import parse_header_rule

    try:
        return tuple(map(parse_header_rule, settings.egress.header_rules))
    except BadInput as problem:
        raise ConfigError(
            f"egress.header_rules: {problem.message}", hint=problem.hint, code=problem.code
        ) from None


def _bounds(settings: Settings) -> EgressSettings:
    from cellwall.egress.limits import EgressSettings

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
