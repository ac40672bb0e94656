"""The policy of an MCP server without rules of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from cellwall.runtime.policy_places import PROJECT_FILES, is_there, project_files, user_policy

if TYPE_CHECKING:
    from cellwall.runtime.app import App


def default_policy(
    app: App, environ: Mapping[str, str], *, cwd: str | None, has_domains: bool = False
) -> tuple[str, ...]:
    """The policy shipped for servers without rules; empty where the user or project has rules.

    It allows what stays inside the sandbox, and the domains that the server's options or the
    configuration open. `cwd` is None for a service, which belongs to no project. A client's own
    settings say what *its* tools may do on the host, so they do not count as rules here.
    """
    own_file = f"/{PROJECT_FILES[0]}"
    projects = () if cwd is None else project_files(cwd)
    has_project_rules = any(path.endswith(own_file) for path in projects)
    if app.settings.policy.files or is_there(user_policy(environ)) or has_project_rules:
        return ()
    name = "outside.toml" if has_domains or app.runtime.reach.domains else "inside.toml"
    path = str(resources.files("cellwall.interfaces.mcp").joinpath("default_policies", name))
    return (os.path.abspath(path),)
