"""`cellwall policy learn`: the narrowest rules for what the record has seen."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.showing import escaped, one_line
from cellwall.core.types import Json
from cellwall.interfaces.cli.audit_options import moment
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.output import print_json, print_text, say

if TYPE_CHECKING:
    from cellwall.policy.lessons import Lesson
    from cellwall.runtime.policy_learnt import PolicyTarget


_MAX_SHOWN_ROWS = 400
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
  0    told or written, also if there is nothing to propose
  1    you said no
  125  the record or the policy cannot be read or written
"""
)
@click.option("--session", metavar="ID", help="Of one sandbox (sbx_...), or one agent's session.")
@click.option(
    "--since", metavar="TIME", callback=moment, help="Not before: a time, or 90m, 2h, 3d ago."
)
@click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="Beside this file, in place of yours and the project's. May be given more than once.",
)
@click.option("--user", "is_user", is_flag=True, help="For your own policy, not the project's.")
@click.option(
    "--write",
    "is_written",
    is_flag=True,
    help="Show the change to the policy file as a diff, and write it after your yes.",
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
    """Propose the narrowest rules for what was seen and no rule is about, as TOML to paste.

    The calls come from the record: denied ones, those that were asked about, and those that went on
    only in observe mode. Each command gets a rule for exactly itself. Where more than 3 commands
    begin with the same program and sub-command, or 3 files lie in one folder, there is one wider
    rule, with what it stands for and what else it allows. Nothing is proposed for a call that a
    rule denies or asks about, that is denied built in, or that is not understood; the reason is
    told in a comment.

    With --write the rules are added to the project's .cellwall/policy.toml (or to your own, or to
    the --policy file) after you have seen the diff and typed a word at your terminal; no agent can
    do that. An agent that was misled has left its wishes in the record, too: read every line.
    """
    from cellwall.runtime import policy_learnt, policy_work  # noqa: PLC0415  # heavy

    at = policy_learnt.target(is_user=is_user, policies=files, cwd=os.getcwd(), environ=os.environ)
    lesson = policy_work.learn(
        session=session, since=since, policies=files, environ=os.environ, place=at.place
    )
    if is_written:
        return _write(lesson, at, as_json=as_json)
    if as_json:
        print_json({**_told(lesson), "toml": policy_work.to_toml(lesson)})
    else:
        print_text(policy_work.to_toml(lesson))
    return 0


def _write(lesson: Lesson, at: PolicyTarget, *, as_json: bool) -> int:
    from cellwall.interfaces.cli.confirming import confirm  # noqa: PLC0415  # heavy
    from cellwall.runtime import policy_learnt  # noqa: PLC0415  # heavy
    from cellwall.runtime.policy_places import shown_source  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    file = shown_source(at.path, cwd=os.getcwd(), environ=os.environ)
    is_new, is_in_force = bool(lesson.proposed), True
    if is_new:
        change = policy_learnt.draft(lesson, at)
        lines = [escaped(each) for each in policy_learnt.diff(change, shown=file)]
        if len(lines) > _MAX_SHOWN_ROWS:
            raise BadInput(
                f"the change is longer than can be shown to be judged: {len(lines)} lines",
                hint="Choose fewer calls with --since or --session.",
                code="CW-POLICY-TOO-LONG",
            )
        shown = "".join(f"{each}\n" for each in lines)
        if not confirm(shown, what="that agents may do this without a question"):
            say("nothing was written")
            return 1
        is_in_force = policy_learnt.write(change, at, who=principal("cli"))
    if as_json:
        print_json({**_told(lesson), "path": at.path, "written": is_new})
        return 0
    for refused in lesson.refused[:_MAX_REFUSED]:
        say(f"no rule for {escaped(refused.call)}: {one_line(refused.reason, most=300)}")
    if not is_new:
        print_text("There is nothing to propose.\n")
        return 0
    print_text(f"{one_line(file)}: {len(lesson.proposed)} rules added\n")
    if not is_in_force:
        say("the file was not trusted before; its rules count after: cellwall policy trust")
    return 0


def _told(lesson: Lesson) -> dict[str, Json]:
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
