"""The section of the guard: treatment of texts to and from a model."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import (
    Section,
    absolute_path,
    danger,
    listed,
    number,
    one_of,
    word,
)

_CODE_RULE = re.compile(r"code\.[a-z0-9.-]{0,100}\*?")


def _check_code_rule(text: str) -> str:
    if _CODE_RULE.fullmatch(text) is None:
        raise PydanticCustomError(
            "rule", 'is not a code rule. Write for example "code.python.eval" or "code.*".'
        )
    return text


_File = Annotated[str, absolute_path("/etc/team/rules.toml")]
# A likely attack is never let through (GRD-3), but for `dangerously_only_annotate`.
_Any = Annotated[str, one_of("allow", "annotate", "neutralise", "ask", "block")]
_Acting = Annotated[str, one_of("neutralise", "ask", "block")]


class GuardSection(Section):
    """Treatment of attacks and secrets in texts; a signal, never the only boundary."""

    input_low: _Any = word(
        "a minor finding in the input of a model",
        "allow", "annotate", "neutralise", "ask", "block",
    )  # fmt: skip
    input_medium: _Acting = word(
        "a likely attack in it: the sentence is removed, a person is asked, or all is refused",
        "neutralise", "ask", "block",
    )  # fmt: skip
    input_high: _Acting = word("a clear attack in it", "block", "ask", "neutralise")
    input_critical: _Acting = word(
        "an attack that also names a secret or an egress channel",
        "block",
        "ask",
        "neutralise",
    )
    output_low: _Any = word(
        "a minor finding in the output of a tool",
        "allow", "annotate", "neutralise", "ask", "block",
    )  # fmt: skip
    output_medium: _Acting = word(
        "a likely attack in it; the rest of the output stays readable",
        "neutralise", "ask", "block",
    )  # fmt: skip
    output_high: _Acting = word("a clear attack in it", "neutralise", "ask", "block")
    output_critical: _Acting = word(
        "an attack in it that also names a secret or an egress channel",
        "block",
        "ask",
        "neutralise",
    )
    marking: Annotated[str, one_of("delimit", "datamark", "encode")] = word(
        "how results are marked as data for a model: between two lines with a number, also with a "
        "sign before each word, or encoded in base64",
        "delimit", "datamark", "encode",
    )  # fmt: skip
    personal_data: Annotated[str, one_of("keep", "hide")] = word(
        "whether a model sees e-mail addresses, phone numbers and the like, or tokens instead",
        "keep", "hide",
    )  # fmt: skip
    max_characters: int = number(
        4 << 20, "length of one text; the rest is neither scanned nor shown", least=1000,
        most=64 << 20,
    )  # fmt: skip
    max_shown_characters: int = number(
        200_000, "length of one text shown to a model; a longer one loses its middle", least=1000,
        most=16 << 20,
    )  # fmt: skip
    denied_code: tuple[Annotated[str, AfterValidator(_check_code_rule)], ...] = listed(
        (),
        "findings in code that refuse the run, as does code of that language that cannot be "
        "screened; a final `*` matches any suffix",
        most=256,
    )
    rule_files: tuple[_File, ...] = listed((), "your own rules, beside the built-in ones", most=16)
    secret_rule_files: tuple[_File, ...] = listed(
        (), "secret patterns in gitleaks format, beside the built-in ones", most=16
    )
    dangerously_only_annotate: bool = danger("attacks in texts are reported and left in the text")
