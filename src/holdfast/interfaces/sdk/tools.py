"""Functions of the host that code inside may call (LANG-3): `tools.search("x")`.

Arguments and answers are plain JSON data, checked against the function's own type hints before it
is called; each call is an action of its own, judged and recorded; each has a time limit.
"""

from __future__ import annotations

import inspect
import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from holdfast.core.errors import BadInput, HoldfastError
from holdfast.core.plain import plain
from holdfast.core.types import Json

_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_DEFAULT_TIMEOUT_S = 30.0

HostFunction = Callable[..., Any]


class ToolFailed(HoldfastError):
    """A tool was called wrongly, failed, or took too long; the code is told so."""

    default_code = "HF-TOOL-FAILED"


class ToolBroker:
    """Keeps `ToolsPort` for functions of the caller's own."""

    def __init__(
        self, functions: Mapping[str, HostFunction], *, timeout_s: float = _DEFAULT_TIMEOUT_S
    ) -> None:
        for name, function in functions.items():
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise BadInput(f"{name!r:.60} cannot be the name of a tool", code="HF-TOOL-NAME")
            if not callable(function):
                raise BadInput(f"the tool {name} is not a function", code="HF-TOOL-NAME")
        self._checked = {name: _checked(function) for name, function in functions.items()}
        self._timeout_s = timeout_s

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._checked)

    async def call(self, name: str, args: Sequence[Json], kwargs: Mapping[str, Json]) -> Json:
        """The function's answer as plain data."""
        function = self._checked.get(name)
        if function is None:
            raise ToolFailed("the host offers no such tool", code="HF-NO-TOOL")
        value: object = None
        is_late = True
        with anyio.move_on_after(self._timeout_s):
            value = await function(args, kwargs)
            is_late = False
        if is_late:
            raise ToolFailed(f"the tool {name} took longer than {self._timeout_s:g} s")
        return _answer(name, value)


def _checked(function: HostFunction) -> Callable[..., Any]:
    """The function behind a check of its arguments against its type hints."""
    from pydantic import ConfigDict, ValidationError, validate_call  # noqa: PLC0415  # 70 ms, only where tools are offered

    checked = validate_call(config=ConfigDict(arbitrary_types_allowed=False))(function)

    async def call(args: Sequence[Json], kwargs: Mapping[str, Json]) -> object:
        try:
            if inspect.iscoroutinefunction(function):
                return await checked(*args, **kwargs)
            work = partial(checked, *args, **kwargs)
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except ValidationError as error:
            # Where and what, never the values or the host's own words for them.
            places = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in error.errors()[:5]
            )
            raise ToolFailed(f"wrong arguments ({places})", code="HF-TOOL-ARGUMENTS") from None
        except HoldfastError:
            raise
        except Exception as error:
            # What went wrong inside the host's function is the host's affair (ERR-1).
            raise ToolFailed("the tool failed", detail=repr(error)) from error

    return call


def _answer(name: str, value: object) -> Json:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ToolFailed(f"the tool {name} gave an answer that is not JSON") from None
    if len(text) > _MOST_ANSWER_BYTES:
        raise ToolFailed(f"the answer of the tool {name} is too long")
    return plain(json.loads(text))
