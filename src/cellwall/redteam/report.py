"""The report of one run, and its forms for programs: JSON, JUnit and SARIF. Pure."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cellwall.core.types import Json
from cellwall.redteam.attack import Attack, AttackResult, AttackVerdict

_SARIF_LEVELS = {
    AttackVerdict.HELD: "none",
    AttackVerdict.THROUGH: "error",
    AttackVerdict.NOT_PROVED: "none",  # SARIF 3.27.10: of every kind but "fail"
}
_SARIF_KINDS = {
    AttackVerdict.HELD: "pass",
    AttackVerdict.THROUGH: "fail",
    AttackVerdict.NOT_PROVED: "review",
}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedteamReport:
    """All results of one run."""

    results: tuple[AttackResult, ...]
    profile: str
    version: str
    began: datetime
    took_s: float

    def count(self, verdict: AttackVerdict) -> int:
        return sum(result.verdict is verdict for result in self.results)

    def of(self, verdict: AttackVerdict) -> tuple[AttackResult, ...]:
        return tuple(result for result in self.results if result.verdict is verdict)

    @property
    def is_breached(self) -> bool:
        """Whether any attack got through."""
        return self.count(AttackVerdict.THROUGH) > 0

    def by_layer(self) -> dict[str, list[AttackResult]]:
        found: dict[str, list[AttackResult]] = {}
        for result in self.results:
            found.setdefault(result.attack.layer, []).append(result)
        return found

    def to_json(self) -> dict[str, Json]:
        return {
            "ok": not self.is_breached,
            "version": self.version,
            "profile": self.profile,
            "began": self.began.isoformat(timespec="seconds"),
            "took_s": round(self.took_s, 1),
            "counts": {verdict.value: self.count(verdict) for verdict in AttackVerdict},
            "attacks": [result.to_json() for result in self.results],
        }


def plain_text(text: str) -> str:
    """Without characters that XML forbids or that a reader would not see."""
    return "".join(char if char.isprintable() else "?" for char in text)


def escape(text: str) -> str:
    """Text for XML and HTML, in elements and in attributes."""
    return html.escape(plain_text(text), quote=True)


def to_junit(report: RedteamReport) -> str:
    """JUnit: an attack that got through is a failure, one that is not proved is skipped."""
    counts = (len(report.results), report.count(AttackVerdict.THROUGH))
    skipped = report.count(AttackVerdict.NOT_PROVED)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    numbers = f'tests="{counts[0]}" failures="{counts[1]}" skipped="{skipped}" errors="0"'
    lines.append(f'<testsuites name="cellwall redteam" {numbers} time="{report.took_s:.1f}">')
    for layer, results in report.by_layer().items():
        lines.extend(_junit_suite(layer, results))
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _junit_suite(layer: str, results: Sequence[AttackResult]) -> Iterator[str]:
    failures = sum(each.verdict is AttackVerdict.THROUGH for each in results)
    skipped = sum(each.verdict is AttackVerdict.NOT_PROVED for each in results)
    yield (
        f'  <testsuite name="{escape(layer)}" tests="{len(results)}" failures="{failures}" '
        f'skipped="{skipped}" errors="0">'
    )
    for each in results:
        case = f'classname="redteam.{escape(layer)}" name="{escape(each.attack.id)}"'
        reason = escape(each.reason)
        match each.verdict:
            case AttackVerdict.HELD:
                yield f"    <testcase {case}/>"
            case AttackVerdict.THROUGH:
                yield f'    <testcase {case}><failure message="{reason}"/></testcase>'
            case AttackVerdict.NOT_PROVED:
                yield f'    <testcase {case}><skipped message="{reason}"/></testcase>'
    yield "  </testsuite>"


def to_sarif(report: RedteamReport) -> str:
    """SARIF 2.1.0: one rule for each attack, one result for each verdict."""
    driver = {
        "name": "cellwall redteam",
        "version": report.version,
        "rules": [_sarif_rule(result.attack) for result in report.results],
    }
    run = {"tool": {"driver": driver}, "results": [_sarif_result(each) for each in report.results]}
    return (
        json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"
    )


def _sarif_rule(attack: Attack) -> dict[str, Json]:
    tags = [attack.layer, attack.requirement, *attack.owasp, *attack.atlas]
    return {
        "id": attack.id,
        "shortDescription": {"text": plain_text(attack.title)},
        "fullDescription": {
            "text": plain_text(f"{attack.title}. Expected to stop: {attack.wall}.")
        },
        "help": {"text": plain_text(f"Control: {attack.control}.")},
        "properties": {"tags": tags},
    }


def _sarif_result(result: AttackResult) -> dict[str, Json]:
    # A result without a place is shown by few viewers: the attack itself is the place.
    place = {"logicalLocations": [{"fullyQualifiedName": result.attack.id, "kind": "module"}]}
    return {
        "ruleId": result.attack.id,
        "kind": _SARIF_KINDS[result.verdict],
        "level": _SARIF_LEVELS[result.verdict],
        "message": {"text": plain_text(f"{result.verdict.value}: {result.reason}")},
        "locations": [place],
    }
