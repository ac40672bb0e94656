"""By which rules an agent's calls are judged if whoever started the server named none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from cellwall.runtime.policy_places import PROJECT_FILES, is_there, project_files, user_policy

if TYPE_CHECKING:
    from cellwall.core.types import Action
    from cellwall.runtime.wiring import House


def offered(house: House, given: Action, environ: Mapping[str, str], cwd: str) -> tuple[str, ...]:
    """Empty: there are rules of theirs. Else ours, which allow what stays inside the walls.

    A client's own settings, which say what *its* tools may do on the host, are none for ours.
    """
    ours = f"/{PROJECT_FILES[0]}"
    is_project_ruled = any(path.endswith(ours) for path in project_files(cwd))
    if house.settings.policy.files or is_there(user_policy(environ)) or is_project_ruled:
        return ()
    reaches_out = bool(given.allow_domains or house.runtime.domains)
    name = "outside.toml" if reaches_out else "inside.toml"
    path = str(resources.files("cellwall.interfaces.mcp").joinpath("offered", name))
    return (os.path.abspath(path),)
