"""`cellwall policy trust` and `untrust`: whose word counts for what a project allows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.showing import block, escaped
from cellwall.core.verdict import Verdict
from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.core.types import Json, Principal
    from cellwall.policy.rules import Rule
    from cellwall.runtime.policy_trust import Offered, PolicyTrust

_EXIT_CODES = """
\b
Exit codes:
  0    done
  1    you said no
  125  refused or failed, and nothing was changed; the reason is on standard error
"""
_MAX_SHOWN_ROWS = 400
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
@click.option("--list", "is_list", is_flag=True, help="Show what is trusted, and change nothing.")
@place_options
@json_option("Print one JSON object.")
def trust(
    paths: tuple[str, ...],
    profile: str | None,
    config: str | None,
    *,
    is_list: bool,
    as_json: bool,
) -> int:
    """Let a project's own rules allow things, after a look at them.

    A project's .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json come
    from whoever wrote the project. They can always forbid. What they allow counts only if your own
    rules allow it too, or if you trust the file: its path and its exact content. When the content
    changes in any way, the trust has ended, and you are asked anew.

    PATH is such a file, or a project's folder. Default: the project here.
    """
    book = _book(config, profile)
    if is_list:
        return _list(book, as_json=as_json)
    offered = book.offered(paths, cwd=os.getcwd())
    fresh = [each for each in offered if not each.is_trusted]
    for each in fresh:
        if not _is_wanted(each):
            say("nothing more was trusted")
            return 1
        book.trust(each, who=_me())
    if as_json:
        print_json({"trusted": [_told(each, is_new=each in fresh) for each in offered]})
        return 0
    for each in offered:
        state = "trusted" if each in fresh else "already trusted"
        print_text(f"{state}: {one_line(each.file)} ({_counts(each)})\n")
    return 0


@click.command(
    epilog=f"""\b
Examples:
  cellwall policy untrust
  cellwall policy untrust ~/src/somebody-elses-project
{_EXIT_CODES}"""
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@place_options
@json_option("Print one JSON object.")
def untrust(
    paths: tuple[str, ...], profile: str | None, config: str | None, *, as_json: bool
) -> int:
    """Take the trust in a project's files back; they may be gone by now.

    PATH is a file or a project's folder. Default: the project here.
    """
    book = _book(config, profile)
    gone: list[str] = []
    for path in paths or _project():
        gone += book.untrust(path, cwd=os.getcwd(), who=_me())
    if as_json:
        print_json({"untrusted": list(gone)})
    else:
        print_text("".join(f"no longer trusted: {one_line(path)}\n" for path in gone))
    return 0


def _project() -> list[str]:
    from cellwall.runtime.policy_places import project_files  # noqa: PLC0415  # heavy

    found = [*project_files(os.getcwd())]
    # A file's folder lies in that of the project.
    return [os.path.dirname(os.path.dirname(found[0]))] if found else ["."]


def _list(book: PolicyTrust, *, as_json: bool) -> int:
    entries = book.entries()
    if as_json:
        print_json({"trusted": [each.to_json() for each in entries]})
        return 0
    lines = [f"{each.when}  {each.sha256[:16]}  {one_line(each.path)}\n" for each in entries]
    print_text("".join(lines) or "nothing is trusted\n")
    return 0


def _is_wanted(offered: Offered) -> bool:
    from cellwall.interfaces.cli.confirming import confirm  # noqa: PLC0415  # heavy

    return confirm(shown(offered), what="that agents in this project may do what it allows")


def shown(offered: Offered) -> str:
    """The rules of a file, all of them; none can forge a line of ours, or push another one away.

    Raises for more than a person would read: among hundreds of harmless ones one is not seen.
    """
    parts = [f"{escaped(offered.file)} (SHA-256 {offered.sha256[:16]}...)\n"]
    for verdict, title in _TITLES.items():
        rules = [rule for rule in offered.rules if rule.verdict is verdict]
        if rules:
            parts += [f"{title}\n", *map(_shown_rule, rules)]
    parts.append(f"All of its rules stand above: {_counts(offered)}.\n")
    told = "".join(parts)
    if told.count("\n") > _MAX_SHOWN_ROWS:
        raise BadInput(
            f"{offered.file} has more rules than can be shown to be judged: {_counts(offered)}",
            hint="Have fewer rules, or put them into your own policy.",
            code="CW-POLICY-TOO-LONG",
        )
    return told


def _shown_rule(rule: Rule) -> str:
    """Whole, whatever its length: what is left out would be trusted all the same."""
    told = _whole(rule.text)
    if rule.answers:
        told += f"  but only where this rule asks:\n{_whole(rule.answers)}"
    if rule.reason:
        told += f"  because, as it says:\n{_whole(rule.reason)}"
    return told


def _whole(text: str) -> str:
    # Escaped before: a rule is one line, and none of its own making can look like a second rule.
    line = escaped(text)
    return block(line, max_rows=len(line) + 1, max_characters=len(line))


def _counts(offered: Offered) -> str:
    rules = [rule.verdict for rule in offered.rules]
    return ", ".join(f"{rules.count(each)} {each.word}" for each in Verdict)


def _told(offered: Offered, *, is_new: bool) -> dict[str, Json]:
    rules: list[Json] = [
        {
            "verdict": each.verdict.word,
            "rule": each.text,
            "reason": each.reason,
            "answers": each.answers,
        }
        for each in offered.rules
    ]
    return {"path": offered.path, "sha256": offered.sha256, "new": is_new, "rules": rules}


def _book(config: str | None, profile: str | None) -> PolicyTrust:
    from cellwall.runtime.policy_trust import PolicyTrust  # noqa: PLC0415  # heavy

    return PolicyTrust(config=config, profile=profile)


def _me() -> Principal:
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    return principal("cli")
