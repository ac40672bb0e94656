"""What a host asks the keeper of the vault, and what the keeper answers. Pure.

A question is signed by its host. An answer is sealed for that host, in a context of the session,
the host with its incarnation, the nonce of the question and the time to live; the keeper signs
both. So an answer is of use for one question of one process, and for no other reader of the
answer: Ray, its object store, the database, another host.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cellwall.core.errors import BadInput, VaultError
from cellwall.core.ids import check_id
from cellwall.core.keys import SigningKey
from cellwall.core.notes import is_signed
from cellwall.core.types import Json
from cellwall.fleet.certificates import HostCertificate
from cellwall.fleet.identity import HostKeys
from cellwall.fleet.sealed_boxes import BadBox, open_box, seal_box

MAX_MESSAGE_BYTES = 4 << 20
MAX_NAMES = 200
MAX_TTL_S = 60.0
NONCE_BYTES = 16
_NONCE = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")
"""One spelling: the keeper remembers nonces, and a nonce in another spelling would be new."""
_QUESTION, _ANSWER = b"cellwall fleet: secret question 1\n", b"cellwall fleet: secret answer 1\n"

# What reading hostile JSON raises; a number that is no float overflows.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


class LendingRefused(VaultError):
    """A question or an answer that is forged, replayed, or not for this host."""

    default_code = "CW-FLEET-SECRETS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretQuestion:
    """What a host asks for a session that was placed on it."""

    host_id: str
    incarnation: str
    session_id: str
    """Empty: only whether the owner has secrets of these names."""
    owner_id: str
    names: tuple[str, ...]
    nonce: str
    policy: int
    """The version of the fleet's policy that the host applies; 0: none was published."""

    def signed(self, key: SigningKey) -> bytes:
        text = _canonical(asdict(self))
        return json.dumps(
            {"question": text.decode(), "signature": _encode(key.sign(_QUESTION + text))}
        ).encode()

    @classmethod
    def parse(cls, message: bytes) -> tuple[SecretQuestion, bytes]:
        """The question, and a signature that is not checked yet."""
        try:
            outer = _object(message)
            inner = _object(str(outer["question"]).encode())
            names = inner.pop("names")
            found = cls(names=tuple(map(str, names)), **inner)
            signature = _decode(outer["signature"])
            for each in (found.host_id, found.incarnation, found.session_id, found.owner_id):
                if each:
                    check_id(each)
            is_sound = (
                bool(found.host_id and found.incarnation and found.names)
                and len(found.names) <= MAX_NAMES
                and _NONCE.fullmatch(found.nonce) is not None
                and type(found.policy) is int
            )
        except (*_MALFORMED, BadInput):
            is_sound, found, signature = False, None, b""
        if not is_sound or found is None:
            raise LendingRefused("a question for secrets is malformed", hint=_VERSIONS)
        return found, signature

    def is_signed_by(self, host: HostCertificate, signature: bytes) -> bool:
        return is_signed(host.identity.raw, _QUESTION + _canonical(asdict(self)), signature)


@dataclass(frozen=True, slots=True, repr=False)
class LentSecret:
    """A value, and where it may be sent."""

    value: bytes
    grants: tuple[Mapping[str, Json], ...] = field(default=())


@dataclass(frozen=True, slots=True, repr=False)
class LentSecrets:
    """The answer, once its host has opened it."""

    secrets: Mapping[str, LentSecret]
    ttl_s: float


def seal_answer(
    question: SecretQuestion,
    secrets: Mapping[str, LentSecret],
    *,
    host: HostCertificate,
    keeper: HostKeys,
    ttl_s: float,
) -> bytes:
    """For the host of the question alone."""
    context = _context(question, keeper.host_id, ttl_s)
    plain = _canonical(
        {
            name: {"value": _encode(each.value), "grants": list(each.grants)}
            for name, each in secrets.items()
        }
    )
    box = seal_box(host.box_key, plain, context)
    signature = keeper.signing.sign(_statement(context, box))
    return json.dumps(
        {"ttl_s": ttl_s, "box": _encode(box), "signature": _encode(signature)}
    ).encode()


def refuse_answer(error: VaultError) -> bytes:
    """A refusal is not sealed: it carries no value, and a forged one denies and no more."""
    return json.dumps({"error": [error.code, error.message, error.hint]}).encode()


def open_answer(
    message: bytes, question: SecretQuestion, *, keeper: HostCertificate, own: HostKeys
) -> LentSecrets:
    """(1) the keeper has signed it for this question; (2) it opens with the key of this host, in
    the context of this question; (3) it has the names that were asked for, and a time to live."""
    if not message:
        raise LendingRefused(
            "the host that keeps the vault does not serve now",
            hint="Try again in a moment; `cellwall fleet status` shows the hosts.",
            code="CW-FLEET-KEEPER",
        )
    try:
        outer = _object(message)
        if "error" in outer:
            code, text, hint = map(str, outer["error"])
            raise VaultError(text[:500], hint=hint[:500], code=code[:40])
        ttl_s, box = float(outer["ttl_s"]), _decode(outer["box"])
        context = _context(question, keeper.host_id, ttl_s)
        statement = _statement(context, box)
        if not is_signed(keeper.identity.raw, statement, _decode(outer["signature"])):  # (1)
            raise forged_answer()
        found = _object(open_box(own.box, box, context))  # (2)
        secrets = {
            name: LentSecret(_decode(each["value"]), tuple(each["grants"]))
            for name, each in found.items()
        }
    except (*_MALFORMED, BadBox):
        raise forged_answer() from None
    if set(secrets) != set(question.names) or not 0 < ttl_s <= MAX_TTL_S:  # (3)
        raise forged_answer()
    return LentSecrets(secrets, ttl_s)


_VERSIONS = "Both hosts must run the same version of Cellwall."


def forged_answer() -> LendingRefused:
    """The keeper has not answered this question, or in a form that this version cannot read."""
    return LendingRefused(
        "the answer of the vault's keeper is not for this question, or was changed",
        hint="Try again. If it stays so, look at who can call Ray, and at `cellwall fleet verify`.",
        code="CW-FLEET-FORGED",
    )


def _context(question: SecretQuestion, keeper_id: str, ttl_s: float) -> bytes:
    return _canonical({**asdict(question), "keeper": keeper_id, "ttl_s": ttl_s})


def _statement(context: bytes, box: bytes) -> bytes:
    return _ANSWER + hashlib.sha256(context).digest() + hashlib.sha256(box).digest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    """One spelling per value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _object(message: bytes) -> dict[str, Any]:
    found = json.loads(message) if len(message) <= MAX_MESSAGE_BYTES else None
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004  # the callers map one exception
    return found


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
