"""The log: each event is on the disk before `write` returns (AUD-1, AUD-3).

Many threads, and many tasks, share one flush: whoever comes first writes for all who wait by then.
All processes of a user share one log; see writer.py.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType

import anyio
from anyio.lowlevel import RunVar

from holdfast.audit import files
from holdfast.audit.bodies import MAX_FIELD_BYTES
from holdfast.audit.failures import failed
from holdfast.audit.notary import Notary
from holdfast.audit.settings import LogSettings
from holdfast.audit.verify import VerifyReport, verify
from holdfast.audit.writer import Draft, Writer
from holdfast.core.errors import AuditFailed, ConfigError
from holdfast.core.events import Event

_LEAST_FIELD_BYTES = 64
_MOST_BATCH = 4096
_PATIENCE_S = 2 * files.LOCK_TIMEOUT_S
_INTERRUPTED = failed(OSError(errno.EINTR, "interrupted"))


class _Waiting(Draft):
    """A draft, and whoever waits for it."""

    __slots__ = ("error", "is_done", "is_next", "news")

    def __init__(self, event: Event, max_field_bytes: int) -> None:
        super().__init__(event, max_field_bytes)
        self.is_done = self.is_next = False
        self.error: AuditFailed | None = None
        self.news: threading.Lock | None = None
        """Let go of when it is done, or when it is this one's turn to write for all."""

    def outcome(self) -> str:
        if self.error is not None:
            raise self.error
        return self.fields["id"]


