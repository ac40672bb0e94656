"""Parts of a runtime, each built from its section of the configuration."""

# ruff: noqa: PLC0415  # late imports: most runs open no vault and install no package

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cellwall.audit.log import AuditLog
from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError
from cellwall.core.protected_names import Protection
from cellwall.runtime.action_labels import LabelRules
from cellwall.runtime.package_record import PackageRecord
from cellwall.runtime.package_sessions import PackageSessions
from cellwall.runtime.session_labels import SessionLabels, flow_mode
from cellwall.runtime.signed_grants import signed_grants
from cellwall.sandbox.files.operations import FileRules
from cellwall.sandbox.governor import Governor
from cellwall.sandbox.linux.layers import Backend, NativeSettings, Path
from cellwall.sandbox.snapshots.taking import SnapshotSettings
from cellwall.sandbox.templates import environments
from cellwall.sandbox.workspace.leases import WorkspaceSettings
from cellwall.sandbox.workspace.store import WorkspaceStore
from cellwall.skills.store import SkillStore

if TYPE_CHECKING:
    from cellwall.packages.judge import PackageJudge
    from cellwall.runtime.source_builds import SourceBuilder
    from cellwall.runtime.vault import AskPassphrase, AuditedVault

_PROMISED_SHARE = 0.8
_SAMPLE_EVERY_S = 0.05
_BACKENDS: Mapping[str, Backend] = {
    "native": "native",
    "container": "container",
    "gvisor": "gvisor",
    "kvm": "kvm",
}


def judge_of(settings: Settings, home: str) -> PackageJudge:
    """The judge of packages."""
    from cellwall.runtime.package_judging import open_judge

    return open_judge(settings, home)


def builder_of(
    settings: Settings,
    home: str,
    judge: Callable[[], PackageJudge],
    record: PackageRecord,
    sessions: PackageSessions,
) -> SourceBuilder:
    """The builder of packages that come as source."""
    from cellwall.runtime.source_builds import SourceBuilder

    return SourceBuilder(settings, home, judge, record, sessions)


def vault_of(
    home: str, settings: Settings, ask: AskPassphrase | None, audit: AuditLog
) -> AuditedVault:
    """The vault; `ask` asks a person for its passphrase."""
    from cellwall.runtime.vault import AuditedVault

    return AuditedVault(home, settings, ask=ask, audit=audit)


def skill_store(home: str, settings: Settings) -> SkillStore:
    """The approved skills."""
    grants = signed_grants(home, settings)
    approver = None if grants is None else grants.key.verifier
    return SkillStore(home, settings.skills.trusted_keys, grants=grants, approver=approver)


def governor_of(settings: Settings, home: str) -> Governor:
    """The governor; without a configured bound, runs may claim most of the memory."""
    governor = settings.governor
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Governor(
        os.path.join(home, "governor"),
        max_concurrent=governor.max_concurrent,
        max_promised_memory_bytes=governor.max_promised_memory_bytes
        or int(total * _PROMISED_SHARE),
        queue_timeout_s=governor.queue_timeout_s,
        min_available_memory_bytes=governor.min_available_memory_bytes,
        max_memory_pressure_percent=governor.max_memory_pressure_percent,
        sample_every_s=_SAMPLE_EVERY_S,
    )


def _path(environ: Mapping[str, str]) -> Path:
    """`CELLWALL_PATH`, for tests and measurements: both paths have the same layers."""
    match environ.get("CELLWALL_PATH", "auto"):
        case "warm":
            return "warm"
        case "cold":
            return "cold"
        case "auto" | "":
            return "auto"
        case other:
            raise ConfigError(
                f"CELLWALL_PATH={other!r:.40} is unknown", hint="Use auto, warm or cold."
            )


def native_settings_of(settings: Settings, environ: Mapping[str, str], home: str) -> NativeSettings:
    """The settings of the sandbox on Linux."""
    sandbox = settings.sandbox
    return NativeSettings(
        usual_limits=settings.limits.to_limits(),
        path=_path(environ),
        environment_of=functools.partial(environments.environment_of, home),
        uid_base=sandbox.uid_base,
        tmp_bytes=sandbox.tmp_bytes,
        shm_bytes=sandbox.shm_bytes,
        max_result_bytes=sandbox.max_result_bytes,
        extra_read_only_paths=sandbox.extra_read_only_paths,
        file_rules=FileRules(settings.workspace.blocked_extensions),
        only_deno=sandbox.javascript == "deno",
        backend=_BACKENDS[sandbox.backend],
        engine_socket=sandbox.engine_socket,
        machine_kernel=sandbox.machine_kernel,
        allows_second_user=sandbox.second_user == "allow",
        dangerously_without_cgroup=sandbox.dangerously_without_cgroup,
        dangerously_without_landlock=sandbox.dangerously_without_landlock,
        dangerously_without_user_namespace=sandbox.dangerously_without_user_namespace,
        dangerously_emulate_machines=sandbox.dangerously_emulate_machines,
    )


def workspace_settings_of(settings: Settings, protection: Protection) -> WorkspaceSettings:
    """The settings of workspaces."""
    workspace = settings.workspace
    return WorkspaceSettings(
        blocked_extensions=workspace.blocked_extensions,
        max_walk_entries=workspace.max_walk_entries,
        protection=protection,
    )


def labels_of(settings: Settings, store: WorkspaceStore, domains: tuple[str, ...]) -> SessionLabels:
    """The labels of sessions (POL-9)."""
    return SessionLabels(
        store.home,
        find_workspace=store.session,
        mode=flow_mode(settings),
        rules=LabelRules(settings.policy.dangerously_trusted_domains, domains),
    )


def snapshot_settings_of(settings: Settings) -> SnapshotSettings:
    """Bounds of snapshots."""
    return SnapshotSettings(
        max_count=settings.snapshots.max_per_user,
        max_bytes=settings.snapshots.max_bytes_per_user,
        keep_s=settings.snapshots.keep_days * 86_400.0,
    )
