"""`/ui/sessions`: sandboxes with their timeline, output, files, egress and packages.

The owner and the owner's team see all of a session. Who may read the record sees its records, as
in the log, and neither files nor output (RBAC-3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin import audit_queries
from cellwall.admin.live_view import happenings
from cellwall.core.errors import NotFound
from cellwall.core.files import FileOperation
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.sessions import Session
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import with_query
from cellwall.interfaces.http.problems import RefusedOutcome, raise_for_refusal
from cellwall.interfaces.http.sandboxes import OwnedSandbox
from cellwall.interfaces.http.session_routes import end_session, get_session, list_sessions

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/sessions"
_ONE = _LIST + "/{session_id}"
_PAGE = 100
_MAX_ENTRIES = 300
_MAX_CONNECTIONS = 2000


@dataclass(frozen=True, slots=True)
class AskedHost:
    """A host that a session asked for."""

    host: str
    is_refused: bool
    count: int


@routes.get(_LIST)
async def sessions_page(
    request: Request,
    browser: CurrentBrowser,
    state: Literal["live", "all"] = "live",
    after: Annotated[str, Query(max_length=60)] = "",
) -> Response:
    """The sandboxes of the person and of the person's teams."""
    page = await list_sessions(
        browser.service, browser.caller, state=state, limit=_PAGE, after=after
    )
    return render(
        request,
        "sessions.html",
        browser=browser,
        state=state,
        sessions=page.sessions,
        next=with_query(_LIST, state=state, after=page.next) if page.next else "",
        address=browser.service.settings.public_url,
    )


@routes.get(_ONE)
async def session_page(
    request: Request,
    browser: CurrentBrowser,
    session_id: str,
    folder: Annotated[str, Query(max_length=4096)] = "",
    before: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """One session. Its files are listed only where a folder is named: to list is an action of its
    own, which is recorded and keeps the sandbox alive."""
    session = await _own_session(browser, session_id)
    sandbox = _live_sandbox(browser, session_id) if session is not None else None
    records, connections = await anyio.to_thread.run_sync(
        _read, browser, session_id, before, limiter=browser.service.readers
    )
    if session is None and not records:
        raise NotFound("there is no such session", hint="Check the id, and who owns it.")
    entries: list[dict[str, Any]] = []
    trouble = ""
    if sandbox is not None and folder:
        entries, trouble = await _entries(browser, sandbox, folder)
    page = records[:_PAGE]
    following = ""
    if len(records) > _PAGE:
        following = with_query(f"{_LIST}/{quote(session_id)}", before=page[-1]["seq"])
    return render(
        request,
        "session.html",
        browser=browser,
        session_id=session_id,
        session=session,
        is_live=sandbox is not None,
        rows=happenings([browser.service.paths.hide(each) for each in page]),
        next=following,
        output="" if sandbox is None else sandbox.runs.output(),
        usage=None
        if sandbox is None
        else browser.service.app.runtime.sandbox.live_usage(session_id),
        folder=folder,
        parent=folder.rstrip("/").rpartition("/")[0] or ".",
        entries=entries,
        files_error=trouble,
        hosts=_hosts(connections),
        packages=_packages(connections),
        findings=_findings(page),
        may_end=browser.may(Permission.SANDBOX_EXECUTE),
    )


@routes.post(_ONE + "/end")
async def end_page(browser: CurrentBrowser, session_id: str) -> Response:
    """End a session with everything in it."""
    await end_session(browser.service, browser.caller, session_id, erase=False)
    return RedirectResponse(_LIST, status_code=303)


async def _own_session(browser: BrowserSession, session_id: str) -> Session | None:
    """None where the session is another user's and this person may read its records."""
    try:
        return await get_session(browser.service, browser.caller, session_id)
    except NotFound:
        if not browser.sees_all:
            raise
        return None


def _live_sandbox(browser: BrowserSession, session_id: str) -> OwnedSandbox | None:
    try:
        return browser.service.sandboxes.look(browser.caller.identity, session_id)
    except NotFound:
        return None


Records = list[dict[str, Any]]


def _read(
    browser: BrowserSession, session_id: str, before: int | None
) -> tuple[Records, Sequence[Mapping[str, Any]]]:
    """A page of the records, the newest first, and the connections among the newest ones."""
    app = browser.service.app
    query = audit_queries.Query(session_id=session_id)
    found = audit_queries.newest(query, home=app.store.home, keys=app.keys)
    seen = list(islice(found, _MAX_CONNECTIONS + _PAGE))
    page = [each for each in seen if before is None or each["seq"] < before]
    connections = [each["body"] for each in seen if each["kind"] == "connection"]
    return page[: _PAGE + 1], connections


async def _entries(
    browser: BrowserSession, sandbox: OwnedSandbox, folder: str
) -> tuple[list[dict[str, Any]], str]:
    """The entries of a folder, by an action of this person; a refusal is told in their place."""
    operation = FileOperation("list", folder)
    try:
        outcome = raise_for_refusal(await sandbox.perform(browser.caller.principal, operation))
    except RefusedOutcome as refused:
        return [], browser.hide(refused.error.message)
    listed: Any = outcome.payload
    found = [
        {
            "name": each.name,
            "path": each.path,
            "address": quote(each.path),
            "kind": each.kind,
            "size": each.size_bytes,
            "modified": each.modified_s,
        }
        for each in islice(listed, _MAX_ENTRIES)
    ]
    return found, ""


def _hosts(connections: Sequence[Mapping[str, Any]]) -> list[AskedHost]:
    counted: Counter[tuple[str, bool]] = Counter()
    for body in connections:
        if "host" in body:
            counted[str(body["host"]), body.get("event") == "refused"] += 1
    return [AskedHost(host, is_refused, n) for (host, is_refused), n in counted.most_common(20)]


def _packages(connections: Sequence[Mapping[str, Any]]) -> list[str]:
    names = (
        f"{body.get('ecosystem', '')} {body.get('name', '')} {body.get('version', '')}"
        for body in connections
        if body.get("event") == "package-served"
    )
    return list(dict.fromkeys(names))[:50]


def _findings(records: Records) -> list[dict[str, Any]]:
    """What the guard found, the newest first."""
    found: list[dict[str, Any]] = []
    for record in records:
        listed = record["body"].get("findings")
        found += [each for each in listed if isinstance(each, dict)] if listed else []
    return found[:20]
