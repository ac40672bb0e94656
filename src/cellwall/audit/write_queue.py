"""Threads that wait for their records to be written; one of them writes for all."""

from __future__ import annotations

import errno
import threading

from cellwall.audit.encoding import RecordDraft
from cellwall.audit.files import io_failure
from cellwall.core.errors import AuditFailed
from cellwall.core.outcomes import Event
from cellwall.core.ports import SessionKeysPort

_MAX_BATCH = 4096
INTERRUPTED = io_failure(OSError(errno.EINTR, "interrupted"))


class PendingDraft(RecordDraft):
    """A draft and the state of the thread or task that waits for it."""

    __slots__ = ("error", "is_done", "is_next", "wakeup")

    def __init__(
        self,
        event: Event,
        max_field_bytes: int,
        keys: SessionKeysPort | None = None,
        text: str | None = None,
    ) -> None:
        super().__init__(event, max_field_bytes, keys, text)
        self.is_done = self.is_next = False
        self.error: AuditFailed | None = INTERRUPTED  # until it is durable
        self.wakeup = threading.Lock()
        """Released when the draft is written, or when its thread is to write the next batch."""

    def outcome(self) -> str:
        error = self.error
        if error is not None:  # each thread raises its own exception object
            fields = {"hint": error.hint, "code": error.code, "detail": error.detail}
            raise AuditFailed(error.message, **fields)
        return self.id


class WriterQueue:
    """The waiting threads in order of arrival; one of them writes."""

    def __init__(self) -> None:
        self.waiting: list[PendingDraft] = []
        self._has_writer = False
        self.has_next_writer = False
        """A thread was chosen to write the next batch and has not started."""

    def join(self, draft: PendingDraft) -> None:
        """The thread that finds no writer becomes the next writer."""
        self.waiting.append(draft)
        draft.is_next = not self._has_writer
        self._has_writer = True
        self.has_next_writer = self.has_next_writer or draft.is_next

    def batch(self) -> list[PendingDraft]:
        batch, self.waiting = self.waiting[:_MAX_BATCH], self.waiting[_MAX_BATCH:]
        return batch

    def wake_next(self) -> None:
        """Choose the thread that writes the next batch."""
        self._has_writer = self.has_next_writer = bool(self.waiting)
        if self.waiting:
            self.waiting[0].is_next = True
            if self.waiting[0].wakeup.locked():
                self.waiting[0].wakeup.release()
