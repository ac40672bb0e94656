"""The host check with its proof: trial runs through the same path as every other run."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace

import anyio

from cellwall.config.load import load_settings
from cellwall.config.models import weakened
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, RunCommand, WorkspaceMode, WorkspaceRequest
from cellwall.runtime.wiring import House, open_house, principal
from cellwall.sandbox.doctor import HostFacts as Facts
from cellwall.sandbox.doctor import HostReport as Report
from cellwall.sandbox.doctor import TrialRun as Trial
from cellwall.sandbox.doctor import gather, judge
from cellwall.sandbox.linux.specs import PYTHON


def examine_host(*, config: str | None, profile: str | None, interface: str) -> Report:
    """Look at every layer, then try them all at once."""
    settings = load_settings(file=config, profile=profile, environ=os.environ)
    facts: Facts = gather(weakened=weakened(settings))
    trials: tuple[Trial, ...]
    try:
        house = open_house(config=config, profile=profile)
        facts = replace(facts, placeholders=house.store.placeholders.leftovers())
        trials = anyio.run(_try_all, house, interface)
    except CellwallError as error:
        trials = (Trial("trial run", "the proof", error.message, error.hint),)
    return judge(replace(facts, trials=trials))


async def _try_all(house: House, interface: str) -> tuple[Trial, ...]:
    with tempfile.TemporaryDirectory(prefix="cellwall-trial-") as folder:
        given = WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, folder)
        plain = await _try(house, interface, WorkspaceRequest())
        layered = await _try(house, interface, given)
        if layered.workspace_id is not None:
            house.store.remove(layered.workspace_id)
    return (
        _told("trial run", "all layers together, as in every run", plain, required=True),
        _told("trial of copy-on-write", "DIR:cow needs overlayfs", layered, required=False),
        await anyio.to_thread.run_sync(_try_warm, house),
    )


def _try_warm(house: House) -> Trial:
    """Whether runs take the warm path here; the cold one has the same walls and is slower."""
    name, why = "warm path", "prepared interpreters: quicker, with the same walls"
    try:
        house.pool.template(PYTHON, wait=True)
    except CellwallError as error:
        hint = error.hint or "Runs take the cold path: the same walls, slower."
        return Trial(name, why, f"{error.message} [{error.code}]", hint, required=False)
    finally:
        house.pool.close()
    return Trial(name, why, required=False)


async def _try(house: House, interface: str, workspace: WorkspaceRequest) -> Outcome:
    action = Action(
        principal=principal(interface),
        operation=RunCommand(("/bin/sh", "-c", "echo tried > file && cat file")),
        workspace=workspace,
        limits=house.limits,
    )
    return await house.runtime.perform(action)


def _told(name: str, why: str, outcome: Outcome, *, required: bool) -> Trial:
    if outcome.error is not None:
        problem = f"{outcome.error.message} [{outcome.error.code}]"
        # "Run doctor" would lead back to here.
        hint = "See the layers above." if "doctor" in outcome.error.hint else outcome.error.hint
        return Trial(name, why, problem, hint, required)
    if outcome.stdout != "tried\n":
        problem = f"ended with {outcome.status.value}"
        return Trial(name, why, problem, "See the audit record.", required)
    return Trial(name, why, required=required)
