"""The shipped snapshot of malicious versions denies without a feed, and is none (PKG-1)."""

from __future__ import annotations

import json
import re
import zipfile
from datetime import UTC, datetime

import pytest
from packaging.version import VERSION_PATTERN
from semver import Version

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.facts import Project, Release
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.osv import one_spelling
from cellwall.packages.popular import popular_rank
from cellwall.packages.snapshot import malicious_snapshot, snapshot_advisory

OLD = datetime(2020, 1, 1, tzinfo=UTC)
LISTED, HARMLESS = "1.14.1", "1.14.0"
REASON = f"the shipped snapshot of 2026-04-06 reports axios {LISTED} as malicious"


@pytest.fixture
def feed(tmp_path):
    return Feed(str(tmp_path / "packages"))


@pytest.fixture
def judge(feed):
    return PackageJudge(feed, PackageRules(without_feed=Verdict.ALLOW))


def codes(verdict):
    return [each.code for each in verdict.reasons]


def report(feed, path, name, version):
    record = {
        "id": "MAL-2026-1",
        "modified": "2026-11-01T00:00:00Z",
        "affected": [{"package": {"ecosystem": "npm", "name": name}, "versions": [version]}],
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("1.json", json.dumps(record))
    feed.import_archive(str(path), source="test")


@pytest.mark.requirement("PKG-1")
def test_a_version_in_the_snapshot_is_denied_without_a_feed(judge):
    found = judge.judge_pin(Ecosystem.NPM, "axios", LISTED)
    assert found.verdict is Verdict.DENY
    assert [each.text for each in found.reasons if each.code == "malicious"] == [REASON]
    assert judge.judge_pin(Ecosystem.NPM, "axios", HARMLESS).verdict is Verdict.ALLOW


@pytest.mark.requirement("PKG-1")
def test_an_index_is_shown_without_the_versions_in_the_snapshot(judge):
    releases = {each: Release(each, OLD) for each in (HARMLESS, LISTED)}
    found = judge.judge_versions(Project(Ecosystem.NPM, "axios", releases))
    assert "malicious" in codes(found[LISTED])
    assert "malicious" not in codes(found[HARMLESS])


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("without_feed", [Verdict.ASK, Verdict.DENY])
def test_the_snapshot_is_no_feed(feed, without_feed):
    judge = PackageJudge(feed, PackageRules(without_feed=without_feed))
    harmless = judge.judge_pin(Ecosystem.NPM, "axios", HARMLESS)
    assert (harmless.verdict, codes(harmless)) == (without_feed, ["feed"])
    assert (feed.updated(Ecosystem.NPM), feed.sources()) == (None, ())


@pytest.mark.requirement("PKG-1")
def test_a_feed_adds_to_the_snapshot(feed, judge, tmp_path):
    report(feed, tmp_path / "a.zip", "axios", HARMLESS)
    for version, reason in (
        (HARMLESS, f"MAL-2026-1 reports axios {HARMLESS} as malicious"),
        (LISTED, REASON),
    ):
        found = judge.judge_pin(Ecosystem.NPM, "axios", version)
        assert [each.text for each in found.reasons] == [reason]


def test_a_version_in_feed_and_snapshot_has_one_reason(feed, judge, tmp_path):
    report(feed, tmp_path / "a.zip", "axios", LISTED)
    found = judge.judge_pin(Ecosystem.NPM, "axios", LISTED)
    assert [each.text for each in found.reasons] == [
        f"MAL-2026-1 reports axios {LISTED} as malicious"
    ]


@pytest.mark.requirement("PKG-1")
def test_a_version_of_pypi_in_the_snapshot_is_denied_without_a_feed(judge):
    found = judge.judge_pin(Ecosystem.PYPI, "lightning", "2.6.2")
    assert found.verdict is Verdict.DENY
    assert [each.text for each in found.reasons if each.code == "malicious"] == [
        "the shipped snapshot of 2026-08-22 reports lightning 2.6.2 as malicious"
    ]
    assert judge.judge_pin(Ecosystem.PYPI, "lightning", "2.6.1").verdict is Verdict.ALLOW


@pytest.mark.requirement("PKG-1")
def test_every_spelling_of_a_version_of_pypi_in_the_snapshot_is_denied(judge):
    for version in ("1", "1.0", "1.0.0", "v1.0", "01.0"):
        assert judge.judge_pin(Ecosystem.PYPI, "3web", version).verdict is Verdict.DENY
    assert judge.judge_pin(Ecosystem.PYPI, "3web", "1.0.1").verdict is Verdict.ALLOW


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(
    ("ecosystem", "name"), [(Ecosystem.NPM, "axios"), (Ecosystem.PYPI, "lightning")]
)
def test_no_popular_package_is_denied_by_its_name_alone(judge, ecosystem, name):
    snapshot = malicious_snapshot(ecosystem)
    popular = [each for each in snapshot.versions if popular_rank(ecosystem, each)]
    assert name in popular
    for each in popular:
        assert judge.judge_name(ecosystem, each).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    ("ecosystem", "day", "source", "count"),
    [
        (Ecosystem.NPM, "2026-04-06", "hulud-party-scanner 1.5.0 (ISC)", 900),
        (
            Ecosystem.PYPI,
            "2026-08-22",
            "kam193/package-campaigns f647f99b6f49 (free with attribution)",
            1900,
        ),
    ],
)
def test_the_shipped_file_has_date_source_hash_names_and_versions(ecosystem, day, source, count):
    snapshot = malicious_snapshot(ecosystem)
    assert (str(snapshot.day), snapshot.source) == (day, source)
    assert re.fullmatch(r"[0-9a-f]{64}", snapshot.sha256)
    assert len(snapshot.versions) > count
    is_version = Version.is_valid if ecosystem is Ecosystem.NPM else is_pypi_version
    for name, versions in snapshot.versions.items():
        assert canonical_name(ecosystem, name) == name
        assert versions
        assert all(map(is_version, versions))
        assert {one_spelling(ecosystem, each) for each in versions} == versions


def is_pypi_version(text):
    return re.fullmatch(VERSION_PATTERN, text, re.VERBOSE | re.IGNORECASE) is not None


def test_a_package_that_is_in_no_snapshot_has_no_report():
    assert snapshot_advisory(Ecosystem.PYPI, "axios") is None
    assert snapshot_advisory(Ecosystem.NPM, "lightning") is None
