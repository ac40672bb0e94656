"""A runtime with its stores, as interfaces and the administration use them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cellwall.audit.log import AuditLog
from cellwall.config.models import Settings
from cellwall.core.errors import WorkspaceError
from cellwall.core.forks import OwnerProcess
from cellwall.core.ids import new_id
from cellwall.core.limits import Limits
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.ports import QuotaPort
from cellwall.core.protected_names import Protection
from cellwall.core.snapshots import WorkspaceSnapshot
from cellwall.core.telemetry import TelemetryPort
from cellwall.core.types import Json, Principal, WorkspaceRequest
from cellwall.runtime.egress import ConfiguredEgress
from cellwall.runtime.forwarding import forwarder
from cellwall.runtime.guarding import LazyGuard
from cellwall.runtime.pipeline import Runtime
from cellwall.runtime.secret_leases import SecretLeaser
from cellwall.sandbox.files.descriptors import identity_of
from cellwall.sandbox.governor import Governor, HostMemory
from cellwall.sandbox.linux.layers import PYTHON, SHELL, NativeSettings, python_template_spec
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.second_user import check_allowed
from cellwall.sandbox.protection.host_directory import open_host_directory
from cellwall.sandbox.run_ledger import RunLedger
from cellwall.sandbox.templates import definitions
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore
from cellwall.secrets.session_keys import SessionKeys

if TYPE_CHECKING:
    from cellwall.audit.export.forwarding import Forwarder
    from cellwall.guard.scanning import Scanner


@dataclass(frozen=True, slots=True)
class App:
    """A runtime with its stores, as interfaces need them."""

    runtime: Runtime
    settings: Settings
    limits: Limits
    """The profile's limits, for calls without limits of their own."""
    store: WorkspaceStore
    ledger: RunLedger
    audit: AuditLog
    protection: Protection
    governor: Governor
    pool: Pool
    native: NativeSettings
    egress: ConfiguredEgress
    leaser: SecretLeaser
    telemetry: TelemetryPort
    keys: SessionKeys
    forwarders: list[Forwarder] = field(default_factory=list)
    """At most one, once `warm_up` has started it."""

    @property
    def scanner(self) -> Scanner:
        """The scanner of the configured guard."""
        assert isinstance(self.runtime.guard, LazyGuard)  # noqa: S101  # as wired in `wiring`
        return self.runtime.guard.guard.scanner

    def load_guard(self) -> None:
        """Load the guard's rules ahead of the first text."""
        if isinstance(self.runtime.guard, LazyGuard):
            self.runtime.guard.load()

    def warm_up(self) -> None:
        """Start what runs in the background of a process that will serve many runs: the templates,
        and forwarding of the audit log."""
        if self.native.path != "cold":
            self.pool.warm_up(PYTHON, SHELL)
        if self.settings.audit.forward is not None and not self.forwarders:
            self.forwarders.append(forwarder(self.store.home, self.settings, self.keys))
            self.forwarders[0].start()

    def host_memory(self) -> tuple[int, int]:
        """Of this machine in bytes: all, and what is available without swapping."""
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, HostMemory().available_bytes() or 0

    def check_template(self, name: str) -> None:
        """Raise for a template that is unknown or not built."""
        python_template_spec(name, self.native.environment_of)

    def defines_template(self, name: str) -> bool:
        """Whether a template has this name; the refusal of an unknown one looks for similar names,
        which takes longer."""
        return definitions.is_defined(self.store.home, name)

    def check_second_user(self) -> None:
        """Raise where no sandbox can have a second user."""
        check_allowed(is_allowed=self.native.allows_second_user, backend=self.native.backend)

    def check_room(self, session_id: str, limits: Limits) -> None:
        """Raise if a private workspace has more files than these limits allow."""
        used_bytes, count = self.store.usage(self.store.session(session_id))
        if used_bytes > limits.disk_bytes or count > limits.file_count:
            raise WorkspaceError(
                "the files of the resumed session or snapshot exceed the limits of the new one",
                hint="Raise its limits disk_bytes and file_count.",
                code="CW-WORKSPACE-FULL",
            )

    def find_snapshot(self, snapshot_id: str, who: Principal) -> WorkspaceSnapshot:
        """A snapshot of this principal; that of another one is as absent as an unknown one."""
        return self.store.snapshots.find(snapshot_id, owner=_owner_of(who)).describe()

    def read_state(self, snapshot: WorkspaceSnapshot) -> bytes:
        """The variables of the interpreter in a snapshot, as JSON."""
        return self.store.snapshots.state_of(snapshot.id)

    def metered(self, quota: QuotaPort) -> App:
        """The same for a service: actions of accounts are counted and paid for (RBAC-4)."""
        return replace(self, runtime=replace(self.runtime, quota=quota))

    def close(self) -> None:
        """End the templates, and with them every remaining cell."""
        for each in self.forwarders:
            each.stop()
        self.pool.close()
        self.egress.close()
        self.leaser.close()
        self.governor.close()
        self.ledger.close()
        self.audit.close()
        self.telemetry.close()

    @contextmanager
    def session(
        self,
        request: WorkspaceRequest,
        who: Principal,
        *,
        resumed_id: str | None = None,
        snapshot_id: str | None = None,
        session_id: str | None = None,
    ) -> Iterator[str]:
        """A workspace for as long as the block lasts; swept if this process is killed.

        `resumed_id`: of a kept workspace, whose files the new one has at its beginning.
        `snapshot_id`: of a snapshot, likewise; `RestoreSnapshot` was allowed before.
        `session_id`: of a session that another host of a fleet has lost.
        """
        self.runtime.stop.check()
        session_id, owner = session_id or new_id("sbx"), OwnerProcess()
        identity: tuple[int, int] | None = None
        with self.ledger.open(session_id):
            if request.directory is not None:
                # Refused now, with a clear error, rather than at the first command.
                descriptor, place = open_host_directory(
                    request.directory, state_home=self.store.home
                )
                identity = identity_of(descriptor)
                os.close(descriptor)
                request = WorkspaceRequest(request.mode, place)
            begun: dict[str, Json] = {"status": "begun", "mode": request.mode.value}
            with ExitStack() as resuming:
                resumed: StoredWorkspace | None = None
                if resumed_id is not None:
                    begun["resumed"] = resumed_id
                    resuming.enter_context(self.ledger.hold_ended(resumed_id))
                    resumed = self.store.session(resumed_id)
                layers: tuple[str, ...] = ()
                if snapshot_id is not None:
                    begun["snapshot"] = snapshot_id
                    resuming.enter_context(self.store.snapshots.building())
                    found = self.store.snapshots.find(snapshot_id, owner=_owner_of(who))
                    layers = found.layers
                self._record_session(who, session_id, begun)
                session = self.store.make(
                    session_id,
                    request,
                    identity=identity,
                    resumed=resumed,
                    layers=layers,
                    copies_layers=self.native.backend != "native",
                )
                if resumed is not None:
                    self.runtime.labels.resume(session_id, resumed.id)
                if snapshot_id is not None:
                    folder = self.store.snapshots.folder_of(snapshot_id)
                    self.runtime.labels.begin_with(session_id, folder)
            try:
                yield session_id
            finally:
                if owner.is_current:  # a forked child must not end its parent's session
                    self._end_session(who, session_id)
                    self.store.retire(session)

    def _end_session(self, who: Principal, session_id: str) -> None:
        self.runtime.approvals.forget(session_id)
        self.runtime.meter.end_session(session_id)  # before its counters are gone
        self.runtime.sandbox.end_session(session_id)
        self.runtime.egress.end_session(session_id)
        self.runtime.destinations.end_session(session_id)
        if self.runtime.packages is not None:
            self.runtime.packages.end_session(session_id)
        if self.runtime.templates is not None:
            self.runtime.templates.end_session(session_id)
        self.runtime.vault.end_session(session_id)
        self.runtime.guard.end_session(session_id)
        self.runtime.labels.end_session(session_id)
        findings = self.runtime.workspaces.end_session(session_id)
        # Findings at the end of a session belong to no action.
        listed = [dict(finding.to_json()) for finding in findings]
        self._record_session(who, session_id, {"status": "ended", "findings": listed})

    def _record_session(self, who: Principal, session_id: str, body: dict[str, Json]) -> None:
        event = Event(EventKind.SESSION, "", who.name, who.interface, body, session_id)
        self.audit.write(event)


def _owner_of(who: Principal) -> str:
    """To whom a snapshot belongs; users of this machine share the empty name."""
    return "" if who.account is None else who.account.user_id
