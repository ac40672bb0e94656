"""`holdfast vault`: secrets that code can use and never sees."""

from __future__ import annotations

import re
import shlex
import time
from typing import TYPE_CHECKING, TypeVar

import click

from holdfast.core.errors import BadInput
from holdfast.interfaces.cli.options import json_option, place_options
from holdfast.interfaces.cli.telling import print_json, print_text, say
from holdfast.interfaces.cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.core.network import Place
    from holdfast.core.types import Json, Principal
    from holdfast.runtime.vault import Grant, KeyChoice, SecretInfo, Vault

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")

KINDS = ("passphrase", "file", "keyring", "command")
_MOST_PASSPHRASE_BYTES = 1024
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXIT_CODES = """
\b
Exit codes:
  0    done
  125  refused or failed, and nothing was changed; the reason is on standard error
"""


@click.group(
    epilog="""\b
Examples:
  holdfast vault init
  holdfast vault set GITHUB_TOKEN
  holdfast vault grant GITHUB_TOKEN --host api.github.com --header authorization
  holdfast vault list
"""
)
def vault() -> None:
    """Keep secrets encrypted, and say what they may be used for.

    Code in a sandbox gets a placeholder. The value is put into a request outside of it, and only
    where a grant says so. No command prints a value, and none takes one as an argument.
    """


def _common(function: Decorated) -> Decorated:
    """The options of every command here."""
    function = json_option("Print one JSON object.")(function)
    function = place_options(function)
    return click.option(
        "--passphrase-fd",
        metavar="N",
        type=click.IntRange(min=0),
        help="Read the passphrase, one line, from this descriptor.  [default: ask at the terminal]",
    )(function)


def _key_options(function: Decorated) -> Decorated:
    for option in (
        click.option(
            "--key-command",
            metavar="COMMAND",
            help="Program with arguments that prints a key of 32 bytes or more, for a KMS.",
        ),
        click.option(
            "--key-file", metavar="FILE", type=click.Path(), help="File that we make, of mode 0600."
        ),
        click.option(
            "--key",
            metavar="KIND",
            type=click.Choice(KINDS),
            help=f"What opens it: {', '.join(KINDS)}.  [default: as configured]",
        ),
    ):
        function = option(function)
    return function


@vault.command(
    epilog=f"""\b
Examples:
  holdfast vault init
  holdfast vault init --key file --key-file /media/key/holdfast
  holdfast vault init --key-command 'kms-client decrypt vault.key'
{_EXIT_CODES}"""
)
@_key_options
@_common
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
    """Make the vault, and choose what opens it.

    Nobody can open it without that key: there is no second way in, and no reset. A key file beside
    the vault protects copies of the vault alone, not against whoever can read both.
    """
    found = _vault(config, profile, passphrase_fd)
    found.init(choice=_choice(key, key_file, key_command), principal=_me())
    _tell_key(found, "made", as_json=as_json)
    return 0


