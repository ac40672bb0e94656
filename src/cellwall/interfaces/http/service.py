"""What the routes share: one runtime, its accounts, and the live sandboxes of all users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self
from urllib.parse import urlsplit

import anyio
from fastapi import Depends
from starlette.requests import HTTPConnection

from cellwall.admin.accounts import Accounts
from cellwall.admin.connections import ConnectionAdmin
from cellwall.admin.live_view import LiveView
from cellwall.admin.messages import Inbox
from cellwall.admin.owned_secrets import OwnedSecrets
from cellwall.config.server_section import ServerSection, is_loopback
from cellwall.core.messages import SessionStore
from cellwall.interfaces.http.approval_records import ApprovalRecords
from cellwall.interfaces.http.audit_verification import AuditVerification
from cellwall.interfaces.http.host_examination import HostExaminer
from cellwall.interfaces.http.kept_sessions import KeptSessions
from cellwall.interfaces.http.readiness import ReadinessProbe
from cellwall.interfaces.http.rendering import HostPaths
from cellwall.interfaces.http.sandbox_usages import SandboxUsages
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.interfaces.http.spools import Spools
from cellwall.interfaces.http.waiting import WaitingRequests
from cellwall.interfaces.previews.grants import PreviewGrants
from cellwall.runtime.app import App
from cellwall.runtime.approval_board import ApprovalBoard
from cellwall.runtime.approvals import ApprovalBroker

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What the service allows its clients."""

    hosts: tuple[str, ...]
    """Names under which requests may come, without ports."""
    public_url: str = "http://127.0.0.1"
    """The address that clients use, without a slash at its end; the issuer of tokens."""
    origins: tuple[str, ...] = ()
    """Pages of these origins may use the service as well."""
    trusted_proxies: tuple[str, ...] = ()
    """What these addresses append to `X-Forwarded-For` is believed."""
    tenant: str = ""
    """The host is reserved for the members of this team: its id; empty for everybody."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the host, by which sessions choose it."""
    max_sessions_per_user: int = 20
    max_kept_per_user: int = 20
    max_kept_bytes_per_user: int = 10 * 1024 * _MIB
    max_body_bytes: int = 16 * _MIB
    max_file_bytes: int = 64 * _MIB
    """The body of a written file."""

    preview_domain: str = "localhost"
    """Servers inside sandboxes have names below it, as other origins; empty: there are none."""

    @classmethod
    def configured(cls, server: ServerSection, *, names: Iterable[str], public_url: str) -> Self:
        """As the section says. `names`: values of `Host` that are accepted."""
        previews = server.preview_domain
        if not previews and is_loopback(urlsplit(public_url).hostname or ""):
            previews = "localhost"  # browsers resolve names below it to loopback (RFC 6761)
        return cls(
            hosts=tuple(names),
            public_url=public_url,
            origins=server.origins,
            trusted_proxies=server.trusted_proxies,
            max_sessions_per_user=server.max_sessions_per_user,
            max_kept_per_user=server.max_kept_per_user,
            max_kept_bytes_per_user=server.max_kept_bytes_per_user,
            max_body_bytes=server.max_body_bytes,
            max_file_bytes=server.max_file_bytes,
            preview_domain=previews,
        )

    @property
    def preview_authority(self) -> str:
        """The domain with the port of the service, if that is not the usual one."""
        port = urlsplit(self.public_url).port
        return self.preview_domain if port is None else f"{self.preview_domain}:{port}"

    @property
    def audience(self) -> str:
        """Of the access tokens for this API."""
        return f"{self.public_url}/v1"

    @property
    def mcp_url(self) -> str:
        """The address of MCP over HTTP, and the audience of its access tokens."""
        return f"{self.public_url}/mcp"

    @property
    def is_https(self) -> bool:
        return self.public_url.startswith("https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The state of one running service. Routes get it as `CurrentService`."""

    app: App
    accounts: Accounts
    store: SessionStore
    settings: ServiceSettings
    sandboxes: OwnedSandboxes
    kept: KeptSessions
    approvals: ApprovalRecords
    readiness: ReadinessProbe
    secrets: OwnedSecrets
    inbox: Inbox
    connections: ConnectionAdmin
    paths: HostPaths
    spools: Spools
    live: LiveView
    usages: SandboxUsages
    examiner: HostExaminer
    readers: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(2))
    """Threads for reading the record and for scans; more would starve the runs."""

    previews: PreviewGrants = field(default_factory=PreviewGrants)
    waiting: WaitingRequests = field(default_factory=WaitingRequests)
    verification: AuditVerification = field(default_factory=AuditVerification)

    @property
    def board(self) -> ApprovalBoard:
        """The open questions of this process."""
        broker = self.app.runtime.approvals
        assert isinstance(broker, ApprovalBroker)  # noqa: S101  # by `open_app`
        return broker.board


def service_of(connection: HTTPConnection) -> Service:
    """The service of a request or a WebSocket; set while the application runs."""
    found: Service = connection.app.state.service
    return found


async def _current_service(connection: HTTPConnection) -> Service:
    """A coroutine: FastAPI would call a plain function in a thread, for each request."""
    return service_of(connection)


CurrentService = Annotated[Service, Depends(_current_service)]
