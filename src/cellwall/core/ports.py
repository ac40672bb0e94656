"""The ports between the runtime and its parts; those of the sandbox are in `sandbox_ports`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from cellwall.core.approvals import Answer, Question
from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.errors import CellwallError
from cellwall.core.network import (
    CellNetwork,
    Page,
    SecretUse,
    ServiceRequest,
    ServiceResponse,
)
from cellwall.core.outcomes import Event, Finding, Outcome, PackageUse, RunResult, Usage
from cellwall.core.packages import InstallPackages
from cellwall.core.skills import Skill
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action, Json, OutputSink, Principal, Role, WorkspaceMount
from cellwall.core.verdict import Decision


class PolicyPort(Protocol):
    """Judges an action. Pure: no I/O, no clock. No match is DENY."""

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision: ...


class RolesPort(Protocol):
    """Maps a principal to its role. Pure (RBAC-1)."""

    def role_of(self, principal: Principal) -> Role: ...


class Reservation(Protocol):
    """What an action may use."""

    def start(self) -> None:
        """The action is allowed and begins to run."""

    def add(self, usage: Usage) -> None:
        """A sandbox has used this for the action."""

    async def settle(self, outcome: Outcome | None) -> None:
        """Book what was used; only the first call counts. None: cancelled. Never raises."""

    async def book(self) -> None:
        """Book what was added and is not booked yet, before or after `settle`: programs of a live
        sandbox run on. Raise `LimitExceeded` if a budget is used up now."""


class QuotaPort(Protocol):
    """Rates and budgets of the account behind an action (RBAC-4)."""

    async def reserve(self, action: Action) -> Reservation:
        """Raise `LimitExceeded` if one of them is used up."""

    async def has_room(self, action: Action) -> bool:
        """Whether `reserve` would succeed now. Counts, reserves and notes nothing."""


class StopPort(Protocol):
    """The emergency stop of a state folder (OBS-3)."""

    def check(self) -> None:
        """Raise `Denied` while everything is stopped, `SandboxFailed` if that is unknown."""

    def cause_of(self, error: CellwallError) -> CellwallError:
        """The stop, where it is why a sandbox failed; else the error itself."""


class ApproverPort(Protocol):
    """One channel to a person. Any exception means no answer, which denies."""

    @property
    def name(self) -> str:
        """One of `approvals.CHANNELS`."""

    async def ask(self, question: Question) -> Answer: ...


class BrokerPort(Protocol):
    """All channels to a person (POL-8). Logs each answer before it returns it."""

    @property
    def timeout_s(self) -> float: ...

    async def ask(self, question: Question, *, near: ApproverPort | None = None) -> Answer:
        """`near` is the interface's own channel, beside the shared ones."""

    def forget(self, session_id: str) -> None:
        """Drop the approvals of a session that has ended."""


class CleanSink(Protocol):
    """A sink that redacts and passes on to another sink."""

    def __call__(self, name: Literal["stdout", "stderr"], chunk: bytes, /) -> None: ...

    def end(self) -> None:
        """End of output: pass on the text held back."""


class GuardPort(Protocol):
    """Scans input and redacts output. A signal, never the boundary."""

    def screen(self, action: Action) -> Sequence[Finding]:
        """Findings about the input; a `high` one refuses the action."""

    def clean(self, action: Action, result: RunResult) -> RunResult:
        """The result redacted, with findings, and with `shown` for a model."""

    def redact(self, text: str) -> str:
        """One of our own messages, without secrets in quoted names."""

    def read_message(self, message: ReceiveMessage | SendReply) -> str:
        """The text of a message as an agent, or the other side of the channel, may see it."""

    def tell(self, action: Action, text: str) -> str:
        """The message as a model may see it: quoted names are marked as data."""

    def stream(self, sink: OutputSink) -> CleanSink:
        """A redacting sink for streamed output."""

    def end_session(self, session_id: str) -> None:
        """Drop the state of a live sandbox."""


class AuditPort(Protocol):
    """Writes events durably; raises `AuditFailed` if it cannot, and the action is refused."""

    def write(self, event: Event) -> str: ...

    async def record(self, event: Event) -> str:
        """`write` for one of many tasks, which share one flush."""


class SessionKeysPort(Protocol):
    """A key per session, for data at rest; destroying it erases the data (FS-5)."""

    def seal(self, session: str, plain: bytes, aad: bytes) -> tuple[str, bytes]:
        """The name of the key, which is durable by then, and the ciphertext."""

    def unseal(self, key: str, sealed: bytes, aad: bytes) -> bytes:
        """Raises `VaultError` with a code of `core.errors.SEALED_CODES` if it cannot be read."""

    def new_key(self, session: str) -> tuple[str, bytes]:
        """A key for one archive: its name, and its 32 bytes."""

    def key_bytes(self, key: str) -> bytes:
        """The key of this name; raises like `unseal`."""

    def is_destroyed(self, key: str) -> bool: ...

    def destroy_key(self, key: str) -> None:
        """Destroy one key; durable when this returns."""

    def close(self) -> None:
        """Forget all keys."""


