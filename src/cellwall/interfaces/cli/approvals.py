"""`cellwall approvals`: answer the approval questions of other runs."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import BadInput
from cellwall.core.showing import block, one_line
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields, print_json, print_text, say

if TYPE_CHECKING:
    from cellwall.admin.approvals import ApprovalInbox
    from cellwall.admin.standing_grants import GrantReview


@click.group(
    epilog="""\b
Examples:
  cellwall approvals list
  cellwall approvals show ask_1b2c3d4e5f6g7h8j9kmn
  cellwall approvals allow ask_1b2c3d4e5f6g7h8j9kmn
  cellwall approvals deny ask_1b2c3d4e5f6g7h8j9kmn
"""
)
def approvals() -> None:
    """Answer the approval questions of other runs.

    Where the policy says `ask`, a run waits; no answer in time is a denial. You allow at a terminal
    by typing a word that it shows; an agent's shell cannot do that.
    """


@approvals.command(
    "list",
    epilog="""\b
Examples:
  cellwall approvals list
  cellwall approvals list --json
""",
)
@place_options
@json_option("Print one JSON object.")
def list_(configured: ConfigOptions, *, as_json: bool) -> int:
    """List waiting questions, the oldest first."""
    waiting = _answering(configured).waiting()
    if as_json:
        print_json({"questions": [_as_json(question) for question in waiting]})
    elif not waiting:
        print_text("no questions are waiting\n")
    else:
        print_text(_fit("".join(_line(question) for question in waiting)))
    return 0


@approvals.command(
    epilog="""\b
Examples:
  cellwall approvals show ask_1b2c3d4e5f6g7h8j9kmn
"""
)
@place_options
@json_option("Print one JSON object.")
@click.argument("question_id", metavar="ID")
def show(question_id: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Show a whole question: the principal, the call, the reason and proposed rules."""
    question = _answering(configured).read(question_id)
    if as_json:
        print_json(_as_json(question))
    else:
        print_text(_fit(question.shown + _answer_commands(question)))
    return 0


@approvals.command(
    epilog="""\b
Examples:
  cellwall approvals allow ask_1b2c3d4e5f6g7h8j9kmn
  cellwall approvals allow --session ask_1b2c3d4e5f6g7h8j9kmn
  cellwall approvals allow --rule 1 ask_1b2c3d4e5f6g7h8j9kmn
"""
)
@place_options
@click.option("--session", is_flag=True, help="Also allow the same call until its session ends.")
@click.option(
    "--rule", metavar="RULE", help="Also write this rule (number or text) to your policy."
)
@json_option("Print one JSON object.")
@click.argument("question_id", metavar="ID")
def allow(
    question_id: str,
    configured: ConfigOptions,
    *,
    session: bool,
    rule: str | None,
    as_json: bool,
) -> int:
    """Allow the call: once, unless an option allows more."""
    from cellwall.admin.approvals import chosen_rule

    if session and rule is not None:
        raise BadInput(
            "--session and --rule exclude each other", hint="Use one of them.", code="CW-USAGE"
        )
    answering = _answering(configured)
    question = answering.read(question_id)
    chosen = "" if rule is None else chosen_rule(question, rule)
    kind = AnswerKind.SESSION if session else AnswerKind.ONCE
    kind = kind if rule is None else AnswerKind.RULE
    answer = allow_question(answering, question, kind, rule=chosen)
    if answer is None:
        say("not answered; the question still waits")
        return 1
    return _tell(question, answer, as_json=as_json)


def allow_question(
    answering: ApprovalInbox, question: Question, kind: AnswerKind, *, rule: str = ""
) -> Answer | None:
    """Allow what the person at the terminal confirms; None: the question still waits."""
    answering.check(question, kind, rule=rule)
    if not _is_confirmed(question, kind, rule):
        return None
    from cellwall.interfaces.cli.terminal_input import ask_approver

    return answering.answer(question, kind, rule=rule, ask=ask_approver)


