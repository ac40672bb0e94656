"""`cellwall policy trust | untrust`: which allow rules of a project apply."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.showing import block, escaped, warnings
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict
from cellwall.interfaces.cli.options import ConfigOptions, cli_principal, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_result, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.policy_trust import Offered, PolicyTrust
    from cellwall.policy.rules import Rule

MAX_SHOWN_ROWS = 400
"""A person would not read more of a file or of a change."""
_EXIT_CODES = """
\b
Exit codes:
  0    done
  1    you said no
  125  refused or failed, and nothing was changed; the reason is on standard error
"""
_TITLES = {
    Verdict.ALLOW: "It allows, without a question:",
    Verdict.ASK: "It asks about:",
    Verdict.DENY: "It denies:",
}


@click.command(
    epilog=f"""\b
Examples:
  cellwall policy trust
  cellwall policy trust .claude/settings.json
  cellwall policy trust --list --json
{_EXIT_CODES}"""
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--list", "is_list", is_flag=True, help="List trusted files; change nothing.")
@place_options
@json_option("Print one JSON object.")
def trust(
    paths: tuple[str, ...],
    configured: ConfigOptions,
    *,
    is_list: bool,
    as_json: bool,
) -> int:
    """Trust the allow rules of a project's files, after a look at them.

    A project's .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json come
    from the project's authors. Their deny rules always apply. Their allow rules apply only if your
    own rules allow the same, or if you trust the file: its path and its exact content. Any change
    of the content ends the trust.

    Where approvals.key is configured, trust needs the passphrase of the approver. Then your own
    policy.toml, and each file that is named in a configuration or on a command line, needs trust
    as well, after every change.

    PATH is such a file, or a project's folder. Default: the project here.
    """
    from cellwall.interfaces.cli.terminal_input import ask_approver

    book = _book(configured)
    if is_list:
        return _list(book, as_json=as_json)
    offered = book.offered(paths, cwd=os.getcwd())
    fresh = [each for each in offered if not each.is_trusted]
    signer = None
    for each in fresh:
        if not _is_confirmed(each):
            say("nothing more was trusted")
            return 1
        signer = signer or book.unlock(ask_approver)
        book.trust(each, who=cli_principal(), signer=signer)
    if as_json:
        print_json({"trusted": [_offer_json(each, is_new=each in fresh) for each in offered]})
        return 0
    for each in offered:
        state = "trusted" if each in fresh else "already trusted"
        print_text(f"{state}: {one_line(each.file)} ({_counts(each)})\n")
    return 0


@click.command(
    epilog=f"""\b
Examples:
  cellwall policy untrust
  cellwall policy untrust ~/src/another-project
{_EXIT_CODES}"""
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@place_options
@json_option("Print one JSON object.")
def untrust(paths: tuple[str, ...], configured: ConfigOptions, *, as_json: bool) -> int:
    """Withdraw the trust in a project's files; they need not exist any more.

    PATH is a file or a project's folder. Default: the project here.
    """
    book = _book(configured)
    gone: list[str] = []
    for path in paths or _project():
        gone += book.untrust(path, cwd=os.getcwd(), who=cli_principal())
    print_result(
        {"untrusted": list(gone)},
        "".join(f"no longer trusted: {one_line(path)}\n" for path in gone),
        as_json=as_json,
    )
    return 0


def _project() -> list[str]:
    from cellwall.runtime.policy_places import project_files

    files = [*project_files(os.getcwd())]
    # The folder of such a file is a folder of the project.
    return [os.path.dirname(os.path.dirname(files[0]))] if files else ["."]


def _list(book: PolicyTrust, *, as_json: bool) -> int:
    entries = book.entries()
    unsigned = [each for each in entries if not book.counts(each)]
    if as_json:
        listed: list[Json] = [
            {**each.to_json(), "counts": each not in unsigned} for each in entries
        ]
        print_json({"trusted": listed})
        return 0
    lines = [
        f"{each.when}  {each.sha256[:16]}  {one_line(each.path)}"
        + (": DOES NOT COUNT, the approver has not signed it\n" if each in unsigned else "\n")
        for each in entries
    ]
    print_text("".join(lines) or "nothing is trusted\n")
    return 0


def _is_confirmed(offered: Offered) -> bool:
    from cellwall.interfaces.cli.terminal_input import confirm

    whom = "agents in this project" if offered.is_project else "agents, wherever it applies,"
    return confirm(rules_text(offered), what=f"that {whom} may do what it allows")


def rules_text(offered: Offered) -> str:
    """All rules of a file; no rule can forge a line of ours or hide another rule.

    Raises for more rules than a person would read: one bad rule among hundreds is overlooked.
    """
    parts = [f"{escaped(offered.file)} (SHA-256 {offered.sha256[:16]}...)\n"]
    for verdict, title in _TITLES.items():
        rules = [rule for rule in offered.rules if rule.verdict is verdict]
        if rules:
            parts += [f"{title}\n", *map(_shown_rule, rules)]
    parts.append(f"All rules of the file are above: {_counts(offered)}.\n")
    text = "".join(parts)
    if text.count("\n") > MAX_SHOWN_ROWS:
        raise BadInput(
            f"{offered.file} has too many rules to review: {_counts(offered)}",
            hint="Have fewer rules, or put them into your own policy.",
            code="CW-POLICY-TOO-LONG",
        )
    return text


def _shown_rule(rule: Rule) -> str:
    """The rule at full length: an omitted part would be trusted as well."""
    text = _whole(rule.text) + doubts(rule.text)
    if rule.answers:
        text += f"  but only where this rule asks:\n{_whole(rule.answers)}{doubts(rule.answers)}"
    text += "".join(f"  {line}\n{_whole(value)}" for line, value in _conditions(rule))
    if rule.reason:
        text += f"  because, as it says:\n{_whole(rule.reason)}"
    return text


def doubts(text: str) -> str:
    """Lines of ours on text that may not be what it looks like."""
    return "".join(f"  CAREFUL: {each}\n" for each in warnings(text, max_characters=len(text)))


def _conditions(rule: Rule) -> Iterator[tuple[str, str]]:
    """What else of a rule is in force."""
    for name in rule.unless:
        yield "but not for files named:", name
    for name in rule.lifts:
        yield "and it lifts the limit:", name
    if rule.until is not None:
        yield "until the end of this day:", rule.until.isoformat()
    if rule.stops:
        yield "and then it stops the agent:", "stop = true"


def _whole(text: str) -> str:
    # Escaped first: a rule is one line, so no rule can look like two.
    line = escaped(text)
    return block(line, max_rows=len(line) + 1, max_characters=len(line))


def _counts(offered: Offered) -> str:
    rules = [rule.verdict for rule in offered.rules]
    return ", ".join(f"{rules.count(each)} {each.word}" for each in Verdict)


def _offer_json(offered: Offered, *, is_new: bool) -> dict[str, Json]:
    rules: list[Json] = [
        {
            "verdict": each.verdict.word,
            "rule": each.text,
            "reason": each.reason,
            "answers": each.answers,
            "unless": list(each.unless),
            "lifts": list(each.lifts),
            "until": None if each.until is None else each.until.isoformat(),
            "stop": each.stops,
        }
        for each in offered.rules
    ]
    return {"path": offered.path, "sha256": offered.sha256, "new": is_new, "rules": rules}


def _book(configured: ConfigOptions) -> PolicyTrust:
    from cellwall.admin.policy_trust import PolicyTrust

    return PolicyTrust(**configured)
