"""`cellwall fleet`: several hosts behind one address."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click

from cellwall.interfaces.cli import fleet_hosts, fleet_pods
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    Decorated,
    cli_principal,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_json, print_result, print_text
from cellwall.interfaces.cli.tokens import parse_duration
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.interfaces.http.fleet_process import FleetStarted

_MAX_TOKEN_CHARACTERS = 1024
_SERVE_EXIT_CODES = """\b
Exit codes:
  0        ended by Ctrl-C or SIGTERM, after the requests under way
  125      Cellwall refused or failed; the reason is on standard error
"""


@click.group(
    epilog="""\b
Examples:
  cellwall fleet up --config /etc/cellwall/config.toml
  cellwall fleet token
  cellwall fleet join 10.0.0.5:6390 --join-token - --label gpu=a100
  cellwall fleet status
  cellwall fleet drain svc_ID --wait 600
"""
)
def fleet() -> None:
    """Run one service over several hosts.

    The first host starts with `up`, which also listens for clients; others `join`. Every session
    lives on one host, chosen by free memory, warm templates and labels. All hosts need the same
    PostgreSQL, public_url and key_file (docs/guides/fleet.md), and the extra: cellwall[fleet].
    """


def _read_labels(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in texts)
    if not all(name and value for name, value in found.items()):
        raise click.BadParameter("write NAME=VALUE, for example region=eu-1.")
    return found


def _machine_options(command: Decorated) -> Decorated:
    """What `up` and `join` have in common."""
    options: tuple[Callable[[Any], Any], ...] = (
        click.option(
            "--label",
            "labels",
            metavar="NAME=VALUE",
            multiple=True,
            callback=_read_labels,
            help="Of this host, beside labels in [fleet]; `tenant` reserves the host.",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(),
            help="Ray's token, where it is managed externally.  [default: token_file in [fleet], "
            "fleet.token in the state folder]",
        ),
        click.option(
            "--with-running-ray",
            "is_ray_running",
            is_flag=True,
            help="A node of Ray runs on this machine already, as KubeRay starts it.",
        ),
        click.option("--host", metavar="H", help="Address on which the front listens."),
        click.option(
            "--port",
            metavar="N",
            type=click.IntRange(0, 65_535),
            help="Port of the front.  [default: port in [server], 8750]",
        ),
        click.option(
            "--dangerously-as-root",
            "as_root",
            is_flag=True,
            help="Serve as root. A vulnerability of the service then exposes the whole machine.",
        ),
        json_option("Print one JSON object once it serves."),
        place_options,
    )
    for option in options:
        command = option(command)
    return command


@fleet.command(
    epilog=f"""\b
Examples:
  cellwall fleet up
  cellwall fleet up --host 0.0.0.0 --label region=eu-1
  cellwall fleet up --no-sandboxes

{_SERVE_EXIT_CODES}"""
)
@_machine_options
@click.option(
    "--no-sandboxes",
    "has_host",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Only listen and place: this machine takes no sessions.",
)
def up(**values: Any) -> int:  # noqa: ANN401  # what click has parsed
    """Start the first host of a fleet, and listen for clients."""
    return _run_process(address=None, has_front=True, **values)


@fleet.command(
    epilog=f"""\b
Examples:
  cellwall fleet join 10.0.0.5:6390 --join-token - < token-file
  cellwall fleet join 10.0.0.5:6390
  cellwall fleet join 10.0.0.5:6390 --front --label region=eu-2

{_SERVE_EXIT_CODES}"""
)
@click.argument("address", metavar="HOST:PORT")
@_machine_options
@click.option(
    "--join-token",
    "join_token",
    metavar="FILE",
    type=click.File("r", encoding="ascii", errors="replace"),
    help="What `cellwall fleet token` has printed, or - for standard input; at the first time.",
)
@click.option(
    "--front",
    "has_front",
    is_flag=True,
    help="Also listen for clients: any number of fronts may run, behind one public_url.",
)
def join(
    address: str,
    join_token: TextIO | None,
    *,
    has_front: bool,
    **values: Any,  # noqa: ANN401  # what click has parsed
) -> int:
    """Add this machine to a fleet. HOST:PORT is what `fleet up` printed.

    At the first time it needs a join token; later its own certificate is enough.
    At SIGTERM the host drains: new sessions go elsewhere, and runs under way have drain_s of
    [server] to end. Its sessions end with it.
    """
    token = None if join_token is None else join_token.readline(_MAX_TOKEN_CHARACTERS)
    return _run_process(
        address=address, join_token=token, has_front=has_front, has_host=True, **values
    )


def _run_process(
    *,
    configured: ConfigOptions,
    as_json: bool,
    address: str | None,
    **values: Any,  # noqa: ANN401  # what click has parsed
) -> int:
    from cellwall.admin.fleet_sandboxes import is_of_sandboxes
    from cellwall.config.load import load_settings
    from cellwall.interfaces.http.fleet_process import FleetOptions, FleetProcess
    from cellwall.runtime.observing import log_to_stderr

    log_to_stderr(os.environ, config=configured["config"], profile=configured["profile"])
    logging.getLogger("uvicorn").setLevel("CRITICAL")  # its errors quote requests and paths

    def tell(started: FleetStarted) -> None:
        front = started.front
        code = None if front is None else front.sign_in_code
        link = f"{front.url}/#sign-in={code}" if front is not None and code else None
        if as_json:
            print_json(
                {
                    "host": started.host_id or None,
                    "join": started.address or None,
                    "address": None if front is None else front.url,
                    "sign_in_link": link,
                    "pid": os.getpid(),
                }
            )
            return
        text = "Sessions claim sandboxes of the cluster. Ctrl-C ends this front.\n"
        if started.host_id:
            text = f"Host {started.host_id} is part of the fleet. Ctrl-C drains and ends it.\n"
        if front is not None:
            text += f"Cellwall listens on {front.url}.\n"
        if address is None and started.address:
            text += f"Others join at {started.address}, each with a `cellwall fleet token`.\n"
        if link is not None and front is not None:
            text += f"Become its owner, once and within {front.link_s // 60} minutes: {link}\n"
        print_text(text)

    options = FleetOptions(**configured, address=address, **values)
    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    if is_of_sandboxes(settings):
        from cellwall.interfaces.http.sandbox_front import SandboxFrontProcess

        return SandboxFrontProcess(options, settings, tell).run()
    return FleetProcess(options, tell).run()


@fleet.command(
    epilog=f"""\b
