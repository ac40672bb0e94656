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
from contextlib import contextmanager, suppress

from holdfast.audit.log import AuditLog
from holdfast.config.load import load_settings
from holdfast.core.errors import AuditFailed, BadInput, HoldfastError
from holdfast.core.events import Event, EventKind
from holdfast.core.types import Json, Principal, new_id
from holdfast.runtime.wiring import state_home
from holdfast.sandbox import environments
from holdfast.sandbox.environments import TEMPLATES, Environment

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
                mend="See `holdfast template list`.",
                code="HF-TEMPLATE-NOT-BUILT",
            )
        with self._recorded("remove", name, principal, {}) as outcome:
            removed = environments.remove(self._home, name, on_progress=on_progress)
            outcome["removed_count"] = removed
        return removed

    @contextmanager
    def _recorded(
        self, change: str, name: str, principal: Principal, intent: dict[str, Json]
    ) -> Iterator[dict[str, Json]]:
        audit = AuditLog.open(
            os.path.join(self._home, "audit"), max_field_bytes=self._settings.audit.max_field_bytes
        )
        action_id = new_id("act")

        def write(step: str, status: str, body: dict[str, Json]) -> None:
            # `message` is what `holdfast audit tail` shows.
            known = {"step": step, "change": change, "template": name}
            told = {"message": f"{change} template {name}: {status}", "status": status}
            event = {**known, **told, **body}
            audit.write(
                Event(EventKind.TEMPLATE, action_id, principal.name, principal.interface, event)
            )

        # (2) The intent.
        write("intent", "begins", intent)
        outcome: dict[str, Json] = {}
        # (3) The effect is the caller's.
        try:
            yield outcome
        except BaseException as error:
            with suppress(AuditFailed):  # a second failure must not hide the first
                write("outcome", "failed", _told(error))
            raise
        # (4) The outcome.
        write("outcome", "ok", outcome)


def _told(error: BaseException) -> dict[str, Json]:
    if isinstance(error, HoldfastError):
        return {"error_code": error.code, "reason": error.message, "detail": error.detail}
    return {"reason": "interrupted", "detail": type(error).__name__}
