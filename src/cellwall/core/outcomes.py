"""The result of a run, the `Outcome` of an action, and the events of the audit log (AUD-1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from cellwall.core.errors import (
    CellwallError,
    Denied,
    LimitExceeded,
    LimitReached,
    RunFailed,
    error_kind,
    make_error,
)
from cellwall.core.limits import LimitName
from cellwall.core.verdict import Decision, Verdict

if TYPE_CHECKING:
    from cellwall.core.types import Json


class Status(StrEnum):
    """How an action ended. A refusal is a value, not an exception."""

    OK = "ok"
    FAILED = "failed"
    LIMIT = "limit"
    DENIED = "denied"
    ERROR = "error"


Severity: TypeAlias = Literal["low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In ascending order."""


NOT_STARTED = "not-started"
"""The category of a finding for a background program that could not be started."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation of a guard or a check; it never carries the secret it found."""

    category: str
    severity: Severity
    message: str
    rule: str = ""
    """The guard rule, or the code of a refusal; empty for findings of other checks."""
    span: tuple[int, int] | None = None
    """Its position in the inspected text, in characters."""
    decoded_from: tuple[str, ...] = ()
    """The encodings around it, from the outside in."""
    where: str = ""
    """The part of the action or result: `stdout`, `code`, the name of a field."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Finding:
        """From `to_json`."""
        span = fields.get("span")
        return cls(
            fields["category"],
            fields["severity"],
            fields["message"],
            rule=fields.get("rule", ""),
            span=(span[0], span[1]) if span else None,
            decoded_from=tuple(fields.get("decoded_from", ())),
            where=fields.get("where", ""),
        )

    def to_json(self) -> dict[str, Json]:
        optional: dict[str, Json] = {
            "rule": self.rule,
            "span": list(self.span or ()),
            "decoded_from": list(self.decoded_from),
            "where": self.where,
        }
        always = {"category": self.category, "severity": self.severity, "message": self.message}
        return always | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage of a run (LIM-5). `io_bytes` is None where the host does not report it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak: int = 0
    io_bytes: int | None = None
    sent_bytes: int = 0
    """Sent over egress by the sandbox since its last run."""

    def to_json(self) -> dict[str, Json]:
        return {
            "wall_s": round(self.wall_s, 6),
            "cpu_s": round(self.cpu_s, 6),
            "memory_peak": self.memory_peak,
            "io_bytes": self.io_bytes,
            "sent_bytes": self.sent_bytes,
        }


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The part of an error that interfaces may show (ERR-1)."""

    code: str
    message: str
    hint: str = ""
    kind: str = field(default="", compare=False, repr=False)
    """The name of the error's class, for `to_exception`; not part of the JSON form."""
    retry_after_s: float | None = field(default=None, compare=False)
    """When the same request can succeed, where that is known."""

    @classmethod
    def of(cls, error: CellwallError) -> ErrorInfo:
        retry_after_s = error.retry_after_s if isinstance(error, LimitExceeded) else None
        return cls(error.code, error.message, error.hint, error_kind(error), retry_after_s)

    def to_exception(self) -> CellwallError:
        """The exception of the class that the failure had."""
        error = make_error(self.kind, self.message, hint=self.hint, code=self.code)
        if isinstance(error, LimitExceeded):
            error.retry_after_s = self.retry_after_s or 0.0
        return error

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def to_outcome_json(self) -> dict[str, Json]:
        """In an outcome, which has no header for the time."""
        if self.retry_after_s is None:
            return dict(self.to_json())
        return {**self.to_json(), "retry_after_s": self.retry_after_s}


