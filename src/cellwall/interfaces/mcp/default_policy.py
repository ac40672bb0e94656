"""The rules for servers without rules of the user or the project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from cellwall.runtime.policy_places import PROJECT_FILES, is_there, project_files, user_policy

if TYPE_CHECKING:
    from cellwall.core.types import Action
    from cellwall.runtime.wiring import App


def default_policy(
    app: App, action: Action, environ: Mapping[str, str], cwd: str
) -> tuple[str, ...]:
    """The policy shipped for servers without rules; empty where the user or project has rules.

    It allows what stays inside the sandbox. A client's own settings say what *its* tools may do on
    the host, so they do not count as rules here.
    """
    own_file = f"/{PROJECT_FILES[0]}"
    has_project_rules = any(path.endswith(own_file) for path in project_files(cwd))
    if app.settings.policy.files or is_there(user_policy(environ)) or has_project_rules:
        return ()
    has_network = bool(action.allow_domains or app.runtime.domains)
    name = "outside.toml" if has_network else "inside.toml"
    path = str(resources.files("cellwall.interfaces.mcp").joinpath("default_policies", name))
    return (os.path.abspath(path),)
