"""Whose signature counts: the user's own key, and those that the configuration lists."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cellwall.core.errors import BadInput, ConfigError, KeyFailed
from cellwall.core.keys import SigningKey, load_key, make_key
from cellwall.core.notes import BadNote, PublicKey

OWN_NAME = "cellwall-skills"


def trusted_keys(home: str, listed: Sequence[str]) -> tuple[PublicKey, ...]:
    """Own first. A key that cannot be read is a refusal, not a key less."""
    own = own_key(home)
    keys = [] if own is None else [own]
    try:
        keys += map(PublicKey.parse, listed)
    except BadNote as error:
        raise ConfigError(f"[skills] trusted_keys: {error}") from None
    return tuple(dict.fromkeys(keys))


def own_key(home: str) -> PublicKey | None:
    """The user's own, if one was made."""
    try:
        return load_key(_own_path(home), OWN_NAME).public
    except FileNotFoundError:
        return None


def signing_key(home: str, *, path: str | None = None, signer: str | None = None) -> SigningKey:
    """The own key, made if there is none yet; or the one in a file that was named."""
    if path is None:
        if signer is not None:
            raise BadInput(
                "a signer's name goes with a key of its own",
                hint="Name the key's file with --key.",
                code="CW-USAGE",
            )
        try:
            return load_key(_own_path(home), OWN_NAME)
        except FileNotFoundError:
            return make_key(_own_path(home), OWN_NAME)
    try:
        return load_key(path, signer or OWN_NAME)
    except FileNotFoundError:
        raise KeyFailed(
            "there is no such key file", hint="Make one: openssl genpkey -algorithm ed25519"
        ) from None
    except BadNote:
        raise BadInput(
            "a signer's name has neither spaces nor plus signs", code="CW-USAGE"
        ) from None


def _own_path(home: str) -> str:
    return os.path.join(home, "keys", "skills.pem")
