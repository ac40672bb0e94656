"""Snapshots and forks of the sandboxes of the service, for `/v1` and for E2B's SDKs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import anyio

from cellwall.admin.accounts import Identity
from cellwall.core.snapshots import WorkspaceSnapshot
from cellwall.core.types import Principal
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.service import Service
from cellwall.interfaces.sdk import snapshots


async def snapshot_sandbox(
    sandbox: OwnedSandbox,
    principal: Principal,
    *,
    name: str = "",
    ttl: float | None = None,
    state: bool = True,
    end_processes: bool = False,
) -> WorkspaceSnapshot:
    """A snapshot of this principal."""
    with sandbox.in_use():
        taken = await snapshots.take_snapshot(
            partial(sandbox.perform, principal),
            name=name,
            ttl=ttl,
            state=state and sandbox.host.has_run_code,
            end_processes=end_processes,
        )
        if sandbox.copy_snapshot is not None:
            await sandbox.copy_snapshot(taken.id)
        return taken


async def fork_sandbox(
    service: Service,
    who: Identity,
    principal: Principal,
    sandbox: OwnedSandbox,
    *,
    count: int,
    state: bool,
    end_processes: bool,
) -> tuple[list[OwnedSandbox], WorkspaceSnapshot]:
    """New sandboxes of the caller, with the options of this one; all of them or none."""
    snapshots.check_fork(count)
    perform = partial(sandbox.perform, principal)
    with sandbox.in_use():
        taken = await snapshots.fork_snapshot(
            perform, state=state and sandbox.host.has_run_code, end_processes=end_processes
        )
        made: list[OwnedSandbox] = []
        spec = replace(sandbox.spec, from_snapshot=taken.id, allow_domains=sandbox.host.domains)
        try:
            for _ in range(count):
                one = await service.sandboxes.create(
                    who, spec, keep_alive_s=sandbox.keep_alive_s, team_id=sandbox.team_id
                )
                made.append(one)
        except BaseException:
            with anyio.CancelScope(shield=True):
                for each in made:
                    await service.sandboxes.end(each)
            raise
        finally:
            await snapshots.remove_fork_snapshot(service.app.store.home, taken.id)
    return made, taken
