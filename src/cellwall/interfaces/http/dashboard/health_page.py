"""`/ui/health`: whether the service can work, alerts, checks of the host, feeds, and what code can
do under this configuration.

The checks of the host take seconds, so a button starts them; the page shows the last ones.
"""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

import cellwall
from cellwall.admin.audit_queries import weakened
from cellwall.admin.blast_radius import VERBS
from cellwall.admin.packages import Ecosystem, FeedState, feed_state
from cellwall.core.errors import BadInput
from cellwall.core.types import Permission
from cellwall.interfaces.http.alert_routes import add_silence, end_silence, read_alerts
from cellwall.interfaces.http.bodies.alerts import SilenceRequest
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.dashboard import radius_picture
from cellwall.interfaces.http.dashboard.browser import CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.host_routes import compute_blast_radius, read_checks, run_checks

routes = APIRouter(route_class=PageRoute)
_PAGE = "/ui/health"
_HOURS = {"1 hour": 1, "4 hours": 4, "1 day": 24, "7 days": 168}
_CHECK_ORDER = ("missing", "weak", "info", "ok")


@routes.get(_PAGE)
async def health_page(request: Request, browser: CurrentBrowser) -> Response:
    """Checked by working: a cell is made, a record is written, the database is read."""
    service, caller = browser.service, browser.caller
    ready = await service.readiness.check()
    settings, home = service.app.settings, service.app.store.home

    def read() -> dict[str, FeedState]:
        return {each.value: feed_state(settings, home, each) for each in Ecosystem}

    feeds = await anyio.to_thread.run_sync(read, limiter=service.readers)
    alerts = examined = radius = None
    if browser.sees_all:
        alerts = await read_alerts(service, caller)
        radius = await compute_blast_radius(service, caller)
        examined = await read_checks(service, caller)
        examined.checks.sort(key=lambda each: _CHECK_ORDER.index(each.status))
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
        alerts=alerts,
        examined=examined,
        radius=radius,
        picture=None if radius is None else radius_picture.draw(radius),
        picture_size=(radius_picture.WIDTH, radius_picture.HEIGHT),
        centre=radius_picture.CENTRE,
        wall_radius=radius_picture.WALL_RADIUS,
        verbs=VERBS,
        hours=_HOURS,
        may_silence=browser.may(Permission.POLICY_WRITE),
        may_examine=browser.may(Permission.CONFIG_WRITE),
        weakened=weakened(settings) if browser.sees_all else (),
        profile=settings.profile,
        feeds=feeds,
        forwarding=settings.audit.forward is not None,
        version=cellwall.__version__,
    )


@routes.post(_PAGE + "/checks")
async def examine_page(browser: CurrentBrowser) -> Response:
    """Check the host, then show the result."""
    await run_checks(browser.service, browser.caller)
    return RedirectResponse(f"{_PAGE}#host", status_code=303)


@routes.post(_PAGE + "/silences")
async def silence_page(browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Hold messages about an alert back for a while."""
    hours = form.text("hours")
    if hours not in {str(each) for each in _HOURS.values()}:
        raise BadInput("this is not a duration of the list", hint="Choose one of the list.")
    wanted = {
        "rule": form.text("rule"),
        "group": form.text("group"),
        "for_s": float(hours) * 3600,
        "reason": form.text("reason"),
    }
    await add_silence(browser.service, browser.caller, body_of(SilenceRequest, wanted))
    return RedirectResponse(f"{_PAGE}#alerts", status_code=303)


@routes.post(_PAGE + "/silences/{silence_id}/end")
async def end_silence_page(browser: CurrentBrowser, silence_id: str) -> Response:
    """End a silence before its time."""
    await end_silence(browser.service, browser.caller, silence_id)
    return RedirectResponse(f"{_PAGE}#alerts", status_code=303)
