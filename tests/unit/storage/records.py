"""Records for tests; each call has an id of its own."""

from __future__ import annotations

from typing import Any

from cellwall.core.accounts import (
    ApprovalRecord,
    RefreshFamily,
    SealedKey,
    ServiceToken,
    SessionRecord,
    SignInLink,
    Team,
    User,
    Viewer,
)
from cellwall.core.ids import new_id

NOW_S = 1_800_000_000.25


def user(name: str = "ann", **more: Any) -> User:
    known = {"id": new_id("usr"), "role": "user", "password_hash": "hash", "is_disabled": False}
    return User(**{**known, "name": name, "generation": 1, "created_s": NOW_S, **more})


def team(name: str = "blue") -> Team:
    return Team(id=new_id("team"), name=name, created_s=NOW_S)


def family(user_id: str, **more: Any) -> RefreshFamily:
    known: dict[str, Any] = {"id": new_id("fam"), "audience": "https://cellwall.example"}
    known |= {"created_s": NOW_S, "expires_s": NOW_S + 100}
    return RefreshFamily(**{**known, "user_id": user_id, "is_revoked": False, **more})


def token(user_id: str, token_hash: bytes = b"t", **more: Any) -> ServiceToken:
    known = {"id": new_id("tok"), "name": "ci", "scopes": ("files:read",), "created_s": NOW_S}
    rest = {"user_id": user_id, "token_hash": token_hash, "expires_s": NOW_S + 100}
    return ServiceToken(**{**known, **rest, "is_revoked": False, **more})


def signing_key(**more: Any) -> SealedKey:
    known = {"kid": new_id("key"), "public": b"p", "sealed": b"s", "created_s": NOW_S}
    return SealedKey(**{**known, "verify_until_s": None, **more})


def link(link_hash: bytes = b"l", user_id: str | None = None, **more: Any) -> SignInLink:
    known = {"link_hash": link_hash, "user_id": user_id, "expires_s": NOW_S + 100}
    return SignInLink(**{**known, **more})


def session(owner_id: str, team_id: str | None = None) -> SessionRecord:
    about = {"profile": "production", "nested": [1, {"é": None}]}
    return SessionRecord(id=new_id("ses"), owner_id=owner_id, team_id=team_id, created_s=NOW_S,
                         ended_s=None, about=about)  # fmt: skip


def approval(owner_id: str, **more: Any) -> ApprovalRecord:
    known: dict[str, Any] = {"id": new_id("apr"), "session_id": "ses_1", "asked_s": NOW_S}
    rest = {"expires_s": NOW_S + 100, "question": {"rule": "Bash(git push)"}, "answer": None}
    none = {"answered_by": None, "answered_s": None}
    return ApprovalRecord(**{**known, **rest, **none, "owner_id": owner_id, **more})


def viewer(user_id: str, *teams: str, sees_all: bool = False) -> Viewer:
    return Viewer(user_id=user_id, teams=frozenset(teams), sees_all=sees_all)
