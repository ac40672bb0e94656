"""The audit log: each event is durable before `write` returns (AUD-1, AUD-3).

Threads and tasks share flushes: the first one writes a batch for all that wait by then. All
processes of a user share one log; see writer.py.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Protocol

import anyio

from cellwall.audit import files
from cellwall.audit.encoding import MAX_FIELD_BYTES, RecordDraft, encode_short
from cellwall.audit.files import LogSettings, io_failure
from cellwall.audit.notary import Notary
from cellwall.audit.verify import VerifyReport, verify
from cellwall.audit.write_queue import INTERRUPTED, PendingDraft, WriterQueue
from cellwall.audit.writer import Writer
from cellwall.core.errors import AuditFailed, ConfigError
from cellwall.core.forks import call_in_child
from cellwall.core.outcomes import Event
from cellwall.core.ports import SessionKeysPort
from cellwall.core.types import Json

Redact = Callable[[dict[str, Json]], dict[str, Json]]


class Observe(Protocol):
    """Learns of each event and of the time until it was durable; must not raise or write."""

    def __call__(self, event: Event, seconds: float, *, is_written: bool) -> None: ...


_MIN_FIELD_BYTES = 64
_WRITE_TIMEOUT_S = 2 * files.LOCK_TIMEOUT_S


class _LoopBatcher:
    """Batches the records of one event loop: all drafts since the last flush began are written
    together.

    Nothing here is awaited by a task that could be cancelled: the loop itself starts the next batch
    when the thread has written the previous one. Each task waits for its own future, so cancelling
    one task does not affect another.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: AuditLog) -> None:
        self._loop = loop
        self._log = weakref.ref(log)
        self._is_writing = False
        self._waiting: list[tuple[PendingDraft, asyncio.Future[None]]] = []

    def join(self, draft: PendingDraft) -> asyncio.Future[None]:
        """Returns a future that completes when the draft is written or has failed."""
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
        except RuntimeError:  # no thread is available: the drafts keep their error
            finish(None)


_BATCHERS: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakKeyDictionary[AuditLog, _LoopBatcher]
] = weakref.WeakKeyDictionary()


