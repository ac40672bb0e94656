"""Registers texts that must not leak, such as a system prompt. Only digests of them are stored."""

from __future__ import annotations

import re

from cellwall.accounts.failures import not_found
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.parsing.canaries.canary_set import MAX_BYTES, MIN_BYTES, Canary
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.content_checks import CanaryList, encode_canary
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_MAX_CANARIES = 100


class CanaryAdmin:
    """The registered texts of one state folder, for a person who changes them."""

    def __init__(self, home: str, settings: Settings) -> None:
        self._home, self._settings = home, settings
        self._list = CanaryList(home)

    def add(self, name: str, text: str, *, by: Principal) -> None:
        """Register a text, or replace the one of this name."""
        require(self._settings, by, Permission.CONFIG_WRITE)
        if _NAME.fullmatch(name) is None:
            raise BadInput(
                "the name of a text has at most 40 lower-case letters, digits and . _ -",
                code="CW-BAD-CANARY",
            )
        canary = Canary.of(name, text)
        if canary is None:
            raise BadInput(
                f"a registered text has from {MIN_BYTES} to {MAX_BYTES} letters and digits",
                hint="A shorter text is found in too many others by chance.",
                code="CW-BAD-CANARY",
            )
        change = AdminChange(EventKind.CONFIG, "register text", name, {})
        with (
            change.recorded_in(self._home, self._settings, by),
            self._list.stored.change() as rows,
        ):
            rows[:] = [row for row in rows if row["name"] != name]
            if len(rows) >= _MAX_CANARIES:
                raise BadInput(f"{_MAX_CANARIES} texts are registered", code="CW-BAD-CANARY")
            rows.append(encode_canary(canary))

    def names(self) -> tuple[str, ...]:
        """The names of the registered texts."""
        return tuple(sorted(each.name for each in self._list.all()))

    def remove(self, name: str, *, by: Principal) -> None:
        """Forget a text."""
        refuse_agents("a registered text")
        require(self._settings, by, Permission.CONFIG_WRITE)
        change = AdminChange(EventKind.CONFIG, "forget text", name[:64], {})
        with (
            change.recorded_in(self._home, self._settings, by),
            self._list.stored.change() as rows,
        ):
            kept = [row for row in rows if row["name"] != name]
            if len(kept) == len(rows):
                raise not_found("registered text")
            rows[:] = kept
