"""Passkeys (WebAuthn Level 3): registration, sign-in and removal.

A sign-in by passkey goes:
  (1) the attempt counts as failed, by address, until it has succeeded;
  (2) the challenge is one of ours, unused and not expired;
  (3) the credential is known, and its user handle is that of the account;
  (4) origin, relying party, user presence and verification, and the signature are checked;
  (5) the counter is above the stored one: else the passkey was copied, or the answer replayed;
  (6) the sign-in is recorded, then tokens are issued.
A registration needs a person who is signed in, with the password where there is one: a stolen
access token alone must not add a way to sign in.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from webauthn import (
    generate_authentication_options,
    generate_registration_options,
    options_to_json,
    verify_authentication_response,
    verify_registration_response,
)
from webauthn.helpers import (
    parse_authentication_credential_json,
    parse_registration_credential_json,
)
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from cellwall.accounts import failures
from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.authenticator_data import check_attestation, check_authenticator_data
from cellwall.accounts.flows import PendingFlows
from cellwall.accounts.guesses import Guesses
from cellwall.accounts.identity import Identity
from cellwall.accounts.names import canonical_name
from cellwall.accounts.sign_in import SignIn, TokenPair
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import AccountsPort
from cellwall.core.accounts import IdentityTaken, Passkey, User
from cellwall.core.ids import new_id
from cellwall.core.types import Json

_REGISTER, _SIGN_IN = "passkey-register", "passkey-sign-in"
_MAX_PER_USER = 20
_MAX_RESPONSE_BYTES = 64 * 1024
_NAME = "Cellwall"


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """This service as browsers know it."""

    id: str
    origin: str


def relying_party(issuer: str) -> RelyingParty:
    """The host and the origin of the service's address."""
    parts = urlsplit(issuer)
    return RelyingParty(parts.hostname or "", f"{parts.scheme}://{parts.netloc}")


@dataclass(frozen=True, slots=True)
class Ceremony:
    """What a page passes to the browser, and the id with which it returns the answer."""

    id: str
    options: Mapping[str, Json]


