"""The ASGI application of the service: its routes, checks and the lifetime of its sandboxes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from fastapi import APIRouter, FastAPI
from starlette.types import Lifespan

import cellwall
from cellwall.admin.accounts import Accounts
from cellwall.admin.connections import ConnectionAdmin
from cellwall.admin.kept_workspaces import KeepBounds
from cellwall.admin.live_view import LiveView
from cellwall.admin.messages import Inbox
from cellwall.admin.owned_secrets import OwnedSecrets
from cellwall.core.messages import SessionStore
from cellwall.interfaces.e2b.access import identity_of_traffic
from cellwall.interfaces.e2b.routes import e2b_routes
from cellwall.interfaces.e2b.state import E2bState
from cellwall.interfaces.http import (
    account_routes,
    alert_routes,
    approval_routes,
    auth_routes,
    budget_routes,
    connection_routes,
    credential_routes,
    egress_routes,
    file_routes,
    fleet_routes,
    health_routes,
    host_routes,
    inventory_routes,
    log_status_routes,
    lookup_routes,
    message_routes,
    metrics_routes,
    oidc_routes,
    passkey_routes,
    policy_routes,
    port_routes,
    run_routes,
    secret_routes,
    session_routes,
    snapshot_routes,
    stop_routes,
    terminal,
    tool_server_routes,
)
from cellwall.interfaces.http.approval_records import ApprovalRecords
from cellwall.interfaces.http.dashboard.page_list import dashboard_routers
from cellwall.interfaces.http.forwarded import ForwardedClients
from cellwall.interfaces.http.gate import Gate
from cellwall.interfaces.http.host_examination import HostExaminer
from cellwall.interfaces.http.kept_sessions import KeptSessions
from cellwall.interfaces.http.mcp_routes import mcp_endpoint, mcp_routes
from cellwall.interfaces.http.presence import ServicePresence
from cellwall.interfaces.http.problems import install_handlers
from cellwall.interfaces.http.readiness import ReadinessProbe
from cellwall.interfaces.http.rendering import HostPaths
from cellwall.interfaces.http.sandbox_usages import SandboxUsages
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.interfaces.http.service import Service, ServiceSettings
from cellwall.interfaces.http.shipped_policy import default_policy
from cellwall.interfaces.http.spools import Spools
from cellwall.interfaces.previews.hosts import PreviewHosts
from cellwall.runtime.app import App

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

__all__ = ["API", "Service", "ServiceSettings", "described_api", "make_application"]

API = "/v1"
_DESCRIPTION = "Runs commands and code of AI agents in sandboxes, judged, limited and recorded."
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "auto_configure": False,
}
"""FastAPI's own, which an environment variable would turn on: what leaves is in [observability]."""
_log = logging.getLogger("cellwall.http")


def routers() -> tuple[tuple[str, APIRouter], ...]:
    """All routes, each router with its prefix. What is new is added here and nowhere else.

    No path is in two of them. Each request tries one after the other, so the routes of runs come
    first: 40 routes before them took 0.3 ms.
    """
    return (
        (API, run_routes.routes),
        (API, session_routes.routes),
        (API, auth_routes.routes),
        (API, oidc_routes.routes),
        (API, passkey_routes.routes),
        (API, account_routes.routes),
        (API, credential_routes.routes),
        (API, budget_routes.routes),
        (API, file_routes.routes),
        (API, snapshot_routes.routes),
        (API, terminal.routes),
        (API, port_routes.routes),
        (API, approval_routes.routes),
        (API, secret_routes.routes),
        (API, message_routes.routes),
        (API, connection_routes.routes),
        (API, lookup_routes.routes),
        (API, log_status_routes.routes),
        (API, policy_routes.routes),
        (API, egress_routes.routes),
        (API, inventory_routes.routes),
        (API, tool_server_routes.routes),
        (API, alert_routes.routes),
        (API, stop_routes.routes),
        (API, host_routes.routes),
        (API, fleet_routes.routes),
        (API, health_routes.routes),
        ("", health_routes.routes),
        (API, metrics_routes.routes),
        ("", metrics_routes.routes),
        *(("", router) for router in dashboard_routers()),
    )


