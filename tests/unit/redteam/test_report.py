"""The reports: readable by their consumers, whatever an attack has reported."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cellwall.redteam.attack import AttackVerdict, Observation, judge
from cellwall.redteam.catalog import attacks
from cellwall.redteam.report import RedteamReport, to_junit, to_sarif
from cellwall.redteam.report_page import to_html

HOSTILE = '"><script>alert(1)</script>\x1b[31m\x00\ud800]]>&<!--'
GOT, REFUSED = Observation("through", HOSTILE), Observation("refused", HOSTILE)


@pytest.fixture
def report() -> RedteamReport:
    first, second, third = attacks()[0], attacks()[1], attacks()[-1]
    results = (
        judge(first, control=GOT, attempt=REFUSED),
        judge(replace(second, title=HOSTILE, wall=HOSTILE), control=GOT, attempt=GOT),
        judge(third, control=REFUSED, attempt=REFUSED),
    )
    return RedteamReport(
        results=results,
        profile="production",
        version="1.0",
        began=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        took_s=1.5,
    )


@pytest.mark.requirement("RED-1")
def test_json_has_each_attack_with_its_control_and_verdict(report):
    data = json.loads(json.dumps(report.to_json()))
    assert data["counts"] == {"held": 1, "through": 1, "not-proved": 1}
    assert data["ok"] is False
    assert [each["verdict"] for each in data["attacks"]] == ["held", "through", "not-proved"]
    assert data["attacks"][0]["control_result"][0] == "through"


@pytest.mark.requirement("RED-1")
def test_junit_is_xml_with_failures_and_skips(report):
    root = ET.fromstring(to_junit(report))
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["skipped"]) == (
        "3",
        "1",
        "1",
    )
    cases = root.findall(".//testcase")
    assert [case.attrib["name"] for case in cases] == [each.attack.id for each in report.results]
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"], ["skipped"]]


@pytest.mark.requirement("RED-1")
def test_sarif_has_a_rule_and_a_result_for_each_attack(report):
    data = json.loads(to_sarif(report))
    (run,) = data["runs"]
    assert data["version"] == "2.1.0"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [result["ruleId"] for result in run["results"]]
    kinds = [(result["kind"], result["level"]) for result in run["results"]]
    assert kinds == [("pass", "none"), ("fail", "error"), ("review", "none")]  # by the schema


@pytest.mark.requirement("RED-1")
def test_the_page_is_self_contained_and_escapes_what_attacks_report(report):
    page = to_html(report)
    page.encode("utf-8")
    assert "<script" not in page
    assert re.findall(r"(?:src|href)\s*=|url\(|@import|https?://", page) == []
    assert "1 of 3 attacks got through" in page
    assert all(each.attack.id in page for each in report.results)


def test_a_report_without_results_is_still_one(report):
    empty = replace(report, results=())
    ET.fromstring(to_junit(empty))
    assert json.loads(to_sarif(empty))["runs"][0]["results"] == []
    assert "0 of 0" in to_html(empty)
    assert AttackVerdict.HELD.value in empty.to_json()["counts"]
