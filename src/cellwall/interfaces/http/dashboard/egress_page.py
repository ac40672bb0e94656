"""`/ui/egress`: who asked for which host, what came of it, and what would allow the host (NET-2).

A host is allowed for one live sandbox, or by a rule of the policy of the service. Both go through
the functions of the API, which check the role, the owner and the rules.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin.egress_use import AskedBySession, HostUse, use_by_host
from cellwall.core.errors import CellwallError, NotFound
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.bodies.egress import HostAccessBody, HostRuleRequest, MoreDomains
from cellwall.interfaces.http.bodies.lookups import AuditPage
from cellwall.interfaces.http.bodies.policies import CheckRequest
from cellwall.interfaces.http.dashboard.audit_pages import moment
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import shown, with_query
from cellwall.interfaces.http.egress_routes import add_domains, get_host_access, write_host_rule
from cellwall.interfaces.http.lookup_routes import read_audit
from cellwall.interfaces.http.policy_routes import check_calls

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/egress"
_HOST = _LIST + "/host"
_MAX_RECORDS = 1000
_MAX_ROWS = 100
_MAX_SESSIONS = 50
_NO_RULE = "default"
"""In place of a rule where none allows a call: one more rule may."""
Text = Annotated[str, Query(max_length=253)]
Since = Annotated[str, Query(max_length=40)]
Before = Annotated[int | None, Query(ge=1)]


async def connections(
    browser: BrowserSession,
    *,
    since: str,
    text: str = "",
    kind: EventKind = EventKind.CONNECTION,
    before: int | None = None,
) -> AuditPage:
    """The newest connection records that this person may see."""
    return await read_audit(
        browser.service,
        browser.caller,
        limit=_MAX_RECORDS,
        before=before,
        action=None,
        session=None,
        principal=None,
        since=moment(since),
        until=None,
        text=text or None,
        kind=kind,
        verdict=None,
        record=None,
    )


async def _asked(
    browser: BrowserSession, *, since: str, text: str, before: int | None
) -> tuple[list[dict[str, Any]], int | None]:
    """Connections and denials, the newest first, and where older ones begin."""
    pages = [
        await connections(browser, since=since, text=text, kind=kind, before=before)
        for kind in (EventKind.CONNECTION, EventKind.DENIAL)
    ]
    # One of the two may reach further back: both end where the shorter one does.
    end = max((page.next for page in pages if page.next is not None), default=None)
    records = [each for page in pages for each in page.records if end is None or each["seq"] >= end]
    return sorted(records, key=lambda each: -each["seq"]), end


@routes.get(_LIST)
async def egress_page(
    request: Request,
    browser: CurrentBrowser,
    find: Text = "",
    since: Since = "1d",
    show: Literal["all", "refused"] = "all",
    before: Before = None,
) -> Response:
    """Hosts by the number of refusals."""
    records, older = await _asked(browser, since=since, text=find, before=before)
    hosts = use_by_host(records)
    if show == "refused":
        hosts = [each for each in hosts if each.refused]
    filters = {"find": find, "since": since, "show": show}
    return render(
        request,
        "egress.html",
        browser=browser,
        hosts=await _rows(browser, hosts[:_MAX_ROWS]),
        hidden=max(0, len(hosts) - _MAX_ROWS),
        next=with_query(_LIST, **filters, before=older) if older else "",
        filters=filters,
    )


@dataclass(slots=True)
class EgressHost:
    """A host, and the one session that a click would give it."""

    use: HostUse
    session: AskedBySession | None
    rule: str = ""
    """The rule that denies the host, so that no click helps; empty where none does."""


async def _rows(browser: BrowserSession, hosts: list[HostUse]) -> list[EgressHost]:
    """A host that the rules deny gets no button here: its page tells why."""
    rows = []
    for use in hosts:
        mine = [each for each in use.sessions.values() if _is_offered(browser, each)]
        is_offered = len(mine) == 1 and _is_plain(use.host)
        rows.append(EgressHost(use, mine[0] if is_offered else None))
    judged = [row for row in rows if row.use.is_liftable and _is_plain(row.use.host)]
    if judged and browser.may(Permission.SANDBOX_EXECUTE):
        urls = [f"https://{row.use.host}/" for row in judged]
        calls = [{"tool": "WebFetch", "input": {"url": url}} for url in urls]
        body = body_of(CheckRequest, {"calls": calls})
        found = (await check_calls(browser.service, browser.caller, body)).decisions
        for row, decision in zip(judged, found, strict=True):
            if decision.verdict == "deny":
                row.session = None
                row.rule = "" if decision.rule == _NO_RULE else decision.rule
    return rows


@routes.get(_HOST)
async def host_page(
    request: Request,
    browser: CurrentBrowser,
    name: Annotated[str, Query(min_length=1, max_length=253)],
    since: Since = "7d",
    before: Before = None,
    done: Literal["", "session", "rule", "known"] = "",
) -> Response:
    """One host: which session asked for it, what the rules say, and what would allow it."""
    records, older = await _asked(browser, since=since, text=name, before=before)
    use = next((each for each in use_by_host(records) if each.host == name), HostUse(name))
    is_plain = _is_plain(name)
    access, trouble = None, "this is not a name of a host"
    if is_plain:
        access, trouble = await _access(browser, name)
    return render(
        request,
        "egress_host.html",
        browser=browser,
        host=name,
        is_plain=is_plain,
        use=use,
        sessions=[
            {
                "asked": each,
                "is_offered": is_plain and _is_offered(browser, each),
                "domains": each.domains(name),
            }
            for each in list(use.sessions.values())[:_MAX_SESSIONS]
        ],
        since=since,
        next=with_query(_HOST, name=name, since=since, before=older) if older else "",
        access=access,
        trouble=trouble,
        done=done,
        may_write=browser.may(Permission.POLICY_WRITE),
    )


@routes.post(_HOST + "/session")
async def allow_for_session(browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Let one live sandbox of this person reach the host."""
    body = body_of(MoreDomains, {"add": list(form.all("domain"))})
    await add_domains(browser.service, browser.caller, form.text("session"), body)
    return _back(form.text("host"), "session")


@routes.post(_HOST + "/rule")
async def allow_by_rule(browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Write the rule that was shown."""
    body = body_of(HostRuleRequest, {"shown_sha256": form.text("shown")})
    made = await write_host_rule(browser.service, browser.caller, form.text("host")[:253], body)
    return _back(form.text("host"), "rule" if made.is_new else "known")


def _back(host: str, done: str) -> Response:
    return RedirectResponse(with_query(_HOST, name=host[:253], done=done), status_code=303)


def _is_plain(host: str) -> bool:
    """Whether the page can show the name as it is. Any other is no name of a host, and its text is
    put into no form."""
    return shown(host, 253) == host


async def _access(browser: BrowserSession, host: str) -> tuple[HostAccessBody | None, str]:
    try:
        return await get_host_access(browser.service, browser.caller, host), ""
    except CellwallError as error:
        return None, error.message


def _is_offered(browser: BrowserSession, asked: AskedBySession) -> bool:
    """Whether this person can give the sandbox a host: it is live, and the person's or of the
    person's team."""
    needed = (Permission.NETWORK_USE, Permission.SANDBOX_EXECUTE)
    if not asked.is_liftable or not all(map(browser.may, needed)):
        return False
    with suppress(NotFound):
        browser.service.sandboxes.look(browser.caller.identity, asked.session_id)
        return True
    return False
