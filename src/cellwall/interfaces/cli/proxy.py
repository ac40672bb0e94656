"""`cellwall proxy`: the egress rules for programs that run elsewhere (NET-8)."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces import REFUSED
from cellwall.interfaces.cli.main import Terminated
from cellwall.interfaces.cli.options import (
    FINITE,
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    open_unlocked,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_error, print_json, print_text, say
from cellwall.interfaces.outcome_text import finding_lines
from cellwall.interfaces.sandbox_options import named_policy
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.core.outcomes import Outcome
    from cellwall.interfaces.standalone_proxy import ClientPlan, ListeningProxy
    from cellwall.runtime.proxy_clients import ListenAddress

_MAX_CLIENTS = 64
_DEFAULT_CLIENT = "client"


@click.command(
    epilog="""\b
Examples:
  cellwall proxy --allow-domain api.example.com
  cellwall proxy --client a --client b --allow-domain pypi.org --allow-domain b=example.com
  cellwall proxy --client agent --allow-domain api.github.com --secret GITHUB_TOKEN --json
  cellwall proxy --listen 172.17.0.1:3128 --dangerously-beyond-loopback --mounted-at /cellwall

\b
Exit codes:
  0    ended by Ctrl-C, SIGTERM or --timeout
  125  Cellwall refused or failed; the reason is on standard error
