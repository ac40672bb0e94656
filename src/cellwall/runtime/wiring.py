"""The composition root: builds an `App` from the configuration. Only it names all parts."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.audit.retention import holds
from cellwall.config.load import candidates, load_settings
from cellwall.config.models import Settings
from cellwall.core.home import SHAPING, state_place
from cellwall.core.telemetry import OFF, Lifetime
from cellwall.runtime.app import App
from cellwall.runtime.approval_queue import ApprovalQueue
from cellwall.runtime.approvals import ApprovalBroker
from cellwall.runtime.approver_key import approver_key
from cellwall.runtime.bounds import ActionBounds
from cellwall.runtime.configured_parts import (
    builder_of,
    governor_of,
    judge_of,
    labels_of,
    native_settings_of,
    skill_store,
    snapshot_settings_of,
    vault_of,
    workspace_settings_of,
)
from cellwall.runtime.connections import OwnedConnections
from cellwall.runtime.content_checks import CanaryList, content_checks
from cellwall.runtime.destination_questions import DestinationQuestions
from cellwall.runtime.egress import ConfiguredEgress, ConfiguredReach, domains_of
from cellwall.runtime.guarding import LazyGuard, guard_of, known_values
from cellwall.runtime.home import local_principal, no_state, state_home
from cellwall.runtime.judging import RuledPolicy, roles_of
from cellwall.runtime.observing import gauge_runtime, open_telemetry, redact_logs
from cellwall.runtime.package_installs import PackageInstaller
from cellwall.runtime.package_record import PackageRecord
from cellwall.runtime.package_sessions import PackageSessions
from cellwall.runtime.package_trees import PackageTrees, kept_trees
from cellwall.runtime.pipeline import Runtime
from cellwall.runtime.policy_places import approved_rules_file
from cellwall.runtime.python_query import PythonQuery
from cellwall.runtime.recording import audit_directory, note_configuration, open_record
from cellwall.runtime.secret_leases import RecordRedactor, SecretLeaser
from cellwall.runtime.session_data import enforce_retention, readable_keys
from cellwall.runtime.signed_grants import signed_grants
from cellwall.runtime.template_packages import TemplatePackages
from cellwall.sandbox.containers.container_path import ContainerHost
from cellwall.sandbox.linux.layers import HostLayers, walls_for
from cellwall.sandbox.linux.native import NativeSandbox
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.machines.machine_path import MachineHost
from cellwall.sandbox.protection import protected_paths
from cellwall.sandbox.protection.host_directory import open_host_directory, own_path
from cellwall.sandbox.run_ledger import RunLedger
from cellwall.sandbox.snapshots.taking import SnapshotTaker
from cellwall.sandbox.templates.uv_answers import UvAnswers
from cellwall.sandbox.workspace.store import WorkspaceStore
from cellwall.sandbox.workspace.workspaces import Workspaces

if TYPE_CHECKING:
    from cellwall.runtime.vault import AskPassphrase


_RUNS = "runs"


def shared_app(config: str | None = None, profile: str | None = None) -> App:
    """One runtime for all sandboxes of a process with equal configuration."""
    key = (config, profile, *(os.environ.get(name) for name in SHAPING))
    app = _SHARED.get(key)
    if app is None:
        made = open_app(config=config, profile=profile, lifetime=Lifetime.PROGRAM)
        app = _SHARED.setdefault(key, made)  # no lock: a fork could inherit it held for ever
        if app is not made:
            made.close()
    return app


def has_shared() -> bool:
    """Whether this process has a runtime of its own."""
    return bool(_SHARED)


def close_shared(home: str) -> None:
    """Close the shared runtimes of this state folder; their live sandboxes end."""
    for key, app in list(_SHARED.items()):
        if app.store.home == os.path.realpath(home):
            del _SHARED[key]
            app.close()


_SHARED: dict[tuple[str | None, ...], App] = {}


def settings_files(config: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The configuration files on which a runtime depends."""
    return candidates(config, environ)


