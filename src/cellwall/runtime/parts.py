"""The parts of a runtime, each behind its port."""

from __future__ import annotations

from dataclasses import dataclass, field

from cellwall.core.labels import NO_LABELS, LabelsPort
from cellwall.core.ports import (
    AuditPort,
    BrokerPort,
    ConnectionsPort,
    DestinationsPort,
    EgressPort,
    GuardPort,
    InstallerPort,
    PackagesPort,
    PolicyPort,
    QuotaPort,
    RolesPort,
    SkillsPort,
    StopPort,
    TemplatesPort,
    VaultPort,
)
from cellwall.core.sandbox_ports import GovernorPort, SandboxPort, SnapshotsPort, WorkspacePort
from cellwall.core.telemetry import OFF, TelemetryPort
from cellwall.runtime.bounds import ActionBounds
from cellwall.runtime.consents import Consents
from cellwall.runtime.egress import ConfiguredReach
from cellwall.runtime.endings import Endings
from cellwall.runtime.host_operations import HostOperations
from cellwall.runtime.metering import Unmetered, UsageMeter
from cellwall.runtime.recording import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeParts:
    """The parts, and what the steps derive from them."""

    stop: StopPort
    bounds: ActionBounds
    roles: RolesPort
    policy: PolicyPort
    approvals: BrokerPort
    guard: GuardPort
    audit: AuditPort
    governor: GovernorPort
    sandbox: SandboxPort
    workspaces: WorkspacePort
    skills: SkillsPort
    vault: VaultPort
    egress: EgressPort
    installer: InstallerPort
    destinations: DestinationsPort
    reach: ConfiguredReach = ConfiguredReach()
    quota: QuotaPort = field(default_factory=Unmetered)
    """Rates and budgets of accounts; users of this machine have none."""
    packages: PackagesPort | None = None
    templates: TemplatesPort | None = None
    telemetry: TelemetryPort = OFF
    connections: ConnectionsPort | None = None
    labels: LabelsPort = NO_LABELS
    snapshots: SnapshotsPort | None = None
    recorder: Recorder = field(init=False)
    meter: UsageMeter = field(init=False)
    _endings: Endings = field(init=False)
    _people: Consents = field(init=False)
    _host: HostOperations = field(init=False)

    def __post_init__(self) -> None:
        recorder = Recorder(self.audit)
        object.__setattr__(self, "recorder", recorder)
        object.__setattr__(self, "meter", UsageMeter(self.sandbox, recorder))
        object.__setattr__(self, "_endings", Endings(recorder, self.guard))
        people = Consents(self.guard, self.approvals, recorder, self.installer)
        object.__setattr__(self, "_people", people)
        host = HostOperations(
            workspaces=self.workspaces,
            sandbox=self.sandbox,
            egress=self.egress,
            vault=self.vault,
            guard=self.guard,
            connections=self.connections,
            snapshots=self.snapshots,
            labels=self.labels,
        )
        object.__setattr__(self, "_host", host)
