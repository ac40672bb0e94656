"""Rewrites an agent's shell command to run inside Cellwall. Pure except for path resolution.

The project is the workspace, read-write, at its host path, so that `pwd`, compiler messages and
absolute paths are the same as on the host.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.errors import BadInput, Denied
from cellwall.core.types import Json

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


def drop_sandbox_escape(tool: str, given: Mapping[str, Json]) -> dict[str, Json] | None:
    """The input without the request to leave the host's own sandbox; None: unchanged.

    Our `allow` would also approve that request, which the host would have asked about.
    """
    if tool != SHELL_TOOL or not given.get(_WITHOUT_OWN_WALLS):
        return None
    return {name: value for name, value in given.items() if name != _WITHOUT_OWN_WALLS}


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
    timeout_s: float,
) -> str:
    """The command that runs this one in a sandbox with the project in it.

    `start` is what starts Cellwall, as a shell reads it.
    """
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise BadInput("the command is not valid shell text", code="CW-HOOK-COMMAND")
    if len(command.encode("utf-8", "surrogatepass")) > _MAX_COMMAND_BYTES:
        raise BadInput(
            f"a command of more than {_MAX_COMMAND_BYTES} bytes cannot be run inside",
            hint="Write it to a file and run that.",
            code="CW-HOOK-COMMAND",
        )
    words = ["run", *extra, "--workspace", f"{place.project}:rw", "--own-path"]
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


def unwrap(
    command: object, project: str | None, *, start: str, extra: Sequence[str] = ()
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
        again = wrap(inner, place, start=start, extra=extra, timeout_s=timeout_s)
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


def timeout_of(given: Mapping[str, Json], key: str | None, default_s: float) -> float:
    """The time limit of a call; `key` is its field, in milliseconds."""
    if given.get("run_in_background"):
        return _MAX_TIMEOUT_S
    told = None if key is None else given.get(key)
    if told is None:
        return default_s
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise BadInput("the timeout is not a number", code="CW-HOOK-COMMAND")
    return min(max(told / 1000, _MIN_TIMEOUT_S), _MAX_TIMEOUT_S)
