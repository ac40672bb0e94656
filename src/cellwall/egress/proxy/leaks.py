"""What a session tried to send that must not leave: counted, on record, and bounded (NET-5)."""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.core.errors import EgressRefused
from cellwall.egress.inspection.leak_scan import Hit
from cellwall.egress.proxy.audit_events import Leak, Ledger

_MAX_LEAKS = 5
"""Known values that a session may try to send. A refusal confirms a guess: nobody gets many."""


class Leaks:
    """Of one session."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._count = 0

    def check_open(self) -> None:
        """Refuse whatever follows too many tries to send what must not leave.

        Before each look: of many guesses at the same time no more are answered than of one by one.
        """
        if self._count >= _MAX_LEAKS:
            raise EgressRefused(
                "the way out is closed: what must not leave was tried too often",
                hint="Look at the record of this sandbox, then start a new one.",
                code="CW-LEAK-LIMIT",
            )

    def found(self, leak: Leak, *, host: str, port: int, via: str) -> None:
        """On record, and counted if it was a known value."""
        if leak.hit.kind == "known":
            self._count += 1
        self._ledger.refused(leak, host=host, port=port, via=via)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookout:
    """For what goes to one place. Each find counts as it is made, not when somebody is told.

    Whoever looks may be cancelled, or nobody may wait for its result any more: an answer that came
    before, a client that went away. The server learns of the find all the same, by a request
    that is cut, and code that it works with could guess without end.
    """

    leaks: Leaks
    host: str
    port: int
    via: str

    def check_open(self) -> None:
        self.leaks.check_open()

    def found(self, hit: Hit, *, is_host: bool = False) -> Leak:
        """The error to raise; it is on record by then."""
        leak = Leak(hit, is_host=is_host)
        self.leaks.found(leak, host=self.host, port=self.port, via=self.via)
        return leak
