"""`/ui/sessions`: sandboxes with their timeline, output, changes, files, egress and packages.

The owner and the owner's team see all of a session. Who may read the record sees its records, as
in the log, and neither files nor output (RBAC-3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin import audit_queries
from cellwall.admin.event_lines import event_lines
from cellwall.core.errors import NotFound
from cellwall.core.files import FileOperation
from cellwall.core.labels import Label, LabelSet
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.sessions import DiffBody, Session
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.diff_view import diff_files
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.session_facts import (
    asked_hosts,
    guard_findings,
    labels_in_records,
    served_packages,
)
from cellwall.interfaces.http.dashboard.templating import with_query
from cellwall.interfaces.http.file_routes import read_diff
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.port_routes import new_link
from cellwall.interfaces.http.problems import RefusedOutcome, raise_for_refusal
from cellwall.interfaces.http.session_routes import end_session, get_session, list_sessions

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/sessions"
_ONE = _LIST + "/{session_id}"
_PAGE = 100
_PREVIEW_S = 3600.0
_MAX_ENTRIES = 300
_MAX_SEEN = 2000
_MAX_OUTPUTS = 20
_MAX_OUTPUT = 3000
"""Characters of one output in the timeline."""


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
    changes: Annotated[str, Query(max_length=4)] = "",
    preview: Annotated[int | None, Query(ge=1, le=65_535)] = None,
) -> Response:
    """One session. Its files are listed only where a folder is named, and compared only on request:
    each is an action of its own, which is recorded and keeps the sandbox alive."""
    session = await _own_session(browser, session_id)
    sandbox = _live_sandbox(browser, session_id) if session is not None else None
    records, bodies = await anyio.to_thread.run_sync(
        _read, browser, session_id, before, limiter=browser.service.readers
    )
    if session is None and not records:
        raise NotFound("there is no such session", hint="Check the id, and who owns it.")
    entries: list[dict[str, Any]] = []
    trouble = ""
    if sandbox is not None and folder:
        entries, trouble = await _entries(browser, sandbox, folder)
    compared, diff_error = None, ""
    if sandbox is not None and changes:
        compared, diff_error = await _changes(browser, session_id)
    link = ""
    if sandbox is not None and preview is not None:
        caller = browser.caller
        made = await new_link(browser.service, caller, session_id, preview, lifetime_s=_PREVIEW_S)
        link = made.url
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
        rows=event_lines([browser.service.paths.hide(each) for each in page]),
        next=following,
        running="" if sandbox is None else sandbox.runs.output_under_way(),
        outputs={} if sandbox is None else _newest_outputs(sandbox.runs.outputs()),
        usage=None
        if sandbox is None
        else browser.service.app.runtime.sandbox.live_usage(session_id),
        folder=folder,
        parent=folder.rstrip("/").rpartition("/")[0] or ".",
        entries=entries,
        files_error=trouble,
        compared=compared,
        files_of_diff=diff_files(compared.diff) if compared is not None else [],
        diff_error=diff_error,
        hosts=asked_hosts(bodies),
        packages=served_packages(bodies),
        findings=guard_findings(bodies),
        labels=_labels(browser, session_id, bodies),
        label_kinds=tuple(Label),
        rule_of_two=browser.service.app.runtime.labels.mode,
        preview=preview or "",
        preview_link=link,
        has_previews=bool(browser.service.settings.preview_domain),
        may_end=browser.may(Permission.SANDBOX_EXECUTE),
    )


@routes.post(_ONE + "/end")
async def end_page(browser: CurrentBrowser, session_id: str) -> Response:
    """End a session with everything in it."""
    await end_session(browser.service, browser.caller, session_id, erase=False)
    return RedirectResponse(_LIST, status_code=303)


def _labels(
    browser: BrowserSession, session_id: str, bodies: Sequence[Mapping[str, Any]]
) -> LabelSet:
    """As the rules see them; of an ended session, as they were recorded."""
    live = browser.service.app.runtime.labels.of_session(session_id)
    return live if live.sources else labels_in_records(bodies)


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
    """A page of the records, the newest first, and the bodies of the newest ones."""
    app = browser.service.app
    query = audit_queries.Query(session_id=session_id)
    found = audit_queries.newest(query, home=app.store.home, keys=app.keys)
    seen = list(islice(found, _MAX_SEEN + _PAGE))
    page = [each for each in seen if before is None or each["seq"] < before]
    return page[: _PAGE + 1], [each["body"] for each in seen]


async def _changes(browser: BrowserSession, session_id: str) -> tuple[DiffBody | None, str]:
    """The changes, by an action of this person; a refusal is told in their place."""
    try:
        return await read_diff(browser.service, browser.caller, session_id), ""
    except RefusedOutcome as refused:
        return None, browser.hide(refused.error.message)


def _newest_outputs(outputs: Mapping[str, str]) -> dict[str, str]:
    """By the id of the record; the end of a long one, which tells how it ended."""
    newest = list(outputs.items())[-_MAX_OUTPUTS:]
    return {
        name: text if len(text) <= _MAX_OUTPUT else f"… {text[-_MAX_OUTPUT:]}"
        for name, text in newest
        if text
    }


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
