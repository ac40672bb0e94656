"""A pod proves itself to the fleet by a token of its service account, which works once.

The kubelet makes the token for one pod, for the audience of the fleet alone and for minutes, and
renews it. The cluster says whether it is genuine and whose it is (TokenReview, which also refuses
the token of a pod that was deleted).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput, Denied
from cellwall.fleet.kubernetes_api import (
    Conflict,
    KubernetesApi,
    KubernetesFailed,
    Missing,
    WatchExpired,
)

AUDIENCE = "cellwall-fleet"
MAX_POD_TOKEN_CHARACTERS = 16 * 1024
_EXTRA = "authentication.kubernetes.io/pod-"
_FORM = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+", re.ASCII)
_CONTEXT = b"cellwall fleet: token of a pod\n"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PodToken:
    """A token as both ends read it. The secret is a hash: the database makes it single-use."""

    text: str
    secret: bytes
    expires_s: int

    @classmethod
    def parse(cls, text: str) -> PodToken:
        """Verifies nothing; raises `BadInput` for what is no token."""
        text, claims, expires_s = text.strip(), b"", 0
        found = _FORM.fullmatch(text) if len(text) <= MAX_POD_TOKEN_CHARACTERS else None
        if found is not None:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                claims = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))
                expires_s = json.loads(claims)["exp"]
        if type(expires_s) is not int or not 0 < expires_s < 1 << 62:
            raise BadInput(
                "this is no token of a service account",
                hint="Mount a projected volume with a serviceAccountToken, as deploy/kubernetes "
                "does.",
                code="CW-FLEET-TOKEN",
            )
        # Of what the cluster has signed, not of the text: base64 has several forms of the same
        # bytes (RFC 4648, 3.5), so that a used token could come again in another form.
        digest = hashlib.sha256(_CONTEXT + claims).digest()
        return cls(text=text, secret=digest, expires_s=expires_s)


class PodReviewer:
    """Asks the cluster whose token it is."""

    def __init__(self, api: KubernetesApi, *, namespace: str, account: str) -> None:
        self._api = api
        self._user = f"system:serviceaccount:{namespace}:{account}"

    async def review(self, token: PodToken) -> str:
        """The name of the pod. Raises `Denied` for a token of anybody else than a living pod with
        the account of the hosts."""
        try:
            status = await self._api.review_token(token.text, audience=AUDIENCE)
        except (KubernetesFailed, Missing, Conflict, WatchExpired) as error:
            # The pod learns no more than that; the front's log names the reason.
            raise Denied(
                "the first host cannot ask the cluster about tokens",
                hint="Its service account needs `create` on tokenreviews, as in deploy/kubernetes.",
                code="CW-FLEET-TOKEN",
                detail=repr(error),
            ) from None
        user = _mapping(status.get("user"))
        extra = _mapping(user.get("extra"))
        pod, uid = _only(extra.get(f"{_EXTRA}name")), _only(extra.get(f"{_EXTRA}uid"))
        audiences = status.get("audiences")
        is_host = (
            status.get("authenticated") is True
            and not status.get("error")
            # A cluster that ignores audiences would pass a token for its own API (KEP-1205).
            and isinstance(audiences, list)
            and AUDIENCE in audiences
            and user.get("username") == self._user
            and pod
            and uid
        )
        if not is_host:
            raise Denied(
                "the cluster does not know this as the token of a pod of the fleet",
                hint="Check host_account and namespace in [kubernetes], and the audience of the "
                f"projected token, which is {AUDIENCE}.",
                code="CW-FLEET-TOKEN",
            )
        return f"{pod}/{uid}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _only(values: object) -> str:
    """Each of the cluster's extra fields is a list."""
    is_one = isinstance(values, list) and len(values) == 1 and isinstance(values[0], str)
    return values[0] if is_one else ""  # type: ignore[index]  # a list of one text