class _Line:
    """The threads that wait, in the order in which they came; one of them writes."""

    __slots__ = ("has_writer", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.has_writer = False

    def join(self, draft: _Waiting) -> bool:
        """True: it is this one's turn to write."""
        self.waiting.append(draft)
        is_first, self.has_writer = not self.has_writer, True
        return is_first

    def batch(self) -> list[_Waiting]:
        batch, self.waiting = self.waiting[:_MOST_BATCH], self.waiting[_MOST_BATCH:]
        return batch

    def next(self) -> _Waiting | None:
        """Who writes after this batch."""
        self.has_writer = bool(self.waiting)
        if not self.waiting:
            return None
        self.waiting[0].is_next = True
        return self.waiting[0]


class _Batch:
    """What the tasks of one event loop have written since the last flush began."""

    __slots__ = ("done", "drafts")

    def __init__(self) -> None:
        self.drafts: list[_Waiting] = []
        self.done = anyio.Event()


class _Tasks:
    """Of one event loop."""

    __slots__ = ("last", "open")

    def __init__(self) -> None:
        self.open = _Batch()
        self.last = anyio.Event()
        self.last.set()


_OF_LOOP: RunVar[weakref.WeakKeyDictionary[AuditLog, _Tasks] | None] = RunVar("holdfast-audit")


class AuditLog:
    """Appends events to the record; keeps `AuditPort`. Safe for threads, processes and forks."""

    def __init__(self, directory: str, settings: LogSettings) -> None:
        if not _LEAST_FIELD_BYTES <= settings.max_field_bytes <= MAX_FIELD_BYTES:
            raise ConfigError(
                f"a field of the audit log is from {_LEAST_FIELD_BYTES} to "
                f"{MAX_FIELD_BYTES} bytes long"
            )
        self._directory = os.path.abspath(directory)
        self._settings = settings
        self.notary = Notary(self._directory, settings, self.write)
        self._writer = Writer(self._directory, settings, self.notary.signed_size)
        self._reset()
        _LOGS.add(self)

    def _reset(self) -> None:
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._threads = _Line()

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        max_field_bytes: int = 4096,
        settings: LogSettings | None = None,
    ) -> AuditLog:
        """Open or begin the log in a directory and mend what a crash left (AUD-3)."""
        log = cls(directory, settings or LogSettings(max_field_bytes=max_field_bytes))
        try:
            with log._turn:
                is_new = log._writer.open(log.notary.introduction)
            if is_new or not log.notary.has_begun():
                log.notary.attend(timeout_s=files.LOCK_TIMEOUT_S)
        except BaseException:
            log.close()
            raise
        return log

    def close(self) -> None:
        """Sign what was written, then let go; a later write fails."""
        self.notary.close()
        with self._turn:
            self._writer.close()

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def verify(self) -> VerifyReport:
        """Check the whole log with the key of this user; see `holdfast.audit.verify.verify`."""
        return verify(self._directory, self.notary.trusted_keys())

    def seal(self) -> None:
        """End the growing segment now, sign it, and begin the next one."""
        with self._turn:
            self._writer.seal()
        self.notary.attend(timeout_s=files.LOCK_TIMEOUT_S)

    # --- threads

    def write(self, event: Event) -> str:
        """Append an event and return its id once it is on the disk; else raise `AuditFailed`."""
        draft = _Waiting(event, self._settings.max_field_bytes)
        with self._guard:
            is_writer = self._threads.join(draft)
            if not is_writer:
                draft.news = threading.Lock()
                draft.news.acquire()
            else:
                draft.is_next = True
        try:
            if not is_writer:
                self._wait_for_news(draft)
            if not draft.is_done:
                self._write_for_threads()
        except BaseException:
            self._leave(draft)
            raise
        return draft.outcome()

    def _leave(self, draft: _Waiting) -> None:
        """Interrupted while it waited: if it was its turn, it is the next one's."""
        following = None
        with self._guard:
            if draft in self._threads.waiting:
                self._threads.waiting.remove(draft)
                following = self._threads.next() if draft.is_next else None
        if following is not None and following.news is not None:
            following.news.release()

    def _wait_for_news(self, draft: _Waiting) -> None:
        news = draft.news
        assert news is not None  # noqa: S101  # made by `write`
        if news.acquire(timeout=_PATIENCE_S):
            return
        with self._guard:
            if draft in self._threads.waiting and not draft.is_next:
                self._threads.waiting.remove(draft)
                raise failed(TimeoutError(errno.ETIMEDOUT, "the log stayed locked"))
        news.acquire()  # it is being written, or has just got the turn

    def _write_for_threads(self) -> None:
        with self._guard:
            batch = self._threads.batch()
        try:
            self._commit(batch)
        finally:
            with self._guard:
                following = self._threads.next()
                if following is not None:
                    batch.append(following)
            for draft in batch:
                if draft.news is not None:
                    draft.news.release()

    def _commit(self, batch: Sequence[_Waiting]) -> None:
        problem: AuditFailed | None = _INTERRUPTED
        try:
            if not self._turn.acquire(timeout=_PATIENCE_S):
                raise failed(TimeoutError(errno.ETIMEDOUT, "the log stayed locked"))
            try:
                if self.notary.trouble is not None:
                    raise self.notary.trouble
                self._writer.commit(batch)
            finally:
                self._turn.release()
            problem = None
        except AuditFailed as error:
            problem = error
        finally:
            for draft in batch:
                draft.error, draft.is_done = problem, True
        if problem is None:
            self.notary.noticed(len(batch))

    # --- tasks

    async def record(self, event: Event) -> str:
        """The same for a task that is not alone: the others go on, and share the flush."""
        of_loop = _OF_LOOP.get(None)
        if of_loop is None:
            _OF_LOOP.set(of_loop := weakref.WeakKeyDictionary())
        tasks = of_loop.setdefault(self, _Tasks())
        draft, batch = _Waiting(event, self._settings.max_field_bytes), tasks.open
        batch.drafts.append(draft)
        if len(batch.drafts) > 1:
            await batch.done.wait()
            return draft.outcome()
        # The first of a batch writes it, as soon as the one before it is written. Others wait for
        # it, so it does not give up on the way.
        before, tasks.last = tasks.last, batch.done
        with anyio.CancelScope(shield=True):
            await before.wait()
            tasks.open = _Batch()
            try:
                await anyio.to_thread.run_sync(self._commit, batch.drafts)
            finally:
                batch.done.set()
        return draft.outcome()

    def forget_parent(self) -> None:
        """After a fork: our locks may be held by threads that are not here."""
        self._reset()
        self.notary.forget_parent()
        self._writer.forget_parent()


_LOGS: weakref.WeakSet[AuditLog] = weakref.WeakSet()


def _after_fork() -> None:
    for log in _LOGS:
        log.forget_parent()


def _at_exit() -> None:
    for log in list(_LOGS):
        log.notary.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
