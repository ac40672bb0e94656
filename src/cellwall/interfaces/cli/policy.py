"""`cellwall policy check | explain | test`: the verdict on a tool call, and the reason."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.showing import escaped
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.cli.blast_radius import blast_radius
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.output import print_json, print_result, print_text, say
from cellwall.interfaces.cli.policy_labels import draw_labels, labels
from cellwall.interfaces.cli.policy_trust import trust, untrust
from cellwall.interfaces.cli.policy_writing import init, learn
from cellwall.interfaces.terminal import one_line
from cellwall.runtime.policies import (
    Call,
    Policy,
    effective_policy,
    parse_call,
    read_call,
    set_aside,
)
from cellwall.runtime.signed_grants import SignedGrants, configured_grants

if TYPE_CHECKING:
    from cellwall.admin.policy_learning import Tried

EXIT_CODES = {Verdict.ALLOW: 0, Verdict.ASK: 3, Verdict.DENY: 4}
_MAX_STDIN_BYTES = 64 * 1024 * 1024
_MAX_CALLS = 100_000


@click.group(
    epilog="""\b
Examples:
  cellwall policy init
  cellwall policy check 'Bash(git push)' 'Read(.env)'
  cellwall policy explain 'Bash(git log | xargs sh -c "curl evil")'
  cellwall policy blast-radius --probe
""",
)
def policy() -> None:
    """Rules for agents, in the syntax of Claude Code, judged for each command of a text.

    \b
    [permissions]
    allow = ["Bash(git status)", "Bash(npm run *)", "Read(./**)", "Edit(src/**)"]
    ask   = ["Bash(git push *)"]
    deny  = ["Read(.env)", "Bash(rm -rf *)"]

    deny precedes ask, ask precedes allow, and a call without a matching rule is denied. Rules come
    from /etc/cellwall/policy.toml, policy.toml beside your configuration, and the project's
    .cellwall/policy.toml or .claude/settings.json; the strictest verdict wins.
    """


_policy_option = click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="Use this file instead of yours and the project's; may be repeated.",
)
_outside_option = click.option(
    "--outside", is_flag=True, help="Judge commands as if they ran outside of a sandbox."
)
_cwd_option = click.option(
    "--cwd", default=None, metavar="DIR", help="Working directory of the call.  [default: here]"
)


@policy.command(
    name="check",
    epilog="""\b
Examples:
  cellwall policy check 'Bash(git push)' 'Read(.env)'
  cellwall policy check --policy team.toml --json 'Bash(npm publish)'
  echo '[{"tool": "Bash", "input": {"command": "ls"}}]' | cellwall policy check --stdin --json

\b
Exit codes:
  0    allow; of several calls the strictest counts
  3    ask: a person decides
  4    deny
""",
)
@click.argument("calls", nargs=-1, metavar="[TOOLCALL]...")
@_policy_option
@_cwd_option
@_outside_option
@click.option("--stdin", "from_stdin", is_flag=True, help="Read a JSON list of calls from stdin.")
@json_option("Print a JSON list of decisions.")
def check(
    *,
    calls: tuple[str, ...],
    files: tuple[str, ...],
    cwd: str | None,
    outside: bool,
    from_stdin: bool,
    as_json: bool,
) -> int:
    """Print the verdict on calls such as 'Bash(git push)'.

    The exit code is that of the strictest verdict: 0 allow, 3 ask, 4 deny. A hook whose commands
    run outside of a sandbox judges as with --outside: commands that reach other processes, the
    environment or other machines, and inline code, are asked about even if a rule allows them.
    """
    where = os.path.abspath(cwd or os.getcwd())
    wanted = [*_from_stdin(where)] if from_stdin else []
    wanted += [parse_call(text, cwd=where, home=_home()) for text in calls]
    if not wanted and not from_stdin:
        raise BadInput(
            "no call was given", hint="Give one, such as 'Bash(git push)', or use --stdin."
        )
    grants = _grants(files)
    rules = effective_policy(named=files, cwd=where, environ=os.environ, grants=grants)
    _tell_untrusted(files, where, grants)
    _tell_expired(rules)
    decisions = [rules.check(call, outside=outside) for call in wanted]
    if as_json:
        print_json([decision_json(each) for each in decisions])
    else:
        for decision in decisions:
            print_text(_line(decision))
    strictest = max((each.verdict for each in decisions), default=Verdict.ALLOW)
    return EXIT_CODES[strictest]


@policy.command(
    name="explain",
    epilog="""\b
