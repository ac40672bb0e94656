"""Functions of the host that code inside may call (LANG-3): `tools.search("x")`.

Arguments and answers are plain JSON data, checked against the function's own type hints before it
is called; each call is an action of its own, judged and recorded; each has a time limit.
"""

from __future__ import annotations

import functools
import inspect
import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.plain import plain
from cellwall.core.types import Json

_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_DEFAULT_TIMEOUT_S = 30.0

HostFunction = Callable[..., Any]


class ToolFailed(CellwallError):
    """A tool was called wrongly, failed, or took too long; the code is told so."""

    default_code = "CW-TOOL-FAILED"


class ToolBroker:
    """Keeps `ToolsPort` for functions of the caller's own."""

    def __init__(
        self, functions: Mapping[str, HostFunction], *, timeout_s: float = _DEFAULT_TIMEOUT_S
    ) -> None:
        for name, function in functions.items():
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise BadInput(f"{name!r:.60} cannot be the name of a tool", code="CW-TOOL-NAME")
            if not callable(function):
                raise BadInput(f"the tool {name} is not a function", code="CW-TOOL-NAME")
        self._checked = {name: _checked(name, function) for name, function in functions.items()}
        self._timeout_s = timeout_s

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._checked)

    async def call(self, name: str, args: Sequence[Json], kwargs: Mapping[str, Json]) -> Json:
        """The function's answer as plain data."""
        function = self._checked.get(name)
        if function is None:
            raise ToolFailed("the host offers no such tool", code="CW-NO-TOOL")
        value: object = None
        is_late = True
        with anyio.move_on_after(self._timeout_s):
            value = await function(args, kwargs)
            is_late = False
        if is_late:
            raise ToolFailed(f"the tool {name} took longer than {self._timeout_s:g} s")
        return _answer(name, value)


def _checked(name: str, function: HostFunction) -> Callable[..., Any]:
    """The function behind a check of its arguments against its type hints."""
    from pydantic import ValidationError  # noqa: PLC0415  # 70 ms, only where tools are offered

    hinted = _hinted(function)
    check = _check_of(name, function, hinted)

    async def call(args: Sequence[Json], kwargs: Mapping[str, Json]) -> object:
        try:
            args, kwargs = check(*args, **kwargs)
        except ValidationError as error:
            # Where and what, never the values or the host's own words for them.
            places = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in error.errors()[:5]
            )
            raise ToolFailed(f"wrong arguments ({places})", code="CW-TOOL-ARGUMENTS") from None
        try:
            if inspect.iscoroutinefunction(hinted):
                return await function(*args, **kwargs)
            work = functools.partial(function, *args, **kwargs)
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except CellwallError:
            raise
        except Exception as error:
            # What went wrong inside the host's function is the host's affair (ERR-1).
            raise ToolFailed("the tool failed", detail=repr(error)) from error

    return call


def _hinted(function: HostFunction) -> HostFunction:
    """What bears the type hints: of a partial its function, of an object its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    is_object = not inspect.isroutine(function) and not inspect.isclass(function)
    return type(function).__call__ if is_object else function


def _check_of(
    name: str, function: HostFunction, hinted: HostFunction
) -> Callable[..., tuple[Sequence[Any], Mapping[str, Any]]]:
    """Returns the arguments as the hints have them, or raises pydantic's own error.

    Apart from the call itself: what the function raises is never taken for wrong arguments.
    """
    from pydantic import ConfigDict, PydanticUserError, validate_call  # noqa: PLC0415  # as above

    def take(*args: Any, **kwargs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:  # noqa: ANN401  # the function's own
        return args, kwargs

    functools.update_wrapper(take, hinted)
    take.__wrapped__ = function  # type: ignore[attr-defined]  # where its signature is read from
    try:
        return validate_call(config=ConfigDict(arbitrary_types_allowed=False))(take)
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise BadInput(
            f"the tool {name} cannot be offered, since its arguments could not be checked",
            mend="Give it type hints of plain data that can be resolved where it is defined.",
            code="CW-TOOL-HINTS",
            detail=str(error),
        ) from error


def _answer(name: str, value: object) -> Json:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ToolFailed(f"the tool {name} gave an answer that is not JSON") from None
    if len(text) > _MOST_ANSWER_BYTES:
        raise ToolFailed(f"the answer of the tool {name} is too long")
    return plain(json.loads(text))
