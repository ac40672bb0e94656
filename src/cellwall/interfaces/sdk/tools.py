"""Functions of the host that code inside may call (LANG-3): `tools.search("x")`.

Arguments and answers are plain JSON data, checked against the function's own type hints before it
is called; each call is an action of its own, judged and recorded; each has a time limit.
"""

# ruff: noqa: PLC0415  # late imports: pydantic takes 70 ms, and most sandboxes offer no tools

from __future__ import annotations

import functools
import inspect
import json
import keyword
import logging
import math
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.text import plain
from cellwall.core.types import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_log = logging.getLogger("cellwall.tools")
_MAX_PLACES = 5
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_DEFAULT_TIMEOUT_S = 30.0

HostFunction = Callable[..., Any]
_READ_ONCE = (abc.Iterable, abc.Iterator, abc.Generator)


class ToolFailed(CellwallError):
    """A tool call had wrong arguments, failed, or took too long; the code gets this error."""

    default_code = "CW-TOOL-FAILED"


class ToolBroker:
    """Implements `ToolsPort` with functions of the caller."""

    def __init__(
        self, functions: Mapping[str, HostFunction], *, timeout_s: float = _DEFAULT_TIMEOUT_S
    ) -> None:
        for name, function in functions.items():
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise BadInput(f"{name!r:.60} cannot be the name of a tool", code="CW-TOOL-NAME")
            if not callable(function):
                raise BadInput(f"the tool {name} is not a function", code="CW-TOOL-NAME")
        self._checked = {
            name: _check_arguments_of(name, function) for name, function in functions.items()
        }
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


def _check_arguments_of(name: str, function: HostFunction) -> Callable[..., Any]:
    """The function behind a check of its arguments against its type hints."""
    hinted = _hint_bearer(function)
    check = _check_of(name, function, hinted)

    async def call(args: Sequence[Json], kwargs: Mapping[str, Json]) -> object:
        bound = check(args, kwargs)
        try:
            if inspect.iscoroutinefunction(hinted):
                return await function(*bound.args, **bound.kwargs)
            work = functools.partial(function, *bound.args, **bound.kwargs)
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except CellwallError:
            raise
        except Exception as error:
            # The program that offered the function sees its exception; the code inside does not
            # (ERR-1).
            _log.warning("the tool %s raised", name, exc_info=error)
            raise ToolFailed("the tool failed", detail=repr(error)) from error

    return call


