"""`cellwall policy init | learn`: commands that write rules."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.showing import escaped
from cellwall.core.showing import one_line as shortened
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import cli_principal, json_option, parse_time
from cellwall.interfaces.cli.output import print_json, print_result, print_text, say
from cellwall.interfaces.cli.policy_trust import MAX_SHOWN_ROWS
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.policy_learning import PolicyTarget
    from cellwall.policy.lessons import Lesson


@click.command(
    epilog="""\b
Examples:
  cellwall policy init
  cellwall policy init --stdout | less
  cellwall policy init --user
  cellwall policy init --path ci-policy.toml

\b
Exit codes:
  0    written
  125  refused or failed, and nothing was changed; the reason is on standard error
"""
)
@click.option("--project", "is_project", is_flag=True, help="For this project.  [default]")
@click.option("--user", "is_user", is_flag=True, help="For you, in all projects.")
@click.option("--path", metavar="FILE", type=click.Path(), help="Write this file instead.")
@click.option("--force", is_flag=True, help="Replace an existing policy.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the policy; write nothing.")
@json_option("Print one JSON object.")
def init(
    path: str | None,
    *,
    is_project: bool,
    is_user: bool,
    force: bool,
    to_stdout: bool,
    as_json: bool,
) -> int:
    """Write a starting policy for this project, with a reason for each group of rules.

    It inspects the folder: package.json with its scripts and lock file, Python, Rust,
    Go, Ruby, Java, PHP and C projects, Makefile and justfile, git, containers, Terraform. Reading,
    tests, checks and builds are allowed; commands that leave the machine or change history are
    asked about; secrets are denied. The file is .cellwall/policy.toml. It is trusted, since you
    have just written it; after a change, review it with `cellwall policy trust`.
    """
    from cellwall.admin import policy_init
    from cellwall.interfaces.cli.terminal_input import ask_approver

    if is_user and is_project:
        raise BadInput(
            "--user and --project exclude each other", hint="Use one of them.", code="CW-USAGE"
        )
    cwd = os.getcwd()
    starter = policy_init.begin(None if is_user else cwd)
    summary: dict[str, Json] = {
        "kinds": list(starter.kinds),
        "rules": starter.rules,
        "notes": list(starter.notes),
    }
    if to_stdout:
        if as_json:
            print_json({"path": None, "trusted": False, **summary, "policy": starter.text})
        else:
            _say_all(starter.notes)
            print_text(starter.text)
        return 0
    place = policy_init.place_of(is_user=is_user, path=path, cwd=cwd, environ=os.environ)
    written = policy_init.write(
        starter, place, is_forced=force, who=cli_principal(), ask=ask_approver
    )
    beside = policy_init.beside(place, environ=os.environ)
    if as_json:
        notes = [*starter.notes, *beside]
        print_json({"path": place, "trusted": written.is_trusted, **summary, "notes": notes})
        return 0
    kinds = ", ".join(starter.kinds)
    print_text(f"{one_line(place)}: {starter.rules} rules, for {kinds}\n")
    _say_all((*starter.notes, *beside))
    return 0


def _say_all(notes: tuple[str, ...]) -> None:
    for note in notes:
        say(note)


_MAX_REFUSED = 50


@click.command(
    epilog="""\b
Examples:
  cellwall policy learn --since 2h
  cellwall policy learn --since 2h --write
  cellwall policy learn --session sbx_... --json
  cellwall policy learn --since 1d > learnt.toml

\b
Exit codes:
  0    printed or written, also if there is nothing to propose
  1    you said no
  125  the audit log or the policy cannot be read or written
