"""Signatures of the approver's key under standing grants, in the folder `grants` of a state folder.

    signed.json       the signed grants
    withdrawn.json    what no longer counts: by kind, subject and content, all that was signed until
                      a moment; a withdrawal needs no passphrase, since it allows nothing

Any process of the user can write these files. So a grant is believed only by its signature, which
the process that uses the grant checks (POL-13):

(1) both files are private and whole, else nothing is believed;
(2) the approver's key has signed this kind, subject, digest, state folder, user and moment;
(3) no withdrawal of the subject is as late as the signature: an old signature that is put back does
    not count, nor does one that was hidden at the withdrawal;
(4) the moment is not in the future, where no withdrawal would reach the signature.

A live process remembers the withdrawals it has seen. A process that starts later cannot tell that
the whole folder was put back as it was before a withdrawal: a new key ends all signatures.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cellwall.audit.files import (
    closing_fd,
    locked,
    make_folder,
    open_folder,
    open_private,
    replace_file,
)
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.home import state_path
from cellwall.core.keys import SigningKey
from cellwall.core.standing_grants import GrantKind, StandingGrant
from cellwall.core.types import Json
from cellwall.runtime.approver_key import ApproverKey, approver_key, encode

_FOLDER, _SIGNED, _WITHDRAWN = "grants", "signed.json", "withdrawn.json"
_DOMAIN = b"cellwall grant 1"
_MAX_BYTES = 8 << 20
_MAX_ROWS = 8192
_MAX_WITHDRAWN = _MAX_ROWS // 2
_ANY = ""
"""As the subject of a withdrawal: every one of its kind. As the digest: every content."""
_MAX_CLOCK_ERROR_MS = 300_000
_VERSION = 1

_Moments = dict[tuple[GrantKind, str, str], int]
"""Withdrawals: until which moment, by kind, subject and digest; an empty digest is any."""


@dataclass(frozen=True, slots=True)
class SignedGrant:
    """One row of the file, whose signature may be anything."""

    grant: StandingGrant
    signed_ms: int
    signature: str

    def to_json(self) -> dict[str, Json]:
        grant = self.grant
        return {
            "kind": grant.kind.value,
            "subject": grant.subject,
            "digest": grant.digest,
            "signed_ms": self.signed_ms,
            "signature": self.signature,
        }


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The two files as read."""

    rows: tuple[SignedGrant, ...] = ()
    withdrawn: Mapping[tuple[GrantKind, str, str], int] = field(default_factory=dict)


