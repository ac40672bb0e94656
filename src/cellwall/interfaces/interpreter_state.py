"""Variables of a live Python interpreter, as plain data, for snapshots (FS-9).

Code in the sandbox writes them down and reads them again, by ordinary actions: judged, logged, and
cleaned like any other. The answer is untrusted. It goes back into a sandbox alone, of the same
owner; here it is only parsed, bounded and compared with its digests. The guard replaces secrets in
the answer, so a variable with one has another digest, and is left out.

Carried: None, booleans, numbers, texts, bytes, lists, tuples, sets and dictionaries of these, and
imported modules by name. Two names of one list become two lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Final

from cellwall.core.outcomes import Outcome, Status
from cellwall.core.snapshots import MAX_STATE_BYTES, NotCarried
from cellwall.core.types import Json, RunCode

MAX_NAMES: Final = 10_000
_MAX_VALUE_BYTES: Final = 1024 * 1024
_MAX_REASON_CHARS: Final = 200
_MAX_DEPTH: Final = 200
"""Of the JSON of a value: three for each of the levels that the program inside allows."""

RunInside = Callable[[RunCode, bytes | None], Awaitable[Outcome]]
"""Runs code in the interpreter of the sandbox, with a standard input, as one action."""

_WRITE_DOWN: Final = f"""
def __cellwall_state(variables):
    import hashlib, json, types
    variables.pop("__cellwall_state", None)

    def plain(value, above):
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind in (float, complex):
            return [kind.__name__, repr(value)]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is types.ModuleType:
            return ["module", value.__name__]
        if kind in (types.FunctionType, type):
            raise TypeError("a function or a class")
        if id(value) in above or len(above) > 50:
            raise TypeError("it contains itself, or is nested too deeply")
        inner = above | {{id(value)}}
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [plain(each, inner) for each in value]]
        if kind is dict:
            return ["dict", [[plain(k, inner), plain(v, inner)] for k, v in value.items()]]
        raise TypeError("an object of the type " + kind.__name__)

    found, left = [], {MAX_STATE_BYTES // 2}
    for name, value in list(variables.items()):
        if name == "_" or name.startswith("__") or len(found) >= {MAX_NAMES}:
            continue
        try:
            text = json.dumps(plain(value, frozenset()))
            if len(text) > min(left, {_MAX_VALUE_BYTES}):
                raise TypeError("too large")
        except (TypeError, ValueError, RecursionError) as error:
            found.append([name, "", str(error)[:{_MAX_REASON_CHARS}]])
        else:
            left -= len(text)
            found.append([name, hashlib.sha256(text.encode()).hexdigest(), text])
    return found

__cellwall_state(globals())
"""

_READ_AGAIN: Final = """
def __cellwall_state(variables):
    import importlib, json, sys
    variables.pop("__cellwall_state", None)
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    plain = {"float": float, "complex": complex, "bytes": bytes.fromhex,
             "module": importlib.import_module}

    def value_of(item):
        if not isinstance(item, list):
            return item
        kind, inner = item
        if kind == "dict":
            return {value_of(key): value_of(value) for key, value in inner}
        return plain[kind](inner) if kind in plain else made[kind](map(value_of, inner))

    lost = []
    for name, item in json.loads(sys.stdin.read()).items():
        try:
            variables[name] = value_of(item)
        except Exception as error:
            lost.append([name, "", type(error).__name__ + ": " + str(error)[:200]])
    return lost

__cellwall_state(globals())
"""


async def write_down(run: RunInside) -> tuple[bytes, tuple[NotCarried, ...]]:
    """The state of the interpreter, and the variables that are not in it."""
    outcome = await run(RunCode("python", _WRITE_DOWN.encode()), None)
    if outcome.status is not Status.OK or not isinstance(outcome.value, list):
        why = outcome.error.message if outcome.error else "the interpreter gave no answer"
        return b"", (NotCarried("*", f"no variable: {why}"[:_MAX_REASON_CHARS]),)
    kept: dict[str, Json] = {}
    lost: list[NotCarried] = []
    for each in outcome.value[:MAX_NAMES]:
        match each:
            case [str(name), str(digest), str(text)] if name.isidentifier():
                _sort(name, digest, text, kept, lost)
            case _:
                continue  # code has written this answer itself
    state = json.dumps(kept).encode() if kept else b""
    if len(state) > MAX_STATE_BYTES:
        return b"", (NotCarried("*", "no variable: together they are too large"),)
    return state, tuple(lost)


def _sort(name: str, digest: str, text: str, kept: dict[str, Json], lost: list[NotCarried]) -> None:
    if not digest:
        lost.append(NotCarried(name, text[:_MAX_REASON_CHARS]))
        return
    try:
        is_same = hashlib.sha256(text.encode()).hexdigest() == digest
        value = json.loads(text)
    except (ValueError, RecursionError):
        is_same, value = False, None
    if is_same and not _is_shallow(value):
        lost.append(NotCarried(name, "it is nested too deeply"))
    elif is_same:
        kept[name] = value
    else:
        lost.append(NotCarried(name, "its text looks like a secret"))


def _is_shallow(value: Json) -> bool:
    """Whether it can be written and read at any place; code may have written the answer itself."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return True
        level = below
    return False


async def read_again(run: RunInside, state: bytes) -> tuple[NotCarried, ...]:
    """Set the variables in a new interpreter; returns those that could not be set."""
    outcome = await run(RunCode("python", _READ_AGAIN.encode()), state)
    if outcome.status is not Status.OK or not isinstance(outcome.value, list):
        why = outcome.error.message if outcome.error else "the interpreter failed"
        return (NotCarried("*", f"no variable: {why}"[:_MAX_REASON_CHARS]),)
    lost: list[NotCarried] = []
    for each in outcome.value[:MAX_NAMES]:
        match each:
            case [str(name), str(), str(why)] if name.isidentifier():
                lost.append(NotCarried(name, why[:_MAX_REASON_CHARS]))
            case _:
                continue  # code has written this answer itself
    return tuple(lost)
