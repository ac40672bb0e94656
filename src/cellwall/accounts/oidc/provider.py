"""An OpenID provider over HTTPS: its metadata, its keys, and the exchange of codes.

Answers are bounded in size and time, redirects are not followed, and the proxy settings of the
environment do not apply. Keys are cached; an unknown key id fetches them again, but not more often
than every half minute, or every forged token would be a request to the provider.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlsplit

import anyio
import httpx2

from cellwall.accounts import failures
from cellwall.accounts.oidc.id_tokens import ALGORITHMS
from cellwall.accounts.signing_keys import Clock

_MAX_BYTES = 256 * 1024
_DEADLINE_S = 15.0
_CACHE_S = 3600.0
_MIN_REFETCH_S = 30.0
_MAX_KEYS = 100
# Not compressed: a bomb of 64 KB would be gigabytes before they are counted.
_HEADERS = {"accept": "application/json", "accept-encoding": "identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """The provider, and us as its client."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    """None: a public client, which PKCE alone protects."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "PS256")
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"ProviderSettings({self.issuer})"  # never the secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What is used of the provider's metadata (OpenID Connect Discovery 1.0)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    sends_issuer: bool
    """Whether its redirect names the issuer (RFC 9207)."""


class Provider:
    """One provider. To be used in one event loop, and closed there."""

    def __init__(self, settings: ProviderSettings, clock: Clock) -> None:
        self.settings, self._clock = settings, clock
        self._client: httpx2.AsyncClient | None = None
        self._lock = anyio.Lock()
        self._metadata: tuple[float, Metadata] | None = None
        self._keys: tuple[float, tuple[Mapping[str, Any], ...]] | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def metadata(self) -> Metadata:
        """The provider's endpoints; raises `Busy`."""
        async with self._fetching():
            if self._metadata is None or self._clock() - self._metadata[0] >= _CACHE_S:
                url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
                found = _read_metadata(await self._request("GET", url), self.settings.issuer)
                self._metadata = self._clock(), found
            return self._metadata[1]

    async def keys(self, *, is_unknown: bool = False) -> tuple[Mapping[str, Any], ...]:
        """The public keys. `is_unknown`: the known ones lack the key of a token."""
        url = (await self.metadata()).jwks_uri
        async with self._fetching():
            age_s = _CACHE_S if self._keys is None else self._clock() - self._keys[0]
            if self._keys is None or age_s >= (_MIN_REFETCH_S if is_unknown else _CACHE_S):
                found = _read_keys(await self._request("GET", url))
                self._keys = self._clock(), found
            return self._keys[1]

    async def exchange(self, code: str, *, verifier: str, redirect_uri: str) -> str:
        """The ID token for a code; raises `SignInRefused` for a code that does not count."""
        settings = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        auth = None
        if settings.client_secret is None:
            form["client_id"] = settings.client_id
        else:  # RFC 6749, 2.3.1: encoded first
            auth = (quote_plus(settings.client_id), quote_plus(settings.client_secret))
        endpoint = (await self.metadata()).token_endpoint
        answer = await self._request("POST", endpoint, form=form, auth=auth)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise failures.bad_identity("the provider returned no ID token")
        return token

    @asynccontextmanager
    async def _fetching(self) -> AsyncIterator[None]:
        """One fetch at a time. The wait has a deadline as well: behind a provider that does not
        answer, each request would wait for all that came before."""
        try:
            with anyio.fail_after(_DEADLINE_S):
                await self._lock.acquire()
        except TimeoutError:
            raise failures.provider_failed("another request is under way") from None
        try:
            yield
        finally:
            self._lock.release()

    async def _request(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        body = bytearray()
        try:
            with anyio.fail_after(_DEADLINE_S):
                async with self._open().stream(
                    method, url, data=form, auth=auth, headers=_HEADERS
                ) as response:
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise failures.provider_failed("the answer is compressed")
                    async for chunk in response.aiter_raw():
                        body += chunk
                        if len(body) > _MAX_BYTES:
                            raise failures.provider_failed("the answer is too large")
                    status = response.status_code
            found = json.loads(bytes(body))
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, TimeoutError) as error:
            raise failures.provider_failed(type(error).__name__) from None
        except (ValueError, RecursionError):
            raise failures.provider_failed("the answer is not JSON") from None
        if method == "POST" and status in {400, 401}:
            raise failures.bad_identity(f"the provider refused the code: {status}")
        if status != httpx2.codes.OK or not isinstance(found, dict):
            raise failures.provider_failed(f"status {status}")
        return found

    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            tls = ssl.create_default_context(cafile=self.settings.ca_file)
            self._client = httpx2.AsyncClient(
                verify=tls, follow_redirects=False, timeout=_DEADLINE_S, trust_env=False
            )
        return self._client


def _read_metadata(found: Mapping[str, Any], issuer: str) -> Metadata:
    """A document of another issuer is refused: else one provider speaks for another (RFC 9207)."""
    if found.get("issuer") != issuer:
        raise failures.provider_failed("the metadata names another issuer")
    endpoints = [
        found.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
    ]
    for each in endpoints:
        if not isinstance(each, str) or not is_https(each):
            raise failures.provider_failed("an endpoint is missing or has no TLS")
    signing = found.get("id_token_signing_alg_values_supported")
    if not isinstance(signing, list) or not set(ALGORITHMS) & {str(each) for each in signing}:
        raise failures.provider_failed("the provider signs with none of our algorithms")
    authorization, token, keys = map(str, endpoints)
    return Metadata(
        authorization_endpoint=authorization,
        token_endpoint=token,
        jwks_uri=keys,
        sends_issuer=found.get("authorization_response_iss_parameter_supported") is True,
    )


def _read_keys(found: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    keys = found.get("keys")
    if not isinstance(keys, list) or len(keys) > _MAX_KEYS:
        raise failures.provider_failed("the key set is unreadable")
    return tuple(key for key in keys if isinstance(key, dict))


def is_https(url: str) -> bool:
    """Whether an address has TLS and a host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname) and parts.username is None
