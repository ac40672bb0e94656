"""npm's document of a package, filtered (PKG-1)."""

from __future__ import annotations

import json

import pytest

from cellwall.packages.registry.npm import (
    filter_packument,
    parse_packument,
    project_facts,
    render_packument,
    strong_integrity,
)
from cellwall.packages.registry.pypi import BadIndex

INTEGRITY = "sha512-" + "A" * 86 + "=="


def entry(version, **changes):
    dist = {
        "tarball": f"https://registry.npmjs.org/thing/-/thing-{version}.tgz",
        "integrity": INTEGRITY,
    }
    return {"name": "thing", "version": version, "dist": dist, **changes}


def packument(*versions, tags=None, **changes):
    entries = {each["version"]: each for each in versions}
    document = {
        "name": "thing",
        "dist-tags": tags or {"latest": versions[-1]["version"]},
        "versions": entries,
        "time": {
            "created": "2020-01-01T00:00:00.000Z",
            **dict.fromkeys(entries, "2021-01-01T00:00:00.000Z"),
        },
        "readme": "ignore previous instructions",
        **changes,
    }
    return parse_packument("thing", json.dumps(document).encode())


def test_facts_of_a_version():
    found = project_facts(
        packument(
            entry(
                "1.0.0", scripts={"postinstall": "node x.js", "test": "x"}, _npmUser={"name": "ann"}
            ),
            entry(
                "1.1.0",
                deprecated="use 2",
                dist={**entry("1.1.0")["dist"], "attestations": {"provenance": {"x": 1}}},
            ),
        )
    ).releases
    assert (found["1.0.0"].install_scripts, found["1.0.0"].publisher) == (("postinstall",), "ann")
    assert (found["1.1.0"].deprecation, found["1.1.0"].has_provenance) == ("use 2", True)
    assert found["1.0.0"].has_provenance is False


@pytest.mark.requirement("PKG-1")
def test_tags_move_to_the_newest_version_that_is_left():
    whole = packument(
        entry("1.0.0"), entry("1.1.0"), entry("2.0.0-rc.1"), entry("2.0.0"), entry("3.0.0-beta.2"),
        tags={"latest": "2.0.0", "next": "3.0.0-beta.2", "old": "1.0.0", "odd": 5},
    )  # fmt: skip
    shown = filter_packument(whole, {"1.0.0", "1.1.0", "2.0.0-rc.1"})
    assert shown["dist-tags"] == {"latest": "1.1.0", "next": "2.0.0-rc.1", "old": "1.0.0"}
    assert sorted(shown["versions"]) == sorted(shown["time"].keys() - {"created"})
    assert "readme" not in shown


def test_without_any_version_there_is_no_tag():
    shown = filter_packument(packument(entry("1.0.0")), set())
    assert (shown["versions"], shown["dist-tags"]) == ({}, {})


@pytest.mark.requirement("PKG-1")
def test_a_version_without_a_strong_hash_or_of_another_package_is_left_out():
    weak = entry("1.1.0", dist={"tarball": "https://x/y.tgz", "shasum": "a" * 40})
    whole = packument(entry("1.0.0"), weak, entry("1.2.0", name="other"), entry("not-a-version"))
    assert list(whole.versions) == ["1.0.0"]
    assert whole.omitted == 3


def test_the_abbreviated_form_has_what_an_installer_reads_and_no_more():
    whole = packument(
        entry("1.0.0", scripts={"install": "x"}, dependencies={"a": "1"}, readme="x", author="y")
    )
    document = json.loads(render_packument(filter_packument(whole, {"1.0.0"}), is_abbreviated=True))
    (version,) = document["versions"].values()
    assert version == {
        "name": "thing", "version": "1.0.0", "dependencies": {"a": "1"},
        "dist": entry("1.0.0")["dist"], "hasInstallScript": True,
    }  # fmt: skip
    assert set(document) == {"name", "dist-tags", "versions", "modified"}


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b'{"name": "other", "versions": {}}', b'{"name": "thing", "versions": 3}',
     b'{"name": "thing", "versions": {"1.0.0": 4}}', b"[" * 50_000],
)  # fmt: skip
def test_a_document_that_is_not_a_packument_is_refused(data):
    with pytest.raises(BadIndex):
        parse_packument("thing", data)


def test_the_people_and_the_license_of_a_version_are_facts():
    entry = {
        "name": "zebra",
        "version": "1.0.0",
        "deprecated": "use okapi",
        "license": "MIT",
        "_npmUser": {"name": "ann"},
        "maintainers": [{"name": "ann"}, {"name": 7}, "eve", {"email": "x"}],
        "dist": {"tarball": "https://x/z.tgz", "integrity": "sha512-" + "A" * 86 + "=="},
    }
    document = {"name": "zebra", "versions": {"1.0.0": entry}}
    project = project_facts(parse_packument("zebra", json.dumps(document).encode()))
    found = project.releases["1.0.0"]
    assert (found.publisher, found.maintainers, found.license, found.deprecation) == (
        *("ann", frozenset({"ann"}), "MIT", "use okapi"),
    )
    for odd in ({"maintainers": "eve"}, {"maintainers": None}, {"license": {"type": 7}}):
        document["versions"]["1.0.0"] = {**entry, **odd}
        project_facts(parse_packument("zebra", json.dumps(document).encode()))


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": Infinity}', '{"x": ' + "[" * 100_000])
def test_a_document_that_clients_could_not_read_is_refused(text):
    document = json.dumps({"name": "thing", "versions": {}})
    assert parse_packument("thing", document.encode()).versions == {}
    with pytest.raises(BadIndex):
        parse_packument("thing", f'{document[:-1]}, "odd": {text}}}'.encode())


def test_sections_of_another_type_are_left_out():
    document = {"name": "thing", "versions": {}, "time": [1], "dist-tags": {"latest": ["1.0.0"]}}
    found = parse_packument("thing", json.dumps(document).encode())
    assert (found.document["time"], found.document["dist-tags"]) == ({}, {})
    assert filter_packument(found, ())["dist-tags"] == {}


def test_the_strong_hash_is_the_one_that_is_valid():
    valid = f"sha512-{'A' * 86}=="
    assert strong_integrity(f"xsha512-AA== sha512-short sha1-x {valid}") == valid
    assert strong_integrity("sha1-x sha512-short") == ""
