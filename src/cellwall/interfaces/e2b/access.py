"""Who calls: an API key for the control plane, a token of one sandbox for envd and code.

The API key is a service token of the account. `create` and `connect` answer with tokens that count
for one sandbox, and only while the API key counts that asked for them: a program that logs or hands
on the token of a sandbox has not given away its account.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Unpack

from starlette.datastructures import State
from starlette.requests import Request

from cellwall.admin.accounts import Identity
from cellwall.core.errors import BadInput, NotFound, SignInRefused
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Principal
from cellwall.core.users_inside import SANDBOX_USER, UserInside, parse_user
from cellwall.interfaces.e2b.problems import sandbox_gone
from cellwall.interfaces.e2b.state import E2bState, SandboxFacts, state_of
from cellwall.interfaces.e2b.tokens import SandboxGrant
from cellwall.interfaces.http.callers import INTERFACE, Caller, address_of, authenticate
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.problems import raise_for_refusal
from cellwall.interfaces.http.service import Service, service_of
from cellwall.interfaces.sdk.hosts import CallOptions
from cellwall.interfaces.supervisor.codec import Operation

_DEFAULT_USER = "user"


async def caller_by_key(request: Request) -> Caller:
    """The account of `X-API-KEY`; raises `SignInRefused`."""
    key = request.headers.get("x-api-key", "")
    if not key:
        raise SignInRefused(
            "this request bears no API key",
            hint="Set E2B_API_KEY to a service token: `cellwall token create`.",
            code="CW-SIGN-IN-MISSING",
        )
    service, address = service_of(request), address_of(request)
    request.state.revision = await service.accounts.revision()
    found = Caller(await authenticate(service, key, address=address), address)
    request.state.caller = found  # for the record of a refusal
    return found


@dataclass(slots=True)
class SandboxAccess:
    """A caller of envd, and the sandbox that the token opens."""

    service: Service
    grant: SandboxGrant
    sandbox: OwnedSandbox
    facts: SandboxFacts
    named_user: str = ""
    """As the client names it; for a sandbox of one user it has no effect."""

    @property
    def user(self) -> UserInside:
        """The user of a program. E2B's own is `user`."""
        if not self.sandbox.spec.second_user or self.named_user == _DEFAULT_USER:
            return SANDBOX_USER
        return parse_user(self.named_user)

    @property
    def state(self) -> E2bState:
        return self.facts.state

    async def principal(self) -> Principal:
        """For the next action: the role and the teams of now. Raises once the API key is revoked,
        or the sandbox is no longer the caller's."""
        await _renew(self.service, self.grant)
        try:
            await self.service.sandboxes.find(self.grant.identity, self.sandbox.id)
        except NotFound:
            raise sandbox_gone() from None
        return self.grant.identity.principal(INTERFACE)

    async def perform(self, operation: Operation, **options: Unpack[CallOptions]) -> Outcome:
        """One action of the caller; raises for a refusal."""
        principal = await self.principal()
        return raise_for_refusal(await self.sandbox.perform(principal, operation, **options))


async def open_sandbox(request: Request, *, by_traffic_token: bool = False) -> SandboxAccess:
    """The sandbox of a request to envd; raises for a wrong token or a sandbox that is gone."""
    service, state = service_of(request), state_of(request)
    token = request.headers.get("x-access-token", "")
    if by_traffic_token and not token:
        token = request.headers.get("e2b-traffic-access-token", "")
    grant = state.tokens.find(token)
    wanted = request.headers.get("e2b-sandbox-id", "")
    if grant is None or (grant.is_traffic and not by_traffic_token):
        raise SignInRefused(
            "this request bears no token of the sandbox",
            hint="Use the object that Sandbox.create() or Sandbox.connect() returned.",
            code="CW-SIGN-IN-TOKEN",
        )
    await _renew(service, grant)
    request.state.caller = Caller(grant.identity, address_of(request))
    try:
        # A token opens one sandbox, whichever the header names.
        if wanted != grant.sandbox_id:
            raise sandbox_gone()
        sandbox = await service.sandboxes.find(grant.identity, state.session_id(wanted))
    except NotFound:
        raise sandbox_gone() from None
    named_user = _user_of(request.headers.get("authorization", ""))
    return SandboxAccess(service, grant, sandbox, state.facts_of(sandbox), named_user)


def _user_of(header: str) -> str:
    """Basic authentication with a name alone, by which E2B's SDKs say who runs a program."""
    kind, _, encoded = header.partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[0]
    except ValueError:
        raise BadInput("the header Authorization names no user") from None


async def identity_of_traffic(state: State, token: str, sandbox_id: str) -> tuple[Identity, str]:
    """The account behind the traffic token of a sandbox, and its session; for ports inside."""
    service: Service = state.service
    e2b: E2bState = state.e2b
    grant = e2b.tokens.find(token)
    if grant is None or grant.sandbox_id != sandbox_id:
        raise SignInRefused(
            "this request bears no token of the sandbox",
            hint="Send sandbox.traffic_access_token in e2b-traffic-access-token.",
            code="CW-SIGN-IN-TOKEN",
        )
    await _renew(service, grant)
    return grant.identity, e2b.session_id(sandbox_id)


async def _renew(service: Service, grant: SandboxGrant) -> None:
    revision = await service.accounts.revision()
    who: Identity | None = grant.identity
    if revision != grant.revision:
        who = await service.accounts.renewed(grant.identity)
    is_expired = not grant.identity.family_id and grant.identity.expires_s <= time.time()
    if who is None or is_expired:
        raise SignInRefused(
            "the API key of this sandbox does not count any more",
            hint="Connect with a new one: Sandbox.connect(id, api_key=…).",
            code="CW-SIGN-IN-TOKEN",
        )
    grant.identity, grant.revision = who, revision