Examples:
  cellwall fleet token
  cellwall fleet token --ttl 1h | ssh gpu-1 cellwall fleet join 10.0.0.5:6390 --join-token -

{CHANGE_EXIT_CODES}"""
)
@click.option(
    "--ttl",
    metavar="TIME",
    default="10m",
    show_default=True,
    help="How long it can be used: 90s, 30m, 12h; at most a day.",
)
@place_options
def token(*, configured: ConfigOptions, ttl: str) -> int:
    """Print a token with which one machine can join, once. Run it on the first host.

    The token is not stored and not shown again. Until the token is used or expires, who has it can
    become a host, which runs code on every host: pass it on as you would a password.
    """
    from cellwall.admin.fleet_trust import JoinTokens

    tokens = JoinTokens.configured(**configured)
    print_text(tokens.make(cli_principal(), lifetime_s=parse_duration(ttl)) + "\n")
    return 0


@fleet.command(
    epilog=f"""\b
Examples:
  cellwall fleet publish policy.toml
  cellwall packages feed update && cellwall fleet publish --feed

{CHANGE_EXIT_CODES}"""
)
@click.argument(
    "policy", metavar="[POLICY]", required=False, type=click.Path(exists=True, dir_okay=False)
)
@click.option(
    "--feed", "is_feed", is_flag=True, help="The advisories about packages of this machine."
)
@place_options
@json_option("Print one JSON object.")
def publish(*, configured: ConfigOptions, policy: str | None, is_feed: bool, as_json: bool) -> int:
    """Give all hosts this policy, above those of users, or the feed of this machine. Run it on the
    first host.

    Both are signed with the key of the fleet and have a version. A host applies a new one within a
    second, or refuses all requests: with a forged one, or with one older than the host has.
    """
    if is_feed == (policy is not None):
        raise click.UsageError("name a policy, or --feed.")
    from cellwall.admin.fleet_releases import FleetPublisher

    publisher, who = FleetPublisher.configured(**configured), cli_principal()
    version = publisher.publish_feed(who) if policy is None else publisher.publish(policy, who)
    kind = "feed" if policy is None else "policy"
    text = f"the {kind} of the fleet is version {version}\n"
    print_result({"kind": kind, "version": version}, text, as_json=as_json)
    return 0


@fleet.command(
    epilog="""\b
Examples:
  cellwall fleet verify
  cellwall fleet verify --log /backup/host-2/audit
  cellwall fleet verify --json | jq '.logs[] | select(.problem != "")'

\b
Exit codes:
  0  every log is whole    1  the output names the hosts whose logs are not
"""
)
@click.option(
    "--log",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="A copy of another host's audit log, whose records are read as well; repeatable.",
)
@place_options
@json_option("Print one JSON object.")
def verify(*, configured: ConfigOptions, folders: tuple[str, ...], as_json: bool) -> int:
    """Check the audit logs of all hosts as one whole.

    Hosts countersign each other's checkpoints. A log that was truncated, rewritten, forked or
    dropped is named with its host. Of this host's log, the records are read too.
    """
    from cellwall.admin.fleet_verify import FleetVerification

    reports = FleetVerification.configured(**configured).run(cli_principal(), folders=folders)
    lines = [
        f"{each.host_id}  {'NOT WHOLE' if each.problem else 'whole':9}  {each.size} records, "
        f"{each.witnessed} countersigned{', read' if each.is_read else ''}"
        f"{'  ' + each.problem if each.problem else ''}"
        for each in reports
    ]
    text = "".join(f"{one_line(line)}\n" for line in lines) or "no logs\n"
    print_result({"logs": [asdict(each) for each in reports]}, text, as_json=as_json)
    return 1 if any(each.problem for each in reports) else 0


for command in (fleet_hosts.status, fleet_hosts.drain, fleet_hosts.remove, fleet_pods.certify):
    fleet.add_command(command)
