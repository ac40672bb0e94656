"""Names of people, by a language model that is an extra: `pip install 'cellwall[names]'`.

It is slow and it guesses; without it no name is ever found, and nothing here pretends otherwise.
"""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cellwall.core.errors import CellwallError
from cellwall.guard.pii.hit import PiiHit

_PIECE_CHARACTERS = 50_000
"""The model's memory grows with the text, so it is given pieces, cut between lines."""
_MIN_SCORE = 0.6


class NameFinder:
    """Callable as `names` of `find`. Building it takes seconds and hundreds of megabytes."""

    def __init__(self, *, language: str = "en", model: str = "en_core_web_lg") -> None:
        if find_spec("presidio_analyzer") is None:
            raise CellwallError(
                "names of people cannot be found: the library for it is not installed",
                hint="pip install 'cellwall[names]'",
                code="CW-PII-NAMES",
            )
        # Asked first, for presidio downloads what it misses, and nothing here goes out by itself.
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
                for result in self._asked(text[start:end])
            ]
            start = end
        return tuple(found)

    def _asked(self, piece: str) -> list[Any]:
        with self._lock:
            try:
                found = self._analyzer.analyze(
                    text=piece,
                    language=self._language,
                    entities=["PERSON"],
                    score_threshold=_MIN_SCORE,
                )
            except Exception as error:  # noqa: BLE001  # a model may raise whatever it likes
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
    except Exception as error:  # noqa: BLE001  # as above
        raise CellwallError(
            "names of people cannot be found: the library for it does not start",
            hint="pip install --upgrade 'cellwall[names]'",
            code="CW-PII-NAMES",
            detail=str(error),
        ) from None
