"""The XML of CalDAV (RFC 4791): the query for events, and the multi-status response.

The response comes from a server that may be hostile. A document type declaration is refused, so
there are no entities to expand (billion laughs) and none to load (XXE); depth, elements and text
are bounded.
"""

from __future__ import annotations

from typing import TypeAlias
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

_DAV = "DAV:"
_CALDAV = "urn:ietf:params:xml:ns:caldav"
_DATA = f"{_CALDAV} calendar-data"
_RESPONSE = f"{_DAV} response"
_ROOT = f"{_DAV} multistatus"
MAX_BYTES = 4 << 20
_MAX_DEPTH = 32
_MAX_ELEMENTS = 50_000
MAX_OBJECTS = 1000

CalendarTexts: TypeAlias = tuple[str, ...]


class BadCalendarData(Exception):
    """The data of a calendar server that cannot be read; the message is safe to show."""


def calendar_query(start_utc: str, end_utc: str) -> bytes:
    """The body of a REPORT for all events in a period; recurring ones are expanded by the server.

    Times in the form 20260131T120000Z.
    """
    period = f"start={quoteattr(start_utc)} end={quoteattr(end_utc)}"
    return (
        '<?xml version="1.0" encoding="utf-8"?>'
        f'<C:calendar-query xmlns:D="{_DAV}" xmlns:C="{_CALDAV}">'
        f"<D:prop><C:calendar-data><C:expand {period}/></C:calendar-data></D:prop>"
        '<C:filter><C:comp-filter name="VCALENDAR"><C:comp-filter name="VEVENT">'
        f"<C:time-range {period}/></C:comp-filter></C:comp-filter></C:filter>"
        "</C:calendar-query>"
    ).encode("ascii")


def calendar_texts(body: bytes) -> CalendarTexts:
    """The calendar objects of a multi-status response; raises `BadCalendarData`."""
    if len(body) > MAX_BYTES:
        raise BadCalendarData("the response is too large")
    reader = _MultistatusReader()
    try:
        reader.parser.Parse(body, True)  # expat's own signature
    except (expat.ExpatError, ValueError, LookupError):
        # LookupError: an encoding that Python does not know.
        raise BadCalendarData("the response is not well-formed XML") from None
    return tuple(reader.objects)


class _MultistatusReader:
    def __init__(self) -> None:
        # A name with its namespace: a server chooses the prefixes.
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.objects: list[str] = []
        self._path: list[str] = []
        self._elements = 0
        self._parts: list[str] | None = None

    def _start(self, name: str, _: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _MAX_ELEMENTS or len(self._path) >= _MAX_DEPTH:
            raise BadCalendarData("the response has too many elements")
        if not self._path and name != _ROOT:
            raise BadCalendarData("the response is not a list of calendar objects")
        self._path.append(name)
        if name == _DATA and self._path[1:2] == [_RESPONSE]:
            self._parts = []

    def _end(self, name: str) -> None:
        self._path.pop()
        if name == _DATA and self._parts is not None:
            if len(self.objects) >= MAX_OBJECTS:
                raise BadCalendarData(f"there are more than {MAX_OBJECTS} events")
            self.objects.append("".join(self._parts))
            self._parts = None

    def _text(self, text: str) -> None:
        if self._parts is not None:
            self._parts.append(text)

    def _refuse(self, *_: object) -> None:
        raise BadCalendarData("the response declares a document type")