Examples:
  cellwall policy explain 'Bash(git log | xargs -n1 sh -c "rm $0")'
  cellwall policy explain --policy team.toml 'Read(.env)'

\b
Exit codes:
  0    allow
  3    ask: a person decides
  4    deny
""",
)
@click.argument("call", metavar="TOOLCALL")
@_policy_option
@_cwd_option
@_outside_option
@click.option("--session", metavar="ID", default=None, help="Judge by the labels of this session.")
@json_option("Print one decision as JSON.")
def explain(
    *,
    call: str,
    files: tuple[str, ...],
    cwd: str | None,
    outside: bool,
    session: str | None,
    as_json: bool,
) -> int:
    """Show the parts of a call as a tree, with the verdict and the rule for each part.

    Below it are the labels that the call brings into a session (see: cellwall policy labels).
    """
    from cellwall.admin.label_review import LabelReview

    where = os.path.abspath(cwd or os.getcwd())
    grants = _grants(files)
    rules: Policy = effective_policy(named=files, cwd=where, environ=os.environ, grants=grants)
    _tell_untrusted(files, where, grants)
    _tell_expired(rules)
    parsed = parse_call(call, cwd=where, home=_home())
    decision = rules.check(parsed, outside=outside)
    brought, flow = LabelReview().explain(parsed, session_id=session, is_inside=not outside)
    text = draw(decision)
    if brought.sources:
        text += f"\nlabels that it brings:\n{draw_labels(brought)}"
    if flow is not None:
        text += f"{flow.verdict.word}: {escaped(flow.reason)}  [{flow.rule}]\n"
    fields = {
        **decision_json(decision),
        "labels": brought.to_json(),
        "rule_of_two": None if flow is None else dict(flow.to_json()),
    }
    print_result(fields, text, as_json=as_json)
    return EXIT_CODES[max(decision.verdict, Verdict.ALLOW if flow is None else flow.verdict)]


def _grants(files: Sequence[str]) -> SignedGrants | None:
    """The signatures that count; files that are named are judged as if they were signed."""
    return None if files else configured_grants(os.environ)


def _tell_untrusted(files: Sequence[str], cwd: str, grants: SignedGrants | None) -> None:
    """Say why calls that the project's file allows are denied."""
    for path in set_aside(named=files, cwd=cwd, environ=os.environ, grants=grants):
        shown = os.path.relpath(path, cwd)
        say(f"the allow rules of {shown} are not trusted yet; see: cellwall policy trust")


def _tell_expired(rules: Policy) -> None:
    """Name the rules that no longer count."""
    for rule in rules.expired:
        source = escaped(str(rule.source))
        say(f"the rule {escaped(rule.text)} ({source}) counted until {rule.until}; remove it")


def decision_json(decision: Decision) -> dict[str, Json]:
    """A decision as JSON, with one for each command in it."""
    parts: Sequence[Decision] = decision.parts or (decision,)
    commands: list[Json] = [{"command": each.subject, **each.to_json()} for each in parts]
    return {**decision.to_json(), "commands": commands}


def _line(decision: Decision) -> str:
    rule = f" by {decision.rule} ({decision.source})" if decision.rule else ""
    return f"{decision.verdict.word:5} {escaped(decision.subject)}\n      {decision.reason}{rule}\n"


def _home() -> str:
    return os.path.expanduser("~")


def _from_stdin(cwd: str) -> list[Call]:
    data = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    if len(data) > _MAX_STDIN_BYTES:
        raise BadInput("standard input is too large", hint="Pass fewer calls at a time.")
    try:
        items = json.loads(data)
    except (ValueError, RecursionError):
        raise BadInput(
            "standard input is not JSON",
            hint='Write for example [{"tool": "Bash", "input": {"command": "ls"}}].',
        ) from None
    if not isinstance(items, list) or len(items) > _MAX_CALLS:
        raise BadInput(
            "standard input is not a list of calls",
            hint='Write for example [{"tool": "Bash", "input": {"command": "ls"}}].',
        )
    return [read_call(each, cwd=cwd, home=_home()) for each in items]


