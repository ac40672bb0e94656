"""Events of iCalendar (RFC 5545): read from untrusted text, written from plain values.

In a written event no value can begin another property: line breaks become `\\n`, other control
characters are left out, and lines are folded (an injected `ATTENDEE` would have the server send
mail, an injected `ATTACH` would be fetched by clients).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from cellwall.parsing.calendar.dav_xml import BadCalendarData

_MAX_LINES = 100_000
_MAX_EVENTS = 1000
_MAX_VALUE = 4096
"""Of a text; the rest is left out."""
_FOLD_BYTES = 73
_PARAMETER = r';[A-Za-z0-9-]{1,64}=(?:"[^"]{0,512}"|[^";:]{0,512})'
_LINE = re.compile(rf"([A-Za-z0-9-]{{1,64}})((?:{_PARAMETER}){{0,16}}):(.*)", re.DOTALL)
_ZONE = re.compile(r';TZID=(?:"([^"]*)"|([^";:]*))', re.IGNORECASE)
_TIME = re.compile(r"(\d{4})(\d{2})(\d{2})(?:T(\d{2})(\d{2})(\d{2})(Z?))?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventText:
    """An event as read. Untrusted, like all texts of other people."""

    uid: str = ""
    summary: str = ""
    start: str = ""
    """ISO 8601: with `Z`, without a zone where `zone` names one, or a date alone."""
    end: str = ""
    zone: str = ""
    location: str = ""
    description: str = ""


def events_in(text: str) -> tuple[EventText, ...]:
    """The events of one calendar object; lines that are not understood are left out."""
    found: list[EventText] = []
    current: dict[str, str] | None = None
    inner = 0
    for name, parameters, value in _properties(text):
        is_event = value.strip().upper() == "VEVENT"
        if name == "BEGIN" and is_event and current is None:
            current = {}
        elif name == "BEGIN" and current is not None:
            inner += 1  # an alarm has a summary and a description of its own
        elif name == "END" and current is not None and inner:
            inner -= 1
        elif name == "END" and is_event and current is not None:
            if len(found) >= _MAX_EVENTS:
                raise BadCalendarData(f"there are more than {_MAX_EVENTS} events")
            found.append(EventText(**current))
            current = None
        elif current is not None and not inner:
            _take(current, name, parameters, value)
    return tuple(found)


def _take(event: dict[str, str], name: str, parameters: str, value: str) -> None:
    if name in {"UID", "SUMMARY", "LOCATION", "DESCRIPTION"}:
        event.setdefault(name.lower(), _unescape(value)[:_MAX_VALUE])
    elif name in {"DTSTART", "DTEND"}:
        event.setdefault("start" if name == "DTSTART" else "end", _read_time(value))
        zone = _ZONE.search(parameters)
        named = (zone[1] or zone[2] or "") if zone else ""
        if _PLAIN_ZONE.fullmatch(named):
            event.setdefault("zone", named)


def _properties(text: str) -> Iterator[tuple[str, str, str]]:
    # Unfolding (RFC 5545, 3.1); many servers write bare line feeds.
    unfolded = re.sub(r"\r?\n[ \t]", "", text)
    lines = unfolded.split("\n", _MAX_LINES)
    if len(lines) > _MAX_LINES:
        raise BadCalendarData("a calendar object has too many lines")
    for line in lines:
        if (match := _LINE.fullmatch(line.rstrip("\r"))) is not None:
            yield match[1].upper(), match[2], match[3]


def _unescape(value: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] in "nN" else found[1], value)


def _read_time(value: str) -> str:
    match = _TIME.fullmatch(value.strip())
    if match is None:
        return ""
    year, month, day, hour, minute, second, utc = match.groups()
    date = f"{year}-{month}-{day}"
    return date if hour is None else f"{date}T{hour}:{minute}:{second}{utc}"


def utc_time(text: str) -> str:
    """An ISO 8601 time with its zone in the form 20260131T120000Z; raises `ValueError`."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    try:
        return found.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except OverflowError:  # the year 1 or 9999, in another time zone
        raise ValueError(text) from None


def new_event(event: EventText, *, stamp: str) -> bytes:
    """A calendar object with one event; its times and `stamp` are in the form of `utc_time`."""
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//Cellwall//EN",
        "BEGIN:VEVENT",
        f"UID:{_escape(event.uid)}",
        f"DTSTAMP:{stamp}",
        f"DTSTART:{event.start}",
        f"DTEND:{event.end}",
        f"SUMMARY:{_escape(event.summary)}",
        *([f"LOCATION:{_escape(event.location)}"] if event.location else []),
        *([f"DESCRIPTION:{_escape(event.description)}"] if event.description else []),
        "END:VEVENT",
        "END:VCALENDAR",
    ]
    return b"".join(_fold(line.encode("utf-8")) for line in lines)


def _escape(text: str) -> str:
    text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = re.sub(r"([\\;,])", r"\\\1", text)
    return text.replace("\n", "\\n")


def _fold(line: bytes) -> bytes:
    parts: list[bytes] = []
    while len(line) > _FOLD_BYTES:
        end = _FOLD_BYTES
        while line[end] & 0xC0 == 0x80:  # not inside of a character
            end -= 1
        parts.append(line[:end])
        line = line[end:]
    return b"\r\n ".join([*parts, line]) + b"\r\n"
