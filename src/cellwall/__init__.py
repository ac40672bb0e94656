"""Cellwall: run what an AI agent asks for inside real OS walls.

The names below are the public surface. They load on first use, so that `import cellwall` and the
command line's `--help` stay quick.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from typing import Any

    from cellwall.audit.log import AuditLog
    from cellwall.core.errors import (
        AuditFailed,
        BadInput,
        Busy,
        CellwallError,
        ConfigError,
        Denied,
        EgressRefused,
        KeyFailed,
        LayerMissing,
        LimitExceeded,
        LimitReached,
        NotFound,
        RunFailed,
        SandboxFailed,
        ServerFailed,
        SignInRefused,
        SkillRefused,
        StorageError,
        VaultError,
        WorkspaceError,
    )
    from cellwall.core.files import FileChange, FileEntry, Transfer
    from cellwall.core.outcomes import Outcome, Status
    from cellwall.core.snapshots import NotCarried, WorkspaceSnapshot
    from cellwall.core.verdict import Decision, Verdict
    from cellwall.guard.report import Report
    from cellwall.interfaces.sdk.asynchronous import AsyncSandbox
    from cellwall.interfaces.sdk.blocking import Process, Sandbox
    from cellwall.interfaces.sdk.calendar import Calendar
    from cellwall.interfaces.sdk.changes import Changes, waiting_changes
    from cellwall.interfaces.sdk.commands import AsyncProcess
    from cellwall.interfaces.sdk.execution import Execution
    from cellwall.interfaces.sdk.guard import Guard, redact
    from cellwall.interfaces.sdk.os_errors import as_os_error, check_access
    from cellwall.interfaces.sdk.session_data import erase
    from cellwall.interfaces.sdk.single_runs import run_code, run_command
    from cellwall.interfaces.sdk.vault import Vault
    from cellwall.policy.engine import Policy

__version__ = "0.1.0"

_HOMES = {
    "AsyncProcess": "cellwall.interfaces.sdk.commands",
    "AsyncSandbox": "cellwall.interfaces.sdk.asynchronous",
    "AuditFailed": "cellwall.core.errors",
    "AuditLog": "cellwall.audit.log",
    "BadInput": "cellwall.core.errors",
    "Busy": "cellwall.core.errors",
    "Calendar": "cellwall.interfaces.sdk.calendar",
    "Changes": "cellwall.interfaces.sdk.changes",
    "ConfigError": "cellwall.core.errors",
    "Decision": "cellwall.core.verdict",
    "Denied": "cellwall.core.errors",
    "EgressRefused": "cellwall.core.errors",
    "Execution": "cellwall.interfaces.sdk.execution",
    "FileChange": "cellwall.core.files",
    "FileEntry": "cellwall.core.files",
    "Guard": "cellwall.interfaces.sdk.guard",
    "CellwallError": "cellwall.core.errors",
    "KeyFailed": "cellwall.core.errors",
    "LayerMissing": "cellwall.core.errors",
    "LimitExceeded": "cellwall.core.errors",
    "LimitReached": "cellwall.core.errors",
    "NotCarried": "cellwall.core.snapshots",
    "NotFound": "cellwall.core.errors",
    "Outcome": "cellwall.core.outcomes",
    "Policy": "cellwall.policy.engine",
    "Process": "cellwall.interfaces.sdk.blocking",
    "Report": "cellwall.guard.report",
    "RunFailed": "cellwall.core.errors",
    "Sandbox": "cellwall.interfaces.sdk.blocking",
    "SandboxFailed": "cellwall.core.errors",
    "ServerFailed": "cellwall.core.errors",
    "SignInRefused": "cellwall.core.errors",
    "SkillRefused": "cellwall.core.errors",
    "Status": "cellwall.core.outcomes",
    "StorageError": "cellwall.core.errors",
    "Transfer": "cellwall.core.files",
    "Vault": "cellwall.interfaces.sdk.vault",
    "VaultError": "cellwall.core.errors",
    "Verdict": "cellwall.core.verdict",
    "WorkspaceError": "cellwall.core.errors",
    "WorkspaceSnapshot": "cellwall.core.snapshots",
    "as_os_error": "cellwall.interfaces.sdk.os_errors",
    "check_access": "cellwall.interfaces.sdk.os_errors",
    "erase": "cellwall.interfaces.sdk.session_data",
    "redact": "cellwall.interfaces.sdk.guard",
    "run_code": "cellwall.interfaces.sdk.single_runs",
    "run_command": "cellwall.interfaces.sdk.single_runs",
    "waiting_changes": "cellwall.interfaces.sdk.changes",
}

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "AuditFailed",
    "AuditLog",
    "BadInput",
    "Busy",
    "Calendar",
    "CellwallError",
    "Changes",
    "ConfigError",
    "Decision",
    "Denied",
    "EgressRefused",
    "Execution",
    "FileChange",
    "FileEntry",
    "Guard",
    "KeyFailed",
    "LayerMissing",
    "LimitExceeded",
    "LimitReached",
    "NotCarried",
    "NotFound",
    "Outcome",
    "Policy",
    "Process",
    "Report",
    "RunFailed",
    "Sandbox",
    "SandboxFailed",
    "ServerFailed",
    "SignInRefused",
    "SkillRefused",
    "Status",
    "StorageError",
    "Transfer",
    "Vault",
    "VaultError",
    "Verdict",
    "WorkspaceError",
    "WorkspaceSnapshot",
    "as_os_error",
    "check_access",
    "erase",
    "redact",
    "run_code",
    "run_command",
    "waiting_changes",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # whatever the name stands for
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cellwall' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
