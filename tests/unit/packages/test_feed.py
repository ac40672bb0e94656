"""The store of OSV advisories (PKG-1)."""

from __future__ import annotations

import json
import os
import threading
import zipfile

import pytest

from cellwall.core.errors import BadInput
from cellwall.packages.feed import Feed, FeedRefused
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import BadAdvisory, parse_advisory


def malicious(name="evil", ecosystem="PyPI", number=1, **changes):
    return {
        "id": f"MAL-2026-{number}",
        "modified": "2026-11-01T00:00:00Z",
        "summary": f"Malicious code in {name}",
        "affected": [
            {
                "package": {"ecosystem": ecosystem, "name": name},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
            }
        ],
        **changes,
    }


def archive(path, *records):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for number, record in enumerate(records):
            data = record if isinstance(record, bytes) else json.dumps(record).encode()
            written.writestr(f"{number}.json", data)
    return str(path)


@pytest.fixture
def feed(tmp_path):
    return Feed(str(tmp_path / "packages"))


@pytest.mark.requirement("PKG-1")
def test_an_imported_advisory_is_found_by_any_spelling_of_its_name(feed, tmp_path):
    result = feed.import_archive(
        archive(tmp_path / "a.zip", malicious("Evil_Package"), malicious("@x/y", "npm", 2)),
        source="test",
    )
    assert (result.advisories, result.unreadable) == (2, 0)
    (found,) = feed.advisories(Ecosystem.PYPI, "evil-package")
    assert found.is_malicious
    assert found.affected[0].covers("1.0")
    assert feed.advisories(Ecosystem.NPM, "evil-package") == ()
    assert [each.id for each in feed.advisories(Ecosystem.NPM, "@x/y")] == ["MAL-2026-2"]
    (source,) = feed.sources()
    assert (source.malicious, source.vulnerabilities, source.name) == (2, 0, "test")
    assert source.ecosystems == {Ecosystem.PYPI, Ecosystem.NPM}


@pytest.mark.requirement("PKG-1")
def test_a_new_archive_replaces_the_advisories_of_its_source_alone(feed, tmp_path):
    feed.import_archive(
        archive(tmp_path / "a.zip", malicious("old"), malicious("both", number=2)), source="pypi"
    )
    feed.import_archive(archive(tmp_path / "b.zip", malicious("x", "npm", 3)), source="npm")
    feed.import_archive(archive(tmp_path / "c.zip", malicious("both", number=2)), source="pypi")
    found = {name: len(feed.advisories(Ecosystem.PYPI, name)) for name in ("old", "both")}
    assert found == {"old": 0, "both": 1}
    assert len(feed.advisories(Ecosystem.NPM, "x")) == 1
    assert [each.name for each in feed.sources()] == ["npm", "pypi"]


def test_single_advisories_are_added_and_withdrawn(feed, tmp_path):
    feed.import_archive(archive(tmp_path / "a.zip", malicious("one")), source="pypi")
    changes = [malicious("two", number=2), malicious("one", withdrawn="2026-11-02T00:00:00Z")]
    feed.add((parse_advisory(json.dumps(each).encode()) for each in changes), source="pypi")
    found = {name: len(feed.advisories(Ecosystem.PYPI, name)) for name in ("one", "two")}
    assert found == {"one": 0, "two": 1}


def test_the_age_of_the_feed_is_that_of_the_registry_asked_for(feed, tmp_path):
    feed.import_archive(archive(tmp_path / "a.zip", malicious()), source="pypi")
    assert feed.updated(Ecosystem.PYPI) is not None
    assert feed.updated(Ecosystem.NPM) is None


def test_without_an_import_there_is_no_source_and_no_advisory(feed):
    assert feed.sources() == ()
    assert feed.advisories(Ecosystem.PYPI, "evil") == ()


@pytest.mark.parametrize(
    ("version", "is_covered"),
    [("0.9", False), ("1.0", True), ("1.5.post1", True), ("2.0", False), ("2.1", False), ("3.1", True), ("4", False), ("odd", True)],
)  # fmt: skip
def test_a_range_covers_versions_in_the_order_of_pep_440(version, is_covered):
    events = [
        {"introduced": "1.0"},
        {"fixed": "2.0"},
        {"introduced": "3.0"},
        {"last_affected": "3.2"},
    ]
    record = malicious()
    record["affected"][0]["ranges"][0]["events"] = events
    (affected,) = parse_advisory(json.dumps(record).encode()).affected
    assert affected.covers(version) is is_covered


