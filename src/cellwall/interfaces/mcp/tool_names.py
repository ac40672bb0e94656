"""The tools that a client is offered: all, or those that its server was started with.

An agent and its sub-agents can each have a server of their own, with other tools. A tool that is
left out does not exist for the client: it is not listed, and a call of it is one of an unknown
tool. A tool set narrows what a client may ask for; the policy and the walls judge what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from cellwall.core.errors import BadInput
from cellwall.core.showing import one_line

_MAX_NAMES = 1000


class ToolNames:
    """Names of offered tools, in which `*` stands for any characters; without any, every tool."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)

    def offers(self, tool: str) -> bool:
        return not self._names or any(fnmatchcase(tool, name) for name in self._names)


def parse_tool_names(
    names: Sequence[str], *, own_tools: Collection[str], with_others: bool
) -> ToolNames:
    """Checked: a name that matches nothing would leave out, or offer, other tools than was meant.

    The tools of other servers are not known before these are started.
    """
    chosen = ToolNames(names)
    for name in names:
        is_known = any(fnmatchcase(tool, name) for tool in own_tools)
        if not (is_known or (with_others and name.strip())):
            raise BadInput(
                f"there is no tool {one_line(name)!r}",
                hint=f"Tools: {', '.join(own_tools)}; those of other servers need --gateway.",
                code="CW-USAGE",
            )
    if len(names) > _MAX_NAMES:
        raise BadInput("too many tools are named", hint="Use a pattern.", code="CW-USAGE")
    return chosen
