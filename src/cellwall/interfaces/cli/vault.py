"""`cellwall vault`: secrets that code uses without access to their values."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.output import print_json, print_text, say
from cellwall.interfaces.cli.vault_grants import grant, revoke
from cellwall.interfaces.cli.vault_options import (
    EXIT_CODES,
    Decorated,
    me,
    open_vault,
    secret_json,
    secret_lines,
    secret_name,
    vault_options,
)
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
    from cellwall.core.types import Json

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
{EXIT_CODES}"""
)
@_key_options
@vault_options
def init(
    key: str | None,
    key_file: str | None,
    key_command: str | None,
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    as_json: bool,
) -> int:
    """Create the vault, and choose what opens it.

    Nobody can open it without that key: there is no recovery and no reset. A key file beside the
    vault protects copies of the vault only, not against a reader of both files.
    """
    found = open_vault(config, profile, passphrase_fd)
    found.init(choice=_choice(key, key_file, key_command), principal=me())
    _tell_key(found, "made", as_json=as_json)
    return 0


@vault.command(
    "set",
    epilog=f"""\b
Examples:
  cellwall vault set GITHUB_TOKEN
  printf %s "$token" | cellwall vault set GITHUB_TOKEN
  cellwall vault set --binary SIGNING_KEY < key.der
{EXIT_CODES}""",
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--binary", is_flag=True, help="Keep a newline at the end of standard input.")
@vault_options
def set_(
    words: tuple[str, ...],
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    binary: bool,
    as_json: bool,
) -> int:
    """Store a value: from standard input, or typed twice at a hidden prompt.

    An existing value is replaced as by `vault rotate`.
    """
    return _store(words, "set", passphrase_fd, config, profile, binary=binary, as_json=as_json)


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault rotate GITHUB_TOKEN
  cellwall vault rotate --end-overlap GITHUB_TOKEN
{EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--binary", is_flag=True, help="Keep a newline at the end of standard input.")
@click.option("--end-overlap", is_flag=True, help="Wipe the old value now; no new value is read.")
@vault_options
def rotate(
    words: tuple[str, ...],
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
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
        return _store(
            words, "rotate", passphrase_fd, config, profile, binary=binary, as_json=as_json
        )
    name = secret_name(words)
    is_wiped = open_vault(config, profile, passphrase_fd).end_overlap(name, me())
    if as_json:
        print_json({"name": name, "wiped": is_wiped})
    else:
        print_text(
            f"{name}: {'the old value is wiped' if is_wiped else 'there was no old value'}\n"
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
def list_(
    passphrase_fd: int | None, profile: str | None, config: str | None, *, as_json: bool
) -> int:
    """List the secrets with their grants; never a value.

    The key is needed to authenticate the list.
    """
    found = open_vault(config, profile, passphrase_fd)
    listed = found.list(me())
    if as_json:
        told: list[Json] = [secret_json(each) for each in listed]
        about: dict[str, Json] = {"id": found.id, "generation": found.generation}
        print_json({"vault": {**about, "key": found.source}, "secrets": told})
        return 0
    lines = [line for each in listed for line in secret_lines(each)]
    print_text("".join(f"{one_line(line)}\n" for line in lines or ["no secrets"]))
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault rm GITHUB_TOKEN
{EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@vault_options
def rm(
    words: tuple[str, ...],
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    as_json: bool,
) -> int:
    """Remove a secret with its values and grants. Runs that use it are refused at once."""
    name = secret_name(words)
    open_vault(config, profile, passphrase_fd).remove(name, me())
    if as_json:
        print_json({"removed": name})
    else:
        print_text(f"{name} removed\n")
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  cellwall vault rekey
  cellwall vault rekey --key keyring
  cellwall vault rekey --restored

\b
With --passphrase-fd the first line is the old passphrase, the second the new one.
{EXIT_CODES}"""
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
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    restored: bool,
    as_json: bool,
) -> int:
    """Re-encrypt everything with a new key, and choose what opens the vault.

    If interrupted, the vault is intact and opens with either the old or the new key.
    """
    found = open_vault(config, profile, passphrase_fd)
    choice = _choice(key, key_file, key_command)
    found.rekey(choice=choice, principal=me(), restored=restored)
    _tell_key(found, "has a new key", as_json=as_json)
    return 0


vault.add_command(grant)
vault.add_command(revoke)


def _store(
    words: tuple[str, ...],
    what: str,
    passphrase_fd: int | None,
    config: str | None,
    profile: str | None,
    *,
    binary: bool,
    as_json: bool,
) -> int:
    from cellwall.admin.vault import MAX_VALUE_BYTES, weakness, wipe  # noqa: PLC0415  # heavy
    from cellwall.interfaces.cli.terminal_input import read_value  # noqa: PLC0415  # only here

    name = secret_name(words)
    if passphrase_fd == 0:
        raise BadInput(
            "standard input already carries the value",
            hint="Use another descriptor.",
            code="CW-USAGE",
        )
    found = open_vault(config, profile, passphrase_fd)
    who = me()
    found.prepare(name, who, must_exist=what == "rotate")
    value = read_value(max_bytes=MAX_VALUE_BYTES, keep_newline=binary)
    try:
        version = (
            found.rotate(name, value, who) if what == "rotate" else found.set(name, value, who)
        )
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
    from cellwall.admin.vault import VaultKeyChoice  # noqa: PLC0415  # heavy

    try:
        command = tuple(shlex.split(key_command or ""))
    except ValueError:
        raise BadInput("--key-command has an unclosed quote", code="CW-USAGE") from None
    return VaultKeyChoice(source=key, file=key_file, command=command)


def _tell_key(found: VaultAdmin, what: str, *, as_json: bool) -> None:
    if found.is_cheap_to_guess:
        say(
            "warning: the passphrase is cheap to guess; set [vault] argon2_memory_kib to 19456 and "
            "argon2_passes to 2 at least"
        )
    if as_json:
        about: dict[str, Json] = {"id": found.id, "generation": found.generation}
        print_json({**about, "key": found.source})
        return
    print_text(f"the vault {what}: {found.id}, opened by {found.source}\n")
    if found.missing_setting:
        say(f"add this to the configuration: {found.missing_setting}")