_SIGNS = {Verdict.ALLOW: "+", Verdict.ASK: "?", Verdict.DENY: "-"}
_WIDTH = 100


def draw(decision: Decision) -> str:
    """The decision as a tree: the call, then each part below the part that contains it."""
    lines = [f"{decision.verdict.word.upper()}  {_short(decision.subject)}", ""]
    place: tuple[str, ...] = ()
    for part in decision.parts or (decision,):
        lines += _entered_places(place, part.place)
        place = part.place
        indent = "   " * len(place)
        lines.append(f"{indent}{_SIGNS[part.verdict]} {_short(part.subject)}")
        rule = f"  [{part.rule}, {part.source}]" if part.rule else ""
        lines.append(f"{indent}    {part.verdict.word}: {part.reason}{rule}")
    return "\n".join([*lines, ""])


def _entered_places(before: tuple[str, ...], place: tuple[str, ...]) -> list[str]:
    """Headings for the places that are entered before a part."""
    shared = 0
    while shared < min(len(before), len(place)) and before[shared] == place[shared]:
        shared += 1
    return [f"{'   ' * level}{place[level]}" for level in range(shared, len(place))]


def _short(text: str) -> str:
    shown = escaped(" ".join(text.split()))  # control characters of the command are escaped
    return shown if len(shown) <= _WIDTH else shown[: _WIDTH - 1] + "…"


@policy.command(
    epilog="""\b
A table:
  policy = ["policy.toml"]      # relative to the table; default: the rules that count here
  cwd = ".."                    # where the calls would run, relative to the table
  allow = ["Bash(git status)"]
  ask = ["Bash(git push)"]
  deny = ["Read(.env)", "Bash(git status; curl evil.example)"]

\b
  [[case]]
  tool = "Bash"
  input = { command = "rm -rf build" }
  verdict = "ask"
  note = "the build folder may hold a release"

\b
Examples:
  cellwall policy test policy-test.toml
  cellwall policy test policy-test.toml --policy new-policy.toml --json

\b
Exit codes:
  0    all verdicts are as expected
  1    some differ; each is listed
  125  the table or the policy cannot be read
"""
)
@click.argument("table", metavar="FILE", type=click.Path())
@click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="Use this file instead of those in the table; may be repeated.",
)
@json_option("Print one JSON object with every call.")
def test(table: str, files: tuple[str, ...], *, as_json: bool) -> int:
    """Test your policy with a table of calls and their expected verdicts.

    Nothing is run; each call is only judged.
    """
    from cellwall.admin import policy_learning

    tried = policy_learning.test(table, policies=files, environ=os.environ)
    wrong = [each for each in tried if not each.is_right]
    if as_json:
        cases = [_case_json(each) for each in tried]
        print_json({"ok": not wrong, "tried": len(tried), "wrong": len(wrong), "cases": cases})
    else:
        print_text("".join(_case_lines(each, table) for each in wrong))
        print_text(f"{len(tried)} calls: {len(tried) - len(wrong)} right, {len(wrong)} wrong\n")
    return 1 if wrong else 0


def _case_json(tried: Tried) -> dict[str, Json]:
    case, decision = tried.case, tried.decision
    return {
        "call": case.text,
        "line": case.line,
        "note": case.note,
        "ok": tried.is_right,
        "expected": case.verdict.word,
        **decision.to_json(),
    }


def _case_lines(tried: Tried, table: str) -> str:
    case, decision = tried.case, tried.decision
    rule = f" by {decision.rule} ({decision.source})" if decision.rule else ""
    note = f"  note: {one_line(case.note)}\n" if case.note else ""
    return (
        f"{one_line(table)}:{case.line}: {one_line(case.text)}\n"
        f"  expected {case.verdict.word}, got {decision.verdict.word}{one_line(rule)}\n"
        f"  {one_line(decision.reason)}\n{note}"
    )


for command in (init, labels, learn, trust, untrust, blast_radius):
    policy.add_command(command)
