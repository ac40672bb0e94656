"""The shipped snapshot of malicious versions denies without a feed, and is none (PKG-1)."""

from __future__ import annotations

import json
import re
import zipfile
from datetime import UTC, datetime

import pytest
from semver import Version

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import PackageRules
from cellwall.packages.facts import Project, Release
from cellwall.packages.feed import Feed
from cellwall.packages.judge import PackageJudge
from cellwall.packages.names import Ecosystem, canonical_name
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
def test_no_popular_package_is_denied_by_its_name_alone(judge):
    snapshot = malicious_snapshot(Ecosystem.NPM)
    popular = [each for each in snapshot.versions if popular_rank(Ecosystem.NPM, each)]
    assert "axios" in popular
    for name in popular:
        assert judge.judge_name(Ecosystem.NPM, name).verdict is Verdict.ALLOW


def test_the_shipped_file_has_date_source_hash_names_and_versions():
    snapshot = malicious_snapshot(Ecosystem.NPM)
    assert (str(snapshot.day), snapshot.source) == ("2026-04-06", "hulud-party-scanner 1.5.0 (ISC)")
    assert re.fullmatch(r"[0-9a-f]{64}", snapshot.sha256)
    assert len(snapshot.versions) > 900
    for name, versions in snapshot.versions.items():
        assert canonical_name(Ecosystem.NPM, name) == name
        assert versions
        assert all(map(Version.is_valid, versions))


def test_there_is_no_snapshot_of_pypi():
    assert malicious_snapshot(Ecosystem.PYPI) is None
    assert snapshot_advisory(Ecosystem.PYPI, "axios") is None
