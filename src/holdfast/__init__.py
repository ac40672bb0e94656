"""Holdfast: run what an AI agent asks for inside real OS walls.

The names below are the public surface. They load on first use, so that `import holdfast` and the
command line's `--help` stay quick.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from typing import Any

    from holdfast.audit.log import AuditLog
    from holdfast.core.errors import (
        AuditFailed,
        BadInput,
        Busy,
        ConfigError,
        Denied,
        HoldfastError,
        KeyFailed,
        LayerMissing,
        LimitReached,
        RunFailed,
        SandboxFailed,
        WorkspaceError,
    )
    from holdfast.core.files import FileChange, Transfer
    from holdfast.core.outcomes import Outcome, Status
    from holdfast.core.verdict import Decision, Verdict
    from holdfast.guard.report import Report
    from holdfast.interfaces.sdk.asynchronous import AsyncSandbox
    from holdfast.interfaces.sdk.blocking import Sandbox, run_code, run_command
    from holdfast.interfaces.sdk.commands import AsyncProcess, Process
    from holdfast.interfaces.sdk.execution import Execution
    from holdfast.interfaces.sdk.guard import Guard, redact
    from holdfast.interfaces.sdk.vault import Vault
    from holdfast.policy.engine import Policy

__version__ = "0.1.0"

_HOMES = {
    "AsyncProcess": "holdfast.interfaces.sdk.commands",
    "AsyncSandbox": "holdfast.interfaces.sdk.asynchronous",
    "AuditFailed": "holdfast.core.errors",
    "AuditLog": "holdfast.audit.log",
    "BadInput": "holdfast.core.errors",
    "Busy": "holdfast.core.errors",
    "ConfigError": "holdfast.core.errors",
    "Decision": "holdfast.core.verdict",
    "Denied": "holdfast.core.errors",
    "Execution": "holdfast.interfaces.sdk.execution",
    "FileChange": "holdfast.core.files",
    "Guard": "holdfast.interfaces.sdk.guard",
    "HoldfastError": "holdfast.core.errors",
    "KeyFailed": "holdfast.core.errors",
    "LayerMissing": "holdfast.core.errors",
    "LimitReached": "holdfast.core.errors",
    "Outcome": "holdfast.core.outcomes",
    "Policy": "holdfast.policy.engine",
    "Process": "holdfast.interfaces.sdk.commands",
    "Report": "holdfast.guard.report",
    "RunFailed": "holdfast.core.errors",
    "Sandbox": "holdfast.interfaces.sdk.blocking",
    "SandboxFailed": "holdfast.core.errors",
    "Status": "holdfast.core.outcomes",
    "Transfer": "holdfast.core.files",
    "Vault": "holdfast.interfaces.sdk.vault",
    "Verdict": "holdfast.core.verdict",
    "WorkspaceError": "holdfast.core.errors",
    "redact": "holdfast.interfaces.sdk.guard",
    "run_code": "holdfast.interfaces.sdk.blocking",
    "run_command": "holdfast.interfaces.sdk.blocking",
}

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "AuditFailed",
    "AuditLog",
    "BadInput",
    "Busy",
    "ConfigError",
    "Decision",
    "Denied",
    "Execution",
    "FileChange",
    "Guard",
    "HoldfastError",
    "KeyFailed",
    "LayerMissing",
    "LimitReached",
    "Outcome",
    "Policy",
    "Process",
    "Report",
    "RunFailed",
    "Sandbox",
    "SandboxFailed",
    "Status",
    "Transfer",
    "Vault",
    "Verdict",
    "WorkspaceError",
    "redact",
    "run_code",
    "run_command",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # whatever the name stands for
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(home), name)
