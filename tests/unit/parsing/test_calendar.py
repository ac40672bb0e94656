"""The formats of calendars: hostile data is read within bounds, written events cannot be forged."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.parsing.calendar.dav_xml import BadCalendarData, calendar_query, calendar_texts
from cellwall.parsing.calendar.icalendar import EventText, events_in, new_event, utc_time

EVENT = EventText(
    uid="1", summary="x", start="20260109T100000Z", end="20260109T110000Z", location="Room 5"
)
STAMP = "20260101T000000Z"


def response(*objects: str) -> bytes:
    parts = "".join(
        "<D:response><D:href>/x</D:href><D:propstat><D:prop><C:calendar-data><![CDATA["
        f"{each}]]></C:calendar-data></D:prop></D:propstat></D:response>"
        for each in objects
    )
    return (
        '<D:multistatus xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav">'
        f"{parts}</D:multistatus>"
    ).encode()


@pytest.mark.requirement("RED-2")
@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_written_event_is_one_event_whatever_its_texts(
    summary: str, location: str, description: str
) -> None:
    event = EventText(
        uid="evt_1",
        summary=summary,
        start=EVENT.start,
        end=EVENT.end,
        location=location,
        description=description,
    )
    with suppress(UnicodeEncodeError):  # a lone surrogate is refused before
        data = new_event(event, stamp=STAMP)
        assert all(len(line) <= 75 for line in data.split(b"\r\n"))
        names = [line.partition(b":")[0] for line in data.replace(b"\r\n ", b"").split(b"\r\n")]
        assert names.count(b"BEGIN") == names.count(b"END") == 2
        assert set(names) <= {
            *(b"BEGIN", b"END", b"VERSION", b"PRODID", b"UID", b"DTSTAMP", b"DTSTART"),
            *(b"DTEND", b"SUMMARY", b"LOCATION", b"DESCRIPTION", b""),
        }
        (read,) = events_in(data.decode())
        assert read.uid == "evt_1"


@pytest.mark.requirement("RED-2")
@given(st.binary(max_size=400), st.text(max_size=400))
def test_arbitrary_data_is_read_or_refused(data: bytes, text: str) -> None:
    with suppress(BadCalendarData):
        calendar_texts(data)
    with suppress(BadCalendarData):
        calendar_texts(response(text.replace("]]>", "")))
    with suppress(BadCalendarData):
        events_in(f"BEGIN:VEVENT\n{text}\nEND:VEVENT")


@pytest.mark.requirement("RED-2")
def test_events_as_servers_write_them() -> None:
    text = (
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:a\r\nSUMMARY;LANGUAGE=en:Lunch\\, then\\nwalk\r\n"
        'DTSTART;TZID="Europe/Berlin":20260109T120000\r\nDTEND;TZID=Europe/Berlin:20260109T13'
        "\r\n 0000\r\nBEGIN:VALARM\r\nSUMMARY:wake up\r\nEND:VALARM\r\nX-ODD\r\nEND:VEVENT\r\n"
        "BEGIN:VEVENT\nUID:b\nDTSTART;VALUE=DATE:20260110\nEND:VEVENT\nEND:VCALENDAR"
    )
    assert events_in(text) == (
        EventText(
            uid="a",
            summary="Lunch, then\nwalk",
            start="2026-01-09T12:00:00",
            end="2026-01-09T13:00:00",
            zone="Europe/Berlin",
        ),
        EventText(uid="b", start="2026-01-10"),
    )
    assert calendar_texts(response(text, "x")) == (text.replace("\r\n", "\n"), "x")
    assert b"20260101T000000Z" in calendar_query(STAMP, STAMP)
    assert utc_time("2026-01-09T11:00:00+01:00") == "20260109T100000Z"


@pytest.mark.requirement("RED-2")
def test_too_many_events_and_lines_are_refused() -> None:
    with pytest.raises(BadCalendarData, match="events"):
        events_in("BEGIN:VEVENT\nEND:VEVENT\n" * 1001)
    with pytest.raises(BadCalendarData, match="lines"):
        events_in("\n" * 100_001)
    with pytest.raises(BadCalendarData, match="events"):
        calendar_texts(response(*["x"] * 1001))
    # Without a bound on parameters this would take time that grows with the square.
    assert events_in("BEGIN:VEVENT\n" + "A;B=c" * 200_000 + "\nEND:VEVENT") == (EventText(),)