class SignedGrants:
    """Implements `GrantsPort` for one state folder and one key."""

    def __init__(self, home: str, key: ApproverKey) -> None:
        self._home = os.path.realpath(home)
        self._path = os.path.join(self._home, _FOLDER)
        self.key = key
        self._rows: tuple[object, Mapping[StandingGrant, SignedGrant]] | None = None
        self._verified: dict[SignedGrant, bool] = {}
        self._seen: _Moments = {}

    @property
    def stamp(self) -> object:
        """A value that differs after every change of the files."""
        return tuple(
            _stamp_of(os.path.join(self._path, name)) for name in ("", _SIGNED, _WITHDRAWN)
        )

    def is_signed(self, grant: StandingGrant) -> bool:
        """Whether the grant counts now."""
        row = self._current().get(grant)
        return row is not None and self._counts(row)

    def require(self, grant: StandingGrant) -> None:
        """Raise `Denied` unless the grant is signed."""
        if not self.is_signed(grant):
            raise Denied(
                f"the approver has not signed this grant ({grant.kind.value})",
                hint="Look at it, then sign it: cellwall approvals sign",
                code="CW-UNSIGNED",
            )

    def listed(self) -> Mapping[StandingGrant, int]:
        """The grants that count, and when they were signed, in milliseconds since 1970."""
        rows = self._current().values()
        return {row.grant: row.signed_ms for row in rows if self._counts(row)}

    def sign(
        self, grants: Sequence[StandingGrant], signer: SigningKey, *, replaces: bool = False
    ) -> None:
        """Add signatures. `replaces`: all that was signed of these subjects before ends."""
        if signer.public.raw != self.key.public:
            raise BadInput("this is not the configured key of the approver", code="CW-APPROVER-KEY")
        if not grants:
            return
        with self._change() as folder:
            ledger = _read(folder)
            withdrawn = self._merged(ledger)
            rows = {each.grant: each for each in ledger.rows}
            # After every withdrawal, also where the clock was put back since.
            ends = [_withdrawn_until(grant, withdrawn) for grant in grants]
            if replaces:
                ends += [_last_of(ledger.rows, each.kind, each.subject) for each in grants]
            signed_ms = max(_now_ms(), *(until_ms + 1 for until_ms in ends))
            for grant in grants:
                if replaces:
                    withdrawn[grant.kind, grant.subject, _ANY] = signed_ms - 1
                signature = encode(signer.sign(self._text(grant, signed_ms)))
                rows[grant] = SignedGrant(grant, signed_ms, signature)
            _write(folder, [row for row in rows.values() if self._is_ours(row)], withdrawn)
            self._remember(withdrawn)

    def withdraw(self, kind: GrantKind, subject: str, *, digest: str = _ANY) -> None:
        """End all grants of this subject, or the one with this digest."""
        with self._change() as folder:
            ledger = _read(folder)
            withdrawn = self._merged(ledger)
            last_ms = _last_of(ledger.rows, kind, subject)
            key = (kind, subject, digest)
            withdrawn[key] = max(withdrawn.get(key, 0), last_ms, _now_ms())
            # Only ours: the rows of somebody else may be more than we could write.
            _write(folder, [row for row in ledger.rows if self._is_ours(row)], withdrawn)
            self._remember(withdrawn)

    def _current(self) -> Mapping[StandingGrant, SignedGrant]:
        """The rows that are not withdrawn; their signatures are checked by `_counts`."""
        stamp = self.stamp
        if self._rows is None or self._rows[0] != stamp:
            try:
                with closing_fd(open_folder(self._path)) as folder:
                    ledger = _read(folder)
            except FileNotFoundError:
                ledger = _Ledger()
            except OSError as error:
                raise _broken(str(error)) from error
            withdrawn = self._merged(ledger)
            self._verified.clear()
            self._rows = (stamp, {row.grant: row for row in _remaining(ledger.rows, withdrawn)})
        return self._rows[1]

    def _counts(self, row: SignedGrant) -> bool:
        """(2) and (4). Only what is asked for is verified: a process of the user can add rows."""
        found = self._verified.get(row)
        if found is None:
            found = self._verified[row] = self._is_ours(row)
        return found and row.signed_ms <= _now_ms() + _MAX_CLOCK_ERROR_MS

    def _is_ours(self, row: SignedGrant) -> bool:
        return self.key.has_signed(self._text(row.grant, row.signed_ms), row.signature)

    def _merged(self, ledger: _Ledger) -> _Moments:
        """The withdrawals of the file and those that this process has seen before."""
        self._remember(ledger.withdrawn)
        return dict(self._seen)

    def _remember(self, withdrawn: Mapping[tuple[GrantKind, str, str], int]) -> None:
        for key, until_ms in withdrawn.items():
            self._seen[key] = max(until_ms, self._seen.get(key, 0))
        self._seen = _bounded(self._seen)

    def _text(self, grant: StandingGrant, signed_ms: int) -> bytes:
        """The signed text. No part holds a NUL: words, a name or path, a digest, numbers."""
        parts = (self._home, str(os.geteuid()), grant.kind.value, grant.subject, grant.digest)
        encoded = (part.encode("utf-8", "surrogatepass") for part in (*parts, str(signed_ms)))
        return b"\0".join((_DOMAIN, *encoded))

    @contextmanager
    def _change(self) -> Iterator[int]:
        try:
            make_folder(self._path)
            with closing_fd(open_folder(self._path)) as folder, locked(folder):
                yield folder
        except OSError as error:
            raise _broken(str(error)) from error


def signed_grants(home: str, settings: Settings) -> SignedGrants | None:
    """The signatures that grants need; None: no key is configured, and grants need none."""
    key = approver_key(settings)
    return None if key is None else _shared(os.path.realpath(home), key)


def configured_grants(
    environ: Mapping[str, str], *, config: str | None = None, profile: str | None = None
) -> SignedGrants | None:
    """`signed_grants` of the configuration and the state folder that these variables name."""
    settings = load_settings(file=config, profile=profile, environ=environ)
    return signed_grants(state_path(environ), settings)


@lru_cache(maxsize=32)
def _shared(home: str, key: ApproverKey) -> SignedGrants:
    return SignedGrants(home, key)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _bounded(withdrawn: _Moments) -> _Moments:
    """Withdrawals that can be written: too many become one for each kind, which ends more.

    Attack: a list that is filled until no other withdrawal fits.
    """
    size = sum(len(json.dumps([subject, digest])) for _, subject, digest in withdrawn)
    if len(withdrawn) <= _MAX_WITHDRAWN and size <= _MAX_BYTES // 4:
        return withdrawn
    joined: _Moments = {}
    for (kind, _, _), until_ms in withdrawn.items():
        joined[kind, _ANY, _ANY] = max(until_ms, joined.get((kind, _ANY, _ANY), 0))
    return joined


