"""`cellwall skills`: skills of agents, signed by a person and verified at each use."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from cellwall.core.errors import SkillRefused
from cellwall.core.types import Json
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import ConfigOptions, cli_principal, json_option, place_options
from cellwall.interfaces.cli.output import json_fields, print_json, print_result, print_text, say
from cellwall.interfaces.cli.skill_text import (
    proposal_json,
    proposal_line,
    skill_json,
    state_json,
    state_line,
    summary,
)
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cellwall.admin.skills import Comparison, Review, SkillAdmin

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")


@click.group(
    epilog="""\b
Examples:
  cellwall skills sign ./pdf-forms
  cellwall skills add ./pdf-forms
  cellwall run --skill pdf-forms -- cat /skills/pdf-forms/SKILL.md
  cellwall skills list
"""
)
def skills() -> None:
    """Sign, verify and approve skills: folders of instructions and programs for agents.

    A sandbox sees only signed skills, read-only, and every byte is verified at each use. A skill
    that an agent proposes waits in quarantine until a person approves it.
    """


def _key_options(function: Decorated) -> Decorated:
    function = click.option(
        "--signer", metavar="NAME", help="Name of the signer; only with --key."
    )(function)
    return click.option(
        "--key",
        metavar="FILE",
        type=click.Path(),
        help="Ed25519 key in PEM form.  [default: your own, made at first use]",
    )(function)


_instructions_option = click.option(
    "--instructions", is_flag=True, help="Use the instruction files of a project, or one of them."
)


@skills.command(
    epilog=f"""\b
Examples:
  cellwall skills sign ./pdf-forms
  cellwall skills sign --name team-rules --key team.pem --signer team ./rules
  cellwall skills sign --instructions .
  cellwall skills sign --instructions CLAUDE.md
{CHANGE_EXIT_CODES}"""
)
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--name", metavar="NAME", help="The skill's name.  [default: that of the folder]")
@_instructions_option
@_key_options
@place_options
@json_option("Print one JSON object.")
def sign(
    folder: str,
    name: str | None,
    key: str | None,
    signer: str | None,
    configured: ConfigOptions,
    *,
    instructions: bool,
    as_json: bool,
) -> int:
    """Sign all files in a folder, so that any later change is detected.

    Read them first: your signature says that agents may follow them. The signed list of files is
    written into the folder as .cellwall-skill. Links, hard links and special files are refused.

    With --instructions DIR is a project, or one file of it: its CLAUDE.md, AGENTS.md, agent rules
    and the like are signed, at any depth, and the list is written as .cellwall-instructions.

    With approvals.key this needs the passphrase of the approver, whose key signs in place of yours.
    """
    from cellwall.admin.skills import SigningKeyChoice
    from cellwall.interfaces.cli.terminal_input import ask_approver

    store = _store(configured)
    sign_it = store.sign_instructions if instructions else store.sign
    done = sign_it(
        folder,
        name=name,
        choice=SigningKeyChoice(key, signer),
        principal=cli_principal(),
        ask=ask_approver,
    )
    manifest = done.manifest
    if as_json:
        result: dict[str, Json] = {"name": manifest.name, "digest": manifest.digest}
        print_json({**result, "files": len(manifest.files), "key": str(done.key)})
    else:
        print_text(
            f"{manifest.name} signed: {len(manifest.files)} files, digest {manifest.digest}\n"
            f"by {done.key}\n"
        )
    return 0


@skills.command(
    epilog="""\b
Examples:
  cellwall skills verify ./pdf-forms
  cellwall skills verify ./pdf-forms --json | jq .reason
  cellwall skills verify --instructions .

\b
Exit codes:
  0    every byte matches what a trusted key signed
  1    it does not, and the first reason is printed
  125  the folder could not be read
"""
)
@click.argument("folder", metavar="DIR", type=click.Path())
@_instructions_option
@place_options
@json_option("Print one JSON object.")
def verify(folder: str, configured: ConfigOptions, *, instructions: bool, as_json: bool) -> int:
    """Verify a folder against its signed manifest: no file changed, missing or added.

    With --instructions every instruction file that differs from its signature is listed.
    """
    try:
        if instructions:
            comparison = _store(configured).compare_instructions(folder)
            return _tell_comparison(comparison, as_json=as_json)
        skill = _store(configured).verify(folder)
    except SkillRefused as error:
        print_result(
            {"ok": False, "code": error.code, "reason": error.message},
            f"NOT OK: {one_line(error.message)} [{error.code}]\n",
            as_json=as_json,
        )
        return 1
    print_result({"ok": True, **skill_json(skill)}, f"ok: {summary(skill)}\n", as_json=as_json)
    return 0


def _tell_comparison(comparison: Comparison, *, as_json: bool) -> int:
    differences = json_fields(comparison, "changed", "added", "missing")
    if as_json:
        fields = json_fields(comparison, "name", "digest", "files", "signers")
        print_json({"ok": comparison.is_same, **fields, **differences})
    elif comparison.is_same:
        signers = ", ".join(comparison.signers)
        print_text(f"ok: {comparison.files} instruction files as signed by {signers}\n")
    else:
        lines = [
            f"{kind:8} {one_line(path)}" for kind, paths in differences.items() for path in paths
        ]
        print_text("NOT OK: " + "\n        ".join(lines) + "\n")
    return 0 if comparison.is_same else 1


@skills.command(
    "list",
    epilog="""\b
Examples:
  cellwall skills list
  cellwall skills list --json | jq '.skills[] | select(.ok | not)'
