"""Where people live and when they were born."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import date
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cellwall.core.errors import CellwallError
from cellwall.guard.pii.hit import CheckBudget, PiiHit, keyword_places, load_forms
from cellwall.parsing.matching import Pattern, WordIndex

_POSTCODE = re.compile(
    r"\b(?:[A-Z]{2},? [0-9]{5}(?:-[0-9]{4})?"  # US
    r"|[A-Z]{1,2}[0-9][A-Z0-9]? ?[0-9][A-Z]{2}"  # GB
    r"|[ABCEGHJ-NPRSTVXY][0-9][A-Z] ?[0-9][A-Z][0-9]"  # CA
    r"|(?:NSW|VIC|QLD|WA|SA|TAS|ACT|NT) [0-9]{4}"  # AU
    r"|[0-9]{4} ?[A-Z]{2}"  # NL
    r"|[0-9]{4,5}-[0-9]{3}"  # PT, BR
    r"|(?:[A-Z]{1,2}-)?[0-9]{4,5} [A-ZÀ-ÞŐŰ][^\W\d_]{2,30})\b"  # DE, AT, CH, FR, ES, IT …
)
_REACH_BYTES = 120
_MAX_LINES = 3

_BIRTH_WORDS = (
    "born", "dob", "d.o.b", "birth", "bday", "geboren", "geburt", "né le", "née le", "naissance",
    "nacid", "nacimiento", "nascid", "nascimento", "nato il", "nata il", "nascita", "geboorte",
    "рожден", "родил", "出生", "生年月日", "생년월일", "تاريخ الميلاد",
)  # fmt: skip
_DATE = Pattern(
    r"\b(?:[0-9]{4}[-/.年] ?[0-9]{1,2}[-/.月] ?[0-9]{1,2}日?"
    r"|[0-9]{1,2}[-/.] ?[0-9]{1,2}[-/.] ?(?:[0-9]{4}|[0-9]{2})\b"
    r"|[0-9]{1,2}(?:st|nd|rd|th|er|\.|º)?(?: de| of)? [\pL]{3,12}\.?(?: de|,)? [0-9]{4}\b"
    r"|[\p{Lu}][\pL]{2,11}\.? [0-9]{1,2}(?:st|nd|rd|th)?,? [0-9]{4}\b)"
)
_BIRTH_REACH_BYTES = 48
_YEARS = range(1880, 2100)


def find_postal_addresses(data: bytes, _: CheckBudget) -> Iterator[PiiHit]:
    """Street and house number followed by a postcode; without one it may be any sentence."""
    for street in _streets():
        for start, end in street.spans(data):
            rest = data[end : end + _REACH_BYTES].decode("utf-8", "surrogateescape")
            lines = rest.split("\n")[:_MAX_LINES]
            postcode = _POSTCODE.search("\n".join(lines))
            if postcode is not None:
                yield PiiHit("address", start, end + _length(rest[: postcode.end()]))


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def find_birth_dates(data: bytes, _: CheckBudget) -> Iterator[PiiHit]:
    """Dates after a keyword that says they are dates of birth."""
    for place in keyword_places(_words(), data):
        for start, end in _DATE.spans(data, place.end, place.end + _BIRTH_REACH_BYTES):
            if _is_date(data[start:end].decode("utf-8", "replace")):
                yield PiiHit("birth", start, end)
                break


def _is_date(text: str) -> bool:
    numbers = [int(each) for each in re.findall(r"[0-9]+", text)]
    if len(numbers) == 2:  # the month is a word
        numbers.insert(1, 1)
    first, second, last = numbers
    year, day = (first, last) if first > 31 else (last, first)
    year += 1900 if year < 100 else 0
    return year in _YEARS and (_exists(year, second, day) or _exists(year, day, second))


def _exists(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


@cache
def _streets() -> tuple[Pattern, ...]:
    return tuple(Pattern(r"\b" + row["form"]) for row in load_forms()["street"])


@cache
def _words() -> tuple[tuple[str, ...], WordIndex]:
    return _BIRTH_WORDS, WordIndex([word.encode() for word in _BIRTH_WORDS], ignore_case=True)


_PIECE_CHARACTERS = 50_000
"""The model's memory grows with the text, so the text is passed in pieces, split at lines."""
_MIN_SCORE = 0.6


class NameFinder:
    """Finds names of people by a language model, an extra: `pip install 'cellwall[names]'`.

    Usable as `names` of `find`. Slow, and a guess; without it no name is found. Building it takes
    seconds and hundreds of megabytes.
    """

    def __init__(self, *, language: str = "en", model: str = "en_core_web_lg") -> None:
        if find_spec("presidio_analyzer") is None:
            raise CellwallError(
                "names of people cannot be found: the library for it is not installed",
                hint="pip install 'cellwall[names]'",
                code="CW-PII-NAMES",
            )
        # Checked first, because presidio would download a missing model.
        if find_spec(model) is None:
            raise CellwallError(
                f"names of people cannot be found: the language model {model} is not installed",
                hint=f"python -m spacy download {model}",
                code="CW-PII-NAMES",
            )
        self._language = language
        self._lock = threading.Lock()
        self._analyzer = _analyzer(language, model)

    def __call__(self, text: str) -> tuple[PiiHit, ...]:
        found: list[PiiHit] = []
        start = 0
        while start < len(text):
            end = _cut(text, start)
            found += [
                PiiHit("name", start + result.start, start + result.end)
                for result in self._analyse(text[start:end])
            ]
            start = end
        return tuple(found)

    def _analyse(self, piece: str) -> list[Any]:
        with self._lock:
            try:
                found = self._analyzer.analyze(
                    text=piece,
                    language=self._language,
                    entities=["PERSON"],
                    score_threshold=_MIN_SCORE,
                )
            except Exception as error:  # noqa: BLE001  # a model may raise anything
                raise CellwallError(
                    "names of people could not be looked for in a text",
                    hint="Report it; until then turn names off.",
                    code="CW-PII-NAMES",
                    detail=str(error),
                ) from None
        return list(found)


def _cut(text: str, start: int) -> int:
    end = start + _PIECE_CHARACTERS
    if end >= len(text):
        return len(text)
    line = text.rfind("\n", start, end)
    return line + 1 if line > start else end


def _analyzer(language: str, model: str) -> Any:  # noqa: ANN401  # the library has no types
    try:
        provider = import_module("presidio_analyzer.nlp_engine").NlpEngineProvider(
            nlp_configuration={
                "nlp_engine_name": "spacy",
                "models": [{"lang_code": language, "model_name": model}],
            }
        )
        return import_module("presidio_analyzer").AnalyzerEngine(
            nlp_engine=provider.create_engine(), supported_languages=[language]
        )
    except Exception as error:  # noqa: BLE001  # loading a model may raise anything
        raise CellwallError(
            "names of people cannot be found: the library for it does not start",
            hint="pip install --upgrade 'cellwall[names]'",
            code="CW-PII-NAMES",
            detail=str(error),
        ) from None
