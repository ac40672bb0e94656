"""`/ui/packages`: packages that were installed or refused, with the reasons, and a verdict on
request (PKG-1)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from cellwall.core.errors import CellwallError
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.bodies.lookups import VerifyRequest
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.egress_page import connections
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.lookup_routes import verify_packages

routes = APIRouter(route_class=PageRoute)
_MAX_ROWS = 100


@routes.get("/ui/packages")
async def packages_page(
    request: Request,
    browser: CurrentBrowser,
    name: Annotated[str, Query(max_length=200)] = "",
    ecosystem: Annotated[str, Query(max_length=10)] = "pypi",
    since: Annotated[str, Query(max_length=40)] = "30d",
) -> Response:
    """What was asked for, the newest first."""
    page = await connections(browser, since=since, text="package-")
    rows = [
        {**each["body"], "record": each["id"], "at": each["time"], "session": each["session_id"]}
        for each in page.records
        if str(each["body"].get("event", "")).startswith("package-")
    ]
    verdict, trouble = None, ""
    if name and browser.may(Permission.SANDBOX_EXECUTE):
        verdict, trouble = await _verify(browser, name, ecosystem)
    return render(
        request,
        "packages.html",
        browser=browser,
        rows=rows[:_MAX_ROWS],
        name=name,
        ecosystem=ecosystem if ecosystem in {"pypi", "npm"} else "pypi",
        since=since,
        verdict=verdict,
        trouble=trouble,
    )


async def _verify(browser: BrowserSession, name: str, ecosystem: str) -> tuple[Any, str]:
    """The verdict, without asking the registry: a page must not wait for another service."""
    kind = "npm" if ecosystem == "npm" else "pypi"
    wanted = body_of(VerifyRequest, {"ecosystem": kind, "packages": [name], "offline": True})
    try:
        found = await verify_packages(browser.service, browser.caller, wanted)
    except CellwallError as error:
        return None, error.message
    return found.packages[0], ""
