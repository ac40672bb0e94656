"""Building blocks of the configuration: a strict base model, fields with bounds and reasons."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from cellwall.core.errors import BadInput
from cellwall.core.limits import parse_size

MAX_PATH_BYTES = 4096
Number = TypeVar("Number", int, float)
NumberOrNone = TypeVar("NumberOrNone", int, None)


def absolute_path(example: str = "") -> AfterValidator:
    """Only an absolute, printable path is valid."""
    hint = f' Write for example "{example}".' if example else ""

    def check(text: str) -> str:
        fits = text.startswith("/") and len(text.encode()) <= MAX_PATH_BYTES
        if not fits or not text.isprintable():
            raise PydanticCustomError("path", f"is not an absolute path.{hint}")
        return text

    return AfterValidator(check)


class Section(BaseModel):
    """One table of the file. Strict: "yes" is not true and 1.5 is not a count."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        validate_default=True,
    )


# An error text completes a sentence that begins with the value.


def _read_size(value: object) -> object:
    """`"512m"` -> bytes; other types are left to the integer check."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except BadInput:
        raise PydanticCustomError("size", "is not a size. Write for example 512m.") from None


Size = Annotated[int, BeforeValidator(_read_size)]


@dataclasses.dataclass(frozen=True, slots=True)
class SizeSchema:
    """In the JSON schema a size is a number within bounds or a text; TOML has no null."""

    least: int
    most: int

    def __call__(self, schema: dict[str, Any]) -> None:
        for key in ("type", "minimum", "maximum", "anyOf"):
            schema.pop(key, None)
        if schema.get("default", 0) is None:
            del schema["default"]
        schema["anyOf"] = [
            {"type": "integer", "minimum": self.least, "maximum": self.most},
            {"type": "string", "pattern": r"^[0-9]{1,15}(\.[0-9]{1,3})? *[kmgtKMGT]?([iI]?[bB])?$"},
        ]


def number(default: Number, reason: str, *, least: Number, most: Number) -> Number:
    """A number within bounds."""
    return Field(default=default, description=reason, ge=least, le=most)


def size(default: NumberOrNone, reason: str, *, least: int, most: int) -> NumberOrNone:
    """A size in bytes, which may be written as `512m`."""
    schema = SizeSchema(least, most)
    return Field(default=default, description=reason, ge=least, le=most, json_schema_extra=schema)


def listed(default: tuple[str, ...], reason: str, *, most: int) -> tuple[str, ...]:
    """A list with at most `most` entries."""
    return Field(default=default, description=reason, max_length=most, strict=False)


def danger(reason: str) -> bool:
    """A protection that can be disabled; enabled by default."""
    return Field(default=False, description=reason)


def one_of(*words: str, noun: str = "") -> AfterValidator:
    """Only these words are valid; `noun` names them in the error."""
    choices = " or ".join(f'"{word}"' for word in words)
    problem = f"is unknown. Write {choices}."
    if noun:
        problem = f"is not {noun}. Write one of {', '.join(words)}."

    def check(text: str) -> str:
        if text not in words:
            raise PydanticCustomError("word", problem)
        return text

    return AfterValidator(check)


def matching(pattern: str, problem: str) -> AfterValidator:
    """Only a text that matches the pattern as a whole is valid."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise PydanticCustomError("pattern", problem)
        return text

    return AfterValidator(check)


def word(reason: str, *words: str) -> str:
    """One of some words; the first is the default."""
    return Field(
        default=words[0],
        description=reason,
        max_length=max(map(len, words)),
        json_schema_extra={"enum": list(words)},
    )
