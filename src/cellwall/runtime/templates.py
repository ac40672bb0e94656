"""Environments of templates, built and removed for the record (LANG-2).

What code finds inside changes by it, so it is a change of configuration:
  (1) know the name; a build that would change nothing ends here;
  (2) write the intent; a failed write refuses (AUD-1);
  (3) build or remove;
  (4) write the outcome.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.events import EventKind
from cellwall.core.roles import Permission
from cellwall.core.types import Json, Principal
from cellwall.runtime.home import state_home
from cellwall.runtime.permissions import require
from cellwall.runtime.record import Change, open_record
from cellwall.sandbox import environments
from cellwall.sandbox.environments import TEMPLATES, Environment

__all__ = ["TEMPLATES", "Environment", "Templates"]


class Templates:
    """The templates of one state folder."""

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._home = state_home(os.environ)

    def find(self, name: str) -> Environment | None:
        return environments.find(self._home, name)

    def build(
        self, name: str, *, principal: Principal, on_progress: Callable[[str], None]
    ) -> Environment:
        """The environment of a template, built if it is not there yet."""
        # (1) Nothing to do.
        there = self.find(name)
        if there is not None:
            return there
        require(self._settings, principal, Permission.PACKAGES_INSTALL)
        pins = hashlib.sha256(environments.requirements(name)).hexdigest()
        intent: dict[str, Json] = {
            "requirements_sha256": pins,
            "python": environments.interpreter().version,
        }
        with self._recorded("build", name, principal, intent) as outcome:
            built = environments.build(self._home, name, on_progress=on_progress)
            outcome["is_new"] = built.is_new
            outcome["size_bytes"] = built.size_bytes
        return built

    def remove(self, name: str, *, principal: Principal, on_progress: Callable[[str], None]) -> int:
        """Remove the environments of a template; returns how many there were."""
        # (1) Nothing to do.
        if environments.count(self._home, name) == 0:
            raise BadInput(
                f"the environment of {name} is not built, so there is nothing to remove",
                mend="See `cellwall template list`.",
                code="CW-TEMPLATE-NOT-BUILT",
            )
        with self._recorded("remove", name, principal, {}) as outcome:
            removed = environments.remove(self._home, name, on_progress=on_progress)
            outcome["removed_count"] = removed
        return removed

    @contextmanager
    def _recorded(
        self, what: str, name: str, principal: Principal, intent: dict[str, Json]
    ) -> Iterator[dict[str, Json]]:
        """(2) and (4), around the caller's (3)."""
        change = Change(EventKind.TEMPLATE, what, name, intent)
        with (
            open_record(self._home, self._settings) as audit,
            change.recorded(audit, principal) as outcome,
        ):
            yield outcome
