"""The ASGI application of the service: its routes, checks and the lifetime of its sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from fastapi import FastAPI

import cellwall
from cellwall.interfaces.http import file_routes, session_routes
from cellwall.interfaces.http.callers import Authenticator
from cellwall.interfaces.http.gate import BodyTooLarge, Gate
from cellwall.interfaces.http.problems import install_handlers, problem
from cellwall.interfaces.http.sandboxes import OwnedSandboxes
from cellwall.core.outcomes import ErrorInfo
from cellwall.runtime.wiring import App

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.responses import JSONResponse

API = "/v1"
_DESCRIPTION = "Runs commands and code of AI agents in sandboxes, judged, limited and recorded."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What the service allows its clients."""

    hosts: tuple[str, ...]
    """Names under which requests may come, without ports."""
    origins: tuple[str, ...] = ()
    max_sessions_per_user: int = 20
    max_body_bytes: int = 64 * 1024 * 1024


def make_application(app: App, accounts: Authenticator, settings: ServiceSettings) -> FastAPI:
    """The application for one runtime."""

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        app.warm_up()
        async with anyio.create_task_group() as tasks:
            sandboxes = OwnedSandboxes(
                app, max_per_owner=settings.max_sessions_per_user, tasks=tasks
            )
            api.state.sandboxes = sandboxes
            tasks.start_soon(sandboxes.watch)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await sandboxes.close()
                tasks.cancel_scope.cancel()

    api = FastAPI(
        title="Cellwall",
        version=cellwall.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    api.state.accounts = accounts
    install_handlers(api)

    @api.exception_handler(BodyTooLarge)
    async def _too_large(_: Request, __: BodyTooLarge) -> JSONResponse:
        return problem(
            ErrorInfo("CW-TOO-LARGE", "the body is too large", "Send less at once."), 413
        )

    for router in (session_routes.routes, file_routes.routes):
        api.include_router(router, prefix=API)
    api.add_middleware(
        Gate,
        hosts=settings.hosts,
        origins=settings.origins,
        max_body_bytes=settings.max_body_bytes,
    )
    return api
