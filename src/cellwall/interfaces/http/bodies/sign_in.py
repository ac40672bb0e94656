"""Sign-in at an OpenID provider and by passkey; budgets."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from cellwall.interfaces.http.bodies.accounts import Name
from cellwall.interfaces.http.bodies.base import RequestBody, Seconds, examples


class SignInMethods(BaseModel):
    """How people can sign in here."""

    password: bool
    passkey: bool
    oidc: bool


class ProviderAddress(BaseModel):
    """Where the browser goes next; it comes back by itself."""

    url: str
    model_config = examples({"url": "https://login.example.com/authorize?…"})


class Confirmation(RequestBody):
    """The password of a user who has one: a stolen token alone adds no way to sign in."""

    password: str | None = Field(None, max_length=1024)
    model_config = examples({"password": "correct horse battery"})


class IdentityBody(BaseModel):
    """An identity at the provider that signs in to the caller's account."""

    issuer: str
    subject: str
    created: Seconds


class IdentityList(BaseModel):
    """The oldest first."""

    identities: list[IdentityBody]


class CeremonyBody(BaseModel):
    """Options for `navigator.credentials`, as `parseCreationOptionsFromJSON` reads them."""

    id: str = Field(description="to be sent back with the answer; works once, for ten minutes")
    options: dict[str, Any]


class NewPasskey(RequestBody):
    """The credential that the browser created, as its `toJSON()` returns it."""

    id: str = Field(max_length=256)
    name: Name
    credential: dict[str, Any]
    model_config = examples(
        {"id": "cwf_…", "name": "laptop", "credential": {"id": "…", "type": "public-key"}}
    )


class PasskeySignIn(RequestBody):
    """The answer of the browser, as its `toJSON()` returns it."""

    id: str = Field(max_length=256)
    credential: dict[str, Any]
    cookie: bool = Field(False, description="for browsers: keep the tokens in cookies")
    model_config = examples({"id": "cwf_…", "credential": {"id": "…", "type": "public-key"}})


class PasskeyBody(BaseModel):
    """A passkey of the caller."""

    id: str
    name: str
    created: Seconds
    used: Seconds | None


class PasskeyList(BaseModel):
    """The oldest first."""

    passkeys: list[PasskeyBody]


class BudgetBody(BaseModel):
    """How much of a budget is used in the current period."""

    of: str = Field(description="`user`, or the id of a team")
    resource: str
    limit: float
    used: float
    period_s: float
    resets: Seconds


class BudgetList(BaseModel):
    """The budgets of the caller and of the caller's teams."""

    budgets: list[BudgetBody]


class BudgetChange(RequestBody):
    """A budget in place of the configured one; 0 permits nothing."""

    limit: float = Field(ge=0, le=1e15, allow_inf_nan=False)
    period_s: float = Field(86_400.0, ge=60, le=366 * 86_400, allow_inf_nan=False)
    model_config = examples({"limit": 1000, "period_s": 86400})


class LiveSignIn(BaseModel):
    """A sign-in that goes on, with its tokens."""

    id: str
    created: Seconds
    expires: Seconds
    is_current: bool = Field(description="the sign-in of this request")


class LiveSignInList(BaseModel):
    """The newest first, at most 200."""

    sign_ins: list[LiveSignIn]
