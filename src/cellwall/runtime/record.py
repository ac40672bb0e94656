"""The record as the configuration wants it kept; and changes of configuration, put on it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.audit.files import LOCK_TIMEOUT_S, LogSettings, replace_file
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import hold, holds, maintain_segments, release
from cellwall.config.load import load_settings
from cellwall.config.models import Settings, weakened
from cellwall.core.errors import AuditFailed, BadInput, CellwallError
from cellwall.core.events import Event, EventKind
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.types import Json, Principal, new_id
from cellwall.runtime.home import state_home

_DAY_S = 86_400.0
_CONFIGURATION = "configuration"
_HOLD_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")


def audit_directory(home: str) -> str:
    """Where the record of a state folder lies."""
    return os.path.join(home, "audit")


def log_settings(settings: Settings) -> LogSettings:
    """How the configuration wants it kept."""
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
    )


def open_record(home: str, settings: Settings) -> AuditLog:
    """The log, open for writing."""
    return AuditLog.open(audit_directory(home), settings=log_settings(settings))


def note_configuration(home: str, settings: Settings, audit: AuditLog, who: Principal) -> None:
    """A configuration that is not the one before it is an event of its own."""
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
    folder = os.open(audit_directory(home), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        replace_file(_CONFIGURATION, digest.encode(), folder, durable=False)
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True)
class Change:
    """Of what agents find: a template, a skill."""

    kind: EventKind
    what: str
    """Such as `build`."""
    name: str
    known: dict[str, Json]

    @contextmanager
    def recorded(self, audit: AuditLog, who: Principal) -> Iterator[dict[str, Json]]:
        """Around the change itself, which fills in the outcome. A failed write of the intent
        refuses it."""
        action_id = new_id("act")

        def write(step: str, status: str, body: dict[str, Json]) -> None:
            # `message` is what `cellwall audit tail` shows.
            message = f"{self.what} {self.kind} {self.name}: {status}"
            told = {"step": step, "change": self.what, self.kind.value: self.name}
            event = {**told, **self.known, "message": message, "status": status, **body}
            audit.write(Event(self.kind, action_id, who.name, who.interface, event))

        write("intent", "begins", {})
        outcome: dict[str, Json] = {}
        try:
            yield outcome
        except BaseException as error:
            with suppress(AuditFailed):  # a second failure must not hide the first
                write("outcome", "failed", _told(error))
            raise
        write("outcome", "ok", outcome)


def _told(error: BaseException) -> dict[str, Json]:
    if isinstance(error, CellwallError):
        return {"error_code": error.code, "reason": error.message, "detail": error.detail}
    return {"reason": "interrupted", "detail": type(error).__name__}


@dataclass(frozen=True, slots=True)
class Sealed:
    """How many records are signed now, and how many files the retention rule has deleted."""

    size: int
    deleted: int


class Keeping:
    """What is done with the record as a whole; each of these is on the record itself."""

    def __init__(
        self, who: Principal, *, config: str | None = None, profile: str | None = None
    ) -> None:
        self._who = who
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)
        self._directory = audit_directory(self._home)

    def _open(self) -> AuditLog:
        audit = open_record(self._home, self._settings)
        note_configuration(self._home, self._settings, audit, self._who)
        return audit

    def seal(self) -> Sealed:
        with self._open() as audit:
            audit.seal()
            deleted = maintain_segments(
                self._directory, log_settings(self._settings), audit.write, audit.notary
            )
            audit.notary.sign_now(timeout_s=LOCK_TIMEOUT_S)
            return Sealed(audit.notary.size(), len(deleted))

    def public_key(self) -> str:
        with self._open() as audit:
            return str(audit.notary.public_key())

    def rotate(self, new_key: str | None) -> str:
        with self._open() as audit:
            return str(audit.notary.rotate(new_key, self._who))

    def trust(self, text: str) -> None:
        """A person says that a key is theirs, though no other key vouches for it."""
        try:
            key = PublicKey.parse(text)
        except BadNote as problem:
            raise BadInput(f"{problem}", hint="It has the form name+id+base64.") from None
        body: dict[str, Json] = {"key": text, "reason": "a person trusts it", "note": ""}
        with self._open() as audit:
            audit.write(Event(EventKind.KEY, "", self._who.name, self._who.interface, body))
            audit.notary.trust(key)

    def hold(self, name: str, reason: str) -> None:
        if _HOLD_NAME.fullmatch(name) is None:
            raise BadInput("the name of a hold is of letters, digits, dots, dashes and underscores")
        with self._open() as audit:
            hold(self._directory, name, reason, audit.write, self._who)

    def release(self, name: str) -> None:
        with self._open() as audit:
            if not release(self._directory, name, audit.write, self._who):
                raise BadInput(
                    f"there is no hold {name[:64]!r}",
                    hint="`cellwall audit hold` lists them.",
                    code="CW-NO-HOLD",
                )

    def holds(self) -> dict[str, str]:
        return holds(self._directory)
