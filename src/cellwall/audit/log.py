"""The log: each event is on the disk before `write` returns (AUD-1, AUD-3).

Many threads, and many tasks, share one flush: whoever comes first writes for all who wait by then.
All processes of a user share one log; see writer.py.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

import anyio

from cellwall.audit import files
from cellwall.audit.encoding import MAX_FIELD_BYTES, RecordDraft, is_short
from cellwall.audit.files import LogSettings, io_failure
from cellwall.audit.notary import Notary
from cellwall.audit.verify import VerifyReport, verify
from cellwall.audit.writer import Writer
from cellwall.core.errors import AuditFailed, ConfigError
from cellwall.core.events import Event
from cellwall.core.types import Json

Redact = Callable[[Mapping[str, Json]], dict[str, Json]]

_MIN_FIELD_BYTES = 64
_MAX_BATCH = 4096
_WRITE_TIMEOUT_S = 2 * files.LOCK_TIMEOUT_S
_INTERRUPTED = io_failure(OSError(errno.EINTR, "interrupted"))


class _PendingDraft(RecordDraft):
    """A draft, and whoever waits for it."""

    __slots__ = ("error", "is_done", "is_next", "wakeup")

    def __init__(self, event: Event, max_field_bytes: int) -> None:
        super().__init__(event, max_field_bytes)
        self.is_done = self.is_next = False
        self.error: AuditFailed | None = _INTERRUPTED  # until it is known to be on the disk
        self.wakeup = threading.Lock()
        """Let go of when it is done, or when it is this one's turn to write for all."""

    def outcome(self) -> str:
        error = self.error
        if error is not None:  # one of its own for each: several threads may raise it
            told = {"hint": error.hint, "code": error.code, "detail": error.detail}
            raise AuditFailed(error.message, **told)
        return self.id


class _WriterQueue:
    """The threads that wait, in the order in which they came; one of them writes."""

    def __init__(self) -> None:
        self.waiting: list[_PendingDraft] = []
        self._has_writer = False
        self.has_next_writer = False
        """Somebody knows that it is their turn, and has not begun."""

    def join(self, draft: _PendingDraft) -> None:
        """Whoever finds nobody writing is the next one to."""
        self.waiting.append(draft)
        draft.is_next = not self._has_writer
        self._has_writer = True
        self.has_next_writer = self.has_next_writer or draft.is_next

    def batch(self) -> list[_PendingDraft]:
        batch, self.waiting = self.waiting[:_MAX_BATCH], self.waiting[_MAX_BATCH:]
        return batch

    def wake_next(self) -> None:
        """To whoever writes the next batch."""
        self._has_writer = self.has_next_writer = bool(self.waiting)
        if self.waiting:
            self.waiting[0].is_next = True
            if self.waiting[0].wakeup.locked():
                self.waiting[0].wakeup.release()


