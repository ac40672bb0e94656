"""`cellwall serve`: the service, and the units by which systemd runs it."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import logging
import os
import sys
from importlib import resources
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import ConfigOptions, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text

if TYPE_CHECKING:
    from cellwall.interfaces.http.listening import Started

_UNITS = {"user": "user.service", "system": "system.service", "socket": "socket.socket"}


@click.command(
    epilog="""\b
Examples:
  cellwall serve
  cellwall serve --port 8080
  cellwall serve --host 0.0.0.0 --config /etc/cellwall/config.toml
  cellwall serve --print-unit user > ~/.config/systemd/user/cellwall.service

\b
Exit codes:
  0        ended by Ctrl-C, SIGTERM or systemd, after the requests under way
  125      Cellwall refused or failed; the reason is on standard error
  130, 143  ended at once by a second signal
"""
)
@place_options
@click.option(
    "--host", metavar="H", help="Address to listen on.  [default: host in [server], 127.0.0.1]"
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65_535),
    help="Port; 0 takes a free one.  [default: port in [server], 8750]",
)
@click.option(
    "--dangerously-as-root",
    "as_root",
    is_flag=True,
    help="Serve as root. A vulnerability of the service then exposes the whole machine.",
)
@click.option(
    "--print-unit",
    "unit",
    type=click.Choice(list(_UNITS)),
    help="Print a unit of systemd, with instructions, and end: for your account, for an account of "
    "its own, or the socket for either.",
)
@json_option("Print one JSON object with the address and the sign-in link, then serve.")
def serve(
    *,
    configured: ConfigOptions,
    host: str | None,
    port: int | None,
    as_root: bool,
    unit: str | None,
    as_json: bool,
) -> int:
    """Run the service: an HTTP API for people and agents, each with rights of their own.

    It listens on loopback unless it has TLS (tls_certificate and tls_key in [server]). The first
    start prints a link with which one person becomes the owner; `cellwall user add` adds others.

    The service owns all sandboxes of its state folder: `ps`, `logs` and `kill` show them, and other
    commands of the same account run in it.
    """
    if unit is not None:
        print_text(unit_text(unit))
        return 0
    from cellwall.interfaces.http.startup import ServeOptions
    from cellwall.interfaces.http.startup import serve as run_service
    from cellwall.runtime.observing import log_to_stderr

    log_to_stderr(os.environ, config=configured["config"], profile=configured["profile"])
    logging.getLogger("uvicorn").setLevel("CRITICAL")  # its errors quote requests and paths

    def tell(started: Started) -> None:
        link = f"{started.url}/#sign-in={started.sign_in_code}" if started.sign_in_code else None
        if as_json:
            print_json({"address": started.url, "sign_in_link": link, "pid": os.getpid()})
            return
        text = f"Cellwall listens on {started.url}. Ctrl-C ends it.\n"
        if link is not None:
            minutes = started.link_s // 60
            text += f"Become its owner, once and within {minutes} minutes: {link}\n"
        print_text(text)

    return run_service(ServeOptions(**configured, host=host, port=port, as_root=as_root), tell)


def unit_text(name: str) -> str:
    """A unit that starts this very installation."""
    text = resources.files("cellwall.interfaces.cli").joinpath("units", _UNITS[name]).read_text()
    return text.replace("@PROGRAM@", _program())


def _program() -> str:
    """The installed program, as systemd reads it (systemd.service(5), COMMAND LINES)."""
    path = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "cellwall")
    if not path.isprintable() or '"' in path or "\\" in path:
        raise BadInput(
            "the path of this installation cannot be written into a unit",
            hint="Install Cellwall in a folder with a plain name.",
            code="CW-SERVE-UNIT",
        )
    quoted = path.replace("%", "%%").replace("$", "$$")
    return f'"{quoted}"' if " " in quoted else quoted