@vault.command(
    "set",
    epilog=f"""\b
Examples:
  holdfast vault set GITHUB_TOKEN
  printf %s "$token" | holdfast vault set GITHUB_TOKEN
  holdfast vault set --binary SIGNING_KEY < key.der
{_EXIT_CODES}""",
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--binary", is_flag=True, help="Keep a newline at the end of standard input.")
@_common
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

    A value that is there already is replaced as by `vault rotate`.
    """
    return _store(words, "set", passphrase_fd, config, profile, binary=binary, as_json=as_json)


@vault.command(
    epilog=f"""\b
Examples:
  holdfast vault rotate GITHUB_TOKEN
  holdfast vault rotate --end-overlap GITHUB_TOKEN
{_EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--binary", is_flag=True, help="Keep a newline at the end of standard input.")
@click.option("--end-overlap", is_flag=True, help="Wipe the old value now; nothing is read.")
@_common
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

    The old value is not used any more, but still kept from leaving and taken out of answers, until
    the next rotation or --end-overlap wipes it.
    """
    if not end_overlap:
        return _store(
            words, "rotate", passphrase_fd, config, profile, binary=binary, as_json=as_json
        )
    name = _name(words)
    is_wiped = _vault(config, profile, passphrase_fd).end_overlap(name, _me())
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
  holdfast vault list
  holdfast vault list --json | jq '.secrets[].name'
""",
)
@_common
def list_(
    passphrase_fd: int | None, profile: str | None, config: str | None, *, as_json: bool
) -> int:
    """List the secrets with their grants; never a value.

    It needs the key, since a list that anybody could have changed is no list.
    """
    found = _vault(config, profile, passphrase_fd)
    listed = found.list(_me())
    if as_json:
        told: list[Json] = [_secret_json(each) for each in listed]
        about: dict[str, Json] = {"id": found.id, "generation": found.generation}
        print_json({"vault": {**about, "key": found.source}, "secrets": told})
        return 0
    lines = [line for each in listed for line in _secret_lines(each)]
    print_text("".join(f"{one_line(line)}\n" for line in lines or ["no secrets"]))
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  holdfast vault rm GITHUB_TOKEN
{_EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@_common
def rm(
    words: tuple[str, ...],
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    as_json: bool,
) -> int:
    """Remove a secret with all its values and grants. What uses it now is refused at once."""
    name = _name(words)
    _vault(config, profile, passphrase_fd).remove(name, _me())
    if as_json:
        print_json({"removed": name})
    else:
        print_text(f"{name} removed\n")
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  holdfast vault rekey
  holdfast vault rekey --key keyring
  holdfast vault rekey --restored

\b
With --passphrase-fd the first line is the old passphrase, the second the new one.
{_EXIT_CODES}"""
)
@_key_options
@click.option(
    "--restored",
    is_flag=True,
    help="You have put an older vault back yourself; without this it is refused.",
)
@_common
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
    """Encrypt everything anew with a new key, and choose what opens the vault.

    Whenever it is killed, the vault opens with the old key or with the new one, and is whole.
    """
    found = _vault(config, profile, passphrase_fd)
    choice = _choice(key, key_file, key_command)
    found.rekey(choice=choice, principal=_me(), restored=restored)
    _tell_key(found, "has a new key", as_json=as_json)
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  holdfast vault grant GITHUB_TOKEN --host api.github.com
  holdfast vault grant GITHUB_TOKEN --host api.github.com --method GET --path /repos --for 8h
  holdfast vault grant MAPS_KEY --host maps.example.com --query key --tool fetch
  holdfast vault grant REGISTRY --host pypi.example.com --basic password --tool run
{_EXIT_CODES}"""
)
@click.argument("words", metavar="NAME", nargs=-1)
@click.option("--host", metavar="HOST", required=True, help="A name, or *.sub.example.com.")
@click.option(
    "--port", "ports", metavar="N", type=int, multiple=True, help="May be repeated.  [default: 443]"
)
@click.option(
    "--method", "methods", metavar="M", multiple=True, help="May be repeated.  [default: any]"
)
@click.option("--path", metavar="PREFIX", default="/", help="Only below it.  [default: /]")
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
    help="Only for run, code, fetch or a tool of this name; may be repeated.  [default: any]",
)
@click.option("--session", metavar="ID", default="", help="Only for this sandbox.  [default: any]")
@click.option(
    "--for", "duration", metavar="TIME", help="Such as 30m, 8h or 7d.  [default: until revoked]"
)
@_common
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
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    as_json: bool,
) -> int:
    """Let a secret be put into requests to a host; to any other host its placeholder stays.

    A secret has as many grants as it needs, and without one it is used for nothing.
    """
    from holdfast.core.network import Binding  # noqa: PLC0415  # heavy

    place, field = _place(header, query, basic)
    binding = Binding(
        host=host,
        ports=ports or (443,),
        methods=tuple(method.upper() for method in methods),
        path=path,
        place=place,
        name=field,
    )
    until_s = None if duration is None else time.time() + _seconds(duration)
    name = _name(words)
    made = _vault(config, profile, passphrase_fd).grant(
        name, binding, _me(), tools=tools, session=session, until_s=until_s
    )
    if as_json:
        print_json(made.to_json())
    else:
        print_text(f"{name}: {one_line(_grant_line(made))}\n")
    return 0


@vault.command(
    epilog=f"""\b
Examples:
  holdfast vault revoke GITHUB_TOKEN gr_...
  holdfast vault revoke GITHUB_TOKEN --all
{_EXIT_CODES}"""
)
@click.argument("name", metavar="NAME")
@click.argument("grant_id", metavar="[GRANT]", required=False)
@click.option("--all", "every", is_flag=True, help="All grants of the secret.")
@_common
def revoke(
    name: str,
    grant_id: str | None,
    passphrase_fd: int | None,
    profile: str | None,
    config: str | None,
    *,
    every: bool,
    as_json: bool,
) -> int:
    """Take a grant back. What uses the secret by it now is refused at once."""
    if (grant_id is None) != every:
        raise BadInput(
            "either one grant or all of them", mend="Name its id, or say --all.", code="HF-USAGE"
        )
    count = _vault(config, profile, passphrase_fd).revoke(name, grant_id, _me())
    if as_json:
        print_json({"name": name, "revoked": count})
    else:
        print_text(f"{name}: {count} grants revoked\n")
    return 0


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
    from holdfast.interfaces.cli.hidden import read_value  # noqa: PLC0415  # only here
    from holdfast.runtime.vault import MOST_VALUE_BYTES, wipe  # noqa: PLC0415  # heavy

    name = _name(words)
    if passphrase_fd == 0:
        raise BadInput(
            "standard input is the value's", mend="Take another descriptor.", code="HF-USAGE"
        )
    found = _vault(config, profile, passphrase_fd)
    me = _me()
    found.prepare(name, me, must_exist=what == "rotate")
    value = read_value(most_bytes=MOST_VALUE_BYTES, keep_newline=binary)
    try:
        version = found.rotate(name, value, me) if what == "rotate" else found.set(name, value, me)
    finally:
        wipe(value)
    if as_json:
        print_json({"name": name, "version": version})
    else:
        print_text(f"{name} stored: version {version}\n")
        if version > 1:
            say(f"the value before is still known; see: holdfast vault rotate --end-overlap {name}")
    return 0


