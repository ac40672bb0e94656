"""`cellwall policy learn`: the narrowest rules for what the record has seen."""

from __future__ import annotations

import os
from datetime import datetime

import click

from cellwall.core.types import Json
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.record_filters import moment
from cellwall.interfaces.cli.telling import print_json, print_text


@click.command(
    epilog="""\b
Examples:
  cellwall policy learn --since 2h
  cellwall policy learn --session sbx_... --json
  cellwall policy learn --since 1d > learnt.toml

\b
Exit codes:
  0    told, also if there is nothing to propose
  125  the record or the policy cannot be read
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
@json_option("Print one JSON object.")
def learn(
    session: str | None, since: datetime | None, files: tuple[str, ...], *, as_json: bool
) -> int:
    """Propose the narrowest rules for what was seen and no rule allows, as TOML to paste.

    It reads the record: calls that were denied, and those that went on only in observe mode. Each
    command gets a rule for exactly itself. Where more than 3 commands begin with the same program
    and sub-command, or 3 files lie in one folder, there is one wider rule, with what it stands for
    and what else it allows. For what is denied by a rule, built in, or not understood, nothing is
    proposed; the reason is told in a comment.

    Nothing is written. An agent that was misled has left its wishes in the record, too: read every
    line before you keep it.
    """
    from cellwall.runtime import policy_work  # noqa: PLC0415  # heavy

    lesson = policy_work.learn(session=session, since=since, policies=files, environ=os.environ)
    if not as_json:
        print_text(policy_work.to_toml(lesson))
        return 0
    rules: list[Json] = [
        {
            "rule": each.rule,
            "stands_for": list(each.stands_for),
            "also_allows": each.also_allows,
        }
        for each in lesson.proposed
    ]
    refused: list[Json] = [{"call": each.call, "reason": each.reason} for each in lesson.refused]
    print_json(
        {
            "seen": lesson.seen,
            "allowed_now": lesson.allowed_now,
            "rules": rules,
            "not_proposed": refused,
            "toml": policy_work.to_toml(lesson),
        }
    )
    return 0
