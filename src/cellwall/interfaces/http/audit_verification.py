"""Verifies the whole log in a thread, one at a time, and tells how far it got."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace

from cellwall.admin import audit_queries
from cellwall.admin.audit_queries import VerifyReport
from cellwall.core.errors import CellwallError

_log = logging.getLogger("cellwall.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationState:
    """The running verification, or else the last one."""

    is_running: bool = False
    verified: int = 0
    """Records of the running one."""
    began_s: float | None = None
    ended_s: float | None = None
    report: VerifyReport | None = None
    """Of the last one that has ended."""
    problem: str = ""
    """Why the last one has no report."""


class AuditVerification:
    """The verifications of one service. Who asks while one runs gets that one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = VerificationState()

    @property
    def state(self) -> VerificationState:
        return self._state

    def begin(self, home: str) -> VerificationState:
        """Start one, unless one runs."""
        with self._lock:
            if not self._state.is_running:
                began_s = time.time()
                self._state = replace(
                    self._state, is_running=True, verified=0, began_s=began_s, problem=""
                )
                # Ends with the process: a verification writes nothing.
                threading.Thread(
                    target=self._run, args=(home,), name="cellwall-verify", daemon=True
                ).start()
            return self._state

    def note(self, report: VerifyReport) -> None:
        """Keep the report of a verification that a request has waited for."""
        with self._lock:
            self._state = replace(self._state, report=report, ended_s=time.time(), problem="")

    def _run(self, home: str) -> None:
        report, problem = None, "it failed"
        try:
            report = audit_queries.check(home=home, on_verified=self._note_progress)
            problem = ""
        except CellwallError as error:
            problem = error.message
        except Exception:  # noqa: BLE001  # no trace: it shows host paths
            _log.error("the verification of the audit log failed")
        finally:
            with self._lock:
                self._state = replace(
                    self._state,
                    is_running=False,
                    ended_s=time.time(),
                    report=report,
                    problem=problem,
                )

    def _note_progress(self, verified: int) -> None:
        with self._lock:
            self._state = replace(self._state, verified=verified)
