"""The policy of a service whose operator has written none."""

from __future__ import annotations

import functools
import os
from importlib import resources

from cellwall.runtime.app import App
from cellwall.runtime.policy_places import is_there, user_policy


def default_policy(app: App) -> str | None:
    """The policy shipped for services without rules; None where there are rules."""
    if app.settings.policy.files or is_there(user_policy(os.environ)):
        return None
    return _shipped()


@functools.cache
def _shipped() -> str:
    folder = resources.files("cellwall.interfaces.http").joinpath("default_policies")
    return os.path.abspath(str(folder.joinpath("service.toml")))