""",
)
@place_options
@json_option("Print one JSON object.")
def list_(configured: ConfigOptions, *, as_json: bool) -> int:
    """List the approved skills, each verified now, and waiting proposals."""
    store = _store(configured)
    approved, waiting, key = store.approved(), store.proposals(), store.own_key()
    if as_json:
        states: list[Json] = [state_json(name, each) for name, each in approved.items()]
        proposals: list[Json] = [proposal_json(each) for each in waiting]
        own = None if key is None else str(key)
        print_json({"skills": states, "proposals": proposals, "key": own})
        return 0
    lines = [state_line(name, each) for name, each in approved.items()]
    lines += map(proposal_line, waiting)
    lines.append("no skills" if not approved and not waiting else "")
    lines.append("" if key is None else f"your key: {key}")
    print_text("".join(f"{one_line(line)}\n" for line in lines if line))
    return 0


@skills.command(
    epilog=f"""\b
Examples:
  cellwall skills add ./pdf-forms
{CHANGE_EXIT_CODES}"""
)
@click.argument("folder", metavar="DIR", type=click.Path())
@place_options
@json_option("Print one JSON object.")
def add(folder: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Verify a signed skill and copy it to the approved skills, which sandboxes can use.

    A skill of the same name is replaced atomically. With approvals.key this needs the passphrase of
    the approver.
    """
    from cellwall.interfaces.cli.terminal_input import ask_approver

    store = _store(configured)
    skill, replaced = store.add(folder, principal=cli_principal(), ask=ask_approver)
    print_result(
        {**skill_json(skill), "replaced": replaced},
        f"{'replaced' if replaced else 'added'}: {summary(skill)}\n",
        as_json=as_json,
    )
    return 0


@skills.command(
    epilog=f"""\b
Examples:
  cellwall skills remove pdf-forms
  cellwall skills remove prop_...
{CHANGE_EXIT_CODES}"""
)
@click.argument("name", metavar="NAME|ID")
@place_options
@json_option("Print one JSON object.")
def remove(name: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Remove an approved skill by its name, or a proposal by its id.

    A live sandbox with this skill refuses further actions.
    """
    _store(configured).remove(name, principal=cli_principal())
    print_result({"removed": name}, f"{one_line(name)} removed\n", as_json=as_json)
    return 0


@skills.command(
    epilog=f"""\b
Examples:
  cellwall skills propose ./draft --name pdf-forms
{CHANGE_EXIT_CODES}"""
)
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--name", metavar="NAME", help="The skill's name.  [default: that of the folder]")
@place_options
@json_option("Print one JSON object.")
def propose(folder: str, name: str | None, configured: ConfigOptions, *, as_json: bool) -> int:
    """Put a skill that an agent wrote into quarantine, where no sandbox sees it."""
    made = _store(configured).propose_folder(folder, name=name, principal=cli_principal())
    if as_json:
        print_json(proposal_json(made))
    else:
        print_text(f"{made.id}\n")
        say(f"the proposal waits for a person; see: cellwall skills review {made.id}")
    return 0


@skills.command(
    epilog="""\b
Examples:
  cellwall skills review prop_... | less
  cellwall skills review --stat prop_...

\b
Exit codes:
  0    shown
  125  there is no such proposal, or it cannot be read
"""
)
@click.argument("proposal_id", metavar="ID")
@click.option("--stat", is_flag=True, help="Only list the files.")
@place_options
@json_option("Print one JSON object with the whole content.")
def review(proposal_id: str, configured: ConfigOptions, *, stat: bool, as_json: bool) -> int:
    """Show the whole content of a proposal, and what it would change.

    Invisible characters are escaped and counted: instructions can hide in them.
    """
    from cellwall.interfaces.cli import skill_text

    proposal = _store(configured).review(proposal_id)
    if as_json:
        print_json(skill_text.as_json(proposal))
        return 0
    text = "" if stat else skill_text.text_of(proposal)
    print_text(skill_text.summary_of(proposal) + text)
    return 0


@skills.command(
    epilog="""\b
Examples:
  cellwall skills approve prop_...
  cellwall skills approve --digest 5f1c... prop_...

\b
Exit codes:
  0    signed and approved
  1    you said no
  125  refused or failed; the proposal still waits
"""
)
@click.argument("proposal_id", metavar="ID")
@click.option(
    "--digest", metavar="SHA256", help="Approve only content with this digest; see `skills review`."
)
@_key_options
@place_options
@json_option("Print one JSON object.")
def approve(
    proposal_id: str,
    digest: str | None,
    key: str | None,
    signer: str | None,
    configured: ConfigOptions,
    *,
    as_json: bool,
) -> int:
    """Sign a proposal with your key, and move it to the approved skills.

    You confirm it at your terminal; without a terminal it is refused. With approvals.key this needs
    the passphrase of the approver.
    """
    from cellwall.admin.skills import SigningKeyChoice
    from cellwall.interfaces.cli.terminal_input import ask_approver

    store = _store(configured)
    proposal = store.review(proposal_id)
    if digest is not None and digest != proposal.draft.manifest.digest:
        raise SkillRefused(
            "the proposal has another digest",
            hint=f"Review it again: cellwall skills review {proposal_id}",
            code="CW-SKILL-CHANGED",
        )
    if not _is_confirmed(proposal):
        say("nothing was approved")
        return 1
    skill = store.approve(
        proposal,
        choice=SigningKeyChoice(key, signer),
        principal=cli_principal(),
        ask=ask_approver,
    )
    print_result(skill_json(skill), f"approved: {summary(skill)}\n", as_json=as_json)
    return 0


def _is_confirmed(proposal: Review) -> bool:
    from cellwall.interfaces.cli.skill_text import summary_of
    from cellwall.interfaces.cli.terminal_input import confirm

    return confirm(summary_of(proposal), what="that you have read it and agents may follow it")


def _store(configured: ConfigOptions) -> SkillAdmin:
    from cellwall.admin.skills import SkillAdmin

    return SkillAdmin(**configured)
