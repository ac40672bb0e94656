"""The ports behind which the service's records about people are stored.

`accounts` decides and `storage` keeps; neither knows the other. Each method of a port is one
transaction: where two callers race, the port says which of them loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cellwall.core.accounts import (
    AccessState,
    ApprovalRecord,
    Budget,
    Charge,
    ExternalIdentity,
    GuessLimit,
    Meter,
    Passkey,
    PendingFlow,
    RefreshFamily,
    Rotation,
    SealedKey,
    ServiceToken,
    SessionRecord,
    SignInLink,
    Team,
    User,
    Viewer,
)


class UsersPort(Protocol):
    """Users and teams. Names are unique; `NameTaken` is the loser of a race."""

    async def add_user(self, user: User) -> None: ...

    async def find_user(self, user_id: str) -> User | None: ...

    async def find_user_named(self, name: str) -> User | None: ...

    async def list_users(self, *, after: str = "", limit: int = 100) -> tuple[User, ...]:
        """In the order of their names."""

    async def set_role(self, user_id: str, role: str) -> bool:
        """Raises `LastOwner`."""

    async def set_password(
        self, user_id: str, password_hash: str, *, replaces: str | None = None
    ) -> bool:
        """A new password ends every token of the user. With `replaces`, the hash is only renewed,
        if it is still that one, and tokens stay."""

    async def set_disabled(self, user_id: str, *, is_disabled: bool) -> bool:
        """A disabled user loses every token. Raises `LastOwner`."""

    async def remove_user(self, user_id: str) -> bool:
        """With every token, session and approval of the user. Raises `LastOwner`."""

    async def add_team(self, team: Team) -> None: ...

    async def list_teams(self) -> tuple[Team, ...]: ...

    async def add_member(self, team_id: str, user_id: str) -> None:
        """Raises `KeyError` if one of the two does not exist."""

    async def remove_member(self, team_id: str, user_id: str) -> bool: ...

    async def teams_of(self, user_id: str) -> frozenset[str]: ...


class TokensPort(Protocol):
    """Credentials. Whatever ends one changes `revision` in the same transaction."""

    async def revision(self) -> int:
        """Changes with every revocation, role and membership, by whatever process. Cheap."""

    async def access_state(self, *, user_id: str, family_id: str, jti: str) -> AccessState | None:
        """None if the user does not exist. Cheap: every request with an unseen token calls it."""

    async def add_family(
        self, family: RefreshFamily, *, token_hash: bytes, generation: int
    ) -> bool:
        """False if the user is disabled or has another generation: the tokens of the user were
        revoked while the sign-in was under way."""

    async def rotate(
        self,
        token_hash: bytes,
        *,
        successor: bytes,
        now_s: float,
        sealed: bytes = b"",
        grace_s: float = 0.0,
    ) -> tuple[Rotation, RefreshFamily | None, bytes]:
        """Exchange a refresh token for its successor. Of two callers with the same token one gets
        DONE; the other gets REPEATED with what the first one gave as `sealed`, if that happened
        less than `grace_s` ago and the successor is unused, else REUSED."""

    async def list_families(self, user_id: str, *, now_s: float) -> tuple[RefreshFamily, ...]:
        """The live sign-ins of the user, the newest first."""

    async def revoke_family(self, family_id: str, *, user_id: str | None = None) -> bool:
        """False unless the sign-in is live and the user's, or anybody's for None."""

    async def revoke_token(self, jti: str, *, until_s: float) -> None:
        """The access token with this id; the record is dropped after its expiry."""

    async def revoke_user(self, user_id: str) -> bool:
        """Every token of the user, service tokens included."""

    async def revoke_everybody(self) -> None:
        """Every token of every user, service tokens included."""

    async def add_service_token(self, token: ServiceToken, *, generation: int) -> bool:
        """False as for `add_family`."""

    async def find_service_token(
        self, token_hash: bytes
    ) -> tuple[ServiceToken, AccessState] | None:
        """By one look-up in an index. Cheap, like `access_state`."""

    async def list_service_tokens(self, user_id: str) -> tuple[ServiceToken, ...]: ...

    async def revoke_service_token(self, token_id: str, *, user_id: str | None) -> bool:
        """False unless the token is the user's, or anybody's for None."""

    async def purge(self, *, now_s: float) -> int:
        """Delete what has expired; returns how many rows."""


class KeysPort(Protocol):
    """Signing keys and one-time links."""

    async def add_signing_key(self, key: SealedKey, *, others_until_s: float) -> None:
        """The key signs from now on; all others only verify, until then at the latest."""

    async def signing_keys(self) -> tuple[SealedKey, ...]:
        """The one that signs first, then the newest."""

    async def has_users(self) -> bool:
        """Whether the first owner exists."""

    async def add_link(self, link: SignInLink) -> None:
        """Replaces the unused links of the same user."""

    async def use_link(
        self, link_hash: bytes, *, password_hash: str, now_s: float, first_owner: User | None
    ) -> str | None:
        """Set the password of the link's user, or create the first owner; returns the user's id.

        None if the link is unknown, used or expired: of two callers one gets the id. Raises
        `OwnerExists`, and `NameTaken`.
        """


class FlowsPort(Protocol):
    """Sign-ins that have begun."""

    async def add_flow(self, flow: PendingFlow, *, max_live: int, now_s: float) -> None:
        """Where so many are pending, the oldest are deleted."""

    async def take_flow(self, flow_hash: bytes, *, kind: str, now_s: float) -> bytes | None:
        """What was sealed; None if it is unknown, of another kind or expired. Of two callers one
        gets it."""


class IdentitiesPort(Protocol):
    """Identities at OpenID providers, and passkeys."""

    async def find_identity(self, issuer: str, subject: str) -> ExternalIdentity | None: ...

    async def add_identity(self, identity: ExternalIdentity, *, new_user: User | None) -> None:
        """With its user, if that is new. Raises `IdentityTaken` and `NameTaken`."""

    async def list_identities(self, user_id: str) -> tuple[ExternalIdentity, ...]: ...

    async def remove_identity(self, issuer: str, subject: str, *, user_id: str) -> bool: ...

    async def add_passkey(self, passkey: Passkey, *, max_per_user: int) -> bool:
        """False if the user has so many, or is disabled. Raises `IdentityTaken`."""

    async def find_passkey(self, credential_id: bytes) -> Passkey | None: ...

    async def list_passkeys(self, user_id: str) -> tuple[Passkey, ...]:
        """The oldest first."""

    async def use_passkey(self, credential_id: bytes, *, sign_count: int, now_s: float) -> bool:
        """Store the counter of a signature. False if it is not above the stored one, unless both
        are 0, as of passkeys without a counter; of two equal ones at once, one gets False."""

    async def remove_passkey(self, passkey_id: str, *, user_id: str) -> bool: ...


class AttemptsPort(Protocol):
    """Failed attempts by account and by address (RBAC-4)."""

    async def begin_attempt(
        self, subjects: Sequence[tuple[str, GuessLimit]], *, now_s: float
    ) -> float:
        """Count one failure for each subject in advance, before anything is compared, so that
        concurrent guesses cannot exceed the limit; returns 0.

        Where a subject is blocked, nothing is counted; returns the time at which it ends.
        """

    async def clear_attempts(self, subjects: Sequence[str]) -> None:
        """The attempt succeeded."""

    async def forgive_attempt(self, subjects: Sequence[str]) -> None:
        """Take back one counted failure: the attempt succeeded, earlier ones still count."""


class SessionsPort(Protocol):
    """Metadata of sessions and approvals. A resource of another user is None, by the same query."""

    async def add_session(self, session: SessionRecord, *, max_live: int) -> bool:
        """False if the owner has `max_live` sessions that have not ended."""

    async def find_session(
        self, session_id: str, *, user_id: str, teams: frozenset[str]
    ) -> SessionRecord | None: ...

    async def list_sessions(
        self,
        *,
        user_id: str,
        teams: frozenset[str],
        after: str = "",
        limit: int = 100,
        among: Sequence[str] | None = None,
    ) -> tuple[SessionRecord, ...]:
        """In the order of their ids; of these ids alone, where `among` is given."""

    async def end_session(self, session_id: str, *, now_s: float) -> bool: ...

    async def end_all_sessions(self, *, now_s: float) -> int:
        """After a restart: no session outlives the process that ran it."""

    async def take_over_session(self, session_id: str, *, owner_id: str, max_live: int) -> bool:
        """This service has a session from now on whose host was lost; of two callers, one gets
        True. False as well if the owner has `max_live` sessions that have not ended."""

    async def lose_session(self, session_id: str, *, now_s: float) -> bool:
        """A session of this service ends as one whose host is lost; False if another service has
        it."""

    async def lose_all_sessions(self, *, now_s: float) -> int:
        """After a restart of a host: its sessions ended with the process that ran them."""

    async def add_run_key(self, session_id: str, key_hash: bytes) -> bool:
        """False if a run of the session had this key before, on whichever host."""

    async def forget_sessions(self, *, ended_before_s: float) -> int:
        """Delete the metadata of sessions that ended before; returns how many. Live ones stay."""

    async def add_approval(self, approval: ApprovalRecord) -> bool:
        """False if the owner is gone."""

    async def find_approval(
        self, approval_id: str, *, seen_by: Viewer
    ) -> ApprovalRecord | None: ...

    async def list_ended_approvals(
        self, *, seen_by: Viewer, before: str = "", limit: int = 100
    ) -> tuple[ApprovalRecord, ...]:
        """The newest first; `before` is the id of the last one of the page before."""

    async def end_approval(
        self, approval_id: str, *, answer: str, answered_by: str | None, now_s: float
    ) -> bool:
        """False if it has ended before, or does not exist."""

    async def end_all_approvals(self, *, answer: str, now_s: float) -> int:
        """After a restart: no action waits for an answer any more."""


class UsagePort(Protocol):
    """Counters and budgets (RBAC-4)."""

    async def set_budget(self, budget: Budget) -> None:
        """Changes `revision`, since every process knows the budgets."""

    async def remove_budget(self, meter: Meter) -> bool:
        """The configured budget applies again."""

    async def budgets(self, meters: Sequence[Meter]) -> tuple[Budget, ...]: ...

    async def reserve(self, charges: Sequence[Charge]) -> Charge | None:
        """Add all amounts, or none if that exceeds a budget; returns that charge.

        An amount of 0 needs a budget that is not used up. Of two callers at once, one sees the
        amount of the other.
        """

    async def settle(self, charges: Sequence[Charge]) -> None:
        """Add all amounts, whatever the budgets; a negative one gives back."""

    async def usage(self, meter: Meter, *, period_start_s: float) -> float: ...


class KeySealer(Protocol):
    """Encrypts private keys under a key that the database does not hold."""

    def seal(self, plain: bytes, *, name: str) -> bytes:
        """Bound to the name: it opens under no other."""

    def unseal(self, sealed: bytes, *, name: str) -> bytes:
        """Raises `KeyFailed` for another key, another name, or changed bytes."""

    def digest(self, data: bytes) -> bytes:
        """A keyed digest of data with few possible values, such as a telephone number."""


class AccountsPort(
    UsersPort,
    TokensPort,
    KeysPort,
    FlowsPort,
    IdentitiesPort,
    AttemptsPort,
    UsagePort,
    Protocol,
):
    """All that `accounts` needs of a database."""