@dataclass(frozen=True, slots=True)
class PackageUse:
    """One artifact that a run got from a package registry, by the hash that was judged (PKG-5)."""

    ecosystem: str
    name: str
    version: str
    algorithm: str
    digest: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> PackageUse:
        """From `to_json`."""
        algorithm = "sha256" if "sha256" in fields else "sha512"
        return cls(
            fields["ecosystem"], fields["name"], fields["version"], algorithm, fields[algorithm]
        )

    def to_json(self) -> dict[str, Json]:
        """The hash under the name of its algorithm: `sha256` for PyPI, `sha512` for npm."""
        named: dict[str, Json] = {
            "ecosystem": self.ecosystem,
            "name": self.name,
            "version": self.version,
        }
        return {**named, self.algorithm: self.digest}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The sandbox's report of one run, before it is redacted and logged.

    `exit_code` is the program's own; a program killed by a signal has 128 + its number. `value`
    and `results` come from the code, as JSON only, and are never trusted (CVE-2025-14931).
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    limit: LimitName | None = None
    value: Json = None
    text: str | None = None
    results: tuple[Json, ...] = ()
    code_error: Json = None
    usage: Usage = Usage()
    findings: tuple[Finding, ...] = ()
    path: str = "cold"
    state: Literal["kept", "lost"] | None = None
    """Whether a live interpreter kept its variables, since the call before; None without one."""
    payload: Any = None
    shown: str = ""
    """See `Outcome.shown`; set by the guard."""
    withheld: str = ""
    """Why a person must agree before a model sees `shown`; empty: no consent needed."""

    def with_findings(self, more: Iterable[Finding]) -> RunResult:
        """The same result if there are no more."""
        added = tuple(more)
        return replace(self, findings=(*self.findings, *added)) if added else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an action: the one object that every interface renders."""

    status: Status
    action_id: str
    decision: Decision = Decision(Verdict.DENY, reason="not judged")
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    truncated: bool = False
    limit: LimitName | None = None
    value: Json = None
    text: str | None = None
    results: tuple[Json, ...] = ()
    code_error: Json = None
    usage: Usage = Usage()
    findings: tuple[Finding, ...] = ()
    error: ErrorInfo | None = None
    audit_id: str = ""
    workspace_id: str | None = None
    sandbox_path: str = ""
    state: Literal["kept", "lost"] | None = None
    payload: Any = None
    """The return value of an operation on files or processes."""
    shown: str = ""
    """The whole result as a model may see it, if the audience is a model (GRD-4)."""
    packages: tuple[PackageUse, ...] = ()
    """What the run got from package registries."""

    def to_json(self) -> dict[str, Json]:
        """The object of `--json` and of every other interface for programs."""
        return {
            "status": self.status.value,
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "truncated": self.truncated,
            "limit": self.limit.value if self.limit else None,
            "value": self.value,
            "text": self.text,
            "results": list(self.results),
            "code_error": self.code_error,
            "usage": self.usage.to_json(),
            "decision": dict(self.decision.to_json()),
            "findings": [dict(finding.to_json()) for finding in self.findings],
            "error": self.error.to_outcome_json() if self.error else None,
            "audit_id": self.audit_id,
            "workspace_id": self.workspace_id,
            "sandbox_path": self.sandbox_path,
            **({"packages": [each.to_json() for each in self.packages]} if self.packages else {}),
        }

    def raise_for_status(self) -> Outcome:
        """Raise the exception of a failure; the only place where a refusal raises."""
        match self.status:
            case Status.OK:
                return self
            case Status.DENIED:
                error = self.error or ErrorInfo("CW-DENIED", self.decision.reason)
                if isinstance(refusal := error.to_exception(), LimitExceeded):
                    raise refusal
                # Every denial can be caught as `Denied`, whatever its code (CW-ROLE, CW-ASK).
                raise Denied(error.message, hint=error.hint, code=error.code)
            case Status.ERROR:
                error = self.error or ErrorInfo("CW-ERROR", "the action failed")
                raise error.to_exception()
            case Status.LIMIT:
                raise LimitReached(
                    f"the run was ended by its {self.limit} limit",
                    hint="Raise that limit, or make the program use less.",
                )
            case Status.FAILED:
                raise RunFailed(f"the program ended with exit code {self.exit_code}")


class EventKind(StrEnum):
    """The kinds of events: one intent before the effect of an action, one outcome after. The second
    group concerns the log itself."""

    INTENT = "intent"
    OUTCOME = "outcome"
    DENIAL = "denial"
    APPROVAL = "approval"
    SESSION = "session"
    APPLY = "apply"
    TEMPLATE = "template"
    SKILL = "skill"
    CONFIG = "config"
    CONNECTION = "connection"
    VAULT = "vault"
    ACCOUNT = "account"
    SIGN_IN = "signin"
    DATABASE = "database"
    STOP = "stop"
    INCIDENT = "incident"

    BEGIN = "begin"
    KEY = "key"
    RECOVERY = "recovery"
    SEAL = "seal"
    RETENTION = "retention"
    HOLD = "hold"
    WITNESS = "witness"
    ERASURE = "erasure"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `body` holds bounded, redacted plain data."""

    kind: EventKind
    action_id: str
    principal: str
    interface: str
    body: dict[str, Json] = field(default_factory=dict)
    session_id: str = ""
