"""A cache for functions of a text, bounded by the size of the texts and not by their number.

Attack: a syntax tree takes some 600 times the memory of its text, so a thousand cached trees of
64 KiB each would take 40 GB.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

MAX_CHARACTERS = 256 * 1024
"""Of all texts whose results one function keeps."""
_ENTRY_CHARACTERS = 256
"""What an entry counts in addition to its text."""


class TextCache(Generic[Result]):
    """Decorates a function whose first argument is a text; all arguments are hashable.

    Exceptions are not cached. Thread-safe; two threads may compute the same result at once.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, tuple[int, Result]] = OrderedDict()
        self._characters = 0

    def __call__(self, text: str, *rest: Hashable, **named: Any) -> Result:  # noqa: ANN401  # any function's
        key = (text, rest, *sorted(named.items()))
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key][1]
        result = self.__wrapped__(text, *rest, **named)
        size = len(text) + _ENTRY_CHARACTERS
        with self._lock:
            if key not in self._results and size <= MAX_CHARACTERS:
                self._results[key] = size, result
                self._characters += size
            while self._characters > MAX_CHARACTERS:
                self._characters -= self._results.popitem(last=False)[1][0]
        return result

    def cache_clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._results.clear()
            self._characters = 0

    @property
    def characters(self) -> int:
        """The size of what is kept."""
        return self._characters
