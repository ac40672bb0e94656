"""`/ui/egress`: who asked for which host, and what came of it (NET-2)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from cellwall.core.outcomes import EventKind
from cellwall.interfaces.http.bodies.lookups import AuditPage
from cellwall.interfaces.http.dashboard.audit_pages import moment
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.lookup_routes import read_audit

routes = APIRouter(route_class=PageRoute)
_MAX_RECORDS = 1000
_MAX_ROWS = 100


@dataclass(slots=True)
class HostUse:
    """Connections to one host."""

    host: str
    opened: int = 0
    refused: int = 0
    who: set[str] = field(default_factory=set)
    session_id: str = ""
    reason: str = ""
    last: str = ""


async def connections(browser: BrowserSession, *, since: str, text: str = "") -> AuditPage:
    """The newest connection records that this person may see."""
    return await read_audit(
        browser.service,
        browser.caller,
        limit=_MAX_RECORDS,
        before=None,
        action=None,
        session=None,
        principal=None,
        since=moment(since),
        until=None,
        text=text or None,
        kind=EventKind.CONNECTION,
        verdict=None,
        record=None,
    )


@routes.get("/ui/egress")
async def egress_page(
    request: Request,
    browser: CurrentBrowser,
    find: Annotated[str, Query(max_length=200)] = "",
    since: Annotated[str, Query(max_length=40)] = "1d",
) -> Response:
    """Hosts by the number of refusals."""
    page = await connections(browser, since=since, text=find)
    hosts = _by_host(page.records)
    return render(
        request,
        "egress.html",
        browser=browser,
        hosts=hosts[:_MAX_ROWS],
        find=find,
        since=since,
        is_partial=page.next is not None,
    )


def _by_host(records: list[dict[str, Any]]) -> list[HostUse]:
    found: defaultdict[str, HostUse] = defaultdict(lambda: HostUse(""))
    for record in records:  # the newest first
        body = record["body"]
        host = body.get("host")
        if not isinstance(host, str) or str(body.get("event", "")).startswith("package-"):
            continue
        use = found[host]
        if not use.host:
            use.host, use.last, use.session_id = host, record["time"], record["session_id"]
        use.who.add(record["principal"])
        if body.get("event") == "refused":
            use.refused += 1
            use.reason = use.reason or str(body.get("reason", ""))
        elif body.get("event") != "closed":
            use.opened += 1
    return sorted(found.values(), key=lambda use: (-use.refused, -use.opened, use.host))
