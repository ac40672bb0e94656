"""`cellwall audit`: what is done with the record as a whole. Each of these is on the record."""

from __future__ import annotations

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text
from cellwall.interfaces.terminal import one_line


@click.command(
    epilog="""\b
Examples:
  cellwall audit seal
  cellwall audit seal --json | jq .deleted
"""
)
@place_options
@json_option("Print one JSON object.")
def seal(config: str | None, profile: str | None, *, as_json: bool) -> int:
    """End the growing file, sign and pack it, and delete what the retention rule says.

    Happens by itself in every process that lives long enough; this does it now.
    """
    from cellwall.runtime.record import Keeping  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    sealed = Keeping(principal("cli"), config=config, profile=profile).seal()
    if as_json:
        print_json({"size": sealed.size, "deleted": sealed.deleted})
    else:
        print_text(f"sealed: {sealed.size} records, {sealed.deleted} files deleted by rule\n")
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall audit key > audit.pub
  cellwall audit key --rotate
"""
)
@click.option("--rotate", is_flag=True, help="Make the next key; the old one vouches for it.")
@click.option(
    "--to",
    "new_key",
    type=click.Path(exists=True, dir_okay=False),
    help="With --rotate: the next key, where keys are given from outside.",
)
@click.option("--trust", metavar="KEY", help="Begin our own checks with this public key, too.")
@place_options
@json_option("Print one JSON object.")
def key(
    new_key: str | None,
    trust: str | None,
    config: str | None,
    profile: str | None,
    *,
    rotate: bool,
    as_json: bool,
) -> int:
    """Print the public key that signs the log; give it to whoever checks the log.

    After the loss of a key the log goes on with a new one, and `verify` says so. --trust is for a
    person who knows why.
    """
    from cellwall.runtime.record import Keeping  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    keeping = Keeping(principal("cli"), config=config, profile=profile)
    if new_key is not None and not rotate:
        raise BadInput("--to goes with --rotate")
    if trust is not None:
        keeping.trust(trust)
    public = keeping.rotate(new_key) if rotate else keeping.public_key()
    if as_json:
        print_json({"key": public})
    else:
        print_text(f"{public}\n")
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall audit hold case-17 --reason "asked for by the court"
  cellwall audit hold
  cellwall audit hold case-17 --release
"""
)
@click.argument("name", required=False)
@click.option("--reason", default="", help="Why; it is kept with the hold.")
@click.option("--release", is_flag=True, help="End the hold of this name.")
@place_options
@json_option("Print one JSON object.")
def hold(
    name: str | None,
    reason: str,
    config: str | None,
    profile: str | None,
    *,
    release: bool,
    as_json: bool,
) -> int:
    """Keep everything, whatever the retention rule says, until all holds are released.

    Without NAME, list the holds.
    """
    from cellwall.runtime.record import Keeping  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy

    keeping = Keeping(principal("cli"), config=config, profile=profile)
    if release and name is None:
        raise BadInput("name the hold to release", hint="`cellwall audit hold` lists them.")
    if name is not None and release:
        keeping.release(name)
    elif name is not None:
        keeping.hold(name, reason)
    holds = keeping.holds()
    if as_json:
        print_json({"holds": dict(holds)})
    else:
        lines = [one_line(f"{each}  {why}".rstrip()) for each, why in sorted(holds.items())]
        print_text("".join(f"{line}\n" for line in lines) or "no holds\n")
    return 0


COMMANDS = (seal, key, hold)
