"""The names of all metrics, spans and attributes, with the values that each label may have.

The tables in docs/specification.md are generated from here. A label has one of the values listed,
else `other`: no request can create a new time series.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.files import FileOperation
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import SEVERITIES, Status
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.telemetry import Step
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    INTERFACE_NAMES,
    Action,
    CallTool,
    FetchUrl,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
)
from cellwall.core.verdict import Verdict

OTHER: Final = "other"
"""In place of a value that is not in the list of its label."""
INTERRUPTED: Final = "interrupted"
"""The status of an action that was cancelled or ended by a bug."""

OPERATIONS: Final[dict[type, str]] = {
    RunCommand: "run-command",
    RunCode: "run-code",
    FileOperation: "file",
    ProcessOperation: "process",
    ConnectPort: "connect-port",
    CallTool: "call-tool",
    SetDomains: "set-domains",
    ReachHost: "reach-host",
    ServeClient: "serve-client",
    FetchUrl: "fetch-url",
    InstallPackages: "install-packages",
    UseTool: "use-tool",
    ToolResult: "tool-result",
    CallServerTool: "call-server-tool",
    RunServer: "run-server",
    ReceiveMessage: "receive-message",
    SendReply: "send-reply",
    UseAccount: "use-account",
    TakeSnapshot: "take-snapshot",
    RestoreSnapshot: "restore-snapshot",
}
REQUESTS: Final = ("hook", "run")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_STATUS_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")
_FAST: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Seconds: from a warm step to a run that uses its whole time limit."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric and the values of its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds in seconds, of a histogram."""
        return _FAST

    def value(self, label: str, text: object) -> str:
        """The text if it is a value of the label, else `other`."""
        return text if isinstance(text, str) and text in self.labels[label] else OTHER


