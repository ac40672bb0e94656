"""`cellwall vault grant | revoke`: the requests that a secret may be used in."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.network import Binding, Place
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import cli_principal
from cellwall.interfaces.cli.output import print_result, say
from cellwall.interfaces.cli.vault_options import (
    VaultAccess,
    grant_line,
    secret_name,
    vault_options,
)
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.vault import VaultAdmin

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.command(
    epilog=f"""\b
Examples:
  cellwall vault grant GITHUB_TOKEN --host api.github.com
  cellwall vault grant GITHUB_TOKEN --host api.github.com --method GET --path /repos --for 8h
  cellwall vault grant MAPS_KEY --host maps.example.com --query key --tool code
  cellwall vault grant REGISTRY --host pypi.example.com --basic password --tool run
{CHANGE_EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--host", metavar="HOST", required=True, help="A name, or *.sub.example.com.")
@click.option(
    "--port", "ports", metavar="N", type=int, multiple=True, help="May be repeated.  [default: 443]"
)
@click.option(
    "--method", "methods", metavar="M", multiple=True, help="May be repeated.  [default: any]"
)
@click.option("--path", metavar="PREFIX", default="/", help="Only below this path.  [default: /]")
@click.option("--header", metavar="NAME", help="Put it into this header.  [default: authorization]")
@click.option("--query", metavar="FIELD", help="Or into this field of the query.")
@click.option(
    "--basic",
    type=click.Choice(["username", "password"]),
    help="Or into this part of basic authentication.",
)
@click.option(
    "--tool",
    "tools",
    metavar="TOOL",
    multiple=True,
    help="Only for run, code, proxy, sandbox (a live one) or account; may be repeated.  "
    "[default: any]",
)
@click.option("--session", metavar="ID", default="", help="Only for this sandbox.  [default: any]")
@click.option(
    "--for", "duration", metavar="TIME", help="Such as 30m, 8h or 7d.  [default: until revoked]"
)
@vault_options
def grant(
    words: tuple[str, ...],
    host: str,
    ports: tuple[int, ...],
    methods: tuple[str, ...],
    path: str,
    header: str | None,
    query: str | None,
    basic: str | None,
    tools: tuple[str, ...],
    session: str,
    duration: str | None,
    access: VaultAccess,
    *,
    as_json: bool,
) -> int:
    """Allow a secret in requests to a host; other hosts receive its placeholder.

    A secret can have several grants; without a grant it is never used. You confirm a grant at your
    terminal, or with the vault's passphrase; with approvals.key also with the passphrase of the
    approver.
    """
    from cellwall.interfaces.cli.terminal_input import ask_approver

    place, field = _place(header, query, basic)
    binding = Binding(
        host=host,
        ports=ports or (443,),
        methods=tuple(method.upper() for method in methods),
        path=path,
        place=place,
        name=field,
    )
    until_s = None if duration is None else time.time() + parse_duration(duration)
    name = secret_name(words)
    vault = access.open()
    if not _is_confirmed(vault, name, host, path):
        say("nothing was granted")
        return 1
    made = vault.grant(
        name,
        binding,
        cli_principal(),
        tools=tools,
        session=session,
        until_s=until_s,
        ask=ask_approver,
    )
    print_result(made.to_json(), f"{name}: {one_line(grant_line(made))}\n", as_json=as_json)
    return 0


@click.command(
    epilog=f"""\b
Examples:
  cellwall vault revoke GITHUB_TOKEN gr_...
  cellwall vault revoke GITHUB_TOKEN --all
{CHANGE_EXIT_CODES}"""
)
@click.argument("name", metavar="NAME")
@click.argument("grant_id", metavar="[GRANT]", required=False)
@click.option("--all", "every", is_flag=True, help="All grants of the secret.")
@vault_options
def revoke(
    name: str,
    grant_id: str | None,
    access: VaultAccess,
    *,
    every: bool,
    as_json: bool,
) -> int:
    """Revoke a grant. Runs that use the secret by this grant are refused at once."""
    if (grant_id is None) != every:
        raise BadInput(
            "name one grant or --all", hint="Write the id of the grant, or --all.", code="CW-USAGE"
        )
    count = access.open().revoke(name, grant_id, cli_principal())
    print_result(
        {"name": name, "revoked": count}, f"{name}: {count} grants revoked\n", as_json=as_json
    )
    return 0


def _is_confirmed(vault: VaultAdmin, name: str, host: str, path: str) -> bool:
    """A vault with a passphrase needs no second proof: only a person knows it."""
    if not vault.opens_alone:
        return True
    from cellwall.interfaces.cli.terminal_input import confirm

    where = one_line(f"{host}{path}")
    return confirm(f"{name} may be sent to {where}\n", what="a grant of a secret")


def _place(header: str | None, query: str | None, basic: str | None) -> tuple[Place, str]:
    named: list[tuple[Place, str]] = []
    if header is not None:
        named.append(("header", header.lower()))
    if query is not None:
        named.append(("query", query))
    if basic is not None:
        named.append(("basic", basic))
    if len(named) > 1:
        raise BadInput(
            "a grant has one place", hint="Use one of --header, --query, --basic.", code="CW-USAGE"
        )
    return named[0] if named else ("header", "authorization")


def parse_duration(text: str) -> int:
    """Seconds of a text such as `8h`."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if match is None:
        raise BadInput(
            f"{text[:20]!r} is not a duration",
            hint="Write for example 30m, 8h or 7d.",
            code="CW-USAGE",
        )
    return int(match[1]) * _SECONDS[match[2]]
