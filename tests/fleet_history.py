"""What a fleet has done, judged by what its clients saw and what all hosts have recorded; pure.

In the manner of Jepsen: clients run commands that carry a mark each and note what became of them,
while hosts are killed, stopped and cut off. Afterwards the records of all hosts are read as one,
and the files that the commands have written where their sessions live. Then must hold:
  (1) no run is lost: an acknowledged one has its intent and its outcome in the record, once;
  (2) no run happens twice: a mark has one intent at most, and is in its file once at most;
  (3) what a host has refused was not done;
  (4) no session is on two hosts;
  (5) nothing is in the record that nobody has sent.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

MARK = re.compile(r"mark-[0-9]+-[0-9]+")


class Fate(Enum):
    """What became of an attempt, as its client knows it."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """The answer says that nothing was done."""
    UNKNOWN = "unknown"
    """It may have been executed: the host was lost meanwhile, or the connection ended."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One command of a client, with a mark that no other has."""

    mark: str
    session: str
    fate: Fate
    audit_id: str = ""
    """Of an acknowledged one: the record of its intent."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One record of one host."""

    host: str
    id: str
    kind: str
    session: str
    action: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """All that is known when everything has ended."""

    attempts: Sequence[Attempt]
    events: Sequence[HostEvent]
    files: Mapping[str, Sequence[str]]
    """The marks in the file of each session that still lives, in order."""


def violations(history: History) -> list[str]:
    """What must not have happened; empty for a history that is right."""
    return [
        *_lost(history),  # (1)
        *_twice(history),  # (2)
        *_done_though_refused(history),  # (3)
        *_on_two_hosts(history),  # (4)
        *_sent_by_nobody(history),  # (5)
    ]


def _lost(history: History) -> Iterator[str]:
    intents, outcomes = defaultdict(list), Counter[str]()
    for event in history.events:
        if event.kind == "intent":
            intents[event.id].append(event)
        elif event.kind == "outcome":
            outcomes[event.action] += 1
    for attempt in history.attempts:
        if attempt.fate is not Fate.ACKNOWLEDGED:
            continue
        found = intents[attempt.audit_id]
        if len(found) != 1:
            yield f"{attempt.mark} was acknowledged and has {len(found)} records"
        elif (found[0].mark, found[0].session) != (attempt.mark, attempt.session):
            yield f"{attempt.mark} was acknowledged with the record of another run"
        elif (count := outcomes[found[0].action]) != 1:
            yield f"{attempt.mark} was acknowledged and has {count} records of its outcome"
        written = history.files.get(attempt.session)
        if written is not None and attempt.mark not in written:
            yield f"{attempt.mark} was acknowledged, and its file does not have it"


def _twice(history: History) -> Iterator[str]:
    intents = Counter(each.mark for each in history.events if each.kind == "intent" and each.mark)
    for mark, count in intents.items():
        if count > 1:
            yield f"{mark} was begun {count} times"
    for session, written in history.files.items():
        for mark, count in Counter(written).items():
            if count > 1:
                yield f"{mark} was executed {count} times in {session}"


def _done_though_refused(history: History) -> Iterator[str]:
    # A key may be sent again after a refusal: the mark counts as refused if every attempt was.
    fates = defaultdict(set)
    for attempt in history.attempts:
        fates[attempt.mark].add(attempt.fate)
    refused = {mark for mark, found in fates.items() if found == {Fate.REFUSED}}
    done = {each.mark for each in history.events if each.kind == "intent"}
    done |= {mark for written in history.files.values() for mark in written}
    yield from (f"{mark} was refused and done" for mark in sorted(refused & done))


def _on_two_hosts(history: History) -> Iterator[str]:
    hosts = defaultdict(set)
    for event in history.events:
        if event.session and event.mark:
            hosts[event.session].add(event.host)
    for session, found in sorted(hosts.items()):
        if len(found) > 1:
            yield f"{session} ran on {len(found)} hosts"


def _sent_by_nobody(history: History) -> Iterator[str]:
    sent = {(each.mark, each.session) for each in history.attempts}
    for event in history.events:
        if event.mark and (event.mark, event.session) not in sent:
            yield f"{event.mark} was recorded in {event.session}, and nobody has sent it there"


def events_of(host: str, records: Iterable[Mapping[str, Any]]) -> Iterator[HostEvent]:
    """The records of one host, as `cellwall audit export --form jsonl` writes them."""
    for record in records:
        mark = ""
        if record["kind"] == "intent" and (found := MARK.search(json.dumps(record["body"]))):
            mark = found[0]
        yield HostEvent(
            host=host,
            id=record["id"],
            kind=record["kind"],
            session=record["session_id"],
            action=record["action_id"],
            mark=mark,
        )


def exported_events(host: str, file: Path) -> list[HostEvent]:
    """All records of one host from an exported file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return list(events_of(host, map(json.loads, lines)))
