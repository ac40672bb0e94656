"""Browsers that are signed in: their cookies, the renewal of a sign-in, and the tokens of forms.

The cookies are those of `/v1/auth`: an access token for a few minutes, sent to every page, and a
refresh token, sent to `/v1/auth` alone. A page whose access token has expired sends the browser to
`/v1/auth/renew`, which exchanges the refresh token and sends the browser back; a form is sent again
by the browser itself (307). So no page needs a script to stay signed in.

Each form carries a token that only a page of this service knows: the hash of a random cookie and of
the sign-in. A page of another port of the same host could set the cookie, but cannot know the
sign-in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.core.errors import BadInput, Denied, SignInRefused
from cellwall.core.types import Permission
from cellwall.interfaces.http.callers import (
    Caller,
    address_of,
    authenticate,
    may,
)
from cellwall.interfaces.http.cookies import ACCESS_COOKIE, FORM_COOKIE
from cellwall.interfaces.http.gate import MAX_UNKNOWN_BYTES
from cellwall.interfaces.http.service import CurrentService, Service

SIGN_IN = "/ui/sign-in"
RENEW = "/v1/auth/renew"
FORM_FIELD = "form_token"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_MAX_FIELDS = 2000
_OWN_PAGE = re.compile(r"/(?:ui/[A-Za-z0-9_./-]{0,200})?(?:\?[\x21-\x7e]{0,2000})?")


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A person in a browser."""

    service: Service
    caller: Caller
    form_token: str

    @property
    def name(self) -> str:
        return self.caller.identity.name

    def may(self, permission: Permission) -> bool:
        """Whether the person's role holds the permission."""
        return may(self.service, self.caller, permission)

    @property
    def sees_all(self) -> bool:
        """Whether the person may read the records of others."""
        return self.may(Permission.AUDIT_READ)

    def hide(self, text: str) -> str:
        """The text without paths of the host."""
        return self.service.paths.hide_in(text)


@dataclass(frozen=True, slots=True)
class SentForm:
    """The fields of a form."""

    fields: Mapping[str, Sequence[str]]

    def text(self, name: str) -> str:
        """The last value of a field; empty where the form has none."""
        return (self.fields.get(name) or ("",))[-1]

    def all(self, name: str) -> Sequence[str]:
        """Every value of a field."""
        return self.fields.get(name, ())


async def current_browser(request: Request, service: CurrentService) -> BrowserSession:
    """The person of this request; raises `SignInRefused`, or `Denied` for a forged form."""
    token = ACCESS_COOKIE.read(request, service)
    if not token:
        raise SignInRefused("nobody is signed in", hint="Sign in.", code="CW-SIGN-IN-MISSING")
    address = address_of(request)
    identity = await authenticate(service, token, address=address)
    caller = Caller(identity, address, is_by_cookie=True)
    request.state.caller = caller  # for the record of a refusal
    expected = form_token(request, service, identity.family_id)
    request.state.browser = BrowserSession(service, caller, expected)
    if request.method not in _SAFE_METHODS:
        await check_form(request, expected)
    found: BrowserSession = request.state.browser
    return found


async def read_form(request: Request) -> SentForm:
    """The form of a request, which a browser encodes by itself."""
    if getattr(request.state, "form", None) is None:
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_UNKNOWN_BYTES:
            raise BadInput(
                f"a form has at most {MAX_UNKNOWN_BYTES // 1024} KiB",
                hint="Send less at once, or use the API.",
                code="CW-TOO-LARGE",
            )
        try:
            text = (await request.body()).decode("utf-8")
            pairs = parse_qsl(
                text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
            )
        except ValueError:
            raise BadInput("the form is malformed", hint="Load the page again.") from None
        fields: dict[str, list[str]] = {}
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        request.state.form = SentForm(fields)
    found: SentForm = request.state.form
    return found


async def check_form(request: Request, expected: str) -> None:
    """Raise `Denied` unless a page of this service sent the form."""
    sent = (await read_form(request)).text(FORM_FIELD)
    if not hmac.compare_digest(sent.encode(), expected.encode()):
        raise Denied(
            "the form was not sent by a page of this sign-in",
            hint="Load the page again, then send the form.",
            code="CW-CSRF",
        )


def form_token(request: Request, service: Service, family_id: str) -> str:
    """The token that forms of this browser carry; makes the cookie of a new browser."""
    cookie = FORM_COOKIE.read(request, service)
    if not 20 <= len(cookie) <= 100:
        cookie = getattr(request.state, "new_form_cookie", "") or secrets.token_urlsafe(24)
        request.state.new_form_cookie = cookie
    digest = hashlib.sha256(f"cellwall form\0{cookie}\0{family_id}".encode()).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def keep_form_cookie(request: Request, response: Response, service: Service) -> None:
    """Set the cookie that `form_token` made for this request, if it made one."""
    made = getattr(request.state, "new_form_cookie", "")
    if made:
        FORM_COOKIE.put(response, service, made)


def own_page(text: str) -> str:
    """The address of a page of this service; that of the first page for any other text.

    Attack: a sign-in link of another site that names the page to go to afterwards.
    """
    is_own = _OWN_PAGE.fullmatch(text) and "//" not in text
    # A browser resolves `..` before it asks: `/ui/../v1` is no page.
    return text if is_own and ".." not in text.partition("?")[0] else "/"


def page_of(request: Request) -> str:
    """The address of the requested page, with its query."""
    query = request.url.query
    return own_page(request.url.path + (f"?{query}" if query else ""))


def page_before(request: Request) -> str:
    """The page that sent the browser here, for the way back after a form."""
    parts = urlsplit(request.headers.get("referer", ""))
    if parts.netloc != request.headers.get("host"):
        return "/"
    return own_page(parts.path + (f"?{parts.query}" if parts.query else ""))


def renewal(request: Request) -> RedirectResponse:
    """Where a browser goes whose access token does not count: it keeps method and body."""
    status = 303 if request.method in _SAFE_METHODS else 307
    return RedirectResponse(f"{RENEW}?next={quote(page_of(request), safe='')}", status_code=status)


CurrentBrowser = Annotated[BrowserSession, Depends(current_browser)]
CurrentForm = Annotated[SentForm, Depends(read_form)]
