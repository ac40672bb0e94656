"""`cellwall db`: the service's database."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    Decorated,
    cli_principal,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_result
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.database import DatabaseAdmin, DatabaseReport
    from cellwall.core.types import Json


@click.group(
    epilog="""\b
Examples:
  cellwall db migrate
  cellwall db check --json
  cellwall db backup /backup/cellwall-monday.db
"""
)
def db() -> None:
    """Migrate, check, back up and restore the service's database.

    It holds accounts, tokens, metadata of sessions, approvals and budgets: the file cellwall.db in
    the state folder, or the PostgreSQL database of [storage] url. The audit log, the vault and
    workspaces are files of their own, and no part of it.
    """


def _database_options(command: Decorated) -> Decorated:
    """`--profile`, `--config` and `--json`; the command receives `database`."""

    @functools.wraps(command)
    def with_database(*, configured: ConfigOptions, **values: Any) -> int:  # noqa: ANN401  # what click has parsed
        from cellwall.admin.database import DatabaseAdmin

        return int(command(database=DatabaseAdmin.configured(**configured), **values))

    return json_option("Print one JSON object.")(place_options(with_database))  # type: ignore[return-value]  # click keeps what it decorates


@db.command(
    epilog=f"""\b
Examples:
  cellwall db migrate
{CHANGE_EXIT_CODES}"""
)
@_database_options
def migrate(database: DatabaseAdmin, *, as_json: bool) -> int:
    """Create the database, or bring its schema up to date.

    One transaction: after an error the old schema is in place. Make a backup before.
    """
    before, after = database.migrate(cli_principal())
    text = f"the {database.kind} database has schema {after}"
    if before == after:
        text += "; there was nothing to do"
    elif before is not None:
        text += f", before it was {before}"
    result: dict[str, Json] = {"kind": database.kind, "from": before, "to": after}
    print_result(result, f"{text}\n", as_json=as_json)
    return 0


@db.command(
    epilog="""\b
Examples:
  cellwall db check
  cellwall db check --json | jq .rows.users

\b
Exit codes:
  0    the database is intact and up to date
  1    a problem was found; it is listed
  125  refused or failed; the reason is on standard error
"""
)
@_database_options
def check(database: DatabaseAdmin, *, as_json: bool) -> int:
    """Check schema and integrity, and count the rows. Changes nothing."""
    report = database.check(cli_principal())
    print_result(_report_json(report), _report_text(report), as_json=as_json)
    return 1 if report.problems else 0


@db.command(
    epilog=f"""\b
Examples:
  cellwall db backup /backup/cellwall-monday.db
{CHANGE_EXIT_CODES}"""
)
@click.argument("file", type=click.Path())
@_database_options
def backup(file: str, database: DatabaseAdmin, *, as_json: bool) -> int:
    """Write a consistent copy to FILE, which must not exist; the service may run meanwhile.

    The copy is a SQLite file of mode 0600, also of a PostgreSQL database. It contains password
    hashes: keep it as safe as the database. It does not contain the key that seals signing keys,
    the audit log, the vault or workspaces.
    """
    revision = database.backup(file, cli_principal())
    text = f"{one_line(file)}: a copy of the {database.kind} database, schema {revision}\n"
    result: dict[str, Json] = {"kind": database.kind, "file": file, "revision": revision}
    print_result(result, text, as_json=as_json)
    return 0


@db.command(
    epilog=f"""\b
Examples:
  cellwall db restore /backup/cellwall-monday.db
{CHANGE_EXIT_CODES}"""
)
@click.argument("file", type=click.Path())
@_database_options
def restore(file: str, database: DatabaseAdmin, *, as_json: bool) -> int:
    """Replace the content of the database by that of a backup.

    One transaction: after an error or a kill the old content is in place. A backup of either kind
    of database restores into either. Every token ends, since the backup may be older than a
    revocation: people sign in again, service tokens are created again.
    """
    report = database.restore(file, cli_principal())
    print_result(_report_json(report), _report_text(report), as_json=as_json)
    return 0


def _report_json(report: DatabaseReport) -> dict[str, Json]:
    return {
        "kind": report.kind,
        "revision": report.revision,
        "rows": dict(report.rows),
        "problems": list(report.problems),
    }


def _report_text(report: DatabaseReport) -> str:
    lines = [f"{report.kind} database, schema {report.revision or 'none'}"]
    lines += [f"  {name}  {count}" for name, count in report.rows.items() if count]
    lines += [f"PROBLEM {problem}" for problem in report.problems] or ["no problems found"]
    return "".join(f"{line}\n" for line in lines)
