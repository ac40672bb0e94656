"""Evaluates the rules as records are written, and delivers messages.

(1) take the lock: one process evaluates, others wait for their turn;
(2) read new records (log_reader.py) and count them in every rule;
(3) queue messages about what fires or has ended, unless a silence hides it;
(4) save bookmark, counts and queues in one step;
(5) deliver: each receiver in a thread of its own, so that one that hangs delays no other.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from cellwall.audit.alerts import senders
from cellwall.audit.alerts.engine import AlertEngine
from cellwall.audit.alerts.events import AlertEvent
from cellwall.audit.alerts.log_reader import LogReader, Verify
from cellwall.audit.alerts.notices import Notice, safe_text
from cellwall.audit.alerts.outbox import Outbox
from cellwall.audit.alerts.senders import ReadSecret
from cellwall.audit.alerts.series import Alert, AlertState
from cellwall.audit.alerts.silences import Silence
from cellwall.audit.alerts.watch_state import (
    BrokenState,
    LogPosition,
    WatchedElsewhere,
    WatchState,
    read_state,
    save_state,
    watching,
)
from cellwall.audit.export.sinks import NotDelivered
from cellwall.config.alerts_section import AlertsSection
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import SEVERITIES

_log = logging.getLogger("cellwall.alerts")
_MAX_BATCH = 1000
_TICK_S = 1.0
_TURN_S = 2.0
_SAVE_IDLE_S = 60.0
_FIRST_LOOK_S = 86_400.0
"""The first evaluation of an old log looks back this far."""


class AlertWatcher:
    """The evaluation of one log."""

    def __init__(
        self,
        directory: str,
        folder: str,
        section: AlertsSection,
        *,
        silences: Callable[[], Sequence[Silence]],
        read_secret: ReadSecret,
        verify: Verify,
        clock: Callable[[], float] = time.time,
        tick_s: float = _TICK_S,
    ) -> None:
        self._directory, self._folder, self._section = directory, folder, section
        self._silences, self._read_secret, self._verify = silences, read_secret, verify
        self._clock, self._tick_s = clock, tick_s
        self._host = safe_text(socket.gethostname())[:64]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._state = WatchState()
        """As saved: position, counts and alerts change in it together, under the lock."""
        self._position = LogPosition()
        self._engine = AlertEngine(section.rules)
        self._shown: list[tuple[str, AlertState]] = []
        self._is_open = self._is_leaving = False

    # --- one pass, for a timer

    def check(self, *, deliver_within_s: float) -> None:
        """Evaluate what is new, and try once to deliver. Raises `WatchedElsewhere`."""
        with watching(self._folder) as folder:  # (1)
            self._open(folder)
            batch: list[AlertEvent] = []
            for event in self._reader().events():
                if event is None:
                    break
                batch.append(event)
                if len(batch) == _MAX_BATCH:
                    self._evaluate(batch, folder)
                    batch = []
            self._verify_when_due(batch)
            self._evaluate(batch, folder)
            self._save(folder)
            threads = self._start_delivery(self._deliver_waiting, folder)
            self._end_delivery(threads, within_s=deliver_within_s)

    # --- until it is stopped, for a service

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="cellwall-alerts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the threads to end, and wait a moment; what is unsent stays for the next."""
        self._stop.set()
        with self._work:
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join(_TURN_S)

    def run(self) -> None:
        """Until `stop`."""
        while not self._stop.is_set():
            try:
                with watching(self._folder) as folder:  # (1)
                    self._watch(folder)
            except WatchedElsewhere:
                pass
            except Exception as error:  # noqa: BLE001  # the service goes on, and the next turn tries again
                _log.warning("alerts are not evaluated: %s", type(error).__name__)
            self._stop.wait(_TURN_S)

    def _watch(self, folder: int) -> None:
        self._open(folder)
        threads = self._start_delivery(self._deliver_always, folder)
        try:
            while not self._stop.is_set():
                self._follow(folder)
                self._stop.wait(_TURN_S)
        finally:
            self._is_leaving = True
            self._end_delivery(threads, within_s=_TURN_S)

    def _follow(self, folder: int) -> None:
        batch: list[AlertEvent] = []
        last_s = time.monotonic()
        for event in self._reader().events():  # (2)
            if event is not None:
                batch.append(event)
            is_idle = event is None and (batch or time.monotonic() - last_s >= self._tick_s)
            if is_idle or len(batch) >= _MAX_BATCH:
                self._verify_when_due(batch)
                self._evaluate(batch, folder)
                batch, last_s = [], time.monotonic()
            if self._stop.is_set():
                return
        self._evaluate(batch, folder)

    # --- steps

    def _open(self, folder: int) -> None:
        finding, self._engine = "", AlertEngine(self._section.rules)
        try:
            state = read_state(self._folder)
            if state is not None:
                self._engine.load(state.engine)
        except (BrokenState, OSError, ValueError, TypeError, KeyError):
            state, finding = None, "the state of alerts was damaged; counts begin anew"
            self._engine = AlertEngine(self._section.rules)
        self._not_before_s = 0.0 if state is not None else self._clock() - _FIRST_LOOK_S
        self._state = state or WatchState(verified_s=self._clock())
        self._position = replace(self._state.position)
        self._is_leaving = False
        known = self._state.outboxes
        self._state.outboxes = {name: known.get(name, Outbox()) for name in self._section.receivers}
        if finding:
            event = AlertEvent.found(time_s=self._clock(), code="CW-ALERT-STATE", finding=finding)
            self._evaluate([event], folder)

    def _reader(self) -> LogReader:
        return LogReader(
            self._directory,
            self._position,
            self._verify,
            not_before_s=self._not_before_s,
            clock=self._clock,
        )

    def _verify_when_due(self, batch: list[AlertEvent]) -> None:
        now_s = self._clock()
        if 0 <= now_s - self._state.verified_s < self._section.verify_s:
            return
        self._state.verified_s = now_s
        problem = self._verify()
        if problem:
            text = f"verification of the audit log failed: {problem}"
            batch.append(AlertEvent.found(time_s=now_s, code="CW-AUDIT-ALTERED", finding=text))

    def _evaluate(self, batch: Sequence[AlertEvent], folder: int) -> None:
        for event in batch:
            self._engine.observe(event)
        now_s = self._clock()
        self._engine.tick(now_s)
        with self._work:
            sent = self._state.sent
            self._announce(now_s)  # (3)
            shown = [(alert.id, alert.state) for _, alert in self._engine.active()]
            is_changed = bool(batch) or self._position != self._state.position
            is_changed = is_changed or sent != self._state.sent or shown != self._shown
            # While nothing happens, only time passes: no flush of the disk every second.
            if is_changed or not 0 <= now_s - self._state.saved_s < _SAVE_IDLE_S:
                self._shown = shown
                self._save(folder)  # (4)
                self._work.notify_all()

    def _announce(self, now_s: float) -> None:
        silences = self._read_silences()

        def is_hidden(alert: Alert) -> bool:
            return any(each.hides(alert, now_s) for each in silences)

        for alert, sent_s in self._engine.take_ended():
            # One that ended before anybody was told of it is told of once.
            if sent_s is not None or not is_hidden(alert):
                self._queue(alert, "resolved", now_s)
        for series, alert in self._engine.active():
            if alert.state is not AlertState.FIRING or is_hidden(alert):
                continue
            if series.sent_s is None:
                self._queue(alert, "firing", now_s)
                series.sent_s = now_s
            elif not 0 <= now_s - series.sent_s < self._section.repeat_s:
                self._queue(alert, "repeated", now_s)
                series.sent_s = now_s

    def _read_silences(self) -> Sequence[Silence]:
        try:
            return self._silences()
        except (CellwallError, TypeError) as error:  # fail safe: nothing is hidden
            _log.warning("silences cannot be read: %s", type(error).__name__)
            return ()

    def _queue(self, alert: Alert, event: str, now_s: float) -> None:
        self._state.sent += 1
        notice = Notice.about(
            alert, event, number=self._state.sent, host=self._host, link=self._section.link
        )
        for name, table in self._section.receivers.items():
            if notice.severity >= SEVERITIES.index(table.min_severity):
                self._state.outboxes[name].put(
                    notice, now_s=now_s, max_per_hour=self._section.max_per_hour
                )

    def _save(self, folder: int) -> None:
        self._state.engine = self._engine.to_json()
        self._state.position = replace(self._position)
        self._state.saved_s = self._clock()
        save_state(self._state, folder)

    # --- (5)

    def _start_delivery(
        self, deliver: Callable[[str, int], None], folder: int
    ) -> list[threading.Thread]:
        self._is_open = True
        threads = [
            threading.Thread(target=deliver, args=(name, folder), daemon=True)
            for name in self._section.receivers
        ]
        for each in threads:
            each.start()
        return threads

    def _end_delivery(self, threads: Sequence[threading.Thread], *, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        for each in threads:
            each.join(max(0.0, deadline - time.monotonic()))
        with self._work:
            self._is_open = False  # the folder closes: a thread that still waits saves nothing more

    def _deliver_always(self, name: str, folder: int) -> None:
        while self._is_open and not self._is_leaving and not self._stop.is_set():
            if not self._deliver_one(name, folder):
                with self._work:
                    self._work.wait(self._tick_s)

    def _deliver_waiting(self, name: str, folder: int) -> None:
        while self._is_open and self._deliver_one(name, folder):
            pass

    def _deliver_one(self, name: str, folder: int) -> bool:
        """Whether a message was delivered, so that the next one may follow at once."""
        with self._work:
            outbox = self._state.outboxes[name]
            notice = outbox.due(self._clock())
        if notice is None:
            return False
        problem = send_now(self._section, name, notice, self._read_secret)
        with self._work:
            if not self._is_open:
                return False  # it stays in the queue, and may arrive once more
            if problem is None:
                outbox.delivered_now(notice, now_s=self._clock())
            else:
                if not outbox.failures:
                    _log.warning("alerts do not reach %s: %s", name, problem[0])
                outbox.failed_now(*problem, now_s=self._clock())
            with suppress(OSError):
                save_state(self._state, folder)
        return problem is None


def send_now(
    section: AlertsSection, name: str, notice: Notice, read_secret: ReadSecret
) -> tuple[str, str] | None:
    """Deliver one message; returns the problem and its code, or None."""
    try:
        senders.send(section.receivers[name], notice, read_secret)
    except (NotDelivered, CellwallError) as error:
        return f"{error.message}. {error.hint}".strip(), error.code
    except Exception as error:  # noqa: BLE001  # a bug here must not end the delivery to others
        return f"internal error ({type(error).__name__})", "CW-INTERNAL"
    return None