"""
)
@click.option("--session", metavar="ID", help="Of one sandbox (sbx_...), or one agent's session.")
@click.option(
    "--since", metavar="TIME", callback=parse_time, help="Start: a time, or 90m, 2h, 3d ago."
)
@click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="Extend this file instead of yours and the project's; may be repeated.",
)
@click.option("--user", "is_user", is_flag=True, help="For your own policy, not the project's.")
@click.option(
    "--write",
    "is_written",
    is_flag=True,
    help="Show the change to the policy file as a diff, and write it after you confirm.",
)
@json_option("Print one JSON object.")
def learn(
    session: str | None,
    since: datetime | None,
    files: tuple[str, ...],
    *,
    is_user: bool,
    is_written: bool,
    as_json: bool,
) -> int:
    """Propose the narrowest rules for recorded calls that no rule matches, as TOML to paste.

    The calls come from the audit log: denied calls, calls that were asked about, and calls that ran
    only in observe mode. Each command gets a rule for exactly itself. More than 3 commands with the
    same program and sub-command, or 3 files in one folder, get one wider rule, with the calls it
    covers and what else it allows. No rule is proposed for a call that a rule or a built-in rule
    denies or asks about, or that cannot be parsed; a comment gives the reason.

    With --write the rules are added to the project's .cellwall/policy.toml (or to your own, or to
    the --policy file) after you have seen the diff and typed a word at your terminal; no agent can
    do that. Calls of a misled agent are in the audit log, too: read every line.
    """
    from cellwall.admin import policy_learning
    from cellwall.interfaces.cli.terminal_input import Passphrases

    at = policy_learning.target(
        is_user=is_user, policies=files, cwd=os.getcwd(), environ=os.environ
    )
    lesson = policy_learning.learn(
        session=session,
        since=since,
        policies=files,
        environ=os.environ,
        place=at.place,
        ask=Passphrases(None),
    )
    if is_written:
        return _write_rules(lesson, at, as_json=as_json)
    print_result(
        {**_lesson_json(lesson), "toml": policy_learning.to_toml(lesson)},
        policy_learning.to_toml(lesson),
        as_json=as_json,
    )
    return 0


def _write_rules(lesson: Lesson, at: PolicyTarget, *, as_json: bool) -> int:
    from cellwall.admin import policy_learning
    from cellwall.interfaces.cli.terminal_input import ask_approver, confirm
    from cellwall.runtime.policy_places import shown_source

    file = shown_source(at.path, cwd=os.getcwd(), environ=os.environ)
    is_new, is_in_force = bool(lesson.proposed), True
    if is_new:
        change = policy_learning.draft(lesson, at)
        lines = [escaped(each) for each in policy_learning.diff(change, shown=file)]
        if len(lines) > MAX_SHOWN_ROWS:
            raise BadInput(
                f"the change is too long to review: {len(lines)} lines",
                hint="Choose fewer calls with --since or --session.",
                code="CW-POLICY-TOO-LONG",
            )
        shown = "".join(f"{each}\n" for each in lines)
        if not confirm(shown, what="that agents may do this without a question"):
            say("nothing was written")
            return 1
        is_in_force = policy_learning.write(change, at, who=cli_principal(), ask=ask_approver)
    if as_json:
        print_json({**_lesson_json(lesson), "path": at.path, "written": is_new})
        return 0
    for refused in lesson.refused[:_MAX_REFUSED]:
        say(f"no rule for {escaped(refused.call)}: {shortened(refused.reason, most=300)}")
    if not is_new:
        print_text("Nothing to propose.\n")
        return 0
    print_text(f"{shortened(file)}: {len(lesson.proposed)} rules added\n")
    if not is_in_force:
        say("the file was not trusted before; to trust it: cellwall policy trust")
    return 0


def _lesson_json(lesson: Lesson) -> dict[str, Json]:
    rules: list[Json] = [
        {
            "rule": each.rule,
            "stands_for": list(each.stands_for),
            "also_allows": each.also_allows,
            "answers": each.answers,
        }
        for each in lesson.proposed
    ]
    refused: list[Json] = [{"call": each.call, "reason": each.reason} for each in lesson.refused]
    return {
        "seen": lesson.seen,
        "allowed_now": lesson.allowed_now,
        "rules": rules,
        "not_proposed": refused,
    }
