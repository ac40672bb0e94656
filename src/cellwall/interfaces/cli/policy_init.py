"""`cellwall policy init`: a first policy for the project at hand."""

from __future__ import annotations

import os

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.output import print_json, print_text, say
from cellwall.interfaces.terminal import one_line


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
@click.option("--project", "is_project", is_flag=True, help="For the project here. The default.")
@click.option("--user", "is_user", is_flag=True, help="For you, wherever you work.")
@click.option("--path", metavar="FILE", type=click.Path(), help="Write this file instead.")
@click.option("--force", is_flag=True, help="Replace a policy that is there.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Print it, and write nothing.")
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
    """Write a starting policy for the project at hand, with a reason for each group of rules.

    It looks at what lies in the folder: package.json with its scripts and lock file, Python, Rust,
    Go, Ruby, Java, PHP and C projects, Makefile and justfile, git, containers, Terraform. Reading,
    tests, checks and builds are allowed; what leaves the machine or changes history is asked about;
    secrets are denied. The file is .cellwall/policy.toml, and it is trusted, since you have just
    written it; after a change, look at it again with `cellwall policy trust`.
    """
    from cellwall.runtime import policy_start  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    if is_user and is_project:
        raise BadInput("--user and --project exclude each other", code="CW-USAGE")
    cwd = os.getcwd()
    found = policy_start.begin(None if is_user else cwd)
    told: dict[str, Json] = {
        "kinds": list(found.kinds),
        "rules": found.rules,
        "notes": list(found.notes),
    }
    if to_stdout:
        if as_json:
            print_json({"path": None, "trusted": False, **told, "policy": found.text})
        else:
            _tell(found.notes)
            print_text(found.text)
        return 0
    place = policy_start.place_of(is_user=is_user, path=path, cwd=cwd, environ=os.environ)
    written = policy_start.write(found, place, is_forced=force, who=principal("cli"))
    beside = policy_start.beside(place, environ=os.environ)
    if as_json:
        notes = [*found.notes, *beside]
        print_json({"path": place, "trusted": written.is_trusted, **told, "notes": notes})
        return 0
    kinds = ", ".join(found.kinds)
    print_text(f"{one_line(place)}: {found.rules} rules, for {kinds}\n")
    _tell((*found.notes, *beside))
    return 0


def _tell(notes: tuple[str, ...]) -> None:
    for note in notes:
        say(note)
