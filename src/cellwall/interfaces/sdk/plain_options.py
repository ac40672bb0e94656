"""The options of a single run that can be sent to the supervisor: plain values, and no object of
the caller's process. Both ends read them by this table. Light: the client imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from typing import Any

_TEXTS = frozenset({"profile", "config", "workspace", "policy", "template", "user"})
_LISTS = frozenset({"allow_domains", "skills"})
_MAY_BE_NONE = _TEXTS - {"template"} | {"timeout", "memory", "limits", "envs"}
_MAX_NUMBER = 1 << 62
_OTHER_LIMITS = frozenset({"timeout", "memory", "limits"})
"""Options of their own; as names of limits they are an error of the caller."""


def plain_options(options: object) -> dict[str, Any] | None:
    """The options as JSON can carry them; None if one of them cannot be sent."""
    if not isinstance(options, Mapping):
        return None
    found = {}
    for name, value in options.items():
        if value is None and name in _MAY_BE_NONE:
            continue  # as if it were left out
        kept = _plain(name, value)
        if kept is None:
            return None
        found[name] = kept
    return found


def _plain(name: object, value: object) -> Any:  # noqa: ANN401  # any plain value
    if name in _TEXTS:
        return value if isinstance(value, str) and value else None
    if name in _LISTS:
        return _texts(value)
    if name == "timeout":
        return value if _is_number(value) else None
    if name == "memory":
        is_size = isinstance(value, int) and _is_number(value)
        return value if isinstance(value, str) or is_size else None
    if name == "limits":
        return _numbers(value)
    return _variables(value) if name == "envs" else None


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < _MAX_NUMBER  # type: ignore[arg-type]  # a number; no NaN


def _texts(value: object) -> list[str] | None:
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return list(value) if is_list else None  # type: ignore[call-overload]  # a list


def _numbers(value: object) -> dict[str, float] | None:
    if not isinstance(value, Mapping) or not _OTHER_LIMITS.isdisjoint(value):
        return None
    are_plain = all(isinstance(key, str) and _is_number(each) for key, each in value.items())
    return dict(value) if are_plain else None


def _variables(value: object) -> dict[str, str] | None:
    if not isinstance(value, Mapping):
        return None
    are_texts = all(isinstance(word, str) for pair in value.items() for word in pair)
    return dict(value) if are_texts else None
