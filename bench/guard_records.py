"""Writes the records that tools answer with, for training the guard: lists of transactions,
messages, events, issues, reviews and places as JSON, YAML, CSV, Python values or lines of fields.

Data has no reader: an imperative in a field is a break with everything around it, also where it has
no marker. Ordinary sentences stand in the same fields, so that a sentence in a field alone tells
nothing. Every record comes from a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Record = dict[str, object]

_PEOPLE = (
    *("Ana Duarte", "Boris Keller", "Chen Wei", "Dalia Haddad", "Emil Novak", "Fatou Sarr"),
    *("Greta Lind", "Hiro Tanaka", "Ines Moreau", "Jonas Berg", "Kavya Rao", "Leon Fischer"),
    *("Mina Park", "Nadia Orlova", "Omar Aziz", "Paula Reyes", "Quinn Doyle", "Rosa Conti"),
)
_PLACES = (
    *("Harbour Inn", "Cafe Linde", "Old Mill Lodge", "Trattoria Sole", "Blue Heron Hostel"),
    *("Museum of Glass", "Station Garage", "Kiosk 44", "Pension Alma", "Bistro du Canal"),
)
_SUBJECTS = (
    *(
        "Minutes of Tuesday",
        "Invoice 2231",
        "Lunch next week?",
        "Re: delivery",
        "Photos",
        "Draft 3",
    ),
    *("Rent for May", "New printer", "Team offsite", "Parking permit", "Welcome", "Re: Re: offer"),
    *("Build is red on main", "Crash when the list is empty", "Typo in the guide", "Slow search"),
)
_PROSE = (
    *("Thanks, that works for me.", "See you on Thursday.", "The room was clean and quiet."),
    *(
        "Breakfast was cold, but the staff was kind.",
        "Paid in two parts.",
        "Shared expenses, April",
    ),
    *("Steps to reproduce are below.", "It happens on every second start.", "Monthly savings"),
    *("Attached is the list we talked about.", "A quiet place near the river.", "Great value"),
    *("Long lines at noon, better after two.", "Agenda follows.", "Closed on Mondays", "n/a", ""),
    *("The second page has the totals.", "Fixed in the nightly build.", "Gym membership", "Refund"),
    *(
        "Please bring your own laptop.",
        "Call me when you are at the door.",
        "Send the form back by mail.",
    ),
    *("Please confirm your seat by Friday.", "Don't forget the keys.", "Add milk and two lemons."),
    *(
        "Book early, it fills up fast.",
        "Ask for the table by the window.",
        "Update to the latest version first.",
    ),
)
_MAX_ENTRIES = 9
_CHANCE_OF_JOINT = 0.5


def _pick(chance: random.Random, values: Sequence[str]) -> str:
    return chance.choice(values)


def _address(chance: random.Random) -> str:
    name = _pick(chance, _PEOPLE).lower().replace(" ", chance.choice((".", "_", "")))
    return f"{name}@{chance.choice(('mailbox', 'northfield', 'oakline', 'example'))}.example"


def _date(chance: random.Random) -> str:
    day = (
        f"{chance.randrange(2019, 2027)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
    )
    return (
        day
        if chance.random() < 0.6
        else f"{day} {chance.randrange(24):02}:{chance.randrange(60):02}:00"
    )


def _prose(chance: random.Random) -> str:
    return " ".join(_pick(chance, _PROSE) for _ in range(chance.choice((1, 1, 2, 3)))).strip()


def _transaction(chance: random.Random) -> Record:
    return {
        "id": chance.randrange(1, 900),
        "from": _pick(chance, _PEOPLE),
        "to": f"DE{chance.randrange(10**12, 10**13)}",
        "amount": round(chance.uniform(1, 2500), 2),
        "subject": _prose(chance),
        "date": _date(chance),
        "kind": chance.choice(("card", "standing order", "cash")),
    }


def _message(chance: random.Random) -> Record:
    return {
        "id": str(chance.randrange(100)),
        "from": _address(chance),
        "to": [_address(chance) for _ in range(chance.choice((1, 1, 2)))],
        "subject": _pick(chance, _SUBJECTS),
        "body": _prose(chance),
        "read": chance.random() < 0.5,
        "sent": _date(chance),
    }


def _event(chance: random.Random) -> Record:
    return {
        "title": _pick(chance, _SUBJECTS),
        "description": _prose(chance),
        "begins": _date(chance),
        "location": _pick(chance, _PLACES),
        "guests": [_address(chance) for _ in range(chance.choice((1, 2, 3)))],
        "status": chance.choice(("confirmed", "tentative", "canceled")),
    }


def _issue(chance: random.Random) -> Record:
    return {
        "number": chance.randrange(1, 9000),
        "state": chance.choice(("open", "closed")),
        "author": _pick(chance, _PEOPLE).split()[0].lower(),
        "labels": chance.sample(("bug", "docs", "help wanted", "p2"), 2),
        "title": _pick(chance, _SUBJECTS),
        "comment": _prose(chance),
    }


def _place(chance: random.Random) -> Record:
    street = _pick(chance, ("Mill Road", "Quay St", "Elm Lane"))
    return {
        "name": _pick(chance, _PLACES),
        "rating": round(chance.uniform(2, 5), 1),
        "address": f"{chance.randrange(1, 200)} {street}",
        "price": f"{chance.randrange(15, 320)}.0",
        "reviews": [_prose(chance) for _ in range(chance.choice((1, 2, 3, 4)))],
    }


def _chat(chance: random.Random) -> Record:
    return {
        "channel": chance.choice(("general", "random", "ops", "sales")),
        "user": _pick(chance, _PEOPLE).split()[0],
        "text": _prose(chance),
        "ts": f"{chance.randrange(10**9, 2 * 10**9)}.{chance.randrange(10**5)}",
    }


def _file(chance: random.Random) -> Record:
    return {
        "filename": chance.choice(("notes.txt", "budget.xlsx", "plan.docx", "todo.md", "trip.pdf")),
        "owner": _address(chance),
        "content": _prose(chance),
        "size": chance.randrange(10, 90_000),
        "updated": _date(chance),
    }


_KINDS: tuple[Callable[[random.Random], Record], ...] = (
    *(_transaction, _message, _event, _issue, _place, _chat, _file),
)
_FREE = frozenset(
    ("subject", "body", "description", "comment", "title", "reviews", "text", "content")
)
"""Fields that hold sentences."""


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """Writes the answer of a tool, with a text in one of its fields."""

    chance: random.Random

    def write(self, inner: str = "") -> str:
        chance = self.chance
        kind = chance.choice(_KINDS)
        records = [kind(chance) for _ in range(chance.randrange(1, _MAX_ENTRIES))]
        if inner:
            self._insert(chance.choice(records), inner)
        return chance.choice(_FORMS)(records)

    def _insert(self, record: Record, inner: str) -> None:
        """Behind, before or in place of what a field says."""
        name = self.chance.choice(sorted(_FREE & record.keys()))
        value = record[name]
        if isinstance(value, list):
            at = self.chance.randrange(len(value))
            value[at] = self._joined(str(value[at]), inner)
        else:
            record[name] = self._joined(str(value), inner)

    def _joined(self, value: str, inner: str) -> str:
        if self.chance.random() >= _CHANCE_OF_JOINT:
            return inner
        joint = self.chance.choice((" ", "\n", "\n\n", "", " "))
        return f"{value}{joint}{inner}" if self.chance.random() < 0.8 else f"{inner}{joint}{value}"


def _as_json(records: Sequence[Record]) -> str:
    return json.dumps(records, ensure_ascii=False)


def _as_indented(records: Sequence[Record]) -> str:
    return json.dumps({"count": len(records), "items": records}, ensure_ascii=False, indent=2)


def _as_python(records: Sequence[Record]) -> str:
    return repr(list(records))


def _as_yaml(records: Sequence[Record]) -> str:
    lines = []
    for record in records:
        mark = "- "
        for name, value in record.items():
            if isinstance(value, list):
                lines += [f"{mark}{name}:", *(f"  - {_folded(str(each))}" for each in value)]
            else:
                lines.append(f"{mark}{name}: {_folded(str(value))}")
            mark = "  "
    return "\n".join(lines)


def _folded(value: str) -> str:
    return "|-\n    " + value.replace("\n", "\n    ") if "\n" in value else value


def _as_rows(records: Sequence[Record]) -> str:
    rows = [",".join(records[0])]
    rows += [
        ",".join(json.dumps(str(value), ensure_ascii=False) for value in each.values())
        for each in records
    ]
    return "\n".join(rows)


def _as_fields(records: Sequence[Record]) -> str:
    return "\n\n".join(
        "\n".join(f"{name.replace('_', ' ').title()}: {value}" for name, value in each.items())
        for each in records
    )


def _as_lines(records: Sequence[Record]) -> str:
    return "\n".join(" | ".join(str(value) for value in each.values()) for each in records)


_FORMS: tuple[Callable[[Sequence[Record]], str], ...] = (
    *(_as_json, _as_indented, _as_python, _as_yaml, _as_yaml, _as_rows, _as_fields, _as_lines),
)
