"""`/ui/health`: whether the service can work, what weakens it, and the feeds."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request, Response

import cellwall
from cellwall.admin.audit_queries import weakened
from cellwall.admin.packages import Ecosystem, FeedState, feed_state
from cellwall.interfaces.http.dashboard.browser import CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute, render

routes = APIRouter(route_class=PageRoute)


@routes.get("/ui/health")
async def health_page(request: Request, browser: CurrentBrowser) -> Response:
    """Checked by working: a cell is made, a record is written, the database is read."""
    service = browser.service
    ready = await service.readiness.check()

    settings, home = service.app.settings, service.app.store.home

    def read() -> dict[str, FeedState]:
        return {each.value: feed_state(settings, home, each) for each in Ecosystem}

    feeds = await anyio.to_thread.run_sync(read, limiter=service.readers)
    return render(
        request,
        "health.html",
        browser=browser,
        ready=ready,
        checks=(
            ("Database", ready.database, "cellwall db check"),
            ("Audit log takes records", ready.audit, "cellwall audit verify"),
            ("A sandbox can be made", ready.sandbox, "cellwall doctor"),
        ),
        weakened=weakened(settings) if browser.sees_all else (),
        profile=settings.profile,
        feeds=feeds,
        forwarding=settings.audit.forward is not None,
        version=cellwall.__version__,
    )