class _LoopBatcher:
    """Those of one event loop. What they have written since the last flush began goes together.

    Nothing here is awaited by a task that could be cancelled: the loop itself starts the next
    batch when the thread has written the one before. Each task waits for a future of its own, so
    that its cancellation is nobody else's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: AuditLog) -> None:
        self._loop = loop
        self._log = weakref.ref(log)
        self._is_writing = False
        self._waiting: list[tuple[_PendingDraft, asyncio.Future[None]]] = []

    def join(self, draft: _PendingDraft) -> asyncio.Future[None]:
        """What tells when it is written, or why not."""
        done = self._loop.create_future()
        self._waiting.append((draft, done))
        if not self._is_writing:
            self._write()
        return done

    def _write(self) -> None:
        log = self._log()
        if not self._waiting or log is None:
            return
        batch, self._waiting = self._waiting, []
        self._is_writing = True

        def finish(_: object) -> None:
            self._is_writing = False
            for _draft, done in batch:
                if not done.done():
                    done.set_result(None)
            self._write()

        drafts = [draft for draft, _ in batch]
        try:
            self._loop.run_in_executor(log.executor(), log.commit, drafts).add_done_callback(finish)
        except RuntimeError:  # no thread can be had: the drafts say that nothing was written
            finish(None)


_BATCHERS: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakKeyDictionary[AuditLog, _LoopBatcher]
] = weakref.WeakKeyDictionary()


class AuditLog:
    """Appends events to the record; keeps `AuditPort`. Safe for threads, processes and forks."""

    def __init__(self, directory: str, settings: LogSettings) -> None:
        if not _MIN_FIELD_BYTES <= settings.max_field_bytes <= MAX_FIELD_BYTES:
            raise ConfigError(
                f"a field of the audit log is from {_MIN_FIELD_BYTES} to "
                f"{MAX_FIELD_BYTES} bytes long"
            )
        self._directory = os.path.abspath(directory)
        self._settings = settings
        self._redact: Redact | None = None
        self.notary = Notary(self._directory, settings, self.write)
        self._writer = Writer(self._directory, settings, self.notary.signed_size)
        self._reset()
        _LOGS.add(self)

    def _reset(self) -> None:
        self._write_lock, self._queue_lock = threading.Lock(), threading.Lock()
        self._threads = _WriterQueue()
        self._executor: ThreadPoolExecutor | None = None

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        max_field_bytes: int = 4096,
        settings: LogSettings | None = None,
    ) -> AuditLog:
        """Open or begin the log in a directory and hint what a crash left (AUD-3)."""
        log = cls(directory, settings or LogSettings(max_field_bytes=max_field_bytes))
        try:
            with log._write_lock:
                is_new = log._writer.open(log.notary.first_record_body)
            if is_new or not log.notary.has_checkpoints():
                log.notary.sign_now(timeout_s=files.LOCK_TIMEOUT_S)
        except BaseException:
            log.close()
            raise
        return log

    def close(self) -> None:
        """Sign what was written, then let go; a later write fails."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        self.notary.close()
        with self._write_lock:
            self._writer.close()

    def release_preallocation(self) -> None:
        """At the end of a process that does not close it; not while another thread writes."""
        if self._write_lock.acquire(blocking=False):
            try:
                self._writer.release_preallocation()
            finally:
                self._write_lock.release()

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
        """Check the whole log with the key of this user; see `cellwall.audit.verify.verify`."""
        return verify(self._directory, self.notary.trusted_keys())

    def seal(self) -> None:
        """End the growing segment now, sign it, and begin the next one."""
        with self._write_lock:
            self._writer.seal()
        self.notary.sign_now(timeout_s=files.LOCK_TIMEOUT_S)

    def redact_with(self, redact: Redact) -> None:
        """Have bodies pass through this first: it knows values that have no shape of their own."""
        self._redact = redact

    def _redact_event(self, event: Event) -> Event:
        return event if self._redact is None else replace(event, body=self._redact(event.body))

    # --- threads

    def write(self, event: Event) -> str:
        """Append an event and return its id once it is on the disk; else raise `AuditFailed`."""
        if self._redact is not None:
            event = self._redact_event(event)
        if not self._threads.waiting and self._write_lock.acquire(blocking=False):
            try:  # nobody else writes: the line would cost more than the record
                lone = RecordDraft(event, self._settings.max_field_bytes)
                if self.notary.failure is not None:
                    raise self.notary.failure
                self.notary.note_written(self._writer.commit((lone,)))
                return lone.id
            finally:
                self._write_lock.release()
        draft = _PendingDraft(event, self._settings.max_field_bytes)
        draft.wakeup.acquire()
        try:
            with self._queue_lock:
                self._threads.join(draft)
            if not draft.is_next:
                self._wait_for_turn(draft)
            if not draft.is_done:
                self._write_queued()
        except BaseException:  # Ctrl-C at any moment: nobody else is to wait for us
            self._abandon(draft)
            raise
        return draft.outcome()

    def _abandon(self, draft: _PendingDraft) -> None:
        """Interrupted: if it was its turn, or it had just ended, it is the next one's."""
        with self._queue_lock:
            is_waiting = draft in self._threads.waiting
            if is_waiting:
                self._threads.waiting.remove(draft)
            if draft.is_next and (is_waiting or not self._threads.has_next_writer):
                self._threads.wake_next()

    def _wait_for_turn(self, draft: _PendingDraft) -> None:
        if draft.wakeup.acquire(timeout=_WRITE_TIMEOUT_S):
            return
        with self._queue_lock:
            if draft.is_done or draft.is_next:
                return
            if draft in self._threads.waiting:
                self._threads.waiting.remove(draft)
        # Or it is being written at this moment, and somebody was very slow: it may be in the log.
        raise io_failure(TimeoutError(errno.ETIMEDOUT, "the log stayed locked"))

    def _write_queued(self) -> None:
        with self._queue_lock:
            self._threads.has_next_writer = False
            batch = self._threads.batch()
        try:
            self.commit(batch)
        finally:
            for draft in batch:
                if draft.wakeup.locked():
                    draft.wakeup.release()
            with self._queue_lock:
                self._threads.wake_next()

    def commit(self, batch: Sequence[_PendingDraft]) -> None:
        """Write a batch; each draft knows afterwards what became of it."""
        problem: AuditFailed | None = _INTERRUPTED
        try:
            if not self._write_lock.acquire(timeout=_WRITE_TIMEOUT_S):
                raise io_failure(TimeoutError(errno.ETIMEDOUT, "the log stayed locked"))
            try:
                if self.notary.failure is not None:
                    raise self.notary.failure
                self.notary.note_written(self._writer.commit(batch))
            finally:
                self._write_lock.release()
            problem = None
        except AuditFailed as error:
            problem = error
        finally:
            for draft in batch:
                draft.error, draft.is_done = problem, True

    # --- tasks

    async def record(self, event: Event) -> str:
        """The same for a task that is not alone: the others go on, and share the flush.

        A task that is cancelled meanwhile does not learn whether it was written; the others do.
        """
        draft = await self._make_draft(event)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another kind of event loop
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.commit, [draft])
            return draft.outcome()
        try:
            tasks = _BATCHERS[loop][self]
        except KeyError:
            of_loop = _BATCHERS.setdefault(loop, weakref.WeakKeyDictionary())
            tasks = of_loop.setdefault(self, _LoopBatcher(loop, self))
        await tasks.join(draft)
        return draft.outcome()

    async def _make_draft(self, event: Event) -> _PendingDraft:
        """A long body is looked through for credentials in a thread: the others go on (GRD-11)."""

        def draft() -> _PendingDraft:
            return _PendingDraft(self._redact_event(event), self._settings.max_field_bytes)

        if is_short(event.body):
            return draft()
        return await anyio.to_thread.run_sync(draft)

    def executor(self) -> ThreadPoolExecutor:
        """Of its own: what else the embedding program does in threads must not hold it up."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cellwall-audit")
        return self._executor

    def reset_after_fork(self) -> None:
        """After a fork: our locks may be held by threads that are not here."""
        self._reset()
        _BATCHERS.clear()
        self.notary.reset_after_fork()
        self._writer.reset_after_fork()


_LOGS: weakref.WeakSet[AuditLog] = weakref.WeakSet()


def _after_fork() -> None:
    for log in _LOGS:
        log.reset_after_fork()


def _at_exit() -> None:
    for log in list(_LOGS):
        # Whoever presses Ctrl-C again and again means us too: the next process signs.
        with suppress(KeyboardInterrupt):
            log.notary.close()
            log.release_preallocation()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
