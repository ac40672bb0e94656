"""Loads `Settings` from a profile and one optional file; one error lists all mistakes (CFG-2).

1. Find the file: the caller's, else `CELLWALL_CONFIG`, else the user's default path if it exists.
2. Open it without blocking, and check the open file: regular, small, writable by the user alone.
3. Parse it within bounds.
4. Merge: the profile's data, then the file's.
5. Validate the whole, and report each mistake with file, line and hint.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from cellwall.config.fields import Section
from cellwall.config.models import (
    DEFAULT_PROFILE,
    PROFILE_NAMES,
    SECTIONS,
    Settings,
    bounds,
    is_size,
)
from cellwall.config.settings_file import (
    UNSAFE,
    Fault,
    FileRefused,
    KeyPath,
    find_deep_line,
    index_lines,
    nearest_line,
    read_settings,
)
from cellwall.core.errors import ConfigError
from cellwall.core.home import user_home
from cellwall.core.limits import size_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_NESTING = 32
MAX_MISTAKES = 100

TomlTable = Mapping[str, Any]


def load_settings(
    *, file: str | None = None, profile: str | None = None, environ: Mapping[str, str]
) -> Settings:
    """The effective settings. `file` and `profile` are named by a person, or None."""
    if profile is not None and profile not in PROFILE_NAMES:
        raise ConfigError(
            f"profile: {_format_value(profile)} is unknown",
            hint=_profile_hint(profile),
            code="CW-CONFIG-PROFILE",
        )
    source = _find(file, environ)
    text = _read(source)
    data = _parse(source, text)
    named = data.get("profile")
    chosen = profile or (named if named in PROFILE_NAMES else DEFAULT_PROFILE)
    merged = merge(profile_data(str(chosen)), data)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        raise _report(source, text, merged, details) from None
    if settings.policy.rule_of_two == "show" and chosen not in _SHOWING:
        raise ConfigError(
            f'{source.shown}: policy.rule_of_two: "show" weakens the profile {chosen}',
            hint='Write "ask", or dangerously_without_rule_of_two = true in [policy].',
        )
    return settings.model_copy(update={"profile": chosen})


_SHOWING = frozenset({"development"})
"""Profiles in which the rule of two may only be shown (POL-9)."""


@cache
def profile_data(name: str) -> TomlTable:
    """The settings of a shipped profile; others keep their defaults."""
    shipped = resources.files("cellwall.config").joinpath("profiles", f"{name}.toml")
    return tomllib.loads(shipped.read_text(encoding="utf-8"))


def profile_settings(name: str) -> Settings:
    """A shipped profile alone, without any file of the user."""
    return Settings.model_validate({"profile": name, **profile_data(name)})


def merge(base: TomlTable, top: TomlTable) -> dict[str, Any]:
    """`top` over `base`, table by table; a list or a value replaces the old one."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = {**below, **value}
        else:
            merged[key] = value
    return merged


# 1. Find


@dataclass(frozen=True, slots=True)
class _SettingsFile:
    """A file to read. Messages show only `shown` of its path (ERR-1)."""

    path: str
    shown: str
    named: bool
    by_variable: bool = False

    @property
    def in_shell(self) -> str:
        """For a command in a hint. The default path must stay unquoted for expansion."""
        return shlex.quote(self.shown) if self.named else self.shown


