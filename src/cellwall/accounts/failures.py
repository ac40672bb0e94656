"""Refusals of accounts. One text for every cause that an attacker could tell apart: an unknown
user, a wrong password and a disabled account look the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cellwall.core.errors import (
    BadInput,
    Busy,
    Denied,
    LimitExceeded,
    NotFound,
    SignInRefused,
)


def bad_credentials() -> SignInRefused:
    """Wrong name, wrong password, disabled, or no password at all."""
    return SignInRefused(
        "the name or the password is wrong",
        hint="An owner can create a new sign-in link.",
        code="CW-SIGN-IN",
    )


class TokenRefused(SignInRefused):
    """An access, refresh or service token that does not count. `detail` is for the log."""

    def __init__(self, detail: str, *, is_guess: bool = True) -> None:
        self.is_guess = is_guess
        """Whether it never was a token of ours; an expired one is no attack."""
        super().__init__(
            "the token is not valid",
            hint="Sign in again, or use a token that has not expired.",
            code="CW-SIGN-IN-TOKEN",
            detail=detail,
        )


def bad_token(detail: str) -> TokenRefused:
    """A token that we did not issue."""
    return TokenRefused(detail)


def ended_token(detail: str) -> TokenRefused:
    """A token that we issued, and that counts no more."""
    return TokenRefused(detail, is_guess=False)


def bad_link() -> SignInRefused:
    """Unknown, used or expired."""
    return SignInRefused(
        "the link is not valid: it was used, it has expired, or there is a newer one",
        hint="Create a new one on the machine of the service.",
        code="CW-SIGN-IN-LINK",
    )


class TooManyGuesses(SignInRefused):
    """Guesses are slowed down."""

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = max(1, math.ceil(retry_after_s))
        super().__init__(
            "there were too many failed attempts",
            hint=f"Try again in {self.retry_after_s} seconds.",
            code="CW-SIGN-IN-SLOW",
        )


def overloaded() -> Busy:
    """Each check of a password takes memory and time."""
    return Busy("too many sign-ins at once", hint="Try again in a moment.", code="CW-SIGN-IN-BUSY")


def rate_exceeded(what: str, *, retry_after_s: float, is_repeated: bool) -> LimitExceeded:
    """More often than a rate allows."""
    wait_s = max(1, math.ceil(retry_after_s))
    error = LimitExceeded(
        f"there are too many: the limit is {what}",
        hint=f"Try again in {wait_s} seconds.",
        code="CW-RATE",
    )
    error.retry_after_s = float(wait_s)
    error.is_repeated = is_repeated
    return error


def budget_exceeded(what: str, *, retry_after_s: float) -> LimitExceeded:
    """More than a budget holds in its period."""
    wait_s = max(1, math.ceil(retry_after_s))
    error = LimitExceeded(
        f"the budget is used up: {what}",
        hint=f"It begins anew in {wait_s} seconds. An owner can raise it.",
        code="CW-BUDGET",
    )
    error.retry_after_s = float(wait_s)
    return error


def bad_budget(resources: Sequence[str]) -> BadInput:
    """Not a resource, not a number, or no such period."""
    return BadInput(
        "this is not a budget",
        hint=f"Name one of {', '.join(resources)}, a limit of at least 0, and a period of a minute "
        "to a year.",
        code="CW-ACCOUNT-BUDGET",
    )


def rates_unknown(detail: str) -> Busy:
    """The store of rates does not answer, so no action is within its limit."""
    return Busy(
        "the rate limits cannot be counted",
        hint="Check the Redis of [rates], then try again.",
        code="CW-RATE-STORE",
        detail=detail,
    )


class IdentityRefused(SignInRefused):
    """A sign-in at a provider or by a passkey that does not count. `detail` is for the log."""


class UnknownKey(Exception):
    """An ID token names a key that the known key set lacks."""


def bad_identity(detail: str) -> IdentityRefused:
    """One text for every cause."""
    return IdentityRefused(
        "the sign-in was not accepted",
        hint="Begin the sign-in again; ask an owner whether you have an account.",
        code="CW-SIGN-IN-IDENTITY",
        detail=detail,
    )


def provider_failed(detail: str) -> Busy:
    """The OpenID provider does not answer as it should."""
    return Busy(
        "the OpenID provider cannot be used",
        hint="Try again; the owner checks [oidc] and the provider.",
        code="CW-SIGN-IN-PROVIDER",
        detail=detail,
    )


def too_many_passkeys(most: int) -> BadInput:
    """Enough for all devices of a person."""
    return BadInput(
        f"a user has at most {most} passkeys",
        hint="Remove one that is no longer used.",
        code="CW-ACCOUNT-PASSKEYS",
    )


def not_a_person() -> Denied:
    """A service token changes no way to sign in."""
    return Denied(
        "a service token cannot change how its user signs in",
        hint="Sign in as a person.",
        code="CW-ACCOUNT-PERSON",
    )


def beyond_token() -> Denied:
    """A role or a link that is worth more than the service token that asks for it."""
    return Denied(
        "a service token gives nobody a role with permissions that the token lacks",
        hint="Sign in as a person, or use a token with all scopes of that role.",
        code="CW-ACCOUNT-BEYOND-TOKEN",
    )


def not_found(what: str) -> NotFound:
    """Absent, or of another user: the same answer (RBAC-3)."""
    return NotFound(f"there is no such {what}", hint="Check its name or id, and its owner.")


def name_taken() -> BadInput:
    """Another user or team has the name."""
    return BadInput("the name is taken", hint="Choose another one.", code="CW-ACCOUNT-NAME-TAKEN")


def bad_name() -> BadInput:
    """Not a name."""
    return BadInput(
        "the name is not valid",
        hint="Use 1 to 64 letters, digits and . _ - @ +, beginning with a letter or digit.",
        code="CW-ACCOUNT-NAME",
    )


def bad_password(least: int) -> BadInput:
    """Too short or too long."""
    return BadInput(
        f"a password has {least} to 256 characters, and is not the name",
        hint="Use several unrelated words.",
        code="CW-ACCOUNT-PASSWORD",
    )


def bad_role() -> BadInput:
    """Not one of the five."""
    return BadInput("there is no such role", hint="See `accounts` in the documentation.",
                    code="CW-ACCOUNT-ROLE")  # fmt: skip


def bad_scope() -> BadInput:
    """Unknown, or more than the user may do."""
    return BadInput(
        "a scope is not a permission that you hold",
        hint="Name permissions such as files:read; a token cannot hold more than its user.",
        code="CW-ACCOUNT-SCOPE",
    )


def bad_lifetime(most_s: float) -> BadInput:
    """Not positive, or too long."""
    return BadInput(
        f"a service token lives for at most {most_s / 86_400:g} days",
        hint="Give a shorter time, or raise [accounts] max_service_token_days.",
        code="CW-ACCOUNT-LIFETIME",
    )


def last_owner() -> Denied:
    """Without an owner no one could manage accounts again."""
    return Denied(
        "the last owner cannot lose the role or be disabled",
        hint="Make another user owner first.",
        code="CW-ACCOUNT-LAST-OWNER",
    )


def owner_exists() -> Denied:
    """The link of the first owner is for an empty database only."""
    return Denied(
        "there are accounts already",
        hint="An owner adds further users.",
        code="CW-ACCOUNT-OWNER-EXISTS",
    )
