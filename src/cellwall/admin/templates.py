"""Builds and removes the environments of templates, logged (LANG-2).

Code inside sees other packages afterwards, so each is a change of configuration:
  (1) check the name; a build that would change nothing ends here;
  (2) check that the principal may install packages;
  (3) write the intent; a failed write refuses (AUD-1);
  (4) build or remove. uv resolves and installs in a cell, as actions of the principal, from the
      index of the registry proxy, which judges each package (PKG-1); the files are copied out;
  (5) write the outcome.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from cellwall.admin import python_installs
from cellwall.admin.package_cells import package_cell, run_cancellable
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import EventKind
from cellwall.core.packages import Package, parse_request
from cellwall.core.ports import ApproverPort
from cellwall.core.types import Json, Permission, Principal
from cellwall.packages.locks.installable import installable_pylock, packages_of, pins_of
from cellwall.runtime.app import App
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.wiring import open_app
from cellwall.sandbox.templates import definitions, environments, uv_program
from cellwall.sandbox.templates.definitions import PYTHON, SHIPPED, TemplateDefinition
from cellwall.sandbox.templates.environments import Environment, TargetPython

__all__ = ["PYTHON", "SHIPPED", "Environment", "Templates"]

_LOCK = "pylock.toml"


class Templates:
    """The templates of one state folder."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._config, self._profile = config, profile
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)

    def names(self) -> list[str]:
        """The names of all templates that can be built."""
        return definitions.names(self._home)

    @staticmethod
    def name_of(request: Sequence[str]) -> str:
        """The name of the template for a request without a name."""
        return definitions.name_of(request)

    def requested(self, name: str) -> tuple[str, ...]:
        """The packages that a user asked for; none for a shipped or locked template."""
        return definitions.read(self._home, name).request

    def find(self, name: str) -> Environment | None:
        return environments.find(self._home, name)

    def build(
        self,
        name: str,
        *,
        principal: Principal,
        on_progress: Callable[[str], None],
        packages: Sequence[str] = (),
        lock: bytes | None = None,
        ask: ApproverPort | None = None,
    ) -> Environment:
        """The environment of a template, built if missing.

        `packages`, or the content of a `pylock.toml`, define or redefine the template.
        `ask` is the caller's own channel for questions about packages.
        """
        definition = self._definition(packages, lock)
        # (1)
        if definition is not None:
            definitions.check_new_name(name, definition)
        is_known = definition is None or self._is_defined(name, definition)
        if is_known and (there := self.find(name)) is not None:
            return there
        # (2)
        require(self._settings, principal, Permission.PACKAGES_INSTALL)
        wanted = definition or definitions.read(self._home, name)
        intent: dict[str, Json] = {
            "requirements_sha256": hashlib.sha256(wanted.text).hexdigest(),
            "python": environments.interpreter().version,
        }
        if wanted.request:
            intent["packages"] = list(wanted.request)
        with self._recorded("build", name, principal, intent) as outcome:
            built = environments.build(
                self._home,
                name,
                install=_CellInstaller(self._config, self._profile, principal, on_progress, ask),
                definition=definition,
                on_progress=on_progress,
            )
            outcome["is_new"] = built.is_new
            outcome["size_bytes"] = built.size_bytes
            outcome["installed"] = [f"{name}=={version}" for name, version in built.packages]
        return built

    @staticmethod
    def _definition(packages: Sequence[str], lock: bytes | None) -> TemplateDefinition | None:
        request = parse_request(packages)
        if lock is None:
            return TemplateDefinition(request) if request else None
        if request:
            raise BadInput(
                "a template is built from packages or from a lock, not both",
                hint="Name the packages when you make the lock: cellwall packages lock NAME",
                code="CW-USAGE",
            )
        return TemplateDefinition((), pins_of(installable_pylock(lock)))

    def _is_defined(self, name: str, definition: TemplateDefinition) -> bool:
        try:
            return definitions.read(self._home, name) == definition
        except CellwallError:  # unknown or damaged: define it anew
            return False

    def name_of_lock(self, lock: bytes) -> str:
        """The name of the template for a lock without a name."""
        return TemplateDefinition((), pins_of(installable_pylock(lock))).name

    def build_request(
        self,
        packages: Sequence[str],
        *,
        principal: Principal,
        on_progress: Callable[[str], None],
        ask: ApproverPort | None = None,
    ) -> str:
        """The name of the template with these packages, built if missing."""
        request = parse_request(packages)
        name = definitions.name_of(request)
        self.build(name, principal=principal, on_progress=on_progress, packages=request, ask=ask)
        return name

    def remove(self, name: str, *, principal: Principal, on_progress: Callable[[str], None]) -> int:
        """Remove the environments of a template; returns how many there were."""
        # (1) Nothing to do.
        if environments.count(self._home, name) == 0 and name in SHIPPED:
            raise BadInput(
                f"the environment of {name} is not built, so there is nothing to remove",
                hint="See `cellwall template list`.",
                code="CW-TEMPLATE-NOT-BUILT",
            )
        # (2) All sandboxes of the user share them.
        require(self._settings, principal, Permission.PACKAGES_INSTALL)
        with self._recorded("remove", name, principal, {}) as outcome:
            removed = environments.remove(self._home, name, on_progress=on_progress)
            outcome["removed_count"] = removed
        return removed

    def _recorded(
        self, what: str, name: str, principal: Principal, intent: dict[str, Json]
    ) -> AbstractContextManager[dict[str, Json]]:
        """(3) and (5), around the caller's (4)."""
        change = AdminChange(EventKind.TEMPLATE, what, name, intent)
        return change.recorded_in(self._home, self._settings, principal)


@dataclass(frozen=True, slots=True)
class _CellInstaller:
    """Implements `environments.Install`: uv in a cell of its own."""

    config: str | None
    profile: str | None
    principal: Principal
    on_progress: Callable[[str], None]
    ask: ApproverPort | None

    def __call__(
        self, definition: TemplateDefinition, python: TargetPython, staging: str
    ) -> Sequence[Package]:
        async def install() -> Sequence[Package]:
            return await self._install(app, definition, python, staging)

        with closing(open_app(config=self.config, profile=self.profile)) as app:
            return run_cancellable(install)

    async def _install(
        self, app: App, definition: TemplateDefinition, python: TargetPython, staging: str
    ) -> Sequence[Package]:
        site, inside = environments.SITE, f"/workspace/{environments.SITE}"
        with package_cell(
            app,
            self.principal,
            template=uv_program.TEMPLATE,
            registries=("pypi",),
            env=uv_program.ENVIRONMENT,
            ask=self.ask,
        ) as cell:
            show, pins = self.on_progress, definition.pins
            if pins:
                packages: Sequence[Package] = definitions.pinned_packages(pins)
            else:
                lock, content = await python_installs.resolve(
                    cell, definition.request, python=python.path, on_progress=show
                )
                pins, packages = pins_of(lock), packages_of(lock)
                _write_new(os.path.join(staging, _LOCK), content)
            place = ("--target", inside)
            await python_installs.install_pins(
                cell, pins, python=python.path, place=place, on_progress=show
            )
            await python_installs.compile_tree(cell, inside, python=python.path, on_progress=show)
            await cell.copy_out(site, staging)
        return packages


def _write_new(path: str, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