def test_an_npm_range_follows_semantic_versions():
    record = malicious(ecosystem="npm")
    record["affected"][0]["ranges"][0] = {
        "type": "SEMVER",
        "events": [{"introduced": "1.0.0"}, {"fixed": "1.10.0"}],
    }
    (affected,) = parse_advisory(json.dumps(record).encode()).affected
    found = {v: affected.covers(v) for v in ("1.9.0", "1.10.0", "1.10.0-rc.1", "0.9.9")}
    assert found == {"1.9.0": True, "1.10.0": False, "1.10.0-rc.1": True, "0.9.9": False}


def test_listed_versions_alone_cover_no_other_version():
    record = malicious()
    record["affected"][0] = {"package": record["affected"][0]["package"], "versions": ["1.1"]}
    (affected,) = parse_advisory(json.dumps(record).encode()).affected
    assert (affected.covers("1.1"), affected.covers("1.2")) == (True, False)


@pytest.mark.parametrize("version", ["1.1", "1.1.0", "v1.1", "1.1b0", "1.1-beta"])
def test_another_spelling_of_a_listed_version_is_the_same_version(version):
    record = malicious()
    package = record["affected"][0]["package"]
    record["affected"][0] = {"package": package, "versions": ["1.1.0", "1.1.beta"]}
    (affected,) = parse_advisory(json.dumps(record).encode()).affected
    assert affected.covers(version)
    assert not affected.covers("1.2")


LISTED = {
    ("PyPI", "1.1+cu118"): True,
    ("PyPI", "1.1.0+a.b"): True,
    ("PyPI", "1.2+cu118"): False,
    ("PyPI", "1!1.1"): False,
    ("PyPI", "1.1.post1"): False,
    ("npm", "v1.1.0"): True,
    ("npm", "=1.1.0"): True,
    ("npm", " = v1.1.0 "): True,
    ("npm", "1.1.0+build.5"): True,
    ("npm", "1.1.0-rc.1"): False,
    ("npm", "v1.1.1"): False,
}


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize(("ecosystem", "version"), LISTED)
def test_no_spelling_of_a_listed_version_passes_by_the_feed(ecosystem, version):
    record = malicious(ecosystem=ecosystem)
    package = record["affected"][0]["package"]
    record["affected"][0] = {"package": package, "versions": ["1.1.0"]}
    (affected,) = parse_advisory(json.dumps(record).encode()).affected
    assert affected.covers(version) is LISTED[ecosystem, version]


def test_a_local_version_of_the_last_affected_one_is_affected():
    record = malicious()
    record["affected"][0]["ranges"][0]["events"] = [{"introduced": "1.0"}, {"last_affected": "2.0"}]
    (affected,) = parse_advisory(json.dumps(record).encode()).affected
    found = {v: affected.covers(v) for v in ("2.0", "2.0+a", "2.1", "2.1+a", "1.0+a")}
    assert found == {"2.0": True, "2.0+a": True, "2.1": False, "2.1+a": False, "1.0+a": True}


def test_a_version_with_more_digits_than_a_number_has_is_one_that_cannot_be_compared():
    (affected,) = parse_advisory(json.dumps(malicious()).encode()).affected
    assert affected.covers("1" * 5000)


@pytest.mark.requirement("PKG-1")
def test_no_source_takes_back_what_another_one_reports(feed, tmp_path):
    feed.import_archive(archive(tmp_path / "a.zip", malicious("evil")), source="ours")

    def is_reported() -> bool:
        return [each.id for each in feed.advisories(Ecosystem.PYPI, "evil")] == ["MAL-2026-1"]

    withdrawn = malicious("evil", withdrawn="2026-11-02T00:00:00Z")
    feed.add([parse_advisory(json.dumps(withdrawn).encode())], source="theirs")
    assert is_reported()
    # Under the same identifier they report another package, and then nothing.
    for number, name in enumerate(("other", "third")):
        path = archive(tmp_path / f"{number}.zip", malicious(name, number=number + 1))
        feed.import_archive(path, source="theirs")
        assert is_reported()
    # The control: the source itself may.
    feed.add([parse_advisory(json.dumps(withdrawn).encode())], source="ours")
    assert not is_reported()


