"""How a live cell comes to be: forked from a template, or cold with an outer wall of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from cellwall.core.network import CellNetwork
from cellwall.core.skills import Skill
from cellwall.core.types import Action, WorkspaceMount, new_id
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cellplan, jobs, newgroups
from cellwall.sandbox.linux.channels import Line
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, tools_for, walls_for
from cellwall.sandbox.linux.live import Body
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.specs import python_spec
from cellwall.sandbox.linux.standing import Shape, Standing
from cellwall.sandbox.linux.template import Recipe, Template
from cellwall.sandbox.linux.uids import UidLease
from cellwall.sandbox.linux.warmcell import ForkedCell
from cellwall.sandbox.linux.wayout import WayOut
from cellwall.sandbox.run_ledger import RunLedger


class Bodies:
    """Makes them. May be called by several threads; each call blocks until its cell stands."""

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
    ) -> Body:
        """The cell of a session's first action, or of the first after its cell has ended."""
        template = self._template(action, mount)
        way_out = None if network is None else WayOut(network)
        try:
            if template is None:
                return self._open_cold(action, mount, skills, way_out)
            return self._open_warm(template, action, mount, skills, way_out)
        finally:
            if way_out is not None:
                way_out.close()

    def view(self, action: Action, mount: WorkspaceMount) -> int:
        """A mount of a session's copy-on-write layers while it has no cell.

        An ordinary user can mount them only behind a wall of bubblewrap's: in a cell that ends as
        soon as it has handed out the mount, and in which nothing runs.
        """
        mount = replace(mount, covers=(), own_path=None)  # the file API judges names by itself
        template = self._template(action, mount)
        if template is not None:
            self._pool.hold(template)
            try:
                tree, view = template.trees(mount)
            finally:
                self._pool.release(template)
            os.close(tree)
            return view
        body = self._open_cold(action, mount, (), None)
        assert body.view is not None  # noqa: S101  # a cell with layers hands one out, or fails
        try:
            body.close()
        except BaseException:
            os.close(body.view)
            raise
        return body.view

    def _template(self, action: Action, mount: WorkspaceMount) -> Template | None:
        spec = python_spec(action.template, self._settings.environment_of)
        if self._settings.path == "cold":
            return None
        if mount.dir_fd is not None and os.geteuid() != 0:
            return None  # an ordinary user cannot hand a mount into another namespace
        return self._pool.template(spec, wait=self._settings.path == "warm")

    def _open_warm(
        self,
        template: Template,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        way_out: WayOut | None,
    ) -> Body:
        with ExitStack() as stack:
            self._pool.hold(template)
            stack.callback(self._pool.release, template)
            cell = ForkedCell(
                template,
                Recipe(action.limits, is_once=False),
                Line(),
                mount=mount,
                skills=skills,
                way_out=way_out,
                io_device=_device(mount),
            )
            stack.callback(lambda: self._pool.housekeeper.remove(cell.close()))
            if way_out is not None:
                way_out.hand_over()
            cell.wait_until_ready()
            view = cell.take_view()
            kept = stack.pop_all()
        return Body(
            path="warm",
            line=cell.line,
            meter=cell.group,
            owner=template.uid,
            interpreter=(),
            limits=action.limits,
            failure=cell.failure,
            close=kept.close,
            skills=digests(skills),
            view=view,
        )

    def _open_cold(
        self,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        way_out: WayOut | None,
    ) -> Body:
        """The same, with an outer wall of its own."""
        with ExitStack() as stack:
            uid = UidLease(f"{self._ledger.directory}.uids")
            stack.callback(uid.close)
            walls = walls_for(
                self._settings,
                self._layers,
                uid_offset=uid.number,
                open_files=action.limits.open_files,
            )
            cgroup = self._layers.cgroup if walls.cgroup else None
            shape = Shape(self._ledger, walls.outer, cgroup, wants_stdin=False)
            standing = Standing(shape, new_id("cell"))
            stack.callback(standing.close)
            standing.join_scope()
            standing.limit(action.limits, io_device=_device(mount))
            with ExitStack() as brief:
                spec = python_spec(action.template, self._settings.environment_of)
                tools = tools_for(brief, self._settings, walls.outer.root, None, spec)
                standing.raise_wall(mount, tools, way_out, lives_on=True)
            home = "/workspace" if mount.home else "/tmp"
            files = jobs.base_files(home=home) | languages.inside_files()
            job = cellplan.Job(
                (),
                {},
                action.limits,
                mount,
                {},
                files,
                is_once=False,
                skills=skills,
                opening=way_out.opening(standing.way_out_number) if way_out else None,
            )
            standing.go(cellplan.init_plan(walls, job))
            if way_out is not None:
                way_out.hand_over()
            standing.wait_until_ready()
            view = standing.take_view()
            kept = stack.pop_all()
        return Body(
            path="cold",
            line=standing.ends.status,
            meter=standing.meter,
            owner=walls.outer.drop_to,
            interpreter=languages.interpreter(),
            limits=action.limits,
            failure=standing.failure,
            close=kept.close,
            skills=digests(skills),
            view=view,
        )


def digests(skills: Sequence[Skill]) -> tuple[str, ...]:
    """Of the skills that a cell holds."""
    return tuple(skill.digest for skill in skills)


def _device(mount: WorkspaceMount) -> str | None:
    return None if mount.dir_fd is None else newgroups.block_device(os.fstat(mount.dir_fd).st_dev)
