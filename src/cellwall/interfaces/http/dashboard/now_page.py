"""`/`: what agents are doing now, and why something was denied.

The page is complete without scripts. With them, one stream of server-sent events updates it: one
message a second at most, whatever happens in that second, so a flood of actions costs neither the
browser nor the service more than a quiet hour.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin.accounts import Identity
from cellwall.admin.live_view import LiveSnapshot
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.bodies.stops import StopRequest
from cellwall.interfaces.http.callers import Caller
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import NOTHING, environment, number, span
from cellwall.interfaces.http.shown_questions import shown_questions
from cellwall.interfaces.http.stop_routes import lift_stop, read_stop, stop_everything
from cellwall.interfaces.http.waiting import CountedStream

routes = APIRouter(route_class=PageRoute)
EVENTS = "/ui/events"
_EVERY_S = 1.0
_PANELS_EVERY = 2
"""Messages from one drawing of the panels to the next."""
_MAX_NEW_ROWS = 12
_MAX_SANDBOXES = 50
_EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """Runs of one duration."""

    label: str
    count: int
    width: int
    """In percent of the longest bar."""


@routes.get("/")
async def now_page(request: Request, browser: CurrentBrowser) -> Response:
    """Live sandboxes, rates, latencies, limits, and decisions as they happen."""
    service = browser.service
    await anyio.to_thread.run_sync(service.live.touch, limiter=service.readers)
    snapshot = await _snapshot(browser)
    sandboxes, total = await _sandboxes(browser)
    return render(
        request,
        "now.html",
        browser=browser,
        snapshot=snapshot,
        tiles=_tiles(browser, snapshot),
        histogram=_histogram(snapshot),
        sandboxes=sandboxes,
        total=total,
        stop=await read_stop(service, browser.caller) if _may_stop(browser) else None,
        address=service.settings.public_url,
    )


@routes.get(EVENTS)
async def follow(request: Request, browser: CurrentBrowser) -> Response:
    """What changed, once a second, until the sign-in ends."""
    _ = request
    with ExitStack() as stack:
        stack.enter_context(browser.service.waiting.counted(browser.caller.id))
        return CountedStream(
            _events(browser),
            stack.pop_all(),
            media_type="text/event-stream",
            headers=_EVENT_HEADERS,
        )


@routes.post("/ui/stop")
async def stop_page(browser: CurrentBrowser, form: CurrentForm) -> Response:
    """End or suspend every sandbox of all users, or lift the stop (OBS-3)."""
    service, caller, reason = browser.service, browser.caller, form.text("reason")[:500]
    if form.text("deed") == "lift":
        await lift_stop(service, caller, reason=reason)
    else:
        wanted = {"reason": reason, "freeze": form.text("deed") == "freeze"}
        await stop_everything(service, caller, body_of(StopRequest, wanted))
    return RedirectResponse("/", status_code=303)


def _may_stop(browser: BrowserSession) -> bool:
    return browser.may(Permission.SANDBOX_STOP)


async def _snapshot(browser: BrowserSession) -> LiveSnapshot:
    service = browser.service
    if browser.sees_all:
        return service.live.snapshot(None)
    user = await service.store.find_user(browser.caller.id)
    created_s = time.time() if user is None else user.created_s
    return service.live.snapshot(browser.name, since_s=created_s)


async def _events(browser: BrowserSession) -> AsyncIterator[bytes]:
    service = browser.service
    # Its start reads thousands of records: not on the event loop.
    await anyio.to_thread.run_sync(service.live.touch, limiter=service.readers)
    with service.live.watched():
        yield b"retry: 1000\n\n"
        last = await _snapshot(browser)
        shown_seq, revision, waiting, asked = _newest_seq(last), -1, -1, ""
        panels: dict[str, str] = {}
        for turn in itertools.count():
            if service.live.is_draining:
                return
            found = await service.accounts.revision()
            if found != revision:  # a revocation, a role, a membership
                who = await service.accounts.renewed(browser.caller.identity)
                if who is None:
                    return
                browser, revision = _renewed(browser, who), found
            service.usages.sample()
            snapshot = await _snapshot(browser)
            questions = shown_questions(service, browser.caller)
            names = " ".join(each.id for each in questions)
            message: dict[str, Any] = {
                "tiles": _tiles(browser, snapshot),
                "waiting": len(questions),
                "runs": snapshot.runs[-2],  # the last whole second
                "refusals": snapshot.refusals[-2],
                "feed": _new_rows(browser, snapshot, shown_seq),
                "more": max(0, snapshot.seen - last.seen - _MAX_NEW_ROWS),
                "asked": names != asked and waiting >= 0,
            }
            if turn % _PANELS_EVERY == 0:
                found_panels = await _panels(browser, snapshot)
                message["panels"] = {
                    name: text for name, text in found_panels.items() if panels.get(name) != text
                }
                panels = found_panels
            shown_seq, last, waiting, asked = _newest_seq(snapshot), snapshot, len(questions), names
            yield f"data: {json.dumps(message)}\n\n".encode()
            await anyio.sleep(_EVERY_S)


def _renewed(browser: BrowserSession, who: Identity) -> BrowserSession:
    caller = Caller(who, browser.caller.address, is_by_cookie=True)
    return BrowserSession(browser.service, caller, browser.form_token)


def _newest_seq(snapshot: LiveSnapshot) -> int:
    return snapshot.rows[0].seq if snapshot.rows else 0


def _new_rows(browser: BrowserSession, snapshot: LiveSnapshot, after: int) -> str:
    new = [row for row in snapshot.rows if row.seq > after][:_MAX_NEW_ROWS]
    if not new:
        return ""
    parts: Any = environment().get_template("ui.html").make_module()
    return "".join(str(parts.event_line(row, browser, is_new=True)) for row in new)


def _tiles(browser: BrowserSession, snapshot: LiveSnapshot) -> dict[str, str]:
    service, who = browser.service, browser.caller
    median, slow = snapshot.latency_s(0.5), snapshot.latency_s(0.95)
    shown = service.sandboxes.described_to(who.identity, sees_all=browser.sees_all)
    rate = snapshot.runs_per_s
    return {
        "sandboxes": number(len(shown)),
        "rate": f"{rate:.1f}" if rate < 10 else number(rate),
        "refusals": number(sum(snapshot.refusals)),
        "waiting": number(len(shown_questions(service, who))),
        "median": NOTHING if median is None else f"≤ {span(median)}",
        "slow": NOTHING if slow is None else f"≤ {span(slow)}",
    }


def _histogram(snapshot: LiveSnapshot) -> list[HistogramBar]:
    bins = snapshot.latency_bins
    most = max((count for _, count in bins), default=1)
    return [
        HistogramBar(
            "longer" if bound is None else f"≤ {span(bound)}", count, round(100 * count / most)
        )
        for bound, count in bins
    ]


async def _panels(browser: BrowserSession, snapshot: LiveSnapshot) -> dict[str, str]:
    """The content of the panels beside the list, by the id of each."""
    parts: Any = environment().get_template("now_parts.html").make_module()
    sandboxes, total = await _sandboxes(browser)
    return {
        "sandboxes": str(parts.sandboxes(sandboxes, total, browser.service.settings.public_url)),
        "histogram": str(parts.histogram(_histogram(snapshot))),
        "limits": str(parts.limits(snapshot.limits)),
    }


async def _sandboxes(browser: BrowserSession) -> tuple[list[dict[str, object]], int]:
    """The sandboxes that the page shows, and the number of all."""
    service = browser.service
    service.usages.sample()
    found = service.sandboxes.described_to(browser.caller.identity, sees_all=browser.sees_all)
    names = await service.approvals.names({each.owner_id for each in found[:_MAX_SANDBOXES]})
    shown = [
        {
            "id": each.id,
            "owner": names.get(each.owner_id, each.owner_id),
            "template": each.template,
            "is_busy": each.busy > 0,
            "cpu": list(service.usages.of(each.id).cpu),
            "memory": list(service.usages.of(each.id).memory),
        }
        for each in found[:_MAX_SANDBOXES]
    ]
    return shown, len(found)
