"""Lists and creates events of a connected calendar by CalDAV (RFC 4791).

The password is in no cell and no model, and not here either: requests carry its placeholder, and
egress puts the value in (SEC-5).
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from datetime import UTC, datetime

from cellwall.core.connections import CalendarEvent, ConnectedAccount, UseAccount
from cellwall.core.errors import BadInput, EgressRefused
from cellwall.core.ids import new_id
from cellwall.core.network import SecretUse, ServiceRequest, ServiceResponse
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import EgressPort, VaultPort
from cellwall.core.types import Action, Json
from cellwall.parsing.calendar.dav_xml import BadCalendarData, calendar_query, calendar_texts
from cellwall.parsing.calendar.icalendar import EventText, events_in, new_event, utc_time

MAX_EVENT_CHARACTERS = 8192
"""Of one text of an event."""
_CREATED = frozenset({200, 201, 204})


def check_use(operation: UseAccount) -> None:
    """Raise `BadInput` for the first thing out of bounds."""
    if operation.target is not None:
        raise BadInput("the runtime alone chooses the account", code="CW-BAD-ACCOUNT")
    if not 0 < len(operation.account) <= 64:
        raise BadInput("an account is named by its name or id", code="CW-BAD-ACCOUNT")
    event = operation.event
    if (operation.name == "create_event") != (event is not None):
        raise BadInput("an event is given to create_event alone", code="CW-BAD-EVENT")
    if event is None:
        _period(operation.start, operation.end)
        return
    texts = (event.summary, event.location, event.description)
    if any(len(text) > MAX_EVENT_CHARACTERS for text in texts) or not event.summary.strip():
        raise BadInput(
            f"an event has a summary, and texts of at most {MAX_EVENT_CHARACTERS} characters",
            code="CW-BAD-EVENT",
        )
    if any("\ud800" <= each <= "\udfff" for text in texts for each in text):
        raise BadInput("a text of the event holds a lone surrogate", code="CW-NOT-TEXT")
    _period(event.start, event.end)


def _period(start: str, end: str) -> tuple[str, str]:
    try:
        found = utc_time(start), utc_time(end)
    except ValueError:
        raise BadInput(
            "a time is not in ISO 8601 with its zone",
            hint="Write 2026-01-31T12:00:00Z or 2026-01-31T12:00:00+02:00.",
            code="CW-BAD-EVENT",
        ) from None
    if found[1] <= found[0]:
        raise BadInput("the end is not after the start", code="CW-BAD-EVENT")
    return found


async def use_account(
    vault: VaultPort, egress: EgressPort, action: Action, operation: UseAccount
) -> RunResult:
    """Carry out an operation on the account that `resolve` has found."""
    account = operation.target
    if account is None:
        raise BadInput("the action was not bound to an account", code="CW-BAD-ACCOUNT")
    async with vault.lease(action) as secrets:
        (use,) = secrets
        if operation.event is not None:
            return await _create(egress, action, account, use, operation.event)
        return await _list(egress, action, account, use, operation)


async def _list(
    egress: EgressPort,
    action: Action,
    account: ConnectedAccount,
    use: SecretUse,
    operation: UseAccount,
) -> RunResult:
    period = _period(operation.start, operation.end)
    request = ServiceRequest(
        method="REPORT",
        url=account.url,
        headers=(
            *_credentials(account, use),
            ("Depth", "1"),
            ("Content-Type", "application/xml; charset=utf-8"),
        ),
        body=calendar_query(*period),
    )
    response = await egress.request(action, (use,), request)
    if response.status != 207:
        raise _failed(response)
    try:
        events = [event for text in calendar_texts(response.body) for event in events_in(text)]
    except BadCalendarData as error:
        raise _unreadable(str(error)) from None
    listed: list[Json] = [_event_json(event) for event in sorted(events, key=_by_start)]
    return RunResult(None, value={"events": listed})


async def _create(
    egress: EgressPort,
    action: Action,
    account: ConnectedAccount,
    use: SecretUse,
    event: CalendarEvent,
) -> RunResult:
    start, end = _period(event.start, event.end)
    uid = new_id("evt")
    text = EventText(
        uid=uid,
        summary=event.summary,
        start=start,
        end=end,
        location=event.location,
        description=event.description,
    )
    request = ServiceRequest(
        method="PUT",
        url=f"{account.url.rstrip('/')}/{uid}.ics",
        headers=(
            *_credentials(account, use),
            ("If-None-Match", "*"),  # never replaces an event
            ("Content-Type", "text/calendar; charset=utf-8"),
        ),
        body=new_event(text, stamp=datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")),
    )
    response = await egress.request(action, (use,), request)
    if response.status not in _CREATED:
        raise _failed(response)
    return RunResult(None, value={"uid": uid})


def _credentials(account: ConnectedAccount, use: SecretUse) -> tuple[tuple[str, str], ...]:
    """With the placeholder: only egress, at the end of its checks, puts in the password."""
    plain = f"{account.username}:{use.placeholder}".encode()
    return (("Authorization", f"Basic {base64.b64encode(plain).decode('ascii')}"),)


def _event_json(event: EventText) -> dict[str, Json]:
    return {name: value for name, value in asdict(event).items() if value}


def _by_start(event: EventText) -> tuple[str, str]:
    return event.start, event.uid


def _failed(response: ServiceResponse) -> EgressRefused:
    """By the status alone: the body is a server's, and might quote the request."""
    hint = "Check the user name, and the value of the secret."
    if response.status not in {401, 403}:
        hint = "Check that the URL is that of a calendar collection."
    return EgressRefused(
        f"the server of the account answered {response.status}", hint=hint, code="CW-ACCOUNT-FAILED"
    )


def _unreadable(why: str) -> EgressRefused:
    return EgressRefused(
        f"the answer of the account's server is refused: {why}",
        hint="Ask for a shorter period, or check the server.",
        code="CW-ACCOUNT-DATA",
    )
