"""What a tool of an agent's host brought back: data of any form, all its texts cleaned (GRD-4)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cellwall.core.outcomes import Finding
from cellwall.core.types import Json
from cellwall.guard.rendering import Painter, why
from cellwall.guard.report import Treatment

_MAX_FINDINGS = 100
_DEEPEST = 32
_MAX_TEXTS = 5000
_WITHHELD = "[cellwall: withheld: {}]"
_TOO_MUCH = _WITHHELD.format("it has more texts, or deeper ones, than are looked at")
# Names, paths, numbers, types: what hosts read themselves, and nobody takes for a sentence.
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%~+=,#-]{0,160}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(slots=True)
class Answer:
    """Goes through one answer once."""

    source: str
    painter: Painter
    findings: list[Finding] = field(default_factory=list)
    _texts: int = 0

    def cleaned(self, value: Json) -> Json:
        """The same, with every text cleaned and marked."""
        told = self._value(value, "result", depth=0)
        del self.findings[_MAX_FINDINGS:]
        return told

    def _value(self, value: Json, name: str, *, depth: int) -> Json:
        if depth > _DEEPEST or self._texts > _MAX_TEXTS:
            return _TOO_MUCH
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, Mapping):
            if _is_picture(value):
                return value
            return {
                self._key(str(key)): self._value(each, str(key), depth=depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, Sequence):
            return [self._value(each, name, depth=depth + 1) for each in value]
        return value

    def _key(self, key: str) -> str:
        """Names are read by models, too."""
        if _PLAIN.fullmatch(key) and len(key) < _SHORT:
            return key
        self._texts += 1
        _, report = self.painter.text(key, self.source)
        self.findings += [replace(finding, where="a key") for finding in report.findings]
        if report.verdict.rank < Treatment.NEUTRALISE.rank:
            return key
        return f"{_WITHHELD.format('a name')} {self._texts}"

    def _text(self, text: str, name: str) -> str:
        if not text:
            return text
        self._texts += 1
        marked, report = self.painter.text(text, self.source)
        self.findings += [replace(finding, where=name[:_SHORT]) for finding in report.findings]
        if report.verdict is Treatment.BLOCK:
            return _WITHHELD.format(why(report))
        is_its_own = report.verdict.rank < Treatment.NEUTRALISE.rank and _PLAIN.fullmatch(text)
        return text if is_its_own else marked


_SHORT = 40


def _is_picture(value: Mapping[str, Json]) -> bool:
    """Its bytes are no text; a host that got them marked could not show them."""
    kind = value.get("type", value.get("mimeType", value.get("media_type", "")))
    data = value.get("data")
    others = [each for key, each in value.items() if key != "data"]
    return (
        isinstance(kind, str)
        and kind.startswith(("image", "base64"))
        and isinstance(data, str)
        and _BASE64.fullmatch(data) is not None
        and all(isinstance(each, str) and _PLAIN.fullmatch(each) for each in others)
    )
