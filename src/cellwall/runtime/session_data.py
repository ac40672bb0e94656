"""Data of sessions at rest (FS-5): keys with the vault behind them, and retention.

Retention by age destroys keys, so that records and kept workspaces under them can no longer be
read; retention by size removes kept workspaces, the oldest first. A hold on the log suspends both.
"""

# ruff: noqa: PLC0415  # late imports: most runs read no session data

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.audit.log import AuditLog
from cellwall.audit.retention import frozen_holds, holds
from cellwall.config.models import Settings
from cellwall.core.errors import Busy, CellwallError, Denied, WorkspaceError
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json
from cellwall.runtime.home import no_state
from cellwall.runtime.recording import audit_directory
from cellwall.sandbox.run_ledger import RunLedger
from cellwall.sandbox.workspace.store import WorkspaceStore
from cellwall.secrets import failures
from cellwall.secrets.session_keys import SessionKeys

if TYPE_CHECKING:
    from cellwall.runtime.vault import AskPassphrase, AuditedVault


class _VaultOnDemand:
    """Opens the vault when the first private key is needed from it."""

    def __init__(
        self,
        home: str,
        settings: Callable[[], Settings],
        ask: AskPassphrase | None,
    ) -> None:
        self._home, self._settings, self._ask = home, settings, ask
        self._vault: AuditedVault | None = None
        self._problem: CellwallError | None = None

    def __call__(self, vault: str) -> bytearray:
        from cellwall.runtime.vault import AuditedVault, unlocked_vault

        opened = unlocked_vault(self._home)
        if opened is not None:
            return opened.session_key(vault)
        if self._problem is not None:  # a person is asked once, not for every record
            raise self._problem
        try:
            if self._vault is None:
                self._vault = AuditedVault(self._home, self._settings(), ask=self._ask)
            return self._vault.session_key(vault)
        except CellwallError as error:
            self._problem = failures.session_locked(error.code)
            raise self._problem from None


def readable_keys(
    home: str,
    settings: Callable[[], Settings],
    ask: AskPassphrase | None = None,
) -> SessionKeys:
    """Keys that can also read: the vault opens for them when needed, and `ask` may ask a person."""
    return SessionKeys(home, _VaultOnDemand(home, settings, ask))


@contextmanager
def no_hold(home: str, *, is_sure: bool = False) -> Iterator[None]:
    """Raise `Denied` if a hold on the log is in force; none comes into force within the block."""
    try:
        frozen = frozen_holds(audit_directory(home), is_sure=is_sure)
        found = frozen.__enter__()
    except TimeoutError:
        raise Busy(
            "another process changes holds, or deletes old records",
            hint="Try again in a moment.",
        ) from None
    except OSError as error:
        raise no_state(error) from error
    try:
        if found:
            raise Denied(
                "a hold on the audit log is in force, and nothing may be erased",
                hint="`cellwall audit hold` lists the holds.",
                code="CW-SESSION-HELD",
            )
        yield
    finally:
        frozen.__exit__(None, None, None)


def is_held(home: str) -> bool:
    """Whether a hold on the log is in force."""
    return bool(holds(audit_directory(home)))


_ENFORCE_EVERY_S = 3600.0
_ENFORCED = "retention-enforced"
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Expired:
    """What retention has erased."""

    keys: int = 0
    workspaces: tuple[str, ...] = ()


def enforce_retention(
    settings: Settings,
    audit: AuditLog,
    store: WorkspaceStore,
    ledger: RunLedger,
    keys: SessionKeys,
    *,
    is_forced: bool = False,
    now_s: float | None = None,
) -> Expired:
    """Erase what is past its time or over its size; at most once an hour, unless forced. `now_s`:
    the time of a probe that looks ahead."""
    marker = os.path.join(store.home, _ENFORCED)
    if not is_forced and not _is_due(marker):
        return Expired()
    retention, destroyed, removed = settings.retention, 0, []
    is_wanted = retention.session_days is not None or retention.workspaces_bytes is not None
    # A hold that is there costs no lock; one that comes now is excluded by it.
    if is_wanted and not holds(audit_directory(store.home)):
        with suppress(Denied, Busy), no_hold(store.home, is_sure=is_forced):
            if retention.session_days is not None:
                now_s = time.time() if now_s is None else now_s
                before_s = now_s - retention.session_days * _DAY_S
                destroyed = _expire_keys(audit, keys, before_s, audit_directory(store.home))
                removed += [each for each in store.erased() if _remove(audit, store, ledger, each)]
            if retention.workspaces_bytes is not None:
                beyond = store.oldest_beyond(retention.workspaces_bytes, ledger.live())
                removed += [each for each in beyond if _remove(audit, store, ledger, each)]
    removed += _expire_snapshots(audit, store, is_sure=is_forced)
    with suppress(OSError), open(marker, "w", encoding="ascii"):
        os.utime(marker)
    return Expired(destroyed, tuple(removed))


def _expire_snapshots(audit: AuditLog, store: WorkspaceStore, *, is_sure: bool) -> list[str]:
    """Snapshots whose time is over, and layers that nothing uses any more."""
    expired = store.snapshots.expired()
    if expired and holds(audit_directory(store.home)):
        return []
    with suppress(Denied, Busy, OSError, CellwallError):
        if expired:
            with no_hold(store.home, is_sure=is_sure):
                for each in expired:
                    _record(audit, {"reason": "retention", "snapshot": each})
                    store.snapshots.remove(each)
        store.collect_layers()
        return expired
    return []


def _remove(audit: AuditLog, store: WorkspaceStore, ledger: RunLedger, session_id: str) -> bool:
    """False if the workspace is in use: another process may be applying its changes."""
    try:
        with ledger.hold_ended(session_id):
            _record(audit, {"reason": "retention", "workspace": session_id})
            store.remove(session_id)
    except (WorkspaceError, OSError):
        return False
    return True


def _is_due(marker: str) -> bool:
    try:
        return not 0 <= time.time() - os.stat(marker).st_mtime < _ENFORCE_EVERY_S
    except OSError:
        return True


def _expire_keys(audit: AuditLog, keys: SessionKeys, before_s: float, directory: str) -> int:
    from cellwall.audit.text_indexing import remove_erased

    count = keys.count_expired(before_s)
    if count:
        # Before the keys: a record of an erasure that a crash prevented is harmless.
        _record(audit, {"reason": "age", "keys": count})
        keys.expire(before_s)
        remove_erased(directory, keys)
    return count


def _record(audit: AuditLog, body: dict[str, Json]) -> None:
    audit.write(Event(EventKind.ERASURE, "", "cellwall", "audit", body))
