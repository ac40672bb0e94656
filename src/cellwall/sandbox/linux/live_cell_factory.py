"""Makes live cells: forked from a template, or cold with an outer wall of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from cellwall.core.ids import new_id
from cellwall.core.network import CellNetwork
from cellwall.core.skills import Skill
from cellwall.core.types import Action, WorkspaceMount
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cell_plan, jobs
from cellwall.sandbox.linux.channels import EgressSockets, InitSocket
from cellwall.sandbox.linux.forked_cell import ForkedCell
from cellwall.sandbox.linux.layers import (
    HostLayers,
    NativeSettings,
    UidLease,
    python_template_spec,
    tools_for,
    walls_for,
)
from cellwall.sandbox.linux.live_cell import LiveCellParts
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.prepared_cell import CellShape, PreparedCell
from cellwall.sandbox.linux.second_user import check_mount
from cellwall.sandbox.linux.template import CellContents, CellRecipe, Template
from cellwall.sandbox.run_ledger import RunLedger


class CellFactory(Protocol):
    """Makes live cells with walls of bubblewrap or of a container engine."""

    def open(
        self,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> LiveCellParts: ...

    def open_view(self, action: Action, mount: WorkspaceMount) -> int: ...


class LiveCellFactory:
    """May be called by several threads; each call blocks until its cell is ready."""

    def __init__(
        self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger, pool: Pool
    ) -> None:
        self._settings, self._layers, self._ledger, self._pool = settings, layers, ledger, pool

    def open(
        self,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> LiveCellParts:
        """The cell for a session's first action, or for the first after its cell has ended."""
        check_mount(action, mount)
        template = self._template(action, mount)
        with ExitStack() as stack:
            egress = EgressSockets.open(network, stack)
            if template is None:
                return self._open_cold(action, mount, skills, egress)
            return self._open_warm(template, action, mount, skills, egress)

    def open_view(self, action: Action, mount: WorkspaceMount) -> int:
        """A mount of a session's copy-on-write layers while the session has no cell.

        An ordinary user can mount them only inside a user namespace of bubblewrap: in a cell that
        runs no program and ends as soon as it has sent the mount.
        """
        mount = replace(mount, covers=(), own_path=None)  # the file API checks names itself
        template = self._template(action, mount)
        if template is not None:
            self._pool.hold(template)
            try:
                tree, view = template.trees(mount)
            finally:
                self._pool.release(template)
            os.close(tree)
            return view
        parts = self._open_cold(action, mount, (), None)
        assert parts.view is not None  # noqa: S101  # a cell with layers sends one, or fails
        try:
            parts.close()
        except BaseException:
            os.close(parts.view)
            raise
        return parts.view

    def _template(self, action: Action, mount: WorkspaceMount) -> Template | None:
        spec = python_template_spec(action.template, self._settings.environment_of)
        if self._settings.path == "cold" or action.second_user:
            return None  # one uid is mapped into a template
        if mount.dir_fd is not None and os.geteuid() != 0:
            return None  # an ordinary user cannot pass a mount into another namespace
        return self._pool.template(spec, wait=self._settings.path == "warm")

    def _open_warm(
        self,
        template: Template,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        egress: EgressSockets | None,
    ) -> LiveCellParts:
        with ExitStack() as stack:
            self._pool.hold(template)
            stack.callback(self._pool.release, template)
            recipe = CellRecipe(action.limits, is_once=False)
            contents = CellContents(mount, skills=skills, egress=egress)
            cell = ForkedCell(template, recipe, InitSocket(), contents)
            stack.callback(lambda: self._pool.worker.remove(cell.close()))
            if egress is not None:
                egress.hand_over()
            cell.wait_until_ready()
            view = cell.take_view()
            open_cell = stack.pop_all()
        return LiveCellParts(
            path="warm",
            init=cell.init,
            meter=cell.group,
            owner=template.uid,
            interpreter=(),
            limits=action.limits,
            failure=cell.failure,
            close=open_cell.close,
            skills=skill_digests(skills),
            view=view,
        )

    def _open_cold(
        self,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        egress: EgressSockets | None,
    ) -> LiveCellParts:
        with ExitStack() as stack:
            uid = UidLease(f"{self._ledger.directory}.uids")
            stack.callback(uid.close)
            walls = walls_for(
                self._settings,
                self._layers,
                uid_offset=uid.number,
                open_files=action.limits.open_files,
                has_second_user=action.second_user,
            )
            cell = PreparedCell(CellShape.of(walls, self._layers, self._ledger), new_id("cell"))
            stack.callback(cell.close)
            cell.join_scope()
            cell.limit(action.limits, io_device=jobs.block_device_of(mount))
            with ExitStack() as until_sent:
                spec = python_template_spec(action.template, self._settings.environment_of)
                tools = tools_for(until_sent, self._settings, walls.outer.root, None, spec)
                cell.start_bubblewrap(mount, tools, egress, lives_on=True)
            files = jobs.base_files(home=jobs.home_of(mount), has_second_user=action.second_user)
            files |= languages.inside_files()
            job = cell_plan.Job(
                limits=action.limits,
                mount=mount,
                files=files,
                is_once=False,
                skills=skills,
                egress=egress.plan(cell.egress_number) if egress else None,
            )
            cell.start_init(cell_plan.init_plan(walls, job))
            if egress is not None:
                egress.hand_over()
            cell.wait_until_ready()
            view = cell.take_view()
            open_cell = stack.pop_all()
        return LiveCellParts(
            path="cold",
            init=cell.pipes.status,
            meter=cell.meter,
            owner=walls.outer.drop_to,
            second=walls.outer.second,
            interpreter=languages.interpreter(),
            limits=action.limits,
            failure=cell.failure,
            close=open_cell.close,
            skills=skill_digests(skills),
            view=view,
        )


def skill_digests(skills: Sequence[Skill]) -> tuple[str, ...]:
    """Identifies the skills that a cell holds."""
    return tuple(skill.digest for skill in skills)