_OPERATION: Final = (*OPERATIONS.values(), OTHER)
ACTIONS = Metric(
    "cellwall_actions_total",
    "counter",
    "Actions that have ended.",
    {
        "operation": _OPERATION,
        "verdict": tuple(each.word for each in Verdict),
        "status": (*(each.value for each in Status), INTERRUPTED),
    },
)
ACTION_SECONDS = Metric(
    "cellwall_action_seconds",
    "histogram",
    "Time of an action through all its steps, waiting for a person included.",
    {"operation": _OPERATION},
)
STEP_SECONDS = Metric(
    "cellwall_step_seconds",
    "histogram",
    "Time of each numbered step of an action.",
    {"step": tuple(each.value for each in Step)},
)
STEP_FAILURES = Metric(
    "cellwall_step_failures_total",
    "counter",
    "Steps that failed: the action was refused, or ended with an error.",
    {"step": tuple(each.value for each in Step)},
)
ACTIONS_RUNNING = Metric("cellwall_actions_running", "gauge", "Actions under way.")
REQUEST_SECONDS = Metric(
    "cellwall_request_seconds",
    "histogram",
    "Latency of a request to the supervisor as its client process sees it, without the start of "
    "that process.",
    {"request": (*REQUESTS, OTHER)},
)
HTTP_REQUESTS = Metric(
    "cellwall_http_requests_total",
    "counter",
    "HTTP requests that were answered.",
    {"method": (*METHODS, OTHER), "status": (*_STATUS_CLASSES, OTHER)},
)
HTTP_SECONDS = Metric(
    "cellwall_http_request_seconds",
    "histogram",
    "Time until the last byte of the response.",
    {"method": (*METHODS, OTHER)},
)
CELLS = Metric(
    "cellwall_cells",
    "gauge",
    "Cells: of runs under way, of live sandboxes, and ready in the warm pool.",
    {"state": ("running", "live", "ready")},
)
TEMPLATES = Metric("cellwall_templates", "gauge", "Templates that are running.")
TEMPLATE_USES = Metric(
    "cellwall_template_uses_total",
    "counter",
    "Runs and live sandboxes that found their template running (`hit`), or not (`miss`).",
    {"result": ("hit", "miss")},
)
PLACES = Metric(
    "cellwall_places",
    "gauge",
    "Runs that the host takes at once (`max_concurrent`): taken by this process, and free.",
    {"state": ("taken", "free")},
)
QUEUE = Metric(
    "cellwall_queue_waiting", "gauge", "Runs that wait for a place or for memory of the host."
)
EGRESS = Metric(
    "cellwall_egress_connections_total",
    "counter",
    "Connections and requests of cells to the network; `leak` was refused for what it would have "
    "disclosed.",
    {"result": ("allowed", "refused", "leak")},
)
SECRET_USES = Metric(
    "cellwall_secret_uses_total", "counter", "Secrets that the egress proxy put into requests."
)
AUDIT_SECONDS = Metric(
    "cellwall_audit_write_seconds", "histogram", "Time until an audit event is durable."
)
AUDIT_FAILURES = Metric(
    "cellwall_audit_failures_total", "counter", "Audit events that could not be written."
)
APPROVALS = Metric(
    "cellwall_approvals_total",
    "counter",
    "Answers to questions; no answer in time is `deny`.",
    {"answer": ("allow", "deny", OTHER)},
)
APPROVALS_WAITING = Metric(
    "cellwall_approvals_waiting", "gauge", "Questions that wait for a person."
)
CATEGORIES: Final = (
    *("injection", "jailbreak", "role-marker", "system-prompt", "exfiltration", "beacon"),
    *(
        "code-injection",
        "tool-call",
        "delimiter",
        "many-shot",
        "urgency",
        "task",
        "hidden",
        "instruction",
    ),
    *("secret", "credential", "personal-data", "canary", "tool-poisoning", "unscanned"),
    *("network", "packages", "workspace", "not-started"),
)
FINDINGS = Metric(
    "cellwall_findings_total",
    "counter",
    "Findings of the guard and of other checks.",
    {"category": (*CATEGORIES, OTHER), "severity": (*SEVERITIES, OTHER)},
)
LIMITS = Metric(
    "cellwall_limits_total",
    "counter",
    "Runs that a limit has ended.",
    {"limit": (*(each.value for each in LimitName), OTHER)},
)
PACKAGES = Metric(
    "cellwall_packages_total",
    "counter",
    "Packages that were served to cells, refused, decided by a rule or a person, or built.",
    {
        "ecosystem": ("pypi", "npm", OTHER),
        "result": ("served", "refused", "allow", "ask", "deny", "built"),
    },
)
SIGN_INS = Metric(
    "cellwall_sign_ins_total",
    "counter",
    "Sign-ins and presented tokens that were recorded, by result.",
    {
        "method": (
            *("password", "passkey", "oidc", "link", "pairing", "token", "refresh", "sign-out"),
            *("guesses", "requests", OTHER),
        ),
        "result": ("ok", "refused", "reused", "slowed", OTHER),
    },
)
BUILD = Metric("cellwall_build_info", "gauge", "1; the label is the version.", {"version": ()})


def interface_of(action: Action) -> str:
    """The interface of an action, if it is one of ours."""
    name = action.principal.interface
    return name if name in INTERFACE_NAMES else OTHER


METRICS: Final = tuple(each for each in list(vars().values()) if isinstance(each, Metric))

ACTION_SPAN: Final = "cellwall.action"
STEP_SPANS: Final = {each: f"cellwall.step.{each.value}" for each in Step}
SPANS: Final = {
    ACTION_SPAN: "One action, from the request to its outcome. Calls of host functions by code "
    "inside are actions of their own, below it.",
    **{
        name: f"Step {number} of the action."
        for number, name in enumerate(STEP_SPANS.values(), start=1)
    },
}
ATTRIBUTES: Final = {
    "cellwall.action_id": "the action's id, as in the audit log",
    "cellwall.audit_id": "the id of its audit event",
    "cellwall.operation": f"one of {', '.join(OPERATIONS.values())}",
    "cellwall.interface": f"one of {', '.join(INTERFACE_NAMES)}",
    "cellwall.verdict": "allow, ask, deny",
    "cellwall.status": f"{', '.join(ACTIONS.labels['status'])}",
    "cellwall.limit": "the limit that ended the run",
    "cellwall.error_code": "the code of the error, such as `CW-DENIED`",
}
"""Of spans. Never a command, path, address, name, output or message."""