def open_app(
    *,
    config: str | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
    ask_passphrase: AskPassphrase | None = None,
    lifetime: Lifetime = Lifetime.CALL,
) -> App:
    """Read the configuration, detect the host's layers, sweep after dead runs, wire the parts.

    `ask_passphrase` asks a person for the vault's passphrase, where the interface has one.
    """
    environ = os.environ if environ is None else environ
    settings = load_settings(file=config, profile=profile, environ=environ)
    home = state_home(environ)
    keys = readable_keys(home, lambda: settings, ask_passphrase)
    try:
        store = WorkspaceStore(home, keys)
        ledger = RunLedger(os.path.join(home, _RUNS))
        _sweep(store, ledger, settings)
    except OSError as error:
        raise no_state(error, state_place(environ)) from error
    protection = protected_paths.protection_for(
        settings.workspace.extra_protected_names,
        protects_build_files=settings.workspace.protects_build_files,
        dangerously_expose=settings.workspace.dangerously_expose_sensitive_names,
    )
    audit = open_record(home, settings, keys)
    note_configuration(home, settings, audit, local_principal("cellwall"))
    enforce_retention(settings, audit, store, ledger, keys)
    native, layers = native_settings_of(settings, environ, home), HostLayers.detect()
    if layers.cgroup.way == "none" and native.path == "auto":
        # Without cgroups usage is measured per keeper, and the cells of a template share one.
        # CELLWALL_PATH=warm still selects the warm path, with rlimits alone.
        native = replace(native, path="cold")
    containers: ContainerHost | MachineHost | None = None
    if native.backend != "native":
        native = replace(native, path="cold")  # no template is started
        if native.backend == "kvm":
            containers = MachineHost(native, layers, ledger)
        else:
            containers = ContainerHost(native, layers, ledger)
    pool = Pool(native, layers, ledger, idle_s=settings.sandbox.template_idle_s)
    governor = governor_of(settings, home)
    roles = roles_of(settings)
    grants = signed_grants(home, settings)
    leaser = SecretLeaser(
        functools.partial(vault_of, home, settings, ask_passphrase, audit),
        home,
        lambda session_id: store.session(session_id).request.directory,
    )
    redactor = RecordRedactor(leaser)
    audit.redact_with(redactor)
    approvals = ApprovalBroker(
        audit=audit,
        roles=roles,
        timeout_s=settings.approvals.timeout_s,
        channels=settings.approvals.channels,
        queue=ApprovalQueue(home, key=approver_key(settings)),
        policy_path=approved_rules_file(settings.policy.files, environ),
    )
    packages = PackageSessions(settings, dict(environ), approvals, grants)
    open_judge = functools.partial(judge_of, settings, home)
    record = PackageRecord(audit)
    canaries = CanaryList(home)
    checks = content_checks(settings, canaries)
    destinations = DestinationQuestions(settings.approvals.timeout_s)
    egress = ConfiguredEgress(settings, audit, leaser, home, packages, record, destinations, checks)
    sandbox = NativeSandbox(native, layers, ledger, pool, containers)
    workspaces = Workspaces(store, workspace_settings_of(settings, protection), sandbox.views)
    domains = domains_of(settings)
    # Behind all that refuses a configuration: an exporter has a thread.
    telemetry = open_telemetry(settings, lifetime)
    runtime = Runtime(
        stop=ledger.stop_flag,
        roles=roles,
        approvals=approvals,
        bounds=ActionBounds(
            max_code_bytes=settings.sandbox.max_code_bytes,
            max_stdin_bytes=settings.sandbox.max_stdin_bytes,
            allowed_languages=settings.sandbox.allowed_languages,
        ),
        policy=RuledPolicy(
            settings.policy.files,
            settings.policy.dangerously_observe,
            dict(environ),
            grants,
            protects_build_files=settings.workspace.protects_build_files,
        ),
        guard=LazyGuard(
            functools.partial(guard_of, settings, environ, known_values(leaser), canaries.current)
        ),
        audit=audit,
        governor=governor,
        sandbox=sandbox,
        workspaces=workspaces,
        skills=skill_store(home, settings),
        vault=leaser,
        egress=egress,
        installer=PackageInstaller(
            open_judge,
            record,
            packages,
            workspaces,
            functools.partial(builder_of, settings, home, open_judge, record, packages),
            PythonQuery(UvAnswers(home)),
            PackageTrees(
                functools.partial(kept_trees, home), egress.repeats, workspaces, UvAnswers(home)
            ),
        ),
        destinations=destinations,
        reach=ConfiguredReach(
            domains, settings.packages.registries, settings.egress.unknown == "ask"
        ),
        packages=packages,
        templates=TemplatePackages(settings, home, dict(environ)),
        telemetry=OFF if telemetry is None else telemetry,
        connections=OwnedConnections(home),
        labels=labels_of(settings, store, domains),
        snapshots=SnapshotTaker(store, workspaces, sandbox, snapshot_settings_of(settings)),
    )
    if telemetry is not None:
        gauge_runtime(telemetry, audit, sandbox, pool, approvals, governor)
        redact_logs(telemetry, redactor)
    return App(
        runtime,
        settings,
        native.usual_limits,
        store,
        ledger,
        audit,
        protection,
        governor,
        pool,
        native,
        egress,
        leaser,
        runtime.telemetry,
        keys,
    )


def sweep_state(app: App, *, now_s: float | None = None) -> None:
    """Remove traces of killed processes, and data that was kept long enough, while the runtime
    runs. With a ledger of its own: a lock does not exclude threads that share its descriptor.
    `now_s`: the time of a probe that looks ahead."""
    ledger = RunLedger(os.path.join(app.store.home, _RUNS))
    try:
        _sweep(app.store, ledger, app.settings, now_s)
        enforce_retention(app.settings, app.audit, app.store, ledger, app.keys)
    finally:
        ledger.close()


def _sweep(
    store: WorkspaceStore, ledger: RunLedger, settings: Settings, now_s: float | None = None
) -> None:
    if ledger.stop_flag.is_set():
        return  # what the dead left is evidence until the stop is lifted (OBS-3)
    dead = ledger.sweep()
    store.placeholders.sweep()
    store.sweep(
        dead=dead,
        live=ledger.live(),
        keep_days=settings.workspace.keep_changes_days,
        keep_private_days=settings.workspace.keep_sessions_days,
        hold_ended=ledger.hold_ended,
        is_held=functools.cache(lambda: bool(holds(audit_directory(store.home)))),
        now_s=now_s,
    )


def check_walls(app: App) -> None:
    """Raise `LayerMissing`, with a hint, if a run under this configuration would be refused."""
    layers, open_files = HostLayers.detect(), app.limits.open_files
    if app.native.backend == "kvm":
        MachineHost(app.native, layers, app.ledger).walls(open_files=open_files, uid_offset=0)
    elif app.native.backend != "native":
        ContainerHost(app.native, layers, app.ledger).walls(open_files=open_files, uid_offset=0)
    else:
        walls_for(app.native, layers, uid_offset=0, open_files=open_files)


def check_workspace(app: App, directory: str) -> None:
    """Raise `WorkspaceError`, with a hint, if this directory cannot be given at its own path."""
    descriptor, place = open_host_directory(directory, state_home=app.store.home)
    os.close(descriptor)
    own_path(place)
