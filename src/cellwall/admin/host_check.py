"""The host check, proven by trial runs on the path of every other run."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import anyio

from cellwall.admin.audit_forwarding import forward_report
from cellwall.admin.production_check import gather_production, judge_production
from cellwall.admin.service_check import NO_DATABASE, gather_service, judge_service
from cellwall.config.load import load_settings
from cellwall.config.models import Settings, weakened
from cellwall.core.errors import CellwallError, StorageError
from cellwall.core.outcomes import Outcome
from cellwall.core.scratch import scratch_folder
from cellwall.core.types import Action, Principal, RunCommand, WorkspaceMode, WorkspaceRequest
from cellwall.runtime.app import App
from cellwall.runtime.configured_parts import native_settings_of
from cellwall.runtime.home import local_principal, state_home
from cellwall.runtime.observing import describe_telemetry
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.signed_grants import signed_grants
from cellwall.runtime.wiring import open_app
from cellwall.sandbox.doctor import HostCheck, HostFacts, HostReport, TrialRun, gather, judge
from cellwall.sandbox.linux.layers import PYTHON

__all__ = [
    "HostCheck",
    "HostReport",
    "examine_host",
    "examine_production",
    "examine_running",
    "examine_service",
]


def examine_service(*, config: str | None, profile: str | None, address: str | None) -> HostReport:
    """Inspect what a service needs; `address` is that of a running one."""
    settings = load_settings(file=config, profile=profile, environ=os.environ)
    return HostReport(judge_service(gather_service(settings, service=address)))


def examine_production(
    *, config: str | None, profile: str | None, address: str | None
) -> HostReport:
    """Inspect what `examine_service` does, more strictly, and the rest of the production list."""
    settings = load_settings(file=config, profile=profile, environ=os.environ)
    service = gather_service(settings, service=address)
    facts = gather_production(settings, has_database=NO_DATABASE not in service.database_problems)
    checks = (*judge_service(service, is_production=True), *judge_production(facts))
    return HostReport(checks)


def examine_host(*, config: str | None, profile: str | None, interface: str) -> HostReport:
    """Inspect every layer, then try all of them together."""
    settings = load_settings(file=config, profile=profile, environ=os.environ)
    native = native_settings_of(settings, os.environ, state_home(os.environ))
    facts: HostFacts = gather(weakened=weakened(settings), settings=native)
    trials: tuple[TrialRun, ...]
    try:
        app = open_app(config=config, profile=profile)
        facts = replace(facts, placeholders=app.store.placeholders.leftovers())
        trials = anyio.run(_try_all, app, local_principal(interface))
    except CellwallError as error:
        trials = (TrialRun("trial run", "the proof", error.message, error.hint),)
    return _judge_host(settings, replace(facts, trials=trials))


async def examine_running(
    app: App, *, who: Principal, policy: str | None, address: str
) -> HostReport:
    """All checks of `doctor --production` for the service of this process: its own runtime runs the
    trials, and its prepared interpreters stay."""
    trials = await _try_all(app, who, policy, keeps_pool=True)

    def read() -> HostReport:
        settings = app.settings
        facts = replace(
            gather(weakened=weakened(settings), settings=app.native),
            trials=trials,
            placeholders=app.store.placeholders.leftovers(),
        )
        service = gather_service(settings, service=address)
        has_database = NO_DATABASE not in service.database_problems
        production = gather_production(settings, has_database=has_database)
        return HostReport(
            (
                *_judge_host(settings, facts).checks,
                *judge_service(service, is_production=True),
                *judge_production(production),
            )
        )

    return await anyio.to_thread.run_sync(read)


def _judge_host(settings: Settings, facts: HostFacts) -> HostReport:
    telemetry = HostCheck("telemetry", *describe_telemetry(settings), required=False)
    settled = (*_check_rules(settings), *_check_forwarding(settings))
    return HostReport((*judge(facts).checks, telemetry, *settled))


def _check_forwarding(settings: Settings) -> tuple[HostCheck, ...]:
    """Whether records reach the receiver in [audit] forward."""
    if settings.audit.forward is None:
        return ()
    name, why = "audit forwarding", "records leave this host before anybody can delete them"
    hint = "See `cellwall audit forward status`; `cellwall audit forward run` forwards now."
    try:
        report = forward_report(settings)
    except CellwallError as error:
        return (HostCheck(name, "weak", error.message, why, error.hint, required=False),)
    if report.problem:
        found = f"{report.waiting} records wait: {report.problem}"
        return (HostCheck(name, "weak", found, why, hint, required=False),)
    return (HostCheck(name, "ok", f"{report.waiting} records wait", why, "", required=False),)


def _check_rules(settings: Settings) -> tuple[HostCheck, ...]:
    """The rules of policy files whose last day has passed: an exception that a person forgot."""
    name, why = "policy rules", "a rule counts until its last day (`until`)"
    try:
        policy = effective_policy(
            named=settings.policy.files,
            cwd=os.getcwd(),
            environ=os.environ,
            grants=signed_grants(state_home(os.environ), settings),
        )
    except CellwallError as error:
        return (HostCheck(name, "weak", error.message, why, error.hint, required=False),)
    return tuple(
        HostCheck(
            name,
            "weak",
            f"{rule.text} ({rule.source}) counted until {rule.until}",
            why,
            "Remove the rule, or give the rule another day.",
            required=False,
        )
        for rule in policy.expired
    )


async def _try_all(
    app: App, who: Principal, policy: str | None = None, *, keeps_pool: bool = False
) -> tuple[TrialRun, ...]:
    plain = await _try(app, who, policy, WorkspaceRequest())
    return (
        _as_trial("trial run", "all layers together, as in every run", plain, required=True),
        await _try_copied(app, who, policy),
        await anyio.to_thread.run_sync(partial(_try_warm, app, keeps_pool=keeps_pool)),
    )


async def _try_copied(app: App, who: Principal, policy: str | None) -> TrialRun:
    name, why = "trial of copy-on-write", "DIR:cow needs overlayfs"
    try:
        with scratch_folder("cellwall-trial-") as folder:
            copied = WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, folder)
            layered = await _try(app, who, policy, copied)
    except StorageError as error:
        return TrialRun(name, why, f"{error.message} [{error.code}]", error.hint, required=False)
    if layered.workspace_id is not None:
        app.store.remove(layered.workspace_id)
    return _as_trial(name, why, layered, required=False)


def _try_warm(app: App, *, keeps_pool: bool) -> TrialRun:
    """Whether runs take the warm path here; the cold path has the same layers and is slower."""
    name, why = "warm path", "prepared interpreters: faster, with the same layers"
    try:
        app.pool.template(PYTHON, wait=True)
    except CellwallError as error:
        hint = error.hint or "Runs take the cold path: the same layers, slower."
        return TrialRun(name, why, f"{error.message} [{error.code}]", hint, required=False)
    finally:
        if not keeps_pool:
            app.pool.close()
    return TrialRun(name, why, required=False)


async def _try(
    app: App, who: Principal, policy: str | None, workspace: WorkspaceRequest
) -> Outcome:
    action = Action(
        principal=who,
        operation=RunCommand(("/bin/sh", "-c", "echo tried > file && cat file")),
        workspace=workspace,
        limits=app.limits,
        policy=() if policy is None else (policy,),
    )
    return await app.runtime.perform(action)


def _as_trial(name: str, why: str, outcome: Outcome, *, required: bool) -> TrialRun:
    if outcome.error is not None:
        problem = f"{outcome.error.message} [{outcome.error.code}]"
        # "Run doctor" would point back to this check.
        hint = "See the layers above." if "doctor" in outcome.error.hint else outcome.error.hint
        return TrialRun(name, why, problem, hint, required)
    if outcome.stdout != "tried\n":
        problem = f"ended with {outcome.status.value}"
        return TrialRun(name, why, problem, "See the audit record.", required)
    return TrialRun(name, why, required=required)