class Passkeys:
    """The passkeys of one service."""

    def __init__(
        self,
        store: AccountsPort,
        flows: PendingFlows,
        sign_in: SignIn,
        guesses: Guesses,
        log: AccountLog,
        clock: Clock,
        party: RelyingParty,
    ) -> None:
        self._store, self._flows, self._sign_in = store, flows, sign_in
        self._guesses, self._log = guesses, log
        self._clock, self._party = clock, party

    async def begin_registration(
        self, who: Identity, *, password: str | None, address: str
    ) -> Ceremony:
        """Options for `navigator.credentials.create`; the password of a user who has one."""
        await self._sign_in.confirm(who, password, address=address)
        known = await self._store.list_passkeys(who.user_id)
        options = generate_registration_options(
            rp_id=self._party.id,
            rp_name=_NAME,
            user_name=who.name,
            user_id=who.user_id.encode(),
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[
                PublicKeyCredentialDescriptor(id=each.credential_id) for each in known
            ],
        )
        data = {"challenge": _encode(options.challenge), "user_id": who.user_id}
        flow = await self._flows.begin(_REGISTER, data, address=address)
        return Ceremony(flow, json.loads(options_to_json(options)))

    async def finish_registration(
        self, who: Identity, ceremony_id: str, response: Mapping[str, Any], *, name: str
    ) -> Passkey:
        """Add the passkey that the browser made."""
        flow = await self._flows.take(_REGISTER, ceremony_id)
        if flow is None or flow["user_id"] != who.user_id or who.scopes is not None:
            raise failures.bad_identity("unknown challenge")
        text = _bounded(response)
        try:
            credential = parse_registration_credential_json(text)
            check_attestation(credential.response.attestation_object)
            verified = verify_registration_response(
                credential=credential,
                expected_challenge=_decode(flow["challenge"]),
                expected_rp_id=self._party.id,
                expected_origin=self._party.origin,
                require_user_verification=True,
            )
        except Exception as error:  # noqa: BLE001  # a parser of hostile input: any failure refuses
            raise failures.bad_identity(f"registration: {type(error).__name__}") from None
        passkey = Passkey(
            id=new_id("pky"),
            credential_id=verified.credential_id,
            user_id=who.user_id,
            name=canonical_name(name),
            public_key=verified.credential_public_key,
            sign_count=verified.sign_count,
            created_s=self._clock(),
            used_s=None,
        )
        await self._log.change("add passkey", by=who.principal("http"), passkey=passkey.id)
        try:
            if not await self._store.add_passkey(passkey, max_per_user=_MAX_PER_USER):
                raise failures.too_many_passkeys(_MAX_PER_USER)
        except IdentityTaken:
            raise failures.bad_identity("the credential is known") from None
        return passkey

    async def begin_sign_in(self, *, address: str) -> Ceremony:
        """Options for `navigator.credentials.get`, the same for everybody: no list of credentials
        tells who has an account."""
        options = generate_authentication_options(
            rp_id=self._party.id, user_verification=UserVerificationRequirement.REQUIRED
        )
        data = {"challenge": _encode(options.challenge)}
        flow = await self._flows.begin(_SIGN_IN, data, address=address)
        return Ceremony(flow, json.loads(options_to_json(options)))

    async def finish_sign_in(
        self, ceremony_id: str, response: Mapping[str, Any], *, address: str, audience: str
    ) -> TokenPair:
        """Raises `SignInRefused`, with one text for every cause."""
        await self._guesses.begin(address=address)  # (1)
        try:
            user = await self._identify(ceremony_id, response)
        except failures.IdentityRefused as refused:
            await self._log.sign_in("passkey", "refused", address=address, reason=refused.detail)
            raise
        await self._log.sign_in("passkey", "ok", address=address, user=user.name)  # (6)
        await self._guesses.succeeded(address=address)
        return await self._sign_in.issue_for(user, audience)

    async def _identify(self, ceremony_id: str, response: Mapping[str, Any]) -> User:
        flow = await self._flows.take(_SIGN_IN, ceremony_id)  # (2)
        if flow is None:
            raise failures.bad_identity("unknown challenge")
        text = _bounded(response)
        passkey = await self._store.find_passkey(_read_bytes(response.get("rawId")))  # (3)
        if passkey is None:
            raise failures.bad_identity("unknown passkey")
        inner = response.get("response")
        handle = inner.get("userHandle") if isinstance(inner, Mapping) else None
        if handle is not None and not hmac.compare_digest(
            _read_bytes(handle), passkey.user_id.encode()
        ):
            raise failures.bad_identity("another user")
        try:
            credential = parse_authentication_credential_json(text)
            check_authenticator_data(credential.response.authenticator_data)
            verified = verify_authentication_response(  # (4)
                credential=credential,
                expected_challenge=_decode(flow["challenge"]),
                expected_rp_id=self._party.id,
                expected_origin=self._party.origin,
                credential_public_key=passkey.public_key,
                # Compared by `use_passkey`, in one transaction with its change.
                credential_current_sign_count=0,
                require_user_verification=True,
            )
        except Exception as error:  # noqa: BLE001  # any failure means not verified
            raise failures.bad_identity(f"{passkey.id}: {type(error).__name__}") from None
        if not await self._store.use_passkey(  # (5)
            passkey.credential_id, sign_count=verified.new_sign_count, now_s=self._clock()
        ):
            raise failures.bad_identity(f"{passkey.id}: the counter did not increase")
        user = await self._store.find_user(passkey.user_id)
        if user is None or user.is_disabled:
            raise failures.bad_identity("disabled")
        return user

    async def list_own(self, who: Identity) -> tuple[Passkey, ...]:
        """The passkeys of the user, the oldest first."""
        return await self._store.list_passkeys(who.user_id)

    async def remove_own(self, who: Identity, passkey_id: str) -> None:
        """A passkey of another user answers like one that does not exist (RBAC-3)."""
        if who.scopes is not None:
            raise failures.not_a_person()
        await self._log.change("remove passkey", by=who.principal("http"), passkey=passkey_id[:64])
        if not await self._store.remove_passkey(passkey_id, user_id=who.user_id):
            raise failures.not_found("passkey")


def _bounded(response: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(dict(response))
    except (ValueError, TypeError, RecursionError):
        raise failures.bad_identity("not JSON") from None
    if len(text) > _MAX_RESPONSE_BYTES:
        raise failures.bad_identity("the answer is too large")
    return text


def _read_bytes(text: object) -> bytes:
    if not isinstance(text, str) or len(text) > 2048:
        raise failures.bad_identity("not base64")
    try:
        return _decode(text)
    except ValueError:
        raise failures.bad_identity("not base64") from None


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
