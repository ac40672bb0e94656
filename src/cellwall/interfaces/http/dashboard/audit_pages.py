"""`/ui/audit`: the record, searched by the function of the API, and its proof (AUD-2)."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin.event_lines import event_lines
from cellwall.core.errors import BadInput, NotFound
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.lookups import AuditPage, AuditStatus
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import with_query
from cellwall.interfaces.http.log_status_routes import audit_status, begin_verification
from cellwall.interfaces.http.lookup_routes import read_audit

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/audit"
_PAGE = 100
_RELATIVE = re.compile(r"([0-9]{1,5})([smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_VERDICTS = {"allow", "ask", "deny"}
_KINDS = {each.value for each in EventKind}
Text = Annotated[str, Query(max_length=200)]


@routes.get(_LIST)
async def audit_page(
    request: Request,
    browser: CurrentBrowser,
    text: Text = "",
    verdict: Text = "",
    kind: Text = "",
    principal: Text = "",
    session: Text = "",
    action: Text = "",
    since: Text = "",
    until: Text = "",
    before: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Records that match all conditions, the newest first."""
    if (verdict and verdict not in _VERDICTS) or (kind and kind not in _KINDS):
        raise BadInput("there is no such verdict or kind", hint="Choose one from the list.")
    filters = {
        "text": text,
        "verdict": verdict,
        "kind": kind,
        "principal": principal,
        "session": session,
        "action": action,
        "since": since,
        "until": until,
    }
    started = time.perf_counter()
    page = await read_audit(
        browser.service,
        browser.caller,
        limit=_PAGE,
        before=before,
        action=action or None,
        session=session or None,
        principal=principal or None,
        since=moment(since),
        until=moment(until),
        text=text or None,
        kind=EventKind(kind) if kind else None,
        verdict=verdict or None,  # type: ignore[arg-type]  # one of the words, as checked above
    )
    return render(
        request,
        "audit.html",
        browser=browser,
        rows=event_lines(page.records),
        filters=filters,
        kinds=sorted(_KINDS),
        looked_to=page.next,
        next=with_query(_LIST, **filters, before=page.next) if page.next else "",
        took_s=time.perf_counter() - started,
        log=await _log_status(browser),
    )


@routes.get(_LIST + "/proof")
async def proof_page(request: Request, browser: CurrentBrowser) -> Response:
    """How the log stands; while a verification runs, scripts load this page again."""
    log = await audit_status(browser.service, browser.caller)
    return render(request, "proof.html", browser=browser, log=log)


@routes.post(_LIST + "/proof")
async def verify_now(browser: CurrentBrowser) -> Response:
    """Begin to verify the whole log; the page shows how far it got."""
    await begin_verification(browser.service, browser.caller)
    return RedirectResponse(f"{_LIST}/proof", status_code=303)


async def _log_status(browser: BrowserSession) -> AuditStatus | None:
    """None for who may not read the record."""
    if not browser.may(Permission.AUDIT_READ):
        return None
    return await audit_status(browser.service, browser.caller)


@routes.get(_LIST + "/{record_id}")
async def record_page(request: Request, browser: CurrentBrowser, record_id: str) -> Response:
    """One record with the others of its action."""
    record = await _find(browser, record_id)
    rows = [record]
    if record["action_id"]:
        rows = (await _page(browser, action=record["action_id"])).records
    return render(request, "record.html", browser=browser, record=record, rows=event_lines(rows))


async def _find(browser: BrowserSession, record_id: str) -> dict[str, Any]:
    found = await _page(browser, record=record_id[:60])
    if not found.records:
        raise NotFound("there is no such record", hint="Check the id, and whose it is.")
    return found.records[0]


async def _page(
    browser: BrowserSession, *, action: str | None = None, record: str | None = None
) -> AuditPage:
    return await read_audit(
        browser.service,
        browser.caller,
        limit=_PAGE,
        before=None,
        action=action,
        session=None,
        principal=None,
        since=None,
        until=None,
        text=None,
        kind=None,
        verdict=None,
        record=record,
    )


def moment(text: str) -> datetime | None:
    """`2d` before now, or a date with or without a time, in UTC."""
    if not text:
        return None
    if (match := _RELATIVE.fullmatch(text.strip())) is not None:
        return datetime.now(UTC) - timedelta(seconds=int(match[1]) * _UNIT_S[match[2]])
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInput("this is not a time", hint="Write 2d, 3h or 2026-01-31.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
