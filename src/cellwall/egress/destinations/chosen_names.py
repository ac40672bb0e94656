"""Names that code in a cell has chosen: no rule spells them out.

Each new one is a query to the DNS server of its own domain, which is a covert channel (NET-5).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.cell_dns import MAX_NAMES, looks_like_data

_NEW_NAMES_PER_MINUTE = 120


class ChosenNames:
    """The names of one session, and the rate of new ones."""

    def __init__(self) -> None:
        self._known_names: OrderedDict[str, None] = OrderedDict()
        self._times_s: deque[float] = deque()

    def check(self, host: str) -> None:
        """Refuse a name that looks like data, or one more than the rate allows."""
        check_no_data(host)
        if not self._has_room(host):
            raise EgressRefused(
                "too many new names below a wildcard were requested in one minute",
                hint="Send fewer requests, or allow the hosts by their full names.",
                code="CW-NET-LIMIT",
            )

    def _has_room(self, host: str) -> bool:
        if host in self._known_names:
            return True
        now_s = time.monotonic()
        while self._times_s and self._times_s[0] < now_s - 60:
            self._times_s.popleft()
        if len(self._times_s) >= _NEW_NAMES_PER_MINUTE:
            return False
        self._times_s.append(now_s)
        self._known_names[host] = None
        if len(self._known_names) > MAX_NAMES:
            self._known_names.popitem(last=False)
        return True


def check_no_data(host: str) -> None:
    """Refuse a name that looks like data."""
    if looks_like_data(host):
        raise EgressRefused(
            "the host name looks like encoded data",
            hint="If it is a real host, allow its full name instead of a wildcard.",
            code="CW-NAME-DATA",
        )
