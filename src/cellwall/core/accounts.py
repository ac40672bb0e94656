"""What the service keeps about people: plain records, and what refuses to be stored.

Times are seconds since the epoch and come from the caller, so that a test has its own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cellwall.core.types import Json


class NameTaken(Exception):
    """Another record has this name."""


class IdentityTaken(Exception):
    """Another user has this identity or passkey."""


class OwnerExists(Exception):
    """There is a user already, so no first owner can be created."""


class LastOwner(Exception):
    """The change would leave no enabled owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One account."""

    id: str
    name: str
    role: str
    password_hash: str | None
    """None: no sign-in by password."""
    is_disabled: bool
    generation: int
    """Tokens of another generation are refused; revoking all tokens of the user increments it."""
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A named group of users that can own resources together."""

    id: str
    name: str
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceToken:
    """A long-lived credential of a program. Only the hash of the token is kept."""

    id: str
    user_id: str
    name: str
    token_hash: bytes
    scopes: tuple[str, ...]
    created_s: float
    expires_s: float
    is_revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshFamily:
    """One sign-in: the chain of refresh tokens that began with it."""

    id: str
    user_id: str
    audience: str
    """Of the access tokens; a refresh cannot change it."""
    created_s: float
    expires_s: float
    """No rotation extends the family beyond this."""
    is_revoked: bool


class Rotation(StrEnum):
    """What came of presenting a refresh token."""

    DONE = "done"
    REPEATED = "repeated"
    """It was used a moment ago and its successor was not: two windows of one browser refresh at
    once. Both get the same successor."""
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REUSED = "reused"
    """It had been used before, so the whole family is revoked: either its owner or a thief holds
    the newer token, and they cannot be told apart."""
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedKey:
    """A signing key; its private half is encrypted under a key that the database does not hold."""

    kid: str
    public: bytes
    sealed: bytes
    created_s: float
    verify_until_s: float | None
    """None while it signs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInLink:
    """A one-time link. Only the hash of its secret is kept."""

    link_hash: bytes
    user_id: str | None
    """None: the link of the first owner, who has no account yet."""
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFlow:
    """A sign-in that continues in another request. Only the hash of its secret is kept."""

    flow_hash: bytes
    kind: str
    sealed: bytes
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalIdentity:
    """A user of an OpenID provider: issuer and subject, never an e-mail address."""

    issuer: str
    subject: str
    user_id: str
    is_managed: bool
    """The provider created the user, so its claims set the role."""
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Passkey:
    """The public half of a WebAuthn credential."""

    id: str
    credential_id: bytes
    user_id: str
    name: str
    public_key: bytes
    """In COSE form."""
    sign_count: int
    created_s: float
    used_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessState:
    """What decides whether a token counts, as of one revision."""

    revision: int
    user: User
    teams: frozenset[str]
    generation: int
    """Of everybody's tokens."""
    is_family_live: bool
    is_token_revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """Metadata of a session; its files and its log are kept elsewhere."""

    id: str
    owner_id: str
    team_id: str | None
    created_s: float
    ended_s: float | None
    about: Mapping[str, Json]
    service_id: str = field(default="", compare=False)
    """Whose process has the sandbox; set by the store."""
    end_reason: str = field(default="", compare=False)
    """`host-lost` for one that ended with its host; set by the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """That a question was put to a person, and how it ended. Never the text of the question."""

    id: str
    session_id: str
    owner_id: str
    asked_s: float
    expires_s: float
    question: Mapping[str, Json]
    """The name of the asker, the tool, and the rule that asks."""
    answer: str | None
    """The kind of the answer, or why there is none."""
    answered_by: str | None
    """The id of a user; None without an answer, or with one of another channel."""
    answered_s: float | None
    """When it ended."""
    service_id: str = field(default="", compare=False)
    """Whose process waits for the answer; set by the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Whose records are looked for."""

    user_id: str
    teams: frozenset[str]
    sees_all: bool


@dataclass(frozen=True, slots=True)
class Meter:
    """What is counted, for which subject: (`user`, its id, `runs`)."""

    kind: str
    subject: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit per period; the period is a number of seconds since the epoch, in whole steps."""

    meter: Meter
    limit: float
    period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """An amount for one budget, in the period that begins then."""

    budget: Budget
    amount: float
    period_start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessLimit:
    """How failed attempts slow the next ones down."""

    free: int
    """So many failures have no consequence."""
    first_delay_s: float
    """After one more; it doubles with each further failure."""
    max_delay_s: float
    forget_s: float
    """After so long without a failure the count begins again."""

    def delay_s(self, failures: int) -> float:
        """How long a subject with so many failures is blocked."""
        over = failures - self.free
        if over <= 0:
            return 0.0
        # The exponent is bounded: a float overflows at 2**1024.
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(over - 1, 60))
