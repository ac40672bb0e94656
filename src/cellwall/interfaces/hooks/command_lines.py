"""The command lines that Cellwall writes for agents: the hook itself, and rewritten shell commands.

Both are recognised by construction: the same parts must give the same line.

The hook must block where it cannot start: hosts treat a missing program, a crash or a signal as no
objection and let the tool through. So the shell turns every end but an answer into exit code 2 with
a reason, and kills a hook that hangs before the host's own time-out.

A rewritten command runs inside Cellwall. The project is the workspace, read-write, at its host
path, so that `pwd`, compiler messages and absolute paths are the same as on the host.
"""

from __future__ import annotations

import os
import re
import shlex
import site
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.home import state_path, user_home
from cellwall.core.packages import PACKAGES_IN_WORKSPACE
from cellwall.core.types import Json
from cellwall.interfaces.hooks.settings_text import SHELL, START
from cellwall.interfaces.hooks.withheld_results import NOTE, TEXT_ONLY

_KILLED_AFTER_S = 15
"""Seconds. The hook itself answers within 10; hosts wait 20."""
_TIMEOUT = "/usr/bin/timeout"
_NOT_ANSWERED = "cellwall: the hook did not start or crashed, so the call is refused"
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
        "HOME": user_home(environ),
        "CELLWALL_HOME": os.path.realpath(state_path(environ)),
        "CELLWALL_CONFIG": os.path.abspath(config) if config else "",
        "XDG_CONFIG_HOME": theirs if os.path.isabs(theirs) else "",
    }


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


SHELL_TOOL = "Bash"
# Tools that start programs or type into them without a rewritable command; they would run outside.
OTHER_SHELLS = frozenset({"Monitor", "PowerShell", "REPL", "write_bash", "write_stdin"})
_WITHOUT_OWN_WALLS = "dangerouslyDisableSandbox"
_PLAIN = re.compile(r"[A-Za-z0-9_@:,./-]+")
_ODD = re.compile(r"(['\\])")
_ODD_SPELLED = {"'": '"\'"', "\\": "\\\\"}
_MAX_TIMEOUT_S = 86_400.0
_MIN_TIMEOUT_S = 0.01
_MAX_COMMAND_BYTES = 100 * 1024  # below the kernel's MAX_ARG_STRLEN, with room for quotes


@dataclass(frozen=True, slots=True)
class ProjectDirectory:
    """The project, which is the workspace, and the working directory in it."""

    project: str
    cwd: str


def drop_sandbox_escape(tool: str, tool_input: Mapping[str, Json]) -> dict[str, Json] | None:
    """The input without the request to leave the host's own sandbox; None: unchanged.

    Our `allow` would also approve that request, which the host would have asked about.
    """
    if tool != SHELL_TOOL or not tool_input.get(_WITHOUT_OWN_WALLS):
        return None
    return {name: value for name, value in tool_input.items() if name != _WITHOUT_OWN_WALLS}


def is_shell(tool: str) -> bool:
    """Whether the tool's commands are rewritten; raises for tools that cannot run inside."""
    if tool in OTHER_SHELLS:
        raise Denied(
            f"{tool} cannot be run inside Cellwall",
            hint="Use the tool that runs one shell command, which can.",
            code="CW-HOOK-NOT-INSIDE",
        )
    return tool == SHELL_TOOL


def wrap(
    command: object,
    place: ProjectDirectory,
    *,
    start: str,
    extra: Sequence[str] = (),
    registries: Sequence[str] = (),
    timeout_s: float,
) -> str:
    """The command that runs this one in a sandbox with the project in it.

    `start` is what starts Cellwall, as a shell reads it. With `registries` the command reaches the
    registry proxy; Python packages then go into the project, where the next command finds them.
    """
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise BadInput("the command is not valid shell text", code="CW-HOOK-COMMAND")
    if len(command.encode("utf-8", "surrogatepass")) > _MAX_COMMAND_BYTES:
        raise BadInput(
            f"a command of more than {_MAX_COMMAND_BYTES} bytes cannot be run inside",
            hint="Write it to a file and run that.",
            code="CW-HOOK-COMMAND",
        )
    packages = [word for name in registries for word in ("--packages", name)]
    if "pypi" in registries:
        packages += ["--env", f"PYTHONUSERBASE=/workspace/{PACKAGES_IN_WORKSPACE}"]
    words = ["run", *extra, *packages, "--workspace", f"{place.project}:rw", "--own-path"]
    words += ["--cwd", place.cwd, "--timeout", f"{timeout_s:g}", "--", "bash", "-c", command]
    return f"{start} {' '.join(map(quote, words))}"


def quote(word: str) -> str:
    """A word as sh, bash, zsh and fish read it alike.

    Attack: between single quotes fish takes a backslash and a quote for a quote, so a command could
    leave the quotes of `shlex.quote` in an agent that uses fish. Backslashes stand outside of them.
    """
    if _PLAIN.fullmatch(word):
        return word
    parts = _ODD.split(word)
    return "".join(_ODD_SPELLED.get(part, f"'{part}'") for part in parts if part) or "''"


FindRegistries = Callable[[str, str], Sequence[str]]
"""The registries from which a command installs packages, by its text and working directory."""


def unwrap(
    command: object,
    project: str | None,
    *,
    start: str,
    extra: Sequence[str] = (),
    find_registries: FindRegistries = lambda _text, _cwd: (),
) -> str | None:
    """The original of a command that `wrap` made for this project; None for another command.

    Verified by construction: `wrap` of the parts must give the same command.
    """
    if not isinstance(command, str) or not command.startswith(start + " "):
        return None
    try:
        words = shlex.split(command.removeprefix(start))
        inner = words[-1]
        place = project_directory(words[words.index("--cwd") + 1], project)
        timeout_s = float(words[words.index("--timeout") + 1])
        registries = find_registries(inner, place.cwd)
        again = wrap(
            inner, place, start=start, extra=extra, registries=registries, timeout_s=timeout_s
        )
    except (ValueError, IndexError, BadInput, Denied):
        return None
    return inner if again == command else None


def project_directory(cwd: str, project: str | None) -> ProjectDirectory:
    """Resolved paths; raises where the working directory is outside of the project."""
    here = os.path.realpath(cwd)
    if not os.path.isdir(here):
        raise BadInput("the working directory does not exist", code="CW-BAD-DIRECTORY")
    root = here if project is None else os.path.realpath(project)
    if here != root and not here.startswith(root.rstrip("/") + "/"):
        # Otherwise any folder of the host could become the writable workspace.
        raise Denied(
            "the working directory is outside of the project",
            hint="Go back into the project, or start the agent in that folder.",
            code="CW-HOOK-OUTSIDE-PROJECT",
        )
    return ProjectDirectory(root, here)


def timeout_of(tool_input: Mapping[str, Json], key: str | None, default_s: float) -> float:
    """The time limit of a call; `key` is its field, in milliseconds."""
    if tool_input.get("run_in_background"):
        return _MAX_TIMEOUT_S
    timeout_ms = None if key is None else tool_input.get(key)
    if timeout_ms is None:
        return default_s
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise BadInput("the timeout is not a number", code="CW-HOOK-COMMAND")
    return min(max(timeout_ms / 1000, _MIN_TIMEOUT_S), _MAX_TIMEOUT_S)