def described_api(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """All routes of the OpenAPI document; without a lifespan no request can be served."""
    api = FastAPI(
        title="Cellwall",
        version=cellwall.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # a redirect would drop the body and repeat the Host header
        telemetry=_NO_TELEMETRY,
    )
    install_handlers(api)
    for prefix, router in routers():
        api.include_router(router, prefix=prefix, include_in_schema=bool(prefix))
    return api


def make_application(
    app: App, accounts: Accounts, settings: ServiceSettings, *, store: SessionStore
) -> FastAPI:
    """The application for one runtime. `accounts` and `store` are those of `open_accounts`."""
    app = app.metered(accounts.quotas)
    mcp = mcp_endpoint(app, accounts, settings, store)

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        app.warm_up()
        presence = ServicePresence(store)
        await presence.begin()
        approvals = ApprovalRecords(store)
        async with anyio.create_task_group() as tasks:
            sandboxes = OwnedSandboxes(
                app,
                store,
                max_per_owner=settings.max_sessions_per_user,
                tasks=tasks,
                tenant=settings.tenant,
                labels=settings.labels,
            )
            api.state.service = Service(
                app=app,
                accounts=accounts,
                store=store,
                settings=settings,
                sandboxes=sandboxes,
                kept=KeptSessions(
                    app,
                    store,
                    sandboxes,
                    KeepBounds(
                        max_count=settings.max_kept_per_user,
                        max_bytes=settings.max_kept_bytes_per_user,
                    ),
                ),
                approvals=approvals,
                readiness=ReadinessProbe(app, store, sandboxes),
                paths=HostPaths.of(app),
                spools=Spools(app.store.home, max_file_bytes=settings.max_file_bytes),
                inbox=Inbox(
                    app.runtime,
                    store,
                    accounts.pairings,
                    app.settings,
                    policy=default_policy(app),
                    owns=sandboxes.is_owner,
                ),
                connections=ConnectionAdmin(app.store.home, app.settings),
                secrets=OwnedSecrets(app.store.home, app.settings, audit=app.audit),
                live=LiveView(app.store.home, app.keys),
                usages=SandboxUsages(app, sandboxes),
                examiner=HostExaminer(app, settings.public_url),
            )
            api.state.e2b = E2bState(sandboxes, tasks)
            tasks.start_soon(sandboxes.watch)
            tasks.start_soon(approvals.run)
            tasks.start_soon(presence.run)
            tasks.start_soon(app.runtime.meter.watch)
            try:
                with api.state.service.board.served(approvals):
                    async with mcp.running():
                        yield
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(api.state.service.live.close)
                    await sandboxes.close()
                    await approvals.save()
                    await app.runtime.meter.book()
                    await presence.end()
                tasks.cancel_scope.cancel()

    api = described_api(lifespan)
    # First: each request tries the patterns in order, and the routers below have 160.
    api.router.routes[:0] = [*e2b_routes(), *mcp_routes(mcp)]
    api.state.mcp = mcp
    api.add_middleware(
        Gate,
        hosts=settings.hosts,
        origins=settings.origins,
        max_body_bytes=settings.max_body_bytes,
        max_file_bytes=settings.max_file_bytes,
        is_https=settings.is_https,
        count_request=accounts.count_request,
    )
    if settings.preview_domain:
        # Before the gate: under these names no route of the service exists.
        api.add_middleware(
            PreviewHosts,
            domain=settings.preview_domain,
            is_https=settings.is_https,
            count_request=accounts.count_request,
            identity_of=identity_of_traffic,
        )
    api.add_middleware(ForwardedClients, proxies=settings.trusted_proxies)
    # Added last: the outermost.
    api.add_middleware(metrics_routes.ObservedRequests, telemetry=app.telemetry)
    return api