@approvals.command(
    epilog="""\b
Examples:
  cellwall approvals deny ask_1b2c3d4e5f6g7h8j9kmn
"""
)
@place_options
@json_option("Print one JSON object.")
@click.argument("question_id", metavar="ID")
def deny(question_id: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Deny the call."""
    answering = _answering(configured)
    question = answering.read(question_id)
    return _tell(question, answering.answer(question, AnswerKind.DENY), as_json=as_json)


@approvals.command(
    epilog="""\b
Examples:
  cellwall approvals key
"""
)
def key() -> int:
    """Create an approver key: an approval in another terminal then needs its passphrase.

    Prints the lines for your configuration. The private key is never stored; it is derived from
    the passphrase each time. Runs then do not prompt at their own terminal.

    Standing grants need the passphrase as well: trust in policy files, approved skills, signed
    instructions, grants of secrets, accepted tools of MCP servers. Those that exist do not count
    until you have signed them with `cellwall approvals sign`. A new key ends all signatures of the
    old one.
    """
    from cellwall.interfaces.cli.terminal_input import ask_twice
    from cellwall.runtime.approver_key import ApproverKey

    passphrase = ask_twice("New passphrase of the approver")
    try:
        print_text(f'[approvals]\nkey = "{ApproverKey.make(passphrase)}"\n')
    finally:
        passphrase[:] = bytes(len(passphrase))
    return 0


@approvals.command(
    epilog="""\b
Examples:
  cellwall approvals grants
  cellwall approvals grants --json
"""
)
@passphrase_option
@place_options
@json_option("Print one JSON object.")
def grants(configured: ConfigOptions, *, passphrase_fd: int | None, as_json: bool) -> int:
    """List standing grants: those that the approver has signed, and those that do not count.

    Exit code 0 if no grant waits for a signature, else 1.
    """
    from cellwall.interfaces.cli import grant_text

    review = _review(configured, passphrase_fd)
    signed, waiting = review.signed(), review.waiting(cli_principal())
    if as_json:
        print_json(grant_text.as_json(signed, waiting, review.problems))
    else:
        print_text(_fit(grant_text.listing(signed, waiting)))
        for problem in review.problems:
            say(f"not read: {problem}")
    return 1 if waiting or review.problems else 0


@approvals.command(
    epilog="""\b
Examples:
  cellwall approvals sign
  cellwall approvals sign --only policy --only skill

\b
Exit codes:
  0    signed, also if nothing waited
  1    you said no
  125  refused or failed; the reason is on standard error
"""
)
@click.option(
    "--only",
    "kinds",
    metavar="KIND",
    multiple=True,
    type=click.Choice(["policy", "skill", "secret", "mcp"]),
    help="Only grants of this kind: policy, skill, secret or mcp; may be repeated.",
)
@passphrase_option
@place_options
def sign(kinds: tuple[str, ...], configured: ConfigOptions, *, passphrase_fd: int | None) -> int:
    """Show all standing grants without a signature, and sign them with one passphrase.

    For grants that were made before approvals.key was configured, or under another key. Any process
    of yours may have written what is shown: sign only what you have made. Withdraw the rest first,
    with policy untrust, skills remove, vault revoke or mcp gateway remove.
    """
    from cellwall.interfaces.cli import grant_text
    from cellwall.interfaces.cli.terminal_input import ask_approver, confirm

    review = _review(configured, passphrase_fd)
    waiting = [
        each for each in review.waiting(cli_principal()) if not kinds or each.kind.value in kinds
    ]
    for problem in review.problems:
        say(f"not read: {problem}")
    if not waiting:
        print_text("no grant waits for a signature\n")
        return 0
    if not confirm(grant_text.shown(waiting), what="that all of this was granted by you"):
        say("nothing was signed")
        return 1
    review.sign(waiting, who=cli_principal(), ask=ask_approver)
    print_text(f"{len(waiting)} grants signed\n")
    return 0


def _review(configured: ConfigOptions, passphrase_fd: int | None) -> GrantReview:
    from cellwall.admin.standing_grants import GrantReview
    from cellwall.interfaces.cli.terminal_input import Passphrases

    return GrantReview(**configured, ask_vault=Passphrases(passphrase_fd))


def _is_confirmed(question: Question, kind: AnswerKind, rule: str) -> bool:
    from cellwall.interfaces.cli.terminal_input import confirm

    shown = f"{question.shown}{written_rule(rule)}"
    return confirm(shown, what=f"a yes ({kind.value}) to {question.id}")


def written_rule(rule: str) -> str:
    """The rule at full length: an omitted part would be signed as well."""
    if not rule:
        return ""
    whole = block(rule, max_rows=len(rule) + 1, max_characters=len(rule))
    return f"This rule is written to your policy:\n{whole}"


def _answering(configured: ConfigOptions) -> ApprovalInbox:
    from cellwall.admin.approvals import ApprovalInbox

    return ApprovalInbox(cli_principal(), **configured)


def _fit(text: str) -> str:
    """Folded, so that the command's text never begins at the left edge as ours does."""
    from cellwall.interfaces.cli.approval_prompt import fit_to_stream

    return fit_to_stream(text, stream=1)


def _tell(question: Question, answer: Answer, *, as_json: bool) -> int:
    if as_json:
        print_json({"id": question.id, "shown_sha256": question.shown_sha256, **answer.to_json()})
    else:
        # Shows what was answered, also without a call of `show` before.
        word = "allowed" if answer.allows else "denied"
        shown = (
            "" if answer.allows else question.shown
        )  # an approval has shown it at the confirmation
        text = f"{shown}{question.id} was {word} ({answer.kind.value})\n"
        print_text(_fit(text))
    return 0


def _answer_commands(question: Question) -> str:
    left_s = max(0.0, question.deadline_s - time.time())
    ways = [f"cellwall approvals allow {question.id}"]
    if question.session_id and question.call_sha256:
        ways.append(f"cellwall approvals allow --session {question.id}")
    if question.proposals:
        ways.append(f"cellwall approvals allow --rule 1 {question.id}")
    ways.append(f"cellwall approvals deny {question.id}")
    return f"Answer within {left_s:.0f} s:\n" + "".join(f"  {way}\n" for way in ways)


def _line(question: Question) -> str:

    left_s = max(0.0, question.deadline_s - time.time())
    who = f"{one_line(question.principal.name, most=20)}/{one_line(question.principal.interface)}"
    call = f"{one_line(question.tool, most=30)}: {one_line(question.text)}"
    return f"{question.id}  {left_s:4.0f} s left  {who}  {call}\n"


def _as_json(question: Question) -> dict[str, Json]:
    who = question.principal
    request = json_fields(question, "tool", "text", "details", "reason", "rule", "parts")
    shown = json_fields(question, "shown", "shown_sha256", "asked_s", "deadline_s")
    return {
        **json_fields(question, "id", "action_id", "session_id"),
        "principal": who.name,
        "interface": who.interface,
        "role": who.role,
        **request,
        "proposals": [json_fields(each, "rule", "also_allows") for each in question.proposals],
        **shown,
    }
