"""Packages that a sandbox is to have, turned into the template that holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellwall.admin.templates import PYTHON, SHIPPED, Templates
from cellwall.core.errors import BadInput
from cellwall.runtime.wiring import principal


def template_with(
    packages: Sequence[str],
    template: str,
    *,
    config: str | None,
    profile: str | None,
    interface: str,
    on_progress: Callable[[str], None],
) -> str:
    """The template of a sandbox with these packages; built once, and found again by its content."""
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
