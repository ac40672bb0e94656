"""Sections of the service: its database and its accounts."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, absolute_path, danger, number

_OPTIONS = frozenset({"host", "sslmode", "sslrootcert", "sslcert", "sslkey"})
_VERIFIED = frozenset({"verify-full", "verify-ca"})


def _check_url(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        options, parts, has_port = {}, urlsplit(""), False
    is_plain = text.isprintable() and " " not in text and not parts.fragment
    if parts.scheme != "postgresql" or not has_port or not is_plain or len(parts.path) < 2:
        raise PydanticCustomError(
            "secret",
            'is not a database URL. Write for example "postgresql://cellwall@db.example.com/cellwall".',
        )
    if parts.password is not None:
        raise PydanticCustomError(
            "secret",
            "contains a password. Put it into a file, and name that file in password_file.",
        )
    if not options.keys() <= _OPTIONS:
        raise PydanticCustomError(
            "secret", f"has an unknown option. Known: {', '.join(sorted(_OPTIONS))}."
        )
    return text


def is_remote_database(url: str) -> bool:
    """Whether the connection leaves this machine: neither a Unix socket nor loopback."""
    parts = urlsplit(url)
    return is_remote_host(dict(parse_qsl(parts.query)).get("host") or parts.hostname or "")


def is_remote_host(host: str) -> bool:
    """Whether a host is neither a Unix socket nor loopback."""
    if not host or host.startswith("/") or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


class StorageSection(Section):
    """The database of the service (SRV-4)."""

    url: Annotated[str, AfterValidator(_check_url)] = Field(
        default="",
        description="a PostgreSQL database, such as `postgresql://cellwall@/cellwall`; left out, "
        "the SQLite file cellwall.db in the state folder",
        max_length=2048,
    )
    password_file: Annotated[str, absolute_path("/etc/cellwall/pgpass")] | None = Field(
        default=None,
        description="the password of PostgreSQL, in a file of mode 0600 in the format of .pgpass",
        max_length=4096,
    )
    pool_size: int = number(5, "connections to the database per process", least=1, most=200)
    timeout_s: float = number(30.0, "a transaction that takes longer fails", least=0.1, most=600.0)
    dangerously_without_tls: bool = danger(
        "connect to PostgreSQL on another machine without verifying its certificate"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> StorageSection:
        options = dict(parse_qsl(urlsplit(self.url).query))
        is_verified = options.get("sslmode") in _VERIFIED
        if is_remote_database(self.url) and not is_verified and not self.dangerously_without_tls:
            raise PydanticCustomError(
                "url",
                "names another machine without verified TLS. Add ?sslmode=verify-full and "
                "sslrootcert.",
            )
        return self


class MessagesSection(Section):
    """Messages of chat and mail channels, which a bridge relays."""

    per_minute: int = number(
        20, "so many messages of one sender are handled in a minute", least=1, most=6000
    )
    pairing_code_s: int = number(
        600, "a one-time pairing code expires after this time", least=30, most=86_400
    )
    remember_days: float = number(
        7.0,
        "a message that is relayed again within this time is not handled",
        least=0.01,
        most=365.0,
    )


class AccountsSection(Section):
    """Accounts of the service: passwords, tokens and guesses (SRV-2, RBAC-4)."""

    key_file: Annotated[str, absolute_path("/etc/cellwall/accounts.key")] | None = Field(
        default=None,
        description="the key that seals signing keys, of mode 0600 and created on first use; left "
        "out, accounts.key in the state folder. Machines that share a database share it",
        max_length=4096,
    )
    access_token_s: int = number(
        600, "an access token expires after this time", least=30, most=3600
    )
    refresh_token_days: float = number(
        30.0, "a sign-in must be repeated after this time", least=0.01, most=365.0
    )
    refresh_grace_s: float = number(
        10.0,
        "a refresh token that is used again within this time gets the same successor, for windows "
        "that refresh at once; 0: that ends the sign-in",
        least=0.0,
        most=60.0,
    )
    signing_key_days: float = number(
        30.0, "access tokens are signed with a new key after this time", least=0.01, most=365.0
    )
    sign_in_link_s: int = number(
        900, "a one-time sign-in link expires after this time", least=60, most=86_400
    )
    max_service_token_days: float = number(
        365.0, "a service token expires after this time at the latest", least=0.01, most=3650.0
    )
    min_password_characters: int = number(
        12, "a new password has at least so many characters", least=8, most=128
    )
    argon2_memory_kib: int = number(
        65_536, "Argon2id memory for one password guess", least=8, most=4_194_304
    )
    argon2_passes: int = number(2, "Argon2id passes", least=1, most=100)
    argon2_lanes: int = number(1, "Argon2id lanes", least=1, most=64)
    free_guesses_per_account: int = number(
        5, "so many failed sign-ins of one account have no consequence", least=1, most=1000
    )
    free_guesses_per_address: int = number(
        30, "so many failed sign-ins from one address have no consequence", least=1, most=10_000
    )
    max_guess_delay_s: float = number(
        300.0,
        "further failures double the time until the next attempt, up to this",
        least=1.0,
        most=86_400.0,
    )