def _hint_bearer(function: HostFunction) -> HostFunction:
    """The function with the type hints: of a partial its function, of an object its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        return function.__init__
    return function if inspect.isroutine(function) else type(function).__call__


def _check_of(name: str, function: HostFunction, hinted: HostFunction) -> _Check:
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(hinted, include_extras=True)
        types = {
            each.name: TypeAdapter(_type_of(each, hints)) for each in signature.parameters.values()
        }
        if any(_is_lazy(adapter.core_schema) for adapter in types.values()):
            raise TypeError("an iterable within another type is checked only while it is read")
        return _Check(signature, types, _binder(signature))
    except (
        *(PydanticUserError, PydanticSchemaGenerationError),
        *(NameError, TypeError, ValueError, AttributeError),
    ) as error:
        raise BadInput(
            f"the tool {name} cannot be offered, since its arguments could not be checked",
            hint="Give it type hints of plain data that can be resolved where it is defined; "
            "list[…] in the place of Iterable[…]; before Python 3.12, TypedDict from "
            "typing_extensions.",
            code="CW-TOOL-HINTS",
            detail=str(error),
        ) from error


def _type_of(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:  # noqa: ANN401  # the function's own
    from pydantic.fields import FieldInfo

    hint = hints.get(parameter.name, Any)
    if (typing.get_origin(hint) or hint) in _READ_ONCE:
        # An iterator's entries would be checked while the function reads them; a list is one, too.
        hint = list[typing.get_args(hint)[0]] if typing.get_args(hint) else list  # type: ignore[misc]  # the function's own
    if isinstance(parameter.default, FieldInfo):  # `b: int = Field(gt=0)`
        return typing.Annotated[hint, parameter.default]
    return hint


def _is_lazy(schema: object) -> bool:
    if isinstance(schema, Mapping):
        return schema.get("type") == "generator" or any(map(_is_lazy, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_is_lazy, schema))


def _binder(signature: inspect.Signature) -> Callable[..., Any]:
    """Reports missing and superfluous arguments in pydantic's terms."""
    from pydantic import validate_call

    def take(*args: Any, **kwargs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:  # noqa: ANN401  # the function's own
        return args, kwargs

    bare = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    take.__signature__ = signature.replace(  # type: ignore[attr-defined]  # pydantic reads it
        parameters=bare, return_annotation=inspect.Signature.empty
    )
    take.__annotations__ = {}
    return validate_call(take)


@dataclass(frozen=True, slots=True)
class _Check:
    """Converts arguments to the hinted types; raises `ToolFailed` for other types.

    Types are strict, as in JSON: `true`, `1.0` and `"1"` are not integers. An integer is accepted
    for a float that can represent it; NaN and infinity are refused. Types that JSON lacks (dates,
    enums, sets) are converted from their JSON form. Keys that a dataclass or a TypedDict does not
    name are dropped.
    """

    signature: inspect.Signature
    types: Mapping[str, TypeAdapter[Any]]
    bind: Callable[..., tuple[Sequence[Any], Mapping[str, Any]]]

    def __call__(self, args: Sequence[Json], kwargs: Mapping[str, Json]) -> inspect.BoundArguments:
        from pydantic import ValidationError

        try:
            with_defaults = self.bind(*args, **kwargs)
        except ValidationError as error:
            raise _wrong_arguments(
                _WrongArgument(each["type"], each["loc"]) for each in error.errors()
            ) from None
        bound = self.signature.bind(*with_defaults[0], **with_defaults[1])
        wrong: list[_WrongArgument] = []
        # Defaults are the host's own and need not be plain data.
        for name, value in self.signature.bind(*args, **kwargs).arguments.items():
            parameter = self.signature.parameters[name]
            bound.arguments[name] = self._convert(parameter, value, wrong)
        if wrong:
            raise _wrong_arguments(wrong)
        return bound

    def _convert(
        self,
        parameter: inspect.Parameter,
        value: Any,  # noqa: ANN401  # any data
        wrong: list[_WrongArgument],
    ) -> Any:  # noqa: ANN401  # any data
        adapter, name = self.types[parameter.name], parameter.name
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(_strictly(adapter, each, (name, n), wrong) for n, each in enumerate(value))
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return {key: _strictly(adapter, each, (key,), wrong) for key, each in value.items()}
        return _strictly(adapter, value, (name,), wrong)


@dataclass(frozen=True, slots=True)
class _WrongArgument:
    """The place and kind of a wrong argument; never its value or the host's own messages."""

    kind: str
    where: Sequence[object]
    got: str = ""

    def __str__(self) -> str:
        where = ".".join(map(str, self.where))
        return f"{where}: {self.kind}, got {self.got}" if self.got else f"{where}: {self.kind}"


def _wrong_arguments(places: Iterable[_WrongArgument]) -> ToolFailed:
    problems = "; ".join(map(str, islice(places, _MAX_PLACES)))
    return ToolFailed(f"wrong arguments ({problems})", code="CW-TOOL-ARGUMENTS")


def _strictly(
    adapter: TypeAdapter[Any], value: Json, where: tuple[object, ...], wrong: list[_WrongArgument]
) -> object:
    from pydantic import ValidationError

    try:
        checked = adapter.validate_json(json.dumps(value, allow_nan=False), strict=True)
    except RecursionError:
        wrong.append(_WrongArgument("too_deep", where))
        return None
    except ValidationError as error:
        wrong += (
            _WrongArgument(each["type"], (*where, *each["loc"]), _json_type(each["input"]))
            for each in error.errors()[:_MAX_PLACES]
        )
        return None
    except ValueError:
        wrong.append(_WrongArgument("finite_number", where))
        return None
    try:
        read_as = adapter.dump_python(checked, mode="json", warnings=False)
    except ValueError:  # a host type that can be parsed but not serialised
        return checked
    # Literals and enums are looked up by equality, and True == 1 == 1.0.
    wrong += islice(_equal_but_other(value, read_as, where), _MAX_PLACES)
    return checked


def _equal_but_other(
    value: object, read_as: object, where: tuple[object, ...]
) -> Iterator[_WrongArgument]:
    if isinstance(value, list) and isinstance(read_as, list):
        for number, (one, other) in enumerate(zip(value, read_as, strict=False)):
            yield from _equal_but_other(one, other, (*where, number))
    elif isinstance(value, dict) and isinstance(read_as, dict):
        for key in value.keys() & read_as.keys():
            yield from _equal_but_other(value[key], read_as[key], (*where, key))
    elif isinstance(value, bool) != isinstance(read_as, bool) and value == read_as:
        yield _WrongArgument(f"{_json_type(read_as)}_type", where, _json_type(value))
    elif isinstance(value, float) and isinstance(read_as, int):
        yield _WrongArgument("integer_type", where, _json_type(value))
    elif isinstance(value, int) and isinstance(read_as, int) and value != read_as:
        yield _WrongArgument(
            "enum", where, _json_type(value)
        )  # a flag with bits that it does not have
    elif isinstance(value, int) and isinstance(read_as, float) and not math.isfinite(read_as):
        yield _WrongArgument("finite_number", where, _json_type(value))


_JSON_TYPES = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    named = next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "")
    return named or ("object" if isinstance(value, Mapping) else "array")


def _answer(name: str, value: object) -> Json:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ToolFailed(f"the tool {name} gave an answer that is not JSON") from None
    if len(text) > _MAX_ANSWER_BYTES:
        raise ToolFailed(f"the answer of the tool {name} is too long")
    return plain(json.loads(text))