def _reaching(grant: StandingGrant) -> tuple[str, ...]:
    """The subjects whose withdrawal ends the grant."""
    server = grant.subject.partition("/")[0] if grant.kind is GrantKind.MCP else grant.subject
    return (_ANY, server, grant.subject)


def _withdrawn_until(grant: StandingGrant, withdrawn: Mapping[Any, int]) -> int:
    keys = ((subject, digest) for subject in _reaching(grant) for digest in (_ANY, grant.digest))
    return max(withdrawn.get((grant.kind, *key), 0) for key in keys)


def _last_of(rows: Iterable[SignedGrant], kind: GrantKind, subject: str) -> int:
    """The latest moment of a signature that can count; 0 without one. A moment in the far future is
    no signature, and must not end later ones."""
    latest_ms = _now_ms() + _MAX_CLOCK_ERROR_MS
    return max(
        (
            min(row.signed_ms, latest_ms)
            for row in rows
            if row.grant.kind is kind and subject in _reaching(row.grant)
        ),
        default=0,
    )


def _remaining(rows: Iterable[SignedGrant], withdrawn: Mapping[Any, int]) -> Iterator[SignedGrant]:
    return (row for row in rows if row.signed_ms > _withdrawn_until(row.grant, withdrawn))


def _stamp_of(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    # Attack: the modification time can be set back; the time of the change cannot.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _read(folder: int) -> _Ledger:
    """Both files; raises for one that is malformed, and for grants without withdrawals."""
    # Grants first: a withdrawal between the two reads makes the result stricter, not wider.
    signed, withdrawn = (_read_rows(name, folder) for name in (_SIGNED, _WITHDRAWN))
    if signed is not None and withdrawn is None:  # withdrawals are written first
        raise _broken("the withdrawals are missing")
    try:
        rows = tuple(_row(each) for each in signed or ())
        moments = {
            (GrantKind(each["kind"]), _text_in(each, "subject"), _text_in(each, "digest")): _ms(
                each["until_ms"]
            )
            for each in withdrawn or ()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(str(error)) from None
    if any(until_ms > _now_ms() + _MAX_CLOCK_ERROR_MS for until_ms in moments.values()):
        raise _broken("a withdrawal in the future")  # it would end every later signature
    return _Ledger(rows, moments)


def _read_rows(name: str, folder: int) -> list[Any] | None:
    try:
        with closing_fd(open_private(name, os.O_RDONLY, folder)) as file:
            raw = os.pread(file, _MAX_BYTES + 1, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _broken(str(error)) from error
    try:
        found = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise _broken(f"{name} is malformed")
    rows = found.get("rows")
    if not isinstance(rows, list) or len(rows) > _MAX_ROWS:
        raise _broken(f"{name} is malformed")
    return rows


def _row(found: Any) -> SignedGrant:  # noqa: ANN401  # of a file that anything may have written
    grant = StandingGrant(
        GrantKind(found["kind"]), _text_in(found, "subject"), _text_in(found, "digest")
    )
    return SignedGrant(grant, _ms(found["signed_ms"]), _text_in(found, "signature"))


def _text_in(found: Any, key: str) -> str:  # noqa: ANN401  # as above
    text = found[key]
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"{key} is no text")
    return text


def _ms(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError("no moment")
    return value


def _write(folder: int, rows: Iterable[SignedGrant], withdrawn: _Moments) -> None:
    moments: list[Json] = [
        {"kind": kind.value, "subject": subject, "digest": digest, "until_ms": until_ms}
        for (kind, subject, digest), until_ms in withdrawn.items()
    ]
    signed: list[Json] = [row.to_json() for row in _remaining(rows, withdrawn)]
    # Withdrawals first: a crash in between leaves fewer grants, not more.
    for name, listed in ((_WITHDRAWN, moments), (_SIGNED, signed)):
        text = json.dumps({"version": _VERSION, "rows": listed}, indent=1)
        if len(listed) > _MAX_ROWS or len(text) > _MAX_BYTES:
            raise CellwallError(
                "there are too many signed or withdrawn grants",
                hint="Create a new key with `cellwall approvals key`, remove the folder `grants` "
                "in the state folder, and sign anew: cellwall approvals sign",
                code="CW-GRANTS-FULL",
            )
        replace_file(name, text.encode("ascii") + b"\n", folder)


def _broken(detail: str) -> CellwallError:
    return CellwallError(
        "the signed grants are damaged or open to other users, so none counts",
        hint="Create a new key with `cellwall approvals key`, since an old signature may be put "
        "back; remove the folder `grants` in the state folder; then: cellwall approvals sign",
        code="CW-GRANTS-BROKEN",
        detail=detail,
    )