"""
)
@place_options
@click.option(
    "--listen",
    metavar="H:P",
    default="127.0.0.1:3128",
    show_default=True,
    help="Address and port of the proxy; port 0 takes a free one.",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    help=f"Client with a token of its own; may be repeated.  [default: {_DEFAULT_CLIENT}]",
)
@click.option(
    "--allow-domain",
    "domains",
    metavar="[CLIENT=]D",
    multiple=True,
    help="Domain that all clients, or this one, may reach; as in `cellwall run`; may be repeated.",
)
@click.option(
    "--secret",
    "secrets",
    metavar="[CLIENT=]NAME",
    multiple=True,
    help="Secret of the vault: all clients, or this one, get a placeholder as $NAME, which is "
    "replaced by the value only in requests that a grant allows; may be repeated.",
)
@passphrase_option
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(),
    help="Policy file to check the domains against.  [default: allow what you type yourself]",
)
@click.option(
    "--timeout", type=FINITE, metavar="S", help="End after so many seconds.  [default: never]"
)
@click.option(
    "--mounted-at",
    metavar="DIR",
    help="Where a container mounts its client's folder, for the variables about certificates.  "
    "[default: the folder's own path]",
)
@click.option(
    "--dangerously-without-token",
    "tokenless",
    metavar="CLIENT=PORT",
    multiple=True,
    help="Loopback port on which every program of your user is this client, for programs that "
    "cannot send a token; may be repeated.",
)
@click.option(
    "--dangerously-beyond-loopback",
    "beyond_loopback",
    is_flag=True,
    help="Listen on an address that other machines or containers reach. Tokens cross that network "
    "unencrypted.",
)
@json_option("Print one JSON object with the address and each client's variables, then serve.")
def proxy(
    *,
    configured: ConfigOptions,
    listen: str,
    clients: tuple[str, ...],
    domains: tuple[str, ...],
    secrets: tuple[str, ...],
    passphrase_fd: int | None,
    policy: str | None,
    timeout: float | None,
    mounted_at: str | None,
    tokenless: tuple[str, ...],
    beyond_loopback: bool,
    as_json: bool,
) -> int:
    """Offer the egress rules to programs that run elsewhere: in a container, in another sandbox.

    Prints the variables of each client, with its token, and serves until Ctrl-C or SIGTERM. A
    client reaches only the allowed domains and sees placeholders in place of secrets. Tokens and
    the certificate authority end with the proxy.
    """
    import anyio

    from cellwall.interfaces.cli.approval_prompt import TerminalApprover
    from cellwall.interfaces.standalone_proxy import StandaloneProxy

    if mounted_at is not None and not mounted_at.startswith("/"):
        raise BadInput(
            "--mounted-at needs the absolute path that the client sees",
            hint="For example --mounted-at /cellwall.",
            code="CW-USAGE",
        )
    address = _listen_address(listen, beyond_loopback=beyond_loopback)
    plans = _plans(clients, domains, secrets, tokenless)
    who = cli_principal()
    app = open_unlocked(configured, passphrase_fd) if secrets else open_configured(configured)

    server = StandaloneProxy(app, who, plans, policy=named_policy(policy), seen_at=mounted_at)

    def on_ready(listening: ListeningProxy) -> None:
        if as_json:
            print_json(_to_json(listening))
        else:
            print_text(_to_text(listening))

    async def serve() -> Mapping[str, Outcome]:
        return await server.run(
            address, ask=TerminalApprover(who), on_ready=on_ready, timeout_s=timeout
        )

    try:
        outcomes = anyio.run(serve)
    finally:
        app.close()
    if server.signal is not None and not server.is_ready:
        raise Terminated(signal.Signals(server.signal))
    # Exactly one JSON value: a failure after the first one is on standard error.
    return _report(outcomes, as_json=as_json and not server.is_ready)


def _listen_address(text: str, *, beyond_loopback: bool) -> ListenAddress:
    from cellwall.runtime.proxy_clients import ListenAddress

    address = ListenAddress.parse(text)
    if not address.is_loopback and not beyond_loopback:
        raise BadInput(
            f"{address.host} is reachable from other machines or containers",
            hint="Listen on 127.0.0.1, or give --dangerously-beyond-loopback: tokens then cross "
            "that network unencrypted.",
            code="CW-PROXY-LISTEN",
        )
    return address


def _plans(
    named: Sequence[str], domains: Sequence[str], secrets: Sequence[str], tokenless: Sequence[str]
) -> list[ClientPlan]:
    from cellwall.interfaces.standalone_proxy import ClientPlan

    clients = tuple(named) or (_DEFAULT_CLIENT,)
    if len(set(clients)) < len(clients) or len(clients) > _MAX_CLIENTS:
        raise BadInput(
            f"at most {_MAX_CLIENTS} clients, each with a name of its own",
            hint="Give --client once for each of them.",
            code="CW-BAD-CLIENT",
        )
    ports = dict(_port_of(text, clients) for text in tokenless)
    return [
        ClientPlan(
            name=name,
            domains=_of_client(name, clients, domains),
            secrets=_of_client(name, clients, secrets),
            tokenless_port=ports.get(name),
        )
        for name in clients
    ]


def _of_client(client: str, clients: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """The texts for all clients and for this one. `=` may also be part of a path."""
    found: list[str] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not name.isascii() or any(each in name for each in "./ "):
            found.append(text)
        elif name not in clients:
            raise _no_client(name)
        elif name == client:
            found.append(rest)
    return tuple(dict.fromkeys(found))


def _port_of(text: str, clients: Sequence[str]) -> tuple[str, int]:
    name, _, port = text.partition("=")
    if name not in clients:
        raise _no_client(name)
    if not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 0xFFFF):
        raise BadInput(
            "--dangerously-without-token needs a client and a port",
            hint="For example --dangerously-without-token agent=3129.",
            code="CW-USAGE",
        )
    return name, int(port)


def _no_client(name: str) -> BadInput:
    return BadInput(
        f"there is no client {name[:40]!r}",
        hint=f"Name it with --client {name[:40]} as well."
        if name.isalnum()
        else "Name it with --client as well.",
        code="CW-BAD-CLIENT",
    )


def _to_json(listening: ListeningProxy) -> Json:
    ports = listening.tokenless_ports
    return {
        "address": listening.address,
        "clients": [
            {
                "name": each.client,
                "env": dict(each.env),
                "folder": each.folder or None,
                "port_without_token": ports.get(each.client),
            }
            for each in listening.clients
        ],
    }


def _to_text(listening: ListeningProxy) -> str:
    lines = [f"# The proxy listens on {listening.address}. Ctrl-C ends it, and all tokens with it."]
    for each in listening.clients:
        lines += ["", f"# {each.client}"]
        if each.client in listening.tokenless_ports:
            port = listening.tokenless_ports[each.client]
            lines.append(f"# without a token, for programs of this user: 127.0.0.1:{port}")
        if each.folder:
            lines.append(f"# certificate authority: {one_line(each.folder)}/ca.pem")
        lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(each.env.items())]
    return "\n".join(lines) + "\n"


def _report(outcomes: Mapping[str, Outcome], *, as_json: bool) -> int:
    """After the end: the refused connections of each client, or why it was refused itself."""
    code = 0
    for name, outcome in outcomes.items():
        for line in finding_lines(outcome.findings):
            say(f"{name}: {line}")
        if outcome.error is not None:
            print_error(outcome.error, as_json=as_json)
            code = REFUSED
    return code
