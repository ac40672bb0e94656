"""`/ui/packages`: packages that were installed or refused, with verdict, reasons and risk, the
inventory of each session, and a verdict on request (PKG-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from cellwall.core.errors import CellwallError
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.bodies.lookups import VerifyRequest
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.egress_page import connections
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import with_query
from cellwall.interfaces.http.lookup_routes import verify_packages
from cellwall.runtime.package_record import BUILT, REFUSED, SERVED, VERDICT

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/packages"
_PREFIX = "package-"
_MAX_ROWS = 100
_MAX_SESSIONS = 20
_MAX_REASONS = 10
_WORDS = {SERVED: "installed", REFUSED: "refused", VERDICT: "decided", BUILT: "built"}
_SHOWN = {"installed": {SERVED, BUILT}, "refused": {REFUSED}, "decided": {VERDICT}}


@dataclass(frozen=True, slots=True)
class PackageRow:
    """One record about a package."""

    record: str
    at: str
    session_id: str
    who: str
    event: str
    ecosystem: str
    name: str
    version: str
    verdict: str
    reasons: Sequence[str]
    risk: int | None
    suggestion: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> PackageRow:
        """Each event has fields of its own, and a record may have been cut."""
        body = record["body"]
        event = str(body.get("event", ""))
        package = str(body.get("package") or "").removeprefix("pkg:")
        kind, _, name = package.replace("/", ":", 1).partition(":")
        listed = body.get("reasons")
        reasons = [_reason(each) for each in listed] if isinstance(listed, list) else []
        if not reasons and body.get("reason"):
            reasons = [str(body["reason"])]
        if body.get("rule"):
            reasons.append(f"by the rule {body['rule']}")
        if body.get("approved_by"):
            reasons.append(f"allowed by {body['approved_by']}")
        risk = body.get("risk")
        return cls(
            record=record["id"],
            at=record["time"],
            session_id=record["session_id"],
            who=record["principal"],
            event=_WORDS.get(event, event.removeprefix(_PREFIX)),
            ecosystem=str(body.get("ecosystem") or kind),
            name=str(body.get("name") or name.rpartition("@")[0] or name),
            version=str(body.get("version") or (name.rpartition("@")[2] if "@" in name else "")),
            verdict=str(body.get("verdict") or "allow"),
            reasons=reasons[:_MAX_REASONS],
            risk=risk if isinstance(risk, int) else None,
            suggestion=str(body.get("suggestion") or ""),
        )


@dataclass(slots=True)
class SessionInventory:
    """The packages of one session among the records that were read."""

    session_id: str
    who: str
    last: str
    count: int = 0
    has_python: bool = False


@routes.get(_LIST)
async def packages_page(
    request: Request,
    browser: CurrentBrowser,
    name: Annotated[str, Query(max_length=200)] = "",
    ecosystem: Annotated[str, Query(max_length=10)] = "pypi",
    since: Annotated[str, Query(max_length=40)] = "30d",
    find: Annotated[str, Query(max_length=200)] = "",
    show: Literal["all", "installed", "refused", "decided"] = "all",
    before: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """What was asked for, the newest first."""
    page = await connections(browser, since=since, text=find or _PREFIX, before=before)
    found = [
        each for each in page.records if str(each["body"].get("event", "")).startswith(_PREFIX)
    ]
    listed = [each for each in found if show == "all" or each["body"]["event"] in _SHOWN[show]]
    following = page.next
    if len(listed) > _MAX_ROWS:
        following = listed[_MAX_ROWS - 1]["seq"]
    verdict, trouble = None, ""
    if name and browser.may(Permission.SANDBOX_EXECUTE):
        verdict, trouble = await _verify(browser, name, ecosystem)
    filters = {"find": find, "since": since, "show": show}
    return render(
        request,
        "packages.html",
        browser=browser,
        rows=[PackageRow.of(each) for each in listed[:_MAX_ROWS]],
        sessions=_inventories(found),
        next=with_query(_LIST, **filters, before=following) if following else "",
        name=name,
        ecosystem=ecosystem if ecosystem in {"pypi", "npm"} else "pypi",
        verdict=verdict,
        trouble=trouble,
        filters=filters,
    )


def _inventories(records: list[dict[str, Any]]) -> list[SessionInventory]:
    sessions: dict[str, SessionInventory] = {}
    for record in records:
        if record["body"]["event"] == SERVED and record["session_id"]:
            name = record["session_id"]
            one = sessions.setdefault(
                name, SessionInventory(name, record["principal"], record["time"])
            )
            one.count += 1
            one.has_python |= record["body"].get("ecosystem") == "pypi"
    return list(sessions.values())[:_MAX_SESSIONS]


def _reason(found: object) -> str:
    return str(found.get("text", "")) if isinstance(found, Mapping) else str(found)


async def _verify(browser: BrowserSession, name: str, ecosystem: str) -> tuple[Any, str]:
    """The verdict, without asking the registry: a page must not wait for another service."""
    kind = "npm" if ecosystem == "npm" else "pypi"
    wanted = body_of(VerifyRequest, {"ecosystem": kind, "packages": [name], "offline": True})
    try:
        found = await verify_packages(browser.service, browser.caller, wanted)
    except CellwallError as error:
        return None, error.message
    return found.packages[0], ""
