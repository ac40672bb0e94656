"""All pages of the dashboard. A new page is a module with `routes`, named here, and an entry of
`NAVIGATION` in `pages`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from cellwall.core.errors import NotFound
from cellwall.interfaces.http.dashboard import (
    approval_pages,
    assets,
    audit_pages,
    egress_page,
    fleet_page,
    health_page,
    now_page,
    packages_page,
    people_page,
    policy_page,
    secrets_page,
    servers_page,
    session_pages,
    sign_in_pages,
)
from cellwall.interfaces.http.dashboard.browser import CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute

_missing = APIRouter(route_class=PageRoute)


@_missing.get("/ui/{path:path}")
async def no_such_page(_request: Request, _browser: CurrentBrowser, path: str) -> Response:
    """Any other address below `/ui`; the last route of all."""
    raise NotFound(f"there is no page {path[:60]!r}", hint="Choose one from the list of pages.")


def dashboard_routers() -> tuple[APIRouter, ...]:
    """In the order in which addresses are matched."""
    return (
        assets.routes,
        sign_in_pages.routes,
        now_page.routes,
        approval_pages.routes,
        session_pages.routes,
        audit_pages.routes,
        policy_page.routes,
        egress_page.routes,
        secrets_page.routes,
        packages_page.routes,
        servers_page.routes,
        health_page.routes,
        fleet_page.routes,
        people_page.routes,
        _missing,
    )
