"""Builds and removes the environments of templates, logged (LANG-2).

Code inside sees other packages afterwards, so each is a change of configuration:
  (1) check the name; a build that would change nothing ends here;
  (2) check that the packages may be installed;
  (3) write the intent; a failed write refuses (AUD-1);
  (4) build or remove; the resolved packages are checked again before they are unpacked;
  (5) write the outcome.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.events import EventKind
from cellwall.core.packages import Package, package_of, parse_request
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.home import state_home
from cellwall.runtime.permissions import require
from cellwall.runtime.recording import Change, open_record
from cellwall.sandbox.templates import definitions, environments
from cellwall.sandbox.templates.definitions import PYTHON, SHIPPED
from cellwall.sandbox.templates.environments import Environment

__all__ = ["PYTHON", "SHIPPED", "Environment", "PackageGate", "Templates"]


class Templates:
    """The templates of one state folder."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
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
        """The packages of a user-defined template; none for a shipped one."""
        return definitions.read(self._home, name)

    def find(self, name: str) -> Environment | None:
        return environments.find(self._home, name)

    def build(
        self,
        name: str,
        *,
        principal: Principal,
        on_progress: Callable[[str], None],
        packages: Sequence[str] = (),
    ) -> Environment:
        """The environment of a template, built if missing.

        `packages` define or redefine the template.
        """
        request = parse_request(packages)
        # (1)
        if request:
            definitions.check_new_name(name, request)
        there = self.find(name) if not request or self._is_defined(name, request) else None
        if there is not None:
            return there
        # (2)
        gate = PackageGate(self._settings, principal)
        request = request or self.requested(name)
        text = definitions.as_text(request) if request else definitions.shipped_requirements(name)
        gate.check([package_of(each) for each in request] or definitions.pinned(text))
        intent: dict[str, Json] = {
            "requirements_sha256": hashlib.sha256(text).hexdigest(),
            "python": environments.interpreter().version,
        }
        if request:
            intent["packages"] = list(request)
        with self._recorded("build", name, principal, intent) as outcome:
            built = environments.build(
                self._home,
                name,
                may_install=gate.check,
                request=request,
                on_progress=on_progress,
            )
            outcome["is_new"] = built.is_new
            outcome["size_bytes"] = built.size_bytes
            outcome["installed"] = [f"{name}=={version}" for name, version in built.packages]
        return built

    def _is_defined(self, name: str, request: Sequence[str]) -> bool:
        try:
            return self.requested(name) == request
        except CellwallError:  # unknown or damaged: define it anew
            return False

    def build_request(
        self,
        packages: Sequence[str],
        *,
        principal: Principal,
        on_progress: Callable[[str], None],
    ) -> str:
        """The name of the template with these packages, built if missing."""
        request = parse_request(packages)
        name = definitions.name_of(request)
        self.build(name, principal=principal, on_progress=on_progress, packages=request)
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

    @contextmanager
    def _recorded(
        self, what: str, name: str, principal: Principal, intent: dict[str, Json]
    ) -> Iterator[dict[str, Json]]:
        """(3) and (5), around the caller's (4)."""
        change = Change(EventKind.TEMPLATE, what, name, intent)
        with (
            open_record(self._home, self._settings) as audit,
            change.recorded(audit, principal) as outcome,
        ):
            yield outcome


@dataclass(frozen=True, slots=True)
class PackageGate:
    """Whether a principal may install packages; the only place that decides it.

    Asked twice for each build: with the requested names before an index is contacted, and with the
    resolved names and versions before anything is unpacked.
    """

    settings: Settings
    principal: Principal

    def check(self, packages: Sequence[Package]) -> None:
        """Raise `Denied` for packages that must not be installed."""
        if packages:
            require(self.settings, self.principal, Permission.PACKAGES_INSTALL)
