"""A secret, lent for one action or session: the code holds a placeholder, never the value (SEC-3).

`reveal` asks the vault each time, so a lease ends at once with the action, the session, a revoked
or outlived grant, a removed secret, and with the vault's own lock.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol

from cellwall.core.network import SecretUse
from cellwall.secrets import failures
from cellwall.secrets.grants import Grant

PLACEHOLDER_PREFIX = "hfsecret_"
_RANDOM_BYTES = 17  # 26 characters of base32 and a rest that is cut off
_RANDOM_CHARACTERS = 26


class ValueSource(Protocol):
    """The vault, as a lease sees it."""

    def value_for(self, name: str, grants: frozenset[str]) -> bytes:
        """The value by now, if it is there and all of these grants still are."""


def new_placeholder(name: str) -> str:
    """What code sees in the place of a value: 130 random bits, so that none is met by chance."""
    word = base64.b32encode(os.urandom(_RANDOM_BYTES)).decode()[:_RANDOM_CHARACTERS].lower()
    return f"{PLACEHOLDER_PREFIX}{name.lower()}_{word}"


class Lease:
    """What was lent together. It ends once, and for good."""

    def __init__(
        self,
        source: ValueSource,
        granted: dict[str, Sequence[Grant]],
        *,
        session: str,
        clock: Callable[[], float],
    ) -> None:
        self.session = session
        self.revealed: Counter[str] = Counter()
        """How often each value was handed to the way out, to put it into a request or to find it
        in an answer. Into which request it was put stands in the record with that connection."""
        self._source = source
        self._clock = clock
        self._is_over = False
        # With the first of its grants all of it ends: the bindings were handed out together.
        ends = [grant.until_s for each in granted.values() for grant in each if grant.until_s]
        self._until_s = min(ends, default=None)
        self.uses = tuple(
            SecretUse(
                name=name,
                placeholder=new_placeholder(name),
                bindings=tuple(grant.binding for grant in grants),
                reveal=partial(self._reveal, name, frozenset(grant.id for grant in grants)),
            )
            for name, grants in granted.items()
        )

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(use.name for use in self.uses)

    @property
    def is_over(self) -> bool:
        has_run_out = self._until_s is not None and self._clock() >= self._until_s
        return self._is_over or has_run_out

    def end(self) -> None:
        self._is_over = True

    def _reveal(self, name: str, grants: frozenset[str]) -> bytes:
        if self.is_over:
            raise failures.lease_ended(name)
        value = self._source.value_for(name, grants)
        self.revealed[name] += 1
        return value
