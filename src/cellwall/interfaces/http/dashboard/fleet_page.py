"""`/ui/fleet`: the hosts behind this address, their load and versions, lost and draining ones.

The page shows what `GET /v1/fleet/hosts` gives. Hosts are drained and removed on the command line.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from cellwall.interfaces.http.dashboard.browser import CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.fleet_routes import list_hosts

routes = APIRouter(route_class=PageRoute)
_MAX_ROWS = 200
_ORDER = ("lost", "drains", "serves")
"""What an operator has to look at comes first, and is never behind the bound of the page."""


@routes.get("/ui/fleet")
async def fleet_page(request: Request, browser: CurrentBrowser) -> Response:
    """All hosts, or the one host of a service without a fleet."""
    found = await list_hosts(browser.service, browser.caller)
    hosts = sorted(found.hosts, key=lambda each: (_ORDER.index(each.state), each.id))
    live = [each for each in hosts if each.state != "lost"]
    return render(
        request,
        "fleet.html",
        browser=browser,
        is_fleet=found.is_fleet,
        hosts=hosts[:_MAX_ROWS],
        hidden=max(0, len(hosts) - _MAX_ROWS),
        counts={state: sum(each.state == state for each in hosts) for state in _ORDER},
        sessions=sum(each.sessions for each in live),
        busy=sum(each.busy for each in live),
        memory_free_bytes=sum(each.memory_free_bytes for each in live),
        memory_bytes=sum(each.memory_bytes for each in live),
        versions=sorted({each.version for each in live}),
        policies=sorted({each.policy_version or 0 for each in live}),
    )
