"""`cellwall audit seal | key | hold | export`, and the filter options of all audit commands.

`seal`, `key` and `hold` write an audit record of their own.
"""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import functools
import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.core.verdict import Verdict
from cellwall.interfaces.cli.options import (
    FINITE,
    ConfigOptions,
    Decorated,
    cli_principal,
    json_option,
    parse_time,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields, print_json, print_result, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.audit_queries import Exported, Query


_FILTERS = ("session_id", "action_id", "principal", "kind", "verdict", "since", "until", "text")


_FILTER_OPTIONS = (
    click.option("--session", "session_id", metavar="ID", help="Records of one sandbox (sbx_...)."),
    click.option("--action", "action_id", metavar="ID", help="Records of one action (act_...)."),
    click.option("--user", "principal", metavar="NAME", help="Records of one user."),
    click.option("--kind", type=click.Choice([kind.value for kind in EventKind]), help="One kind."),
    click.option(
        "--verdict", type=click.Choice([verdict.word for verdict in Verdict]), help="One verdict."
    ),
    click.option(
        "--since", metavar="TIME", callback=parse_time, help="Start: a time, or 90m, 2h, 3d ago."
    ),
    click.option(
        "--until",
        metavar="TIME",
        callback=parse_time,
        help="End (exclusive): a time, or 90m, 2h, 3d ago.",
    ),
    click.option("--text", metavar="TEXT", help="Records that contain this text, in any place."),
)


def filter_options(command: Decorated) -> Decorated:
    """All filter options; the command receives them as one `query`."""

    @functools.wraps(command)
    def with_query(**values: Any) -> int:  # noqa: ANN401  # what click has parsed
        return int(command(query=_query({name: values.pop(name) for name in _FILTERS}), **values))

    decorated: Any = with_query
    for option in reversed(_FILTER_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click keeps what it decorates


def _query(filters: dict[str, Any]) -> Query:
    from cellwall.admin.audit_queries import Query

    if filters["kind"] is not None:
        filters["kind"] = EventKind(filters["kind"])
    if filters["verdict"] is not None:
        filters["verdict"] = Verdict[filters["verdict"].upper()]
    return Query(**filters)


@click.command(
    epilog="""\b
Examples:
  cellwall audit seal
  cellwall audit seal --json | jq .deleted
"""
)
@place_options
@json_option("Print one JSON object.")
def seal(configured: ConfigOptions, *, as_json: bool) -> int:
    """Close the current file, sign and compress it, and delete files by the retention rule.

    Long-lived processes do this by themselves; this command does it now.
    """
    from cellwall.admin.audit_log import AuditLogAdmin

    sealed = AuditLogAdmin(cli_principal(), **configured).seal()
    print_result(
        {"size": sealed.size, "deleted": sealed.deleted},
        f"sealed: {sealed.size} records, {sealed.deleted} files deleted by rule\n",
        as_json=as_json,
    )
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall audit key > audit.pub
  cellwall audit key --rotate
"""
)
@click.option("--rotate", is_flag=True, help="Create the next key, signed by the old one.")
@click.option(
    "--to",
    "new_key",
    type=click.Path(exists=True, dir_okay=False),
    help="With --rotate: the next key, where keys are managed externally.",
)
@click.option(
    "--trust", metavar="KEY", help="Also trust this public key at the start of our own log."
)
@place_options
@json_option("Print one JSON object.")
def key(
    new_key: str | None,
    trust: str | None,
    configured: ConfigOptions,
    *,
    rotate: bool,
    as_json: bool,
) -> int:
    """Print the public key of the log, for everybody who verifies the log.

    After the loss of a key the log continues with a new one, and `verify` reports that. Use --trust
    only if you know why the key changed.
    """
    from cellwall.admin.audit_log import AuditLogAdmin

    keeping = AuditLogAdmin(cli_principal(), **configured)
    if new_key is not None and not rotate:
        raise BadInput("--to goes with --rotate")
    if trust is not None:
        keeping.trust(trust)
    public = keeping.rotate(new_key) if rotate else keeping.public_key()
    print_result({"key": public}, f"{public}\n", as_json=as_json)
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
@click.option("--reason", default="", help="The reason, stored with the hold.")
@click.option("--release", is_flag=True, help="Release this hold.")
@place_options
@json_option("Print one JSON object.")
def hold(
    name: str | None,
    reason: str,
    configured: ConfigOptions,
    *,
    release: bool,
    as_json: bool,
) -> int:
    """Suspend the retention rule until all holds are released.

    Without NAME, list the holds.
    """
    from cellwall.admin.audit_log import AuditLogAdmin

    keeping = AuditLogAdmin(cli_principal(), **configured)
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


_MAX_HEADER_BYTES = 64 * 1024
_PROGRESS_EVERY = 50_000


@click.command(
    epilog="""\b
Examples:
  cellwall audit export --form jsonl --to record.jsonl
  cellwall audit export --form csv --to - --since 7d | less -S
  cellwall audit export --form syslog --to tls://logs.example:6514 --ca-file ca.pem
  cellwall audit export --form otlp --to https://otel.example/v1/logs --header-file token.txt \\
      --bookmark otel.mark

\b
Exit codes:
  0  all delivered    1  the receiver rejected some    125  delivery failed
"""
)
@click.option(
    "--form",
    required=True,
    type=click.Choice(["jsonl", "csv", "syslog", "otlp"]),
    help="Output format.",
)
@click.option(
    "--to",
    "destination",
    required=True,
    metavar="DEST",
    help="A new file, - for standard output, or udp://, tcp://, tls://, unix://, http(s)://.",
)
@click.option(
    "--after", type=click.IntRange(0), metavar="SEQ", help="Only records after this number."
)
@click.option(
    "--bookmark",
    metavar="FILE",
    type=click.Path(),
    help="File that stores the last number sent; for cron.",
)
@click.option("--append", is_flag=True, help="Append to an existing file.")
@click.option(
    "--timeout", "timeout_s", type=FINITE, default=10.0, show_default=True, help="Seconds."
)
@click.option("--hostname", metavar="NAME", help="Host name to report.")
@click.option("--ca-file", type=click.Path(), help="TLS: CA certificates to trust.")
@click.option(
    "--client-cert", "client_cert_file", type=click.Path(), help="TLS: client certificate."
)
@click.option("--client-key", "client_key_file", type=click.Path(), help="TLS: client key.")
@click.option(
    "--dangerously-accept-any-certificate",
    is_flag=True,
    help="TLS: accept any certificate; a man in the middle can read and forge everything.",
)
@click.option("--facility", metavar="NAME", help="syslog: 0 to 23 or a name.  [default: audit]")
@click.option(
    "--framing", type=click.Choice(["octet-counting", "newline"]), help="syslog: over streams."
)
@click.option(
    "--max-message", "max_message_bytes", type=int, help="syslog: truncate longer messages."
)
@click.option(
    "--header-file", type=click.Path(), help="http(s): lines `Name: value`, such as a token."
)
@click.option("--batch", "batch_records", type=int, help="otlp: records in a request.")
@click.option(
    "--sealed",
    "is_sealed",
    is_flag=True,
    help="Leave bodies encrypted, as stored: such lines can be verified.",
)
@passphrase_option
@filter_options
@json_option("Print one JSON object about what was sent.")
def export(
    form: str,
    destination: str,
    after: int | None,
    bookmark: str | None,
    header_file: str | None,
    passphrase_fd: int | None,
    query: Query,
    *,
    is_sealed: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401  # passed on to where they are checked
) -> int:
    """Send records, the oldest first, in a format that other tools read.

    Bodies are decrypted. With --sealed, JSON Lines are the log byte for byte: use them as evidence.
    Every record is delivered at least once; an altered record is not sent.
    """
    from cellwall.admin import audit_queries
    from cellwall.interfaces.cli.terminal_input import Passphrases

    if after is not None and bookmark is not None:
        raise BadInput("--after and --bookmark do not go together")
    if as_json and destination == "-":
        raise BadInput("standard output can take the records or the JSON object, not both")
    headers = audit_queries.parse_headers(_text(header_file)) if header_file else None
    target = audit_queries.ExportTarget.parse(form, destination, headers=headers, **options)
    with audit_queries.open_bookmark(bookmark) if bookmark else nullcontext() as mark:
        start = after or 0 if mark is None else mark.seq
        records = audit_queries.everything(
            query, after=start, ask=Passphrases(passphrase_fd), is_sealed=is_sealed
        )
        try:
            sent = audit_queries.export_records(
                records, target, after_seq=start, progress=_VerifyProgress()
            )
        except audit_queries.ExportFailed as error:
            if mark is not None:
                mark.move(error.exported.last_seq)
            raise
        if mark is not None:
            mark.move(sent.last_seq)
    _tell(sent, as_json=as_json)
    return 1 if sent.rejected else 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MAX_HEADER_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            "the header file cannot be read",
            hint="Check its path; it must be UTF-8 text.",
            detail=str(error),
        ) from None


class _VerifyProgress:
    """Reports progress on a terminal."""

    def __init__(self) -> None:
        self._told = 0
        self._is_wanted = os.isatty(sys.stderr.fileno())

    def __call__(self, sent: int) -> None:
        if self._is_wanted and sent - self._told >= _PROGRESS_EVERY:
            self._told = sent
            say(f"{sent} records sent")


def _tell(sent: Exported, *, as_json: bool) -> None:
    if as_json:
        names = ("sent", "first_seq", "last_seq", "rejected", "cut", "notices")
        print_json(json_fields(sent, *names))
        return
    for notice in sent.notices:
        say(notice)
    counts = ((sent.rejected, "rejected"), (sent.cut, "cut"))
    beside = "".join(f", {number} {word}" for number, word in counts if number)
    say(f"{sent.sent} records sent{beside}; the last is record {sent.last_seq}")
