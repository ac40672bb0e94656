"""The section about texts: what the guard does with what goes to a model and comes back."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import (
    PATH_MOST_BYTES,
    Section,
    danger,
    listed,
    number,
    one_of,
    word,
)
from cellwall.core.outcomes import SEVERITIES

_CODE_RULE = re.compile(r"code\.[a-z0-9.-]{0,100}\*?")


def _check_file(text: str) -> str:
    if not posixpath.isabs(text) or not text.isprintable() or len(text.encode()) > PATH_MOST_BYTES:
        raise PydanticCustomError(
            "path", 'is not an absolute path. Write for example "/etc/team/rules.toml".'
        )
    return text


def _check_code_rule(text: str) -> str:
    if _CODE_RULE.fullmatch(text) is None:
        raise PydanticCustomError(
            "rule", 'is no rule of the screening. Write for example "code.python.eval" or "code.*".'
        )
    return text


def _check_code_pattern(text: str) -> str:
    severity, _, pattern = text.partition(" ")
    if severity not in SEVERITIES or not pattern.strip():
        raise PydanticCustomError(
            "pattern",
            'is no pattern for code. Write a severity and a pattern: "medium document\\\\.cookie".',
        )
    try:
        re.compile(pattern)  # RE2 takes fewer forms; for the others the guard refuses all code
    except re.error:
        raise PydanticCustomError("pattern", "is no regular expression.") from None
    return text


_File = Annotated[str, AfterValidator(_check_file)]
# From a likely attack on, something is done about it (GRD-3); only `dangerously_` says otherwise.
_Any = Annotated[str, one_of("allow", "annotate", "neutralise", "ask", "block")]
_Acting = Annotated[str, one_of("neutralise", "ask", "block")]


class GuardSection(Section):
    """What is done about attacks and secrets in texts; a signal, and never the only wall."""

    input_low: _Any = word(
        "a curiosity in what is said to a model",
        "allow", "annotate", "neutralise", "ask", "block",
    )  # fmt: skip
    input_medium: _Acting = word(
        "a likely attack in it: the sentence is taken out, a person is asked, or all is refused",
        "neutralise", "ask", "block",
    )  # fmt: skip
    input_high: _Acting = word("a clear attack in it", "block", "ask", "neutralise")
    input_critical: _Acting = word(
        "an attack that also names a secret or a way out", "block", "ask", "neutralise"
    )
    output_low: _Any = word(
        "the same for what tools bring back",
        "allow", "annotate", "neutralise", "ask", "block",
    )  # fmt: skip
    output_medium: _Acting = word(
        "a likely attack in what came back; the rest of it is worth reading",
        "neutralise", "ask", "block",
    )  # fmt: skip
    output_high: _Acting = word("a clear attack in it", "neutralise", "ask", "block")
    output_critical: _Acting = word(
        "an attack in it that also names a secret or a way out", "block", "ask", "neutralise"
    )
    marking: Annotated[str, one_of("delimit", "datamark", "encode")] = word(
        "how results are marked as data for a model: between two lines with a number, also with a "
        "sign before each word, or written in base64",
        "delimit", "datamark", "encode",
    )  # fmt: skip
    personal_data: Annotated[str, one_of("keep", "hide")] = word(
        "whether a model sees mail addresses, numbers and the like, or tokens in their place",
        "keep", "hide",
    )  # fmt: skip
    max_characters: int = number(
        4 << 20, "of one text; what is beyond is not looked at and not shown", least=1000,
        most=64 << 20,
    )  # fmt: skip
    max_shown_characters: int = number(
        200_000, "of one text that a model is shown; of more the middle is left out", least=1000,
        most=16 << 20,
    )  # fmt: skip
    denied_code: tuple[Annotated[str, AfterValidator(_check_code_rule)], ...] = listed(
        (),
        "findings in code that refuse to run it, as does code of the same language that cannot be "
        "screened; `*` at the end stands for any",
        most=256,
    )
    code_patterns: tuple[Annotated[str, AfterValidator(_check_code_pattern)], ...] = listed(
        (),
        "patterns for code of every language, each behind its severity; high and critical refuse",
        most=64,
    )
    rule_files: tuple[_File, ...] = listed(
        (), "rules of your own, beside the built-in ones", most=16
    )
    secret_rule_files: tuple[_File, ...] = listed(
        (), "shapes of secrets in the format of gitleaks, beside the built-in ones", most=16
    )
    dangerously_only_annotate: bool = danger(
        "attacks in texts are reported and otherwise left where they are"
    )
