"""The command that an agent's settings start for each hook, and how `install` recognises it.

It must block where it cannot start: hosts treat a missing program, a crash or a signal as no
objection and let the tool through. So the shell turns every end but an answer into exit code 2 with
a reason, and kills a hook that hangs before the host's own time-out.
"""

from __future__ import annotations

import os
import pwd
import shlex
import site
import sys
from collections.abc import Mapping
from typing import Any

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.home import state_path
from cellwall.interfaces.hooks.settings_text import SHELL, START
from cellwall.interfaces.hooks.withheld_results import NOTE, TEXT_ONLY

_KILLED_AFTER_S = 15
"""Seconds. The hook itself answers within 10; hosts wait 20."""
_TIMEOUT = "/usr/bin/timeout"
_NOT_ANSWERED = "cellwall: the hook did not start or did not end as it should, so it is refused"
_OTHERWISE = f"|| {{ [ $? -eq 2 ] || echo {shlex.quote(_NOT_ANSWERED)} >&2; exit 2; }}"
# For events after a tool: only an answer can withhold the result.
_OTHERWISE_WITHHELD = f"|| echo {shlex.quote(TEXT_ONLY.format(note=NOTE))}"
_CHOICES = {"--dangerously-outside": "dangerously_outside", "--after": "after"}
_NAMED = {"--agent": "agent", "--config": "config", "--policy": "policy"}


def hook_command(
    *,
    environ: Mapping[str, str],
    agent: str = "claude-code",
    is_posix_shell: bool = True,
    after: bool = False,
    dangerously_outside: bool = False,
    config: str | None = None,
    policy: str | None = None,
) -> str:
    """A shell command, since hosts without `args` would start the program without `hook`.

    The project's settings can set the agent's environment. So Python starts isolated (`-I`): no
    variable and no file in the working directory changes what it runs. The variables that choose
    state, configuration and rules are pinned to their present values.
    """
    words = [*_timeout_command(), *isolated_command(), "hook"]
    words += [] if agent == "claude-code" else ["--agent", agent]
    words += ["--after"] if after else []
    words += ["--dangerously-outside"] if dangerously_outside else []
    for name, file in (("--config", config), ("--policy", policy)):
        words += [name, os.path.abspath(file)] if file else []
    pinned = (f"{name}={shlex.quote(value)}" for name, value in pinned_environment(environ).items())
    otherwise = _OTHERWISE_WITHHELD if after else _OTHERWISE
    command = " ".join([*pinned, shlex.join(words), otherwise])
    _refuse_odd(command)
    return command if is_posix_shell else shlex.join([*SHELL, command])


def _refuse_odd(command: str) -> None:
    """Shells differ in what a backslash means between quotes; a line break ends a command."""
    if "\\" in command or not command.isprintable():
        raise BadInput(
            "a path of this installation contains a backslash or an unprintable character",
            hint="Install Cellwall, and name its files, with plain paths.",
            code="CW-HOOK-PATH",
        )


def _timeout_command() -> list[str]:
    """By absolute path: the project could change PATH."""
    return [_TIMEOUT, "-s", "KILL", str(_KILLED_AFTER_S)] if os.access(_TIMEOUT, os.X_OK) else []


def isolated_command() -> list[str]:
    """The command that starts this program where no variable or file changes what runs."""
    own = os.path.realpath(__file__)
    users = os.path.realpath(site.getusersitepackages())
    if not os.path.isabs(sys.executable) or own.startswith(users + "/"):
        raise CellwallError(
            "an isolated Python does not find this installation of Cellwall",
            hint="Install it with pipx, with `uv tool`, or in a virtual environment.",
            code="CW-NO-PROGRAM",
        )
    return [sys.executable, *START]


def pinned_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that choose paths; an empty one counts as unset.

    `HOME` is included because rules use it: with another one `~/.ssh` would not be denied.
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


def options_of(
    command: str, environ: Mapping[str, str], *, is_posix_shell: bool = True
) -> dict[str, Any] | None:
    """The options with which `install` writes exactly this command; None: no options do.

    Compared character by character, since a shell runs it: an added `|| true` would disable it.
    """
    try:
        words = shlex.split(command)
        if tuple(words[:2]) == SHELL:
            words = shlex.split(words[2])
        rest = words[words.index("hook") + 1 : words.index("||")]
    except (ValueError, IndexError):
        return None
    options: dict[str, Any] = {}
    while rest:
        name = rest.pop(0)
        if name in _CHOICES:
            options[_CHOICES[name]] = True
        elif name in _NAMED and rest:
            options[_NAMED[name]] = rest.pop(0)
        else:
            return None
    try:
        again = hook_command(environ=environ, is_posix_shell=is_posix_shell, **options)
    except CellwallError:
        return None
    return options if again == command else None
