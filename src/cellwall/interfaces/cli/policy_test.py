"""`cellwall policy test`: a table of calls with the verdicts that somebody expects of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.output import print_json, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.core.types import Json
    from cellwall.runtime.policy_work import Tried


@click.command(
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
  1    some are not; each is told
  125  the table or the policy cannot be read; nothing was tried
"""
)
@click.argument("table", metavar="FILE", type=click.Path())
@click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="Judge by this file, whatever the table names. May be given more than once.",
)
@json_option("Print one JSON object with every call.")
def test(table: str, files: tuple[str, ...], *, as_json: bool) -> int:
    """Try a table of calls with their expected verdicts: a test for your policy.

    Nothing is run; each call is only judged.
    """
    from cellwall.runtime import policy_work  # noqa: PLC0415  # heavy

    tried = policy_work.test(table, policies=files, environ=os.environ)
    wrong = [each for each in tried if not each.is_right]
    if as_json:
        told = [_told(each) for each in tried]
        print_json({"ok": not wrong, "tried": len(tried), "wrong": len(wrong), "cases": told})
    else:
        print_text("".join(_line(each, table) for each in wrong))
        print_text(f"{len(tried)} calls: {len(tried) - len(wrong)} right, {len(wrong)} wrong\n")
    return 1 if wrong else 0


def _told(tried: Tried) -> dict[str, Json]:
    case, decision = tried.case, tried.decision
    return {
        "call": case.text,
        "line": case.line,
        "note": case.note,
        "ok": tried.is_right,
        "expected": case.verdict.word,
        **decision.to_json(),
    }


def _line(tried: Tried, table: str) -> str:
    case, decision = tried.case, tried.decision
    rule = f" by {decision.rule} ({decision.source})" if decision.rule else ""
    note = f"  note: {one_line(case.note)}\n" if case.note else ""
    return (
        f"{one_line(table)}:{case.line}: {one_line(case.text)}\n"
        f"  expected {case.verdict.word}, got {decision.verdict.word}{one_line(rule)}\n"
        f"  {one_line(decision.reason)}\n{note}"
    )