class AuditLog:
    """Appends events to the audit log; implements `AuditPort`. Safe for threads, processes and
    forks."""

    def __init__(
        self, directory: str, settings: LogSettings, keys: SessionKeysPort | None = None
    ) -> None:
        if not _MIN_FIELD_BYTES <= settings.max_field_bytes <= MAX_FIELD_BYTES:
            raise ConfigError(
                f"a field of the audit log is from {_MIN_FIELD_BYTES} to "
                f"{MAX_FIELD_BYTES} bytes long"
            )
        self._directory = os.path.abspath(directory)
        self._settings = settings
        self._keys = keys
        self._redact: Redact | None = None
        self._observe: Observe | None = None
        self.notary = Notary(self._directory, settings, self.write, keys)
        self._writer = Writer(self._directory, settings, self.notary.signed_size)
        self._reset()
        _LOGS.add(self)

    def _reset(self) -> None:
        self._write_lock, self._queue_lock = threading.Lock(), threading.Lock()
        self._threads = WriterQueue()
        self._executor: ThreadPoolExecutor | None = None

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        max_field_bytes: int = 4096,
        settings: LogSettings | None = None,
        keys: SessionKeysPort | None = None,
    ) -> AuditLog:
        """Open or create the log in a directory and repair what a crash left (AUD-3). With `keys`,
        bodies are sealed under the key of their session (FS-5)."""
        log = cls(directory, settings or LogSettings(max_field_bytes=max_field_bytes), keys)
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
        """Sign unsigned records, then release the files; a later write fails."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        self.notary.close()
        with self._write_lock:
            self._writer.close()
        if self._keys is not None:
            self._keys.close()

    def release_preallocation(self) -> None:
        """For a process that exits without closing the log; skipped while another thread writes."""
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
        """Verify the whole log with the keys this user trusts; see
        `cellwall.audit.verify.verify`."""
        return verify(self._directory, self.notary.signers.trusted())

    def seal(self) -> None:
        """End the growing segment now, sign it, and start the next one."""
        with self._write_lock:
            self._writer.seal()
        self.notary.sign_now(timeout_s=files.LOCK_TIMEOUT_S)

    def redact_with(self, redact: Redact) -> None:
        """Pass every body through this function first: it knows secret values that have no
        recognisable format."""
        self._redact = redact

    def _redact_event(self, event: Event) -> Event:
        if self._redact is None:
            return event
        body = self._redact(event.body)
        return event if body is event.body else replace(event, body=body)

    def observe_with(self, observe: Observe) -> None:
        """Call this function after each write (OBS-1)."""
        self._observe = observe

    @contextmanager
    def _observed(self, event: Event, observe: Observe) -> Iterator[None]:
        started = time.perf_counter()
        is_written = False
        try:
            yield
            is_written = True
        finally:
            observe(event, time.perf_counter() - started, is_written=is_written)

    # --- threads

    def write(self, event: Event) -> str:
        """Append an event and return its id once it is durable; otherwise raise `AuditFailed`."""
        if self._observe is None:
            return self._write(event)
        with self._observed(event, self._observe):
            return self._write(event)

    def _write(self, event: Event) -> str:
        if self._redact is not None:
            event = self._redact_event(event)
        if not self._threads.waiting and self._write_lock.acquire(blocking=False):
            try:  # no other writer: skip the queue
                lone = RecordDraft(event, self._settings.max_field_bytes, self._keys)
                if self.notary.failure is not None:
                    raise self.notary.failure
                self.notary.note_written(self._writer.commit((lone,)))
                return lone.id
            finally:
                self._write_lock.release()
        draft = PendingDraft(event, self._settings.max_field_bytes, self._keys)
        draft.wakeup.acquire()
        try:
            with self._queue_lock:
                self._threads.join(draft)
            if not draft.is_next:
                self._wait_for_turn(draft)
            if not draft.is_done:
                self._write_queued()
        except (
            BaseException
        ):  # Ctrl-C at any moment must not leave other threads waiting for this one
            self._abandon(draft)
            raise
        return draft.outcome()

    def _abandon(self, draft: PendingDraft) -> None:
        """After an interrupt: if it was this thread's turn to write, pass the turn on."""
        with self._queue_lock:
            is_waiting = draft in self._threads.waiting
            if is_waiting:
                self._threads.waiting.remove(draft)
            if draft.is_next and (is_waiting or not self._threads.has_next_writer):
                self._threads.wake_next()

    def _wait_for_turn(self, draft: PendingDraft) -> None:
        if draft.wakeup.acquire(timeout=_WRITE_TIMEOUT_S):
            return
        with self._queue_lock:
            if draft.is_done or draft.is_next:
                return
            if draft in self._threads.waiting:
                self._threads.waiting.remove(draft)
        # Or the draft is being written right now by a very slow thread: the record may be in the
        # log.
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

    def commit(self, batch: Sequence[PendingDraft]) -> None:
        """Write a batch; each draft then holds its result."""
        problem: AuditFailed | None = INTERRUPTED
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
        """Async `write`: other tasks continue meanwhile and share the flush.

        A task cancelled meanwhile does not learn whether its record was written; the other tasks
        do.
        """
        if self._observe is None:
            return await self._record(event)
        with self._observed(event, self._observe):
            return await self._record(event)

    async def _record(self, event: Event) -> str:
        draft = await self._make_draft(event)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio (trio)
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

    async def _make_draft(self, event: Event) -> PendingDraft:
        """Redact a long body in a thread, so that other tasks continue (GRD-11)."""
        text = encode_short(event.body)
        if text is not None:
            return self._draft(event, text)
        return await anyio.to_thread.run_sync(self._draft, event)

    def _draft(self, event: Event, text: str | None = None) -> PendingDraft:
        redacted = self._redact_event(event)
        if redacted is not event:
            text = None
        return PendingDraft(redacted, self._settings.max_field_bytes, self._keys, text)

    def executor(self) -> ThreadPoolExecutor:
        """A thread of its own: other thread pool work of the embedding program must not delay
        the log."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cellwall-audit")
        return self._executor

    def reset_after_fork(self) -> None:
        """In a forked child, our locks may be held by threads that do not exist there."""
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
        # Repeated Ctrl-C aborts the signature as well; the next process signs.
        with suppress(KeyboardInterrupt):
            log.notary.close()
            log.release_preallocation()


call_in_child(_after_fork)
atexit.register(_at_exit)
