"""Parses users' options; all interfaces share this, so that options mean the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from cellwall.core.errors import BadInput
from cellwall.core.limits import Limits, parse_size
from cellwall.core.types import WorkspaceMode, WorkspaceRequest

_GIVEN = frozenset(mode.value for mode in WorkspaceMode) - {WorkspaceMode.PRIVATE.value}


def parse_workspace(text: str | None, *, at_own_path: bool = False) -> WorkspaceRequest:
    """`DIR`, `DIR:ro`, `DIR:rw` or `DIR:cow`; without a mode it is read-only."""
    if text is None and at_own_path:
        raise BadInput(
            "without a workspace there is no path to show",
            hint="Write --workspace DIR:rw --own-path.",
            code="CW-BAD-WORKSPACE",
        )
    if text is None:
        return WorkspaceRequest()
    directory, colon, mode = text.rpartition(":")
    if not colon or "/" in mode:
        return WorkspaceRequest(WorkspaceMode.READ_ONLY, text, at_own_path)
    if mode in _GIVEN:
        return WorkspaceRequest(WorkspaceMode(mode), directory, at_own_path)
    raise BadInput(
        f"{mode[:20]!r} is not a workspace mode",
        hint="Write DIR:ro, DIR:rw or DIR:cow.",
        code="CW-BAD-WORKSPACE",
    )


def skill_names(names: Sequence[str]) -> tuple[str, ...]:
    """A list of names; a single string would be read as a list of letters."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise BadInput(
            "skills are given as a list of names",
            hint='Write skills=["name"].',
            code="CW-SKILL-NAME",
        )
    return tuple(names)


def listed_words(words: Sequence[str], what: str) -> tuple[str, ...]:
    """A list of strings; a single string would be read as a list of letters."""
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise BadInput(f"{what} is given as a list of texts", hint=f'Write {what}=["…"].')
    return tuple(words)


def named_policy(path: str | None) -> tuple[str, ...]:
    """A policy file that a person names for an action."""
    return () if path is None else (os.path.abspath(path),)


def with_limits(
    limits: Limits,
    *,
    timeout: float | None = None,
    memory: str | int | None = None,
    **others: float | None,
) -> Limits:
    """The profile's limits with overrides. CPU time grows with the wall time."""
    changes: dict[str, float | int] = {
        name: value for name, value in others.items() if value is not None
    }
    if timeout is not None:
        changes["wall_s"] = float(timeout)
        changes.setdefault("cpu_s", max(float(timeout), limits.cpu_s))
    if memory is not None:
        changes["memory_bytes"] = parse_size(memory, what="memory")
    if not changes:
        return limits
    known = {spec.name for spec in fields(Limits)}
    if not changes.keys() <= known:
        raise BadInput(f"unknown limit: {', '.join(sorted(changes.keys() - known))}")
    return replace(limits, **changes)  # type: ignore[arg-type]  # checked by Limits itself


def template_with(
    packages: Sequence[str],
    template: str,
    *,
    config: str | None,
    profile: str | None,
    interface: str,
    on_progress: Callable[[str], None],
) -> str:
    """The template with these packages; built once, and found again by its content."""
    from cellwall.admin.templates import PYTHON, SHIPPED, Templates  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    if template != PYTHON:
        shipped = f", or name the packages of {template} as well" if template in SHIPPED else ""
        raise BadInput(
            "a sandbox has a template or packages, not both",
            hint=f"Leave the template out{shipped}.",
            code="CW-USAGE",
        )
    templates = Templates(config=config, profile=profile)
    return templates.build_request(
        packages, principal=principal(interface), on_progress=on_progress
    )
