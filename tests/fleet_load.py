"""Clients of a fleet under load: each notes what became of each of its runs, and when."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_history import Attempt, Fate
from fleet_hosts import DEADLINE_S, RunningFleet

_UNSERVED = frozenset(
    {"CW-HOST-FENCED", "CW-HOST-DRAINS", "CW-FLEET-FULL", "CW-FLEET-SECOND", "CW-NOT-FOUND"}
)
"""Codes of answers that say that nothing was done."""
_PAUSE_S = 0.05
_MAX_TEXT = 300
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One attempt with its times."""

    attempt: Attempt
    began_s: float
    ended_s: float
    code: str
    """Of the error; empty for an acknowledged run."""
    kind: str = ""
    """Of what was not acknowledged: the status of HTTP and of the run, or the exception's name."""
    text: str = ""
    """Its message, or what was answered instead of the output."""

    @property
    def took_ms(self) -> float:
        return (self.ended_s - self.began_s) * 1000


class LoadClient:
    """One connection to the front; no library between the bytes and the clock."""

    def __init__(self, fleet: RunningFleet, token: str) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=DEADLINE_S)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str
    ) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body)
        try:
            self._line.request(method, path, data, {**self._headers, **headers})
            answer = self._line.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._line.close()  # the next request opens another
            raise

    def new_session(self, **headers: str) -> str:
        body = {"memory": "32m", "keep_alive": 3600}
        status, found = self.ask("POST", "/v1/sessions", body, **headers)
        assert status == 201, found
        return str(json.loads(found)["id"])

    def run_marked(self, session: str, *, key: str = "") -> Sample:
        """A command that leaves its mark in a file of the session."""
        mark = f"mark-{threading.get_native_id()}-{next(_numbers)}"
        headers = {"Idempotency-Key": key} if key else {}
        began_s = time.monotonic()
        fate, audit_id, code, kind, text = Fate.UNKNOWN, "", "connection", "", ""
        body = {"command": f"echo {mark} >> marks; echo {mark}"}
        try:
            path = f"/v1/sessions/{session}/commands"
            status, answer = self.ask("POST", path, body, **headers)
            kind, text = f"HTTP {status}", answer[:_MAX_TEXT].decode("utf-8", "replace")
            found = json.loads(answer)
            error = found["error"] or {}
            code = error.get("code", "")
            kind, text = f"{kind} {found.get('status', '')}".rstrip(), error.get("message", text)
            if status == 200 and found["status"] == "ok" and found["stdout"] == f"{mark}\n":
                fate, audit_id, kind, text = Fate.ACKNOWLEDGED, found["audit_id"], "", ""
            elif code in _UNSERVED:
                fate = Fate.REFUSED
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind, text = type(error).__name__, text or str(error)
        attempt = Attempt(mark, session, fate, audit_id)
        return Sample(attempt, began_s, time.monotonic(), code, kind, text)

    def marks(self, session: str) -> list[str] | None:
        """The marks in the file of a session; None where the session is gone."""
        status, body = self.ask("GET", f"/v1/sessions/{session}/files/marks")
        return body.decode().split() if status == 200 else None

    def close(self) -> None:
        self._line.close()


class FleetLoad:
    """Runs in many sessions from several threads, between `with` and its end."""

    def __init__(self, fleet: RunningFleet, sessions: Sequence[str], *, clients: int) -> None:
        self._fleet, self._token = fleet, fleet.token()
        self._shares = [sessions[number::clients] for number in range(clients)]
        self._samples: list[Sample] = []
        self._has_ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(share,)) for share in self._shares if share
        ]

    @property
    def samples(self) -> list[Sample]:
        """Those that have ended so far."""
        return list(self._samples)

    @property
    def attempts(self) -> list[Attempt]:
        return [each.attempt for each in self._samples]

    def __enter__(self) -> FleetLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _work(self, sessions: Sequence[str]) -> None:
        client = LoadClient(self._fleet, self._token)
        for session in itertools.cycle(sessions):
            if self._has_ended.is_set():
                break
            sample = client.run_marked(session)
            self._samples.append(sample)
            if sample.attempt.fate is not Fate.ACKNOWLEDGED:
                time.sleep(_PAUSE_S)  # a client that asks in a loop would be the whole load
        client.close()


class ShortSessions:
    """Clients whose sessions live for one run."""

    def __init__(self, fleet: RunningFleet, failures: list[str], *, clients: int) -> None:
        self._fleet, self._failures, self.count = fleet, failures, 0
        self._has_ended = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]

    def __enter__(self) -> ShortSessions:
        self._fleet.token()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        client = LoadClient(self._fleet, self._fleet.token())
        while not self._has_ended.is_set():
            try:
                session = client.new_session()
                sample = client.run_marked(session)
                status, _ = client.ask("DELETE", f"/v1/sessions/{session}")
                if sample.attempt.fate is not Fate.ACKNOWLEDGED or status != 204:
                    self._failures.append(f"{sample.code} {status}")
            except (AssertionError, OSError) as error:
                self._failures.append(repr(error)[:300])
            self.count += 1
        client.close()
