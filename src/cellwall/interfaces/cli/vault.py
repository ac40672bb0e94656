"""`cellwall vault`: secrets that code uses without access to their values."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import Decorated, cli_principal
from cellwall.interfaces.cli.output import print_json, print_result, print_text, say
from cellwall.interfaces.cli.vault_grants import grant, revoke
from cellwall.interfaces.cli.vault_options import (
    VaultAccess,
    secret_json,
    secret_lines,
    secret_name,
    vault_options,
)
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.vault import VaultAdmin, VaultKeyChoice

KINDS = ("passphrase", "file", "keyring", "command")


@click.group(
    epilog="""\b
Examples:
  cellwall vault init
  cellwall vault set GITHUB_TOKEN
  cellwall vault grant GITHUB_TOKEN --host api.github.com --header authorization
  cellwall vault list
"""
)
def vault() -> None:
    """Store secrets encrypted, and grant their use.

    Code in a sandbox gets a placeholder. The value is inserted into requests outside of the
    sandbox, and only where a grant allows it. No command prints a value or takes one as argument.
    """


def _key_options(function: Decorated) -> Decorated:
    for option in (
        click.option(
            "--key-command",
            metavar="COMMAND",
            help="Command that prints a key of at least 32 bytes, for a KMS.",
        ),
        click.option(
            "--key-file",
            metavar="FILE",
            type=click.Path(),
            help="Key file, which is created with mode 0600.",
        ),
        click.option(
            "--key",
            metavar="KIND",
            type=click.Choice(KINDS),
            help=f"What opens it: {', '.join(KINDS)}.  "
            "[default: as configured; for rekey unchanged]",
        ),
    ):
        function = option(function)
    return function


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault init
  cellwall vault init --key file --key-file /media/key/cellwall
  cellwall vault init --key-command 'kms-client decrypt vault.key'
{CHANGE_EXIT_CODES}"""
)
@_key_options
@vault_options
def init(
    key: str | None,
    key_file: str | None,
    key_command: str | None,
    access: VaultAccess,
    *,
    as_json: bool,
) -> int:
    """Create the vault, and choose what opens it.

    Without that key the vault cannot be opened: there is no recovery and no reset. A key file
    beside the vault protects copies of the vault only, not against a reader of both files.
    """
    vault_admin = access.open()
    vault_admin.init(choice=_choice(key, key_file, key_command), principal=cli_principal())
    _tell_key(vault_admin, "made", as_json=as_json)
    return 0


