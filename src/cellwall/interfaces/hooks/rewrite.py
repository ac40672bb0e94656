"""Makes a shell command of an agent one that runs inside Cellwall. Pure but for resolved names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from cellwall.core.errors import BadInput, Denied
from cellwall.core.types import Json

SHELL_TOOL = "Bash"
# They start programs in ways of their own; allowed as they are, they would be outside.
OTHER_SHELLS = frozenset({"Monitor", "PowerShell", "REPL"})
_WITHOUT_OWN_WALLS = "dangerouslyDisableSandbox"
# All others, known or not, could change what the host makes of the command.
_HANDED_ON = ("description", "timeout", "run_in_background")
_USUAL_TIMEOUT_S = 120.0  # Claude Code's own, where the call names none
_MOST_TIMEOUT_S = 86_400.0
_LEAST_TIMEOUT_S = 0.01
_MOST_COMMAND_BYTES = 100 * 1024  # beneath the kernel's MAX_ARG_STRLEN, with room for quotes


def cautious(tool: str, given: Mapping[str, Json]) -> dict[str, Json] | None:
    """The input without the model's wish to leave the host's own sandbox; None: as it is.

    Our `allow` also answers the question that the host would have asked about that wish.
    """
    if tool != SHELL_TOOL or not given.get(_WITHOUT_OWN_WALLS):
        return None
    return {name: value for name, value in given.items() if name != _WITHOUT_OWN_WALLS}


def inside(
    tool: str,
    given: Mapping[str, Json],
    *,
    cwd: str,
    project: str | None,
    program: str,
    extra: Sequence[str] = (),
) -> dict[str, Json] | None:
    """The input that runs the command in a sandbox with the project in it; None: no shell."""
    if tool in OTHER_SHELLS:
        raise Denied(
            f"{tool} cannot be run inside Cellwall",
            mend="Use Bash, which can.",
            code="CW-HOOK-NOT-INSIDE",
        )
    if tool != SHELL_TOOL:
        return None
    command = given.get("command")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise BadInput("the command is no text that a shell could run", code="CW-HOOK-COMMAND")
    if len(command.encode("utf-8", "surrogatepass")) > _MOST_COMMAND_BYTES:
        raise BadInput(
            f"a command of more than {_MOST_COMMAND_BYTES} bytes cannot be run inside",
            mend="Write it to a file and run that.",
            code="CW-HOOK-COMMAND",
        )
    workspace, place = _places(cwd, project)
    words = [program, "run", *extra, "--workspace", f"{workspace}:rw", "--cwd", place]
    words += ["--timeout", f"{_timeout_s(given):g}", "--", "bash", "-c", command]
    handed_on = {name: given[name] for name in _HANDED_ON if name in given}
    return {"command": shlex.join(words), **handed_on}


def _places(cwd: str, project: str | None) -> tuple[str, str]:
    """The directory that is given, and where in it the command begins."""
    here = os.path.realpath(cwd)
    if not os.path.isdir(here):
        raise BadInput("the working directory does not exist", code="CW-BAD-DIRECTORY")
    root = here if project is None else os.path.realpath(project)
    if here != root and not here.startswith(root.rstrip("/") + "/"):
        # Any folder of the machine would else become the one that code may write to.
        raise Denied(
            "the working directory is outside of the project",
            mend="Go back into the project, or start the agent in that folder.",
            code="CW-HOOK-OUTSIDE-PROJECT",
        )
    below = os.path.relpath(here, root)
    return root, "/workspace" if below == "." else f"/workspace/{below}"


def _timeout_s(given: Mapping[str, Json]) -> float:
    if given.get("run_in_background"):
        return _MOST_TIMEOUT_S
    told = given.get("timeout")
    if told is None:
        return _USUAL_TIMEOUT_S
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise BadInput("the timeout is no number", code="CW-HOOK-COMMAND")
    return min(max(told / 1000, _LEAST_TIMEOUT_S), _MOST_TIMEOUT_S)