def _name(words: tuple[str, ...]) -> str:
    """The one argument. What stands beside it is a value, and is not repeated."""
    if not words:
        raise BadInput(
            "the name of the secret is missing", mend="Such as GITHUB_TOKEN.", code="HF-USAGE"
        )
    if len(words) > 1 or "=" in words[0]:
        raise BadInput(
            "a value never stands on the command line, where other users and your shell's history "
            "see it",
            mend="Give it on standard input, or at the prompt. Take it out of the history, and "
            "replace it at whoever issued it.",
            code="HF-VAULT-VALUE-SHOWN",
        )
    return words[0]


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
            "a grant has one place", mend="One of --header, --query, --basic.", code="HF-USAGE"
        )
    return named[0] if named else ("header", "authorization")


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if found is None:
        raise BadInput(
            f"{text[:20]!r} is no time to last", mend="Such as 30m, 8h or 7d.", code="HF-USAGE"
        )
    return int(found[1]) * _SECONDS[found[2]]


def _choice(key: str | None, key_file: str | None, key_command: str | None) -> KeyChoice:
    from holdfast.runtime.vault import KeyChoice  # noqa: PLC0415  # heavy

    try:
        command = tuple(shlex.split(key_command or ""))
    except ValueError:
        raise BadInput("--key-command has an open quote", code="HF-USAGE") from None
    return KeyChoice(source=key, file=key_file, command=command)


def _tell_key(found: Vault, what: str, *, as_json: bool) -> None:
    if as_json:
        about: dict[str, Json] = {"id": found.id, "generation": found.generation}
        print_json({**about, "key": found.source})
        return
    print_text(f"the vault {what}: {found.id}, opened by {found.source}\n")
    if found.missing_setting:
        say(f"now say so in the configuration: {found.missing_setting}")


def _secret_json(secret: SecretInfo) -> dict[str, Json]:
    return {
        "name": secret.name,
        "version": secret.version,
        "made_s": secret.made_s,
        "changed_s": secret.changed_s,
        "has_previous": secret.has_previous,
        "grants": [each.to_json() for each in secret.grants],
    }


def _secret_lines(secret: SecretInfo) -> list[str]:
    before = ", the value before is still known" if secret.has_previous else ""
    line = f"{secret.name}  version {secret.version} of {_when(secret.changed_s)}{before}"
    grants = [f"  {_grant_line(each)}" for each in secret.grants]
    return [line, *(grants or ["  not granted for anything"])]


def _grant_line(grant: Grant) -> str:
    binding = grant.binding
    ports = ",".join(map(str, binding.ports))
    where = f"{binding.host}:{ports}{binding.path if binding.path != '/' else ''}"
    bounds = [
        f"{','.join(binding.methods)} {where}" if binding.methods else where,
        f"in {binding.place} {binding.name}",
        *([f"for {', '.join(grant.tools)}"] if grant.tools else []),
        *([f"in {grant.session}"] if grant.session else []),
        *([f"until {_when(grant.until_s)}"] if grant.until_s is not None else []),
    ]
    return f"{grant.id}  {'  '.join(bounds)}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def _vault(config: str | None, profile: str | None, passphrase_fd: int | None) -> Vault:
    from holdfast.interfaces.cli.hidden import Passphrases  # noqa: PLC0415  # only here
    from holdfast.runtime.vault import Vault  # noqa: PLC0415  # heavy

    ask = Passphrases(passphrase_fd, most_bytes=_MOST_PASSPHRASE_BYTES)
    return Vault.configured(config=config, profile=profile, ask=ask)


def _me() -> Principal:
    from holdfast.runtime.wiring import principal  # noqa: PLC0415  # heavy

    return principal("cli")
