"""The functions of a text: which of them are there for sure, and which call which. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cellwall.parsing.shell.parser import NotUnderstood


@dataclass(slots=True)
class Functions:
    """Names are noted as the text is read from its beginning to its end."""

    names: frozenset[str]
    """All that the text defines anywhere."""
    defined: set[str] = field(default_factory=set)
    """Those that are there from here on, whatever happened before."""
    _calls: dict[str, set[str]] = field(default_factory=dict)
    """Which functions a function calls; '' is the text itself."""
    _body: str = ""

    @contextmanager
    def body_of(self, name: str) -> Iterator[None]:
        """What is called here is called by this one."""
        before, self._body = self._body, name
        self._calls.setdefault(name, set())
        yield
        self._body = before

    def call(self, name: str) -> None:
        """A command with this name stands here."""
        if name in self.names:
            self._calls.setdefault(self._body, set()).add(name)

    def check_recursion(self) -> None:
        """A function that reaches itself is a fork bomb, or cannot be told from one."""
        for name in self._calls:
            seen, waiting = set[str](), [*self._calls[name]]
            while waiting:
                each = waiting.pop()
                if each == name:
                    raise NotUnderstood(f"the function {name!r} calls itself")
                if each not in seen:
                    seen.add(each)
                    waiting.extend(self._calls.get(each, ()))