@vault.command(
    "set",
    epilog=f"""\b
Examples:
  cellwall vault set GITHUB_TOKEN
  printf %s "$token" | cellwall vault set GITHUB_TOKEN
  cellwall vault set --binary SIGNING_KEY < key.der
  cellwall vault set --project ~/src/shop SHOP_TOKEN
{CHANGE_EXIT_CODES}""",
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--binary", is_flag=True, help="Keep a newline at the end of standard input.")
@click.option(
    "--project",
    metavar="DIR",
    help="Only for sandboxes that work on this folder; '' removes the binding.  "
    "[default: unchanged]",
)
@vault_options
def set_(
    words: tuple[str, ...],
    project: str | None,
    access: VaultAccess,
    *,
    binary: bool,
    as_json: bool,
) -> int:
    """Store a value: from standard input, or typed twice at a hidden prompt.

    An existing value is replaced as by `vault rotate`.
    """
    return _store(access, words, is_rotation=False, binary=binary, project=project, as_json=as_json)


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault rotate GITHUB_TOKEN
  cellwall vault rotate --end-overlap GITHUB_TOKEN
{CHANGE_EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--binary", is_flag=True, help="Keep a newline at the end of standard input.")
@click.option("--end-overlap", is_flag=True, help="Wipe the old value now; no new value is read.")
@vault_options
def rotate(
    words: tuple[str, ...],
    access: VaultAccess,
    *,
    binary: bool,
    end_overlap: bool,
    as_json: bool,
) -> int:
    """Give a secret a new value.

    The old value is not used any more, but still blocked in requests and redacted from responses,
    until the next rotation or --end-overlap wipes it.
    """
    if not end_overlap:
        return _store(access, words, is_rotation=True, binary=binary, as_json=as_json)
    name = secret_name(words)
    is_wiped = access.open().end_overlap(name, cli_principal())
    print_result(
        {"name": name, "wiped": is_wiped},
        f"{name}: {'the old value is wiped' if is_wiped else 'there was no old value'}\n",
        as_json=as_json,
    )
    return 0


@vault.command(
    "list",
    epilog="""\b
Examples:
  cellwall vault list
  cellwall vault list --json | jq '.secrets[].name'
""",
)
@vault_options
def list_(access: VaultAccess, *, as_json: bool) -> int:
    """List the secrets with their grants; never a value.

    The key is needed to authenticate the list.
    """
    vault_admin = access.open()
    listed = vault_admin.list(cli_principal())
    if as_json:
        secrets: list[Json] = [secret_json(each) for each in listed]
        about: dict[str, Json] = {"id": vault_admin.id, "generation": vault_admin.generation}
        print_json({"vault": {**about, "key": vault_admin.source}, "secrets": secrets})
        return 0
    lines = [line for each in listed for line in secret_lines(each)]
    print_text("".join(f"{one_line(line)}\n" for line in lines or ["no secrets"]))
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault rm GITHUB_TOKEN
{CHANGE_EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@vault_options
def rm(
    words: tuple[str, ...],
    access: VaultAccess,
    *,
    as_json: bool,
) -> int:
    """Remove a secret with its values and grants. Runs that use it are refused at once."""
    name = secret_name(words)
    access.open().remove(name, cli_principal())
    print_result({"removed": name}, f"{name} removed\n", as_json=as_json)
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault rekey
  cellwall vault rekey --key keyring
  cellwall vault rekey --restored

\b
With --passphrase-fd the first line is the old passphrase, the second the new one.
{CHANGE_EXIT_CODES}"""
)
@_key_options
@click.option(
    "--restored",
    is_flag=True,
    help="Accept an older vault that you restored yourself; otherwise it is refused.",
)
@vault_options
def rekey(
    key: str | None,
    key_file: str | None,
    key_command: str | None,
    access: VaultAccess,
    *,
    restored: bool,
    as_json: bool,
) -> int:
    """Re-encrypt everything with a new key, and choose what opens the vault.

    If interrupted, the vault is intact and opens with either the old or the new key.
    """
    vault_admin = access.open()
    choice = _choice(key, key_file, key_command)
    vault_admin.rekey(choice=choice, principal=cli_principal(), restored=restored)
    _tell_key(vault_admin, "has a new key", as_json=as_json)
    return 0


vault.add_command(grant)
vault.add_command(revoke)


def _store(
    access: VaultAccess,
    words: tuple[str, ...],
    *,
    is_rotation: bool,
    binary: bool,
    as_json: bool,
    project: str | None = None,
) -> int:
    from cellwall.admin.vault import MAX_VALUE_BYTES, weakness, wipe
    from cellwall.interfaces.cli.terminal_input import read_value

    name = secret_name(words)
    if access.passphrase_fd == 0:
        raise BadInput(
            "standard input already carries the value",
            hint="Use another descriptor.",
            code="CW-USAGE",
        )
    vault_admin = access.open()
    who = cli_principal()
    vault_admin.prepare(name, who, must_exist=is_rotation)
    value = read_value(max_bytes=MAX_VALUE_BYTES, keep_newline=binary)
    try:
        if is_rotation:
            version = vault_admin.rotate(name, value, who)
        else:
            version = vault_admin.set(name, value, who, project=project)
        weak = weakness(name, value)
    finally:
        wipe(value)
    if as_json:
        print_json({"name": name, "version": version})
    else:
        print_text(f"{name} stored: version {version}\n")
        if version > 1:
            say(f"the old value is still kept; see: cellwall vault rotate --end-overlap {name}")
    if weak:
        say(f"warning: weak value: {weak}")
    return 0


def _choice(key: str | None, key_file: str | None, key_command: str | None) -> VaultKeyChoice:
    from cellwall.admin.vault import VaultKeyChoice

    try:
        command = tuple(shlex.split(key_command or ""))
    except ValueError:
        raise BadInput(
            "--key-command has an unclosed quote",
            hint="Write the whole command as one argument: --key-command 'kms-client decrypt KEY'.",
            code="CW-USAGE",
        ) from None
    return VaultKeyChoice(source=key, file=key_file, command=command)


def _tell_key(vault_admin: VaultAdmin, what: str, *, as_json: bool) -> None:
    if vault_admin.is_cheap_to_guess:
        say(
            "warning: the passphrase is cheap to guess; set [vault] argon2_memory_kib to 19456 and "
            "argon2_passes to 2 at least"
        )
    if as_json:
        about: dict[str, Json] = {"id": vault_admin.id, "generation": vault_admin.generation}
        print_json({**about, "key": vault_admin.source})
        return
    print_text(f"the vault {what}: {vault_admin.id}, opened by {vault_admin.source}\n")
    if vault_admin.missing_setting:
        say(
            "add this to the configuration (`cellwall config check` names its file), or the vault "
            "stays shut:"
        )
        click.echo(vault_admin.missing_setting, err=True)
