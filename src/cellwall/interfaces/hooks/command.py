"""The command that an agent's settings start for each hook, and how to know it again."""

from __future__ import annotations

import os
import pwd
import shlex
import site
import sys
from collections.abc import Mapping
from typing import Any

from cellwall.core.errors import CellwallError
from cellwall.core.home import state_path
from cellwall.interfaces.hooks.settings_text import START


def hook_command(
    *,
    environ: Mapping[str, str],
    run_inside: bool = False,
    config: str | None = None,
    policy: str | None = None,
) -> str:
    """As a shell reads it: hosts that know no `args` would start the program without `hook`.

    An agent's environment is also made by the project's own settings. So Python is started isolated
    (`-I`), where no variable and no file in the working directory changes what it runs; and what
    chooses our state, configuration and rules is set to what it is now.
    """
    words = [*isolated(), "hook", *(["--run-inside"] if run_inside else [])]
    for name, file in (("--config", config), ("--policy", policy)):
        words += [name, os.path.abspath(file)] if file else []
    pinned = (f"{name}={shlex.quote(value)}" for name, value in pins(environ).items())
    return " ".join([*pinned, shlex.join(words)])


def isolated() -> list[str]:
    """How this very program is started where no variable and no file changes what it runs."""
    own = os.path.realpath(__file__)
    users = os.path.realpath(site.getusersitepackages())
    if not os.path.isabs(sys.executable) or own.startswith(users + "/"):
        raise CellwallError(
            "Cellwall is not installed where an isolated Python finds it",
            mend="Install it with pipx, with `uv tool`, or in a virtual environment.",
            code="CW-NO-PROGRAM",
        )
    return [sys.executable, *START]


def pins(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that choose the places; an empty one counts as none.

    `HOME` is in the rules, too: with another one `~/.ssh` would not be what they deny.
    """
    config = environ.get("CELLWALL_CONFIG", "")
    theirs = environ.get("XDG_CONFIG_HOME", "")
    return {
        "HOME": _home(environ),
        "CELLWALL_HOME": os.path.realpath(state_path(environ)),
        "CELLWALL_CONFIG": os.path.abspath(config) if config else "",
        "XDG_CONFIG_HOME": theirs if os.path.isabs(theirs) else "",
    }


def _home(environ: Mapping[str, str]) -> str:
    told = environ.get("HOME", "")
    return told if os.path.isabs(told) else pwd.getpwuid(os.geteuid()).pw_dir


def options_of(command: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """With which options `install` would write this very command here; None: with none.

    A shell reads it, so nothing but the same characters is the same: `|| true` is an option, too.
    """
    try:
        words = shlex.split(command)
        rest = words[words.index("hook") + 1 :]
    except ValueError:
        return None
    options: dict[str, Any] = {"run_inside": False}
    while rest:
        name = rest.pop(0)
        if name == "--run-inside":
            options["run_inside"] = True
        elif name in {"--config", "--policy"} and rest:
            options[name[2:]] = rest.pop(0)
        else:
            return None
    return options if hook_command(environ=environ, **options) == command else None
