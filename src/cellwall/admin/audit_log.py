"""Administration of the audit log as a whole: seals, keys, retention holds. Each is logged."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from cellwall.audit.files import LOCK_TIMEOUT_S
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import hold, holds, maintain_segments, release
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json, Principal
from cellwall.runtime.home import state_home
from cellwall.runtime.recording import (
    audit_directory,
    log_settings,
    note_configuration,
    open_record,
)
from cellwall.runtime.session_data import enforce_retention
from cellwall.sandbox.run_ledger import RunLedger
from cellwall.sandbox.workspace.store import WorkspaceStore
from cellwall.secrets.session_keys import SessionKeys

_HOLD_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Sealed:
    """The number of signed records, and of files that retention has deleted."""

    size: int
    deleted: int


class AuditLogAdmin:
    """Operations on the whole audit log, each logged itself."""

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
                self._directory, log_settings(self._settings, self._home), audit.write, audit.notary
            )
            self._enforce_retention(audit)
            audit.notary.sign_now(timeout_s=LOCK_TIMEOUT_S)
            return Sealed(audit.notary.size(), len(deleted))

    def _enforce_retention(self, audit: AuditLog) -> None:
        keys, ledger = SessionKeys(self._home), RunLedger(os.path.join(self._home, "runs"))
        try:
            store = WorkspaceStore(self._home, keys)
            enforce_retention(self._settings, audit, store, ledger, keys, is_forced=True)
        finally:
            ledger.close()
            keys.close()

    def public_key(self) -> str:
        with self._open() as audit:
            return str(audit.notary.signers.current())

    def rotate(self, new_key: str | None) -> str:
        with self._open() as audit:
            return str(audit.notary.rotate(new_key, self._who))

    def trust(self, text: str) -> None:
        """Trust a key on a person's word, though no other key vouches for it."""
        try:
            key = PublicKey.parse(text)
        except BadNote as problem:
            raise BadInput(f"{problem}", hint="A key has the form name+id+base64.") from None
        body: dict[str, Json] = {"key": text, "reason": "a person trusts it", "note": ""}
        with self._open() as audit:
            audit.write(Event(EventKind.KEY, "", self._who.name, self._who.interface, body))
            audit.notary.signers.trust(key)

    def hold(self, name: str, reason: str) -> None:
        if _HOLD_NAME.fullmatch(name) is None:
            raise BadInput("the name of a hold has letters, digits, dots, dashes and underscores")
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
