"""What Cellwall must know of an agent to be its hook. Pure data; one file makes each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.outcomes import Finding
from cellwall.core.types import Json
from cellwall.interfaces.hooks.protocol import Asking, Passing, Reply, Reporting, Ruling
from cellwall.interfaces.hooks.settings_text import Layout


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A tool's result after the guard has looked at it."""

    findings: Sequence[Finding]
    response: Json
    is_changed: bool

    @property
    def seen(self) -> str:
        return "; ".join(f"{finding.category}: {finding.message}" for finding in self.findings)


def _never(_asked: Asking) -> bool:
    return False


def _all_hooks_off(settings: Mapping[str, Any]) -> str:
    return '"disableAllHooks" is on' if settings.get("disableAllHooks") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent's protocol and settings."""

    name: str
    title: str
    """As its makers write it."""
    layout: Layout
    places: Callable[[Mapping[str, str], str], dict[str, str]]
    """From the environment and the working directory: `project`, `local`, `user` -> file."""
    parse: Callable[[bytes, bool], Asking | Reporting | Passing]
    """The question, and whether the command line says that it is about a result."""
    permit: Callable[[Asking, Ruling], Reply]
    report: Callable[[Reporting, Cleaned], Reply]
    refuse: Callable[[bytes, str, str], Reply]
    """Without a ruling: the question, the event as far as it is known, the reason."""
    can_ask: Callable[[Asking], bool] = _never
    """Whether the host puts our question to a person now, in every mode that it may be in."""
    handed_on: tuple[str, ...] = ()
    """Fields of a shell call that a rewritten call keeps; others could change what is run."""
    timeout_key: str | None = None
    """The field with the time limit of a shell call, in milliseconds."""
    default_timeout_s: float = 3600.0
    is_posix_shell: bool = True
    """Whether the host starts the hook's command with sh or bash, and never with another shell."""
    own_folders: int = 1
    """How many folders above its settings file are its own, and are made where they are missing."""
    names_no_event: bool = False
    """Questions do not say what they are about, so the command line does (`--after`)."""
    switched_off: Callable[[Mapping[str, Any]], str] = _all_hooks_off
    """What in the settings keeps the agent from running our hooks; empty: nothing."""
    note: str = ""
    """What a person still has to do after `hook install`."""