class ToolsPort(Protocol):
    """Host functions for code inside."""

    async def call(self, name: str, args: Sequence[Json], kwargs: Mapping[str, Json]) -> Json:
        """The result as plain data; the code sees the message of a `CellwallError`."""


class ToolServersPort(Protocol):
    """The servers of one client."""

    def judge(self, operation: CallServerTool) -> Decision:
        """DENY unless a person has accepted exactly this tool."""

    def is_named_together(self, server: str) -> bool:
        """Whether a person has consented that this server, with the tools that it has now, brings
        untrusted content, private data and egress (POL-9)."""

    async def call(self, action: Action, operation: CallServerTool) -> RunResult:
        """Call the tool; a failure of the server is a `CellwallError`."""


class InstallCells(Protocol):
    """The cells of one installation."""

    @property
    def mount(self) -> WorkspaceMount:
        """The files that the cells have."""

    @property
    def near(self) -> ApproverPort | None:
        """The interface's own channel for questions."""

    async def run(self, action: Action) -> RunResult:
        """Run one action in a cell on these files."""

    def private(
        self, action: Action, *, is_shown: bool = True
    ) -> AbstractAsyncContextManager[InstallCells]:
        """Cells on an empty workspace of their own, which is removed with the block."""


class InstallerPort(Protocol):
    """Installs packages by name (PKG-1)."""

    def judge(self, operation: InstallPackages) -> Decision:
        """The verdict on the names, before any byte."""

    def consent(self, action: Action, operation: InstallPackages, answer: Answer) -> None:
        """A person has allowed the packages that the action names."""

    async def prepare(self, action: Action, cells: InstallCells) -> None:
        """Before any cell that reaches a registry; a failure costs time alone."""

    async def install(self, action: Action, cells: InstallCells) -> RunResult:
        """Install the packages of the action in cells on the files of its session."""


class SkillsPort(Protocol):
    """Loads signed skills, verified at this moment (SKL-1)."""

    def load(self, names: Sequence[str]) -> tuple[Skill, ...]: ...


class VaultPort(Protocol):
    """Leases secrets for their grants; access ends with the lease (SEC-3)."""

    async def check(self, action: Action) -> None:
        """Raise `VaultError` for an unknown secret; grants are checked at the lease."""

    def lease(self, action: Action) -> AbstractAsyncContextManager[tuple[SecretUse, ...]]:
        """The secrets that the action names; raises `VaultError` without a grant."""

    def end_session(self, session_id: str) -> None:
        """End the leases of a session."""


class EgressPort(Protocol):
    """The only egress of cells (NET-2)."""

    def session(
        self, action: Action, secrets: Sequence[SecretUse]
    ) -> AbstractAsyncContextManager[CellNetwork]:
        """The network for the cell of this action; a live sandbox keeps its first one."""

    async def fetch(self, action: Action, secrets: Sequence[SecretUse]) -> Page:
        """Fetch one page by the same rules (NET-4)."""

    async def request(
        self, action: Action, secrets: Sequence[SecretUse], request: ServiceRequest
    ) -> ServiceResponse:
        """Send one request by the same rules, with the secrets where they are bound."""

    def allow(self, session_id: str, domains: Sequence[str]) -> None:
        """Replace the allowlist of a live sandbox for new connections."""

    def end_session(self, session_id: str) -> None:
        """End the connections of a session."""

    def take_packages(self, action_id: str) -> tuple[PackageUse, ...]:
        """What the action got from package registries since the last call."""


class PackagesPort(Protocol):
    """The rules and the answers about packages in each session (PKG-2)."""

    def open(
        self, action: Action, *, near: ApproverPort | None
    ) -> AbstractAsyncContextManager[Mapping[str, str]]:
        """Questions about packages can be asked meanwhile. The value: variables for the cell."""

    def end_session(self, session_id: str) -> None:
        """Forget the answers of a session that has ended."""


class DestinationsPort(Protocol):
    """Questions about destinations that no rule names (NET-9)."""

    def open(
        self, action: Action, perform: Callable[[Action], Awaitable[Outcome]]
    ) -> AbstractAsyncContextManager[None]:
        """Questions can be asked meanwhile; `perform` carries out an action for each of them."""

    def end_session(self, session_id: str) -> None:
        """Forget the questions of a session that has ended."""


class ConnectionsPort(Protocol):
    """Connected accounts, each for its owner alone (RBAC-3)."""

    def resolve(self, action: Action, operation: UseAccount) -> Action:
        """The action bound to the account that its operation names: with its host as the only
        domain and its secret. Raises `NotFound`, the same for an account of another user as for
        one that does not exist."""

    def has_any(self, who: Principal) -> bool:
        """Whether this principal has connected an account. May read a file."""

    async def use(
        self, action: Action, operation: UseAccount, *, vault: VaultPort, egress: EgressPort
    ) -> RunResult:
        """Carry out an operation that `resolve` has bound to its account."""


class TemplatesPort(Protocol):
    """The packages of templates, each judged when its template was built (PKG-1)."""

    async def check(self, action: Action) -> None:
        """Raise `Denied` if a package of the action's template is denied by now."""

    def end_session(self, session_id: str) -> None:
        """Forget a session that has ended."""
