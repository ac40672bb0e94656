"""Writes actions and changes of configuration to the audit log (AUD-1)."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cellwall.audit.files import DIRECTORY, LogSettings, closing_fd, replace_file
from cellwall.audit.log import AuditLog
from cellwall.config.models import Settings, weakened
from cellwall.core.errors import AuditFailed, CellwallError
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.ports import AuditPort
from cellwall.core.types import Action, Json, Principal
from cellwall.secrets.session_keys import SessionKeys
from cellwall.telemetry.names import OPERATIONS, OTHER

_SHORT_CHARACTERS = 4096
_PARTS = (str, list, dict)


class Traffic(threading.local):
    """How many actions are under way on this thread's event loop."""

    count = 0


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes events of actions."""

    audit: AuditPort
    traffic: Traffic = field(default_factory=Traffic)

    async def record(self, action: Action, kind: EventKind, body: dict[str, Json]) -> str:
        """Write an event durably; returns its id."""
        event = _event(action, kind, body)
        # Alone on its loop, a thread switch takes longer than the disk, and other threads share
        # the flush anyway; among many tasks, none waits for another's flush. A long body is
        # redacted in a thread in any case.
        is_alone = self.traffic.count < 2 and _is_short(body)
        return self.audit.write(event) if is_alone else await self.audit.record(event)

    def quietly(
        self, action: Action, body: dict[str, Json], kind: EventKind = EventKind.OUTCOME
    ) -> str:
        """Write an event of an action that has failed: a second failure must not hide the first."""
        try:
            return self.audit.write(_event(action, kind, body))
        except AuditFailed:
            return ""


def _is_short(body: dict[str, Json]) -> bool:
    """By its longest parts: all other values are short numbers and words."""
    parts = [each for each in body.values() if isinstance(each, _PARTS)]
    sizes = [len(each) if isinstance(each, str) else len(str(each)) for each in parts if each]
    return sum(sizes) <= _SHORT_CHARACTERS


def _event(action: Action, kind: EventKind, body: dict[str, Json]) -> Event:
    who = action.principal
    if kind in (EventKind.OUTCOME, EventKind.DENIAL):  # for alerts, which read no sealed body
        body = {"action_kind": OPERATIONS.get(type(action.operation), OTHER), **body}
    return Event(kind, action.id, who.name, who.interface, body, action.session_id or "")


_DAY_S = 86_400.0
_CONFIGURATION = "configuration"


def audit_directory(home: str) -> str:
    """The directory of the audit log of a state folder."""
    return os.path.join(home, "audit")


def log_settings(settings: Settings, home: str | None = None) -> LogSettings:
    """The settings of the audit log as configured."""
    audit = settings.audit
    return LogSettings(
        max_field_bytes=audit.max_field_bytes,
        segment_bytes=audit.segment_bytes,
        segment_age_s=audit.segment_days * _DAY_S,
        checkpoint_events=audit.checkpoint_events,
        checkpoint_s=audit.checkpoint_s,
        keep_days=audit.keep_days,
        signing_key=audit.signing_key,
        witness_directory=audit.witness_directory,
        witness_command=audit.witness_command,
        forward_folder=None if home is None or not audit.forward else forward_folder(home),
    )


def forward_folder(home: str) -> str:
    """Where forwarding of the present log has its bookmark: a log that was started anew is
    forwarded from its beginning."""
    origin = b""
    with suppress(OSError), open(os.path.join(audit_directory(home), "origin"), "rb") as file:
        origin = file.read(4096)
    return os.path.join(home, "audit-forward", hashlib.sha256(origin).hexdigest()[:16])


def open_record(home: str, settings: Settings, keys: SessionKeys | None = None) -> AuditLog:
    """The audit log, open for writing; it closes the keys of sessions with itself."""
    return AuditLog.open(
        audit_directory(home), settings=log_settings(settings, home), keys=keys or SessionKeys(home)
    )


def note_configuration(home: str, settings: Settings, audit: AuditLog, who: Principal) -> None:
    """Write an event if the configuration differs from the last one in the log."""
    text = settings.model_dump_json()
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = os.path.join(audit_directory(home), _CONFIGURATION)
    with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        if file.read(128) == digest:
            return
    body: dict[str, Json] = {
        "sha256": digest,
        "profile": settings.profile,
        "weakened": list(weakened(settings)),
        "settings": text,
    }
    audit.write(Event(EventKind.CONFIG, "", who.name, who.interface, body))
    with closing_fd(os.open(audit_directory(home), DIRECTORY)) as folder:
        replace_file(_CONFIGURATION, digest.encode(), folder, durable=False)


@dataclass(frozen=True, slots=True)
class AdminChange:
    """A change by a person: of a template, a skill, the vault, a policy."""

    kind: EventKind
    what: str
    """Such as `build`."""
    name: str
    known: dict[str, Json]

    @contextmanager
    def recorded(self, audit: AuditLog, who: Principal) -> Iterator[dict[str, Json]]:
        """Write intent and outcome around the change, which fills in the outcome. A failed write of
        the intent refuses the change."""
        action_id = new_id("act")

        def write(step: str, status: str, body: dict[str, Json]) -> None:
            # `message` is what `cellwall audit tail` shows.
            message = f"{self.what} {self.kind} {self.name}: {status}"
            change = {"step": step, "change": self.what, self.kind.value: self.name}
            event = {**change, **self.known, "message": message, "status": status, **body}
            audit.write(Event(self.kind, action_id, who.name, who.interface, event))

        write("intent", "begins", {})
        outcome: dict[str, Json] = {}
        try:
            yield outcome
        except BaseException as error:
            with suppress(AuditFailed):  # a second failure must not hide the first
                write("outcome", "failed", error_body(error))
            raise
        write("outcome", "ok", outcome)

    @contextmanager
    def recorded_in(
        self, home: str, settings: Settings, who: Principal
    ) -> Iterator[dict[str, Json]]:
        """`recorded` in the audit log of this state folder, opened for the change."""
        with open_record(home, settings) as audit, self.recorded(audit, who) as outcome:
            yield outcome


@contextmanager
def recorded_files(
    audit: AuditPort, run_id: str, who: Principal, intent: dict[str, Json]
) -> Iterator[dict[str, Json]]:
    """Write intent and outcome around a change of files that a run left; the caller fills in the
    outcome. A failed write of the intent refuses the change."""

    def write(step: str, body: dict[str, Json]) -> None:
        event: dict[str, Json] = {"step": step, **body}
        audit.write(Event(EventKind.APPLY, run_id, who.name, who.interface, event, run_id))

    write("intent", intent)
    outcome: dict[str, Json] = {}
    try:
        yield outcome
    except BaseException:
        with suppress(AuditFailed):  # a second failure must not hide the first
            write("outcome", {"status": "interrupted"})
        raise
    write("outcome", outcome)


def error_body(error: BaseException) -> dict[str, Json]:
    """An error with its detail, which is for the audit log alone."""
    if isinstance(error, CellwallError):
        return {"error_code": error.code, "reason": error.message, "detail": error.detail}
    return {"reason": "interrupted", "detail": type(error).__name__}