def test_reports_of_two_sources_under_one_identifier_are_one_advisory(feed, tmp_path):
    for source, version in (("a", "1.0"), ("b", "2.0")):
        record = malicious("evil")
        record["affected"][0] = {"package": record["affected"][0]["package"], "versions": [version]}
        feed.import_archive(archive(tmp_path / f"{source}.zip", record), source=source)
    (found,) = feed.advisories(Ecosystem.PYPI, "evil")
    covered = {v: any(each.covers(v) for each in found.affected) for v in ("1.0", "2.0", "3.0")}
    assert covered == {"1.0": True, "2.0": True, "3.0": False}
    assert [each.malicious for each in feed.sources()] == [1, 1]


def test_a_withdrawn_advisory_does_not_count(feed, tmp_path):
    withdrawn = malicious(withdrawn="2026-11-02T00:00:00Z")
    result = feed.import_archive(
        archive(tmp_path / "a.zip", withdrawn, malicious("other", number=2)), source="t"
    )
    assert (result.advisories, result.withdrawn) == (1, 1)
    assert feed.advisories(Ecosystem.PYPI, "evil") == ()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'{"id": 1}', b"[" * 100_000, b'{"id":"MAL-1","modified":5}',
     json.dumps(malicious(affected=[{"package": "x"}])).encode(), b'{"id":"MAL-1","modified":"m","affected":{"a":1}}', b"\xff\xfe"],
)  # fmt: skip
def test_a_record_that_is_not_osv_is_refused(data):
    with pytest.raises(BadAdvisory):
        parse_advisory(data)


def test_unreadable_records_are_counted_and_the_rest_is_imported(feed, tmp_path):
    path = archive(tmp_path / "a.zip", b"{", malicious())
    result = feed.import_archive(path, source="t")
    assert (result.advisories, result.unreadable) == (1, 1)


def test_a_damaged_or_empty_archive_leaves_the_store_as_it_was(feed, tmp_path):
    feed.import_archive(archive(tmp_path / "a.zip", malicious()), source="first")
    whole = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    empty = archive(tmp_path / "empty.zip")
    for path in (str(tmp_path / "cut.zip"), empty):
        with pytest.raises(FeedRefused):
            feed.import_archive(path, source="second")
    with pytest.raises(BadInput):
        feed.import_archive(str(tmp_path / "absent.zip"), source="second")
    assert [each.name for each in feed.sources()] == ["first"]
    assert len(feed.advisories(Ecosystem.PYPI, "evil")) == 1


def test_a_damaged_store_is_refused_and_not_taken_for_an_empty_one(feed, tmp_path):
    feed.import_archive(archive(tmp_path / "a.zip", malicious()), source="t")
    path = tmp_path / "packages" / "feed.sqlite"
    path.write_bytes(b"SQLite format 3\0" + os.urandom(4096))
    with pytest.raises(FeedRefused) as error:
        feed.advisories(Ecosystem.PYPI, "evil")
    assert error.value.code == "CW-FEED-DAMAGED"
    feed.import_archive(archive(tmp_path / "a.zip", malicious()), source="t")
    assert len(feed.advisories(Ecosystem.PYPI, "evil")) == 1


@pytest.mark.parametrize("name", ["a?mode=rwc", "a#b", "a%41b", "a b"])
def test_the_path_of_the_state_folder_may_have_any_character(tmp_path, name):
    archived = archive(tmp_path / "a.zip", malicious("evil"))
    feed = Feed(str(tmp_path / name))
    feed.import_archive(archived, source="test")
    assert len(feed.advisories(Ecosystem.PYPI, "evil")) == 1
    assert sorted(os.listdir(tmp_path)) == sorted(["a.zip", name])


def test_a_draft_of_a_killed_import_is_replaced(feed, tmp_path):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "feed.sqlite.draft").write_bytes(b"half")
    feed.import_archive(archive(tmp_path / "a.zip", malicious()), source="t")
    assert len(feed.advisories(Ecosystem.PYPI, "evil")) == 1
    assert not (tmp_path / "packages" / "feed.sqlite.draft").exists()


def test_readers_see_a_whole_store_while_imports_run(feed, tmp_path):
    path = archive(tmp_path / "a.zip", *(malicious(f"evil{n}", number=n) for n in range(50)))
    feed.import_archive(path, source="t")
    writer = threading.Thread(
        target=lambda: [feed.import_archive(path, source="t") for _ in range(5)]
    )
    writer.start()
    counts = set()
    while writer.is_alive():
        counts.add(len(feed.advisories(Ecosystem.PYPI, "evil7")))
    writer.join()
    assert counts <= {1}