def candidates(file: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The files that `load_settings` would read."""
    return (_find(file, environ).path,)


def shown_place(file: str | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The file that `load_settings` would read, as messages name it, and whether it exists."""
    source = _find(file, environ)
    return source.shown, os.path.lexists(source.path)


def _find(file: str | None, environ: Mapping[str, str]) -> _SettingsFile:
    named = file if file is not None else environ.get("CELLWALL_CONFIG") or None
    if named is not None:
        return _SettingsFile(named, _plain(named), named=True, by_variable=file is None)
    tail = "cellwall/config.toml"
    xdg = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(xdg):  # the XDG specification says to ignore a relative one
        return _SettingsFile(os.path.join(xdg, tail), f"$XDG_CONFIG_HOME/{tail}", named=False)
    path = os.path.join(user_home(environ), ".config", tail)
    return _SettingsFile(path, f"~/.config/{tail}", named=False)


# 2. Open and check


_FAULT_HINTS = {
    Fault.ABSENT: "Name a file that exists, or leave the option out.",
    Fault.LONG_NAME: "Name a file that exists.",
    Fault.FORBIDDEN: "Let the user who runs Cellwall read it.",
    Fault.LOOP: "Name the file itself.",
    Fault.UNREADABLE: "Name a regular TOML file.",
    Fault.IRREGULAR: "Name a regular TOML file.",
    Fault.FOLDER: "Name the TOML file in it.",
    Fault.TOO_LARGE: "Name the configuration file.",
    Fault.STRANGER: "Check its content, then: chown {uid} {file}",
    Fault.WRITABLE: "Check its content, then: chmod go-w {file}",
    Fault.NOT_TEXT: "Save the file as UTF-8.",
}


def _read(source: _SettingsFile) -> str:
    """The file's text; empty where the user has no file and named none."""
    try:
        return read_settings(source.path)
    except FileRefused as refused:
        fault = refused.fault
        # A dangling link is not "no file": settings were meant to be there.
        if fault is Fault.ABSENT and not source.named and not os.path.lexists(source.path):
            return ""
        place = f"{source.shown}:{refused.line}" if refused.line else source.shown
        is_unsafe = fault in UNSAFE
        harm = ", who could disable isolation layers" if is_unsafe else ""
        hint = _FAULT_HINTS[fault].format(uid=os.geteuid(), file=source.in_shell)
        if fault is Fault.ABSENT and source.by_variable:
            hint = "CELLWALL_CONFIG names it: set the variable to a file that exists, or unset it."
        raise ConfigError(
            f"{place}: {fault.value}{harm}",
            hint=hint,
            code="CW-CONFIG-UNSAFE" if is_unsafe else "CW-CONFIG-FILE",
        ) from None


# 3. Parse

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def _parse(source: _SettingsFile, text: str) -> TomlTable:
    deep = find_deep_line(text, most=MAX_NESTING)
    if deep is not None:
        raise ConfigError(
            f"{source.shown}:{deep}: nested more than {MAX_NESTING} deep",
            hint="Settings are at most a few tables deep.",
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number of 4301 digits
        place = _TOML_PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        at = f" at column {place[2]}" if place and place[2] else ""
        why = _plain(_TOML_PLACE.sub("", str(error)))
        raise ConfigError(
            f"{source.shown}:{line}: not valid TOML{at}: {why}",
            hint="Correct that line and try again.",
        ) from None


# 5. Report


def _report(
    source: _SettingsFile, text: str, data: TomlTable, details: Iterable[ErrorDetails]
) -> ConfigError:
    lines = index_lines(text)
    placed = sorted(
        ((nearest_line(lines, detail["loc"]), detail) for detail in details),
        key=lambda pair: (pair[0], str(pair[1]["loc"])[:200]),
    )
    mistakes = [
        f"{source.shown}:{line}: {_path_text(detail['loc'])}: {_sentence(detail, data)}"
        for line, detail in placed[:MAX_MISTAKES]
    ]
    if len(placed) > MAX_MISTAKES:
        mistakes.append(f"{source.shown}: and {len(placed) - MAX_MISTAKES} more")
    return ConfigError("\n".join(mistakes), hint="Nothing was run. Correct the file and try again.")


_WRONG_KIND = {
    "model_type": "is not a table. Write a header such as [limits] and its keys below.",
    "int_type": "is not a whole number.",
    "float_type": "is not a number.",
    "finite_number": "is not a finite number.",
    "bool_type": "is not true or false.",
    "string_type": "is not a text.",
    "tuple_type": "is not a list.",
    "dict_type": "is not a table of names and values.",
}


def _sentence(detail: ErrorDetails, data: TomlTable) -> str:
    path = detail["loc"]
    if detail["type"] == "extra_forbidden":
        return "unknown key. " + _key_hint(path)
    value = _value_at(data, path)
    match detail["type"]:
        case "literal_error":
            problem = "is unknown. " + _profile_hint(value)
        case "greater_than_equal" | "less_than_equal" as kind:
            size = "small" if kind == "greater_than_equal" else "large"
            problem = f"is too {size}. {_range_hint(path)}"
        case "too_long":
            problem = f"has more than {detail['ctx']['max_length']} entries."
        case kind if kind in _WRONG_KIND:
            problem = f"{_WRONG_KIND[kind]} {_range_hint(path)}".rstrip()
        case _:
            problem = detail["msg"]
    # A value that may contain a password is not shown.
    shown = "the value" if detail["type"] == "secret" else _format_value(value)
    return f"{shown} {problem}"


def _model_at(path: KeyPath) -> type[Section] | None:
    """The table that the path leads to: a section, or one of the tables in it by name or number."""
    model: type[Section] = Settings
    parts = list(path)
    while parts:
        spec = model.model_fields.get(str(parts.pop(0)))
        kind: Any = None if spec is None else spec.annotation
        if get_origin(kind) in {dict, tuple}:
            if not parts:
                return None
            parts.pop(0)  # the name or the number of a table
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            return None
        model = kind
    return model


def _field_at(path: KeyPath) -> FieldInfo | None:
    model = _model_at(path[:-1])
    return None if model is None or len(path) < 2 else model.model_fields.get(str(path[-1]))


def _range_hint(path: KeyPath) -> str:
    spec = _field_at(path)
    limits = bounds(spec) if spec else None
    if spec is None or limits is None:
        return ""
    least, most = (size_text(int(end)) if is_size(spec) else f"{end:.12g}" for end in limits)
    return f"Write a value from {least} to {most}."


def _key_hint(path: KeyPath) -> str:
    key = str(path[-1])[:80]
    known = (_model_at(path[:-1]) or Settings).model_fields
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"Did you mean {_path_text((*path[:-1], close[0]))}?"
    for name, section in SECTIONS.items():
        if key in section.model_fields:
            return f"It belongs in [{name}]."
    return f"Known here: {', '.join(known)}."


def _profile_hint(value: object) -> str:
    close = difflib.get_close_matches(str(value)[:80], PROFILE_NAMES, n=1)
    return f"Did you mean {close[0]}?" if close else f"Write one of {', '.join(PROFILE_NAMES)}."


def _value_at(data: object, path: KeyPath) -> object:
    for part in path:
        if isinstance(data, Mapping) and part not in data:
            return data  # of a built-in table that the file only changes
        data = data[part]  # type: ignore[index] # pydantic was here before us
    return data


def _path_text(path: KeyPath) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part) is not None
            text += ("." if text else "") + (part if bare else _format_value(part))
    return text


# A terminal interprets control characters and a log splits at newlines, so no text of the file or
# its name is quoted raw or at full length.


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:300])


def _format_value(value: object) -> str:
    match value:
        case Mapping():
            return "a table"
        case list():
            return "a list"
        case int() if value.bit_length() > 128:  # printing millions of digits raises
            return "this number"
        case dt.date() | dt.time():
            return value.isoformat()
        case float():
            return repr(value)
        case str() if len(value) > 60:
            return json.dumps(value[:60]) + "…"
        case _:
            return json.dumps(value)
