"""What is kept of the questions to users after their end, and over a restart (SRV-4).

The database has who asked, the tool, the rule, the answer and the times. The text of a question
stays out of it: the audit log has it, under the key of the session (FS-5).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

import anyio

from cellwall.core.accounts import ApprovalRecord, Viewer
from cellwall.core.approvals import NOBODY, Answer, Question
from cellwall.core.errors import StorageError
from cellwall.core.messages import SessionStore
from cellwall.core.types import REMOTE_INTERFACES
from cellwall.runtime.approval_board import VIA

_RETRY_AFTER_S = 1.0
_MAX_RULE = 500
_MAX_UNSAVED = 10_000
"""While the database fails; then the oldest are dropped. The audit log has them all."""
_log = logging.getLogger("cellwall.http")


class Unanswered(StrEnum):
    """Why a question ended without an answer; each denies."""

    UNANSWERED = "unanswered"
    INTERRUPTED = "interrupted"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class _Opened:
    id: str
    asker: str
    session_id: str
    tool: str
    rule: str
    asked_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class _Ended:
    id: str
    answer: str
    answered_by: str | None
    ended_s: float


class ApprovalRecords:
    """Implements `QuestionRecords`. Questions come from any thread; the database belongs to the
    event loop of the service, so they are saved there, in their order."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._unsaved: deque[_Opened | _Ended] = deque(maxlen=_MAX_UNSAVED)
        self._saving = anyio.Lock()
        self._loop = asyncio.get_running_loop()
        self._has_come = asyncio.Event()

    def opened(self, question: Question) -> None:
        asker = question.principal
        if asker.interface not in REMOTE_INTERFACES:
            return  # of the machine's own user, who has no account
        self._add(
            _Opened(
                question.id,
                asker.name,
                question.session_id,
                question.tool,
                question.rule[:_MAX_RULE],
                question.asked_s,
                question.deadline_s,
            )
        )

    def ended(self, question: Question, final: Answer | None) -> None:
        if question.principal.interface not in REMOTE_INTERFACES:
            return
        by = None
        if final is None:
            answer: str = Unanswered.INTERRUPTED
        elif final.by == NOBODY:
            answer = Unanswered.UNANSWERED
        else:
            answer = final.kind.value
            by = final.by.name if final.via == VIA else None
        self._add(_Ended(question.id, answer, by, time.time()))

    def _add(self, event: _Opened | _Ended) -> None:
        self._unsaved.append(event)
        try:
            self._loop.call_soon_threadsafe(self._has_come.set)
        except RuntimeError:  # the service is gone; its next start ends what was open
            pass

    async def run(self) -> None:
        """Save what comes."""
        while True:
            await self._has_come.wait()
            self._has_come.clear()
            await self.save()
            if self._unsaved:  # the database failed
                await anyio.sleep(_RETRY_AFTER_S)
                self._has_come.set()

    async def save(self) -> None:
        """Save what has come so far. What the database does not take stays for later."""
        async with self._saving:
            try:
                while self._unsaved:
                    event = self._unsaved[0]
                    await self._save(event)
                    if self._unsaved and self._unsaved[0] is event:  # not dropped meanwhile
                        self._unsaved.popleft()
            except StorageError as error:
                _log.warning("questions were not stored: %s", error.code)

    async def _save(self, event: _Opened | _Ended) -> None:
        if isinstance(event, _Ended):
            by = None if event.answered_by is None else await self._user_id(event.answered_by)
            await self._store.end_approval(
                event.id, answer=event.answer, answered_by=by, now_s=event.ended_s
            )
            return
        owner_id = await self._user_id(event.asker)
        if owner_id is None:
            return  # removed meanwhile, with all records
        record = ApprovalRecord(
            id=event.id,
            session_id=event.session_id,
            owner_id=owner_id,
            asked_s=event.asked_s,
            expires_s=event.deadline_s,
            question={"by": event.asker, "tool": event.tool, "rule": event.rule},
            answer=None,
            answered_by=None,
            answered_s=None,
        )
        await self._store.add_approval(record)

    async def _user_id(self, name: str) -> str | None:
        user = await self._store.find_user_named(name)
        return None if user is None else user.id

    async def find(self, approval_id: str, viewer: Viewer) -> ApprovalRecord | None:
        """A question that has ended, or that another service waits for."""
        found = await self._store.find_approval(approval_id, seen_by=viewer)
        is_ours = found is not None and found.service_id in {"", self._store.service_id}
        return None if found is None or (found.answered_s is None and is_ours) else found

    async def list(self, viewer: Viewer, *, before: str, limit: int) -> tuple[ApprovalRecord, ...]:
        """Questions that have ended, the newest first."""
        return await self._store.list_ended_approvals(seen_by=viewer, before=before, limit=limit)

    async def names(self, user_ids: set[str]) -> dict[str, str]:
        """The names of users that still exist."""
        found = [await self._store.find_user(each) for each in sorted(user_ids)]
        return {user.id: user.name for user in found if user is not None}
