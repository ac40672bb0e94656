"""Parses the text of a rule, or reports its mistake. Pure."""

from __future__ import annotations

import difflib
import re

from cellwall.core.errors import BadInput
from cellwall.core.languages import canonical
from cellwall.core.text import INVISIBLE
from cellwall.core.verdict import Verdict
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.calls import GROUPS, MCP, TOOL_NAME, group_of, is_mcp_pattern
from cellwall.policy.domains import HostPattern
from cellwall.policy.package_rules import parse_pattern
from cellwall.policy.paths import PathPattern
from cellwall.policy.port_rules import parse_ports
from cellwall.policy.rules import BadRule, Layer, Rule, Source

MAX_RULE_CHARACTERS = 4096

_PARENTHESIS = re.compile(r"\\.|[()]")
_PREFIX_MARK = ":*"


def parse_rule(
    text: str,
    *,
    verdict: Verdict,
    source: Source,
    layer: Layer,
    reason: str = "",
    is_foreign: bool = False,
) -> Rule:
    """`Tool` or `Tool(specifier)`. `Tool()` and `Tool(*)` are `Tool`.

    `is_foreign`: from the settings of another program, which may hold specifiers of its own tools.
    Such specifiers are kept; in `subjects.matches` they allow nothing and deny the whole tool.
    """
    _refuse_odd(text)
    tool, specifier, start = _split(text)
    _check_tool(tool, verdict, is_close_enough=specifier is not None and not is_foreign)
    if specifier is not None:
        try:
            specifier = _checked(tool, specifier, verdict, source, is_foreign=is_foreign)
        except BadRule as error:
            raise error.moved(start) from None
    return Rule(verdict, tool, specifier, source, layer, reason)


def _refuse_odd(text: str) -> None:
    if len(text) > MAX_RULE_CHARACTERS:
        raise BadRule(
            f"the rule has more than {MAX_RULE_CHARACTERS} characters",
            hint="Write several shorter rules.",
            offset=MAX_RULE_CHARACTERS,
        )
    # A person cannot agree to invisible text; and UNKNOWN would match unknown words.
    at = next((at for at, char in enumerate(text) if not char.isprintable()), None)
    found = INVISIBLE.search(text)
    for place in (at, found.start() if found else None, text.find(UNKNOWN)):
        if place is not None and place >= 0:
            raise BadRule(
                "the rule holds an invisible character",
                hint="Take it out; a rule is one line of plain text.",
                offset=place,
            )


def _split(text: str) -> tuple[str, str | None, int]:
    """The tool, the specifier unless it is empty or `*`, and the offset of the specifier."""
    if text != text.strip():
        raise BadRule("the rule begins or ends with a blank", hint="Take the blanks out.")
    tool, opened, rest = text.partition("(")
    if not tool:
        raise BadRule("the rule names no tool", hint="Write for example Bash(git status).")
    if not opened:
        if ")" in tool:
            raise _unbalanced(tool.index(")"))
        return tool, None, len(text)
    start = len(tool) + 1
    depth = 1
    for found in _PARENTHESIS.finditer(rest):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        if depth == 0 and found.end() != len(rest):
            raise _unbalanced(start + found.start())
    if depth != 0:
        raise _unbalanced(len(tool))
    specifier = rest[:-1]
    return tool, None if specifier in {"", "*"} else specifier, start


def _unbalanced(offset: int) -> BadRule:
    return BadRule(
        "the parentheses do not balance, or text follows the last one",
        hint="Write Tool(specifier), and \\( or \\) for one that stands alone within it.",
        offset=offset,
    )


def _check_tool(tool: str, verdict: Verdict, *, is_close_enough: bool) -> None:
    if tool.startswith(MCP):
        if not is_mcp_pattern(tool):
            raise BadRule(
                "this names no MCP server or tool",
                hint="Write mcp__server, mcp__server__tool or mcp__server__*.",
            )
        if verdict is Verdict.ALLOW and tool.endswith("*") and "__" not in tool[len(MCP) :]:
            raise BadRule(
                "this allows the tools of servers that are not named",
                hint="Name the server: mcp__server__*.",
                offset=len(MCP),
            )
        return
    if TOOL_NAME.fullmatch(tool) is None:
        raise BadRule(
            "this is not the name of a tool",
            hint="A name has letters, digits, _ and -. Write for example Bash(git status).",
        )
    if tool not in GROUPS:
        close = difflib.get_close_matches(tool[:40].lower(), {name.lower() for name in GROUPS}, 1)
        meant = next((name for name in GROUPS if close and name.lower() == close[0]), None)
        # A denial of `bash` would protect nothing and look as if it did.
        if meant is not None and (is_close_enough or meant.lower() == tool.lower()):
            raise BadRule(f"there is no tool {tool[:40]}", hint=f"Did you mean {meant}?")


def _checked(
    tool: str, specifier: str, verdict: Verdict, source: Source, *, is_foreign: bool
) -> str:
    """The checked specifier; offsets of errors count from its start."""
    match group_of(tool):
        case "bash":
            _check_command(specifier)
        case "read" | "write":
            PathPattern.parse(
                specifier,
                folder=source.folder,
                home="/",
                is_denial=verdict is Verdict.DENY,
            )
        case "fetch":
            HostPattern.parse(specifier)
        case "code":
            try:
                return canonical(specifier)
            except BadInput as error:
                raise BadRule(error.message, hint=error.hint) from None
        case "install":
            return parse_pattern(specifier).text
        case "port":
            parse_ports(specifier)
        case _ if not is_foreign:
            raise BadRule(
                f"rules for {tool[:40]} take no specifier",
                hint=f"Write {tool[:40]} alone, for all of its calls.",
            )
    return specifier


def _check_command(specifier: str) -> None:
    at = specifier.find(_PREFIX_MARK)
    if at < 0:
        return
    if at != len(specifier) - len(_PREFIX_MARK):
        raise BadRule(
            ":* is only allowed at the end of a command, where it means any arguments",
            hint="Write a * where any text may stand.",
            offset=at,
        )
    if not specifier[:at].strip():
        raise BadRule(
            ":* has no command before it", hint="For all commands, write Bash alone.", offset=at
        )
