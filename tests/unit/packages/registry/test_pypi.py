"""PyPI's index, read, filtered and written again (PKG-1)."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from cellwall.packages.facts import ProjectStatus
from cellwall.packages.registry.built_wheels import BuiltWheel
from cellwall.packages.registry.pypi import (
    HTML_TYPE,
    JSON_TYPE,
    BadIndex,
    add_built_wheels,
    add_upload_times,
    filter_index,
    parse_index,
    parse_license,
    project_facts,
    render_html,
    render_json,
)

URL = "https://pypi.org/simple/thing/"
A, B, C = "a" * 64, "b" * 64, "c" * 64
WHEEL = "thing-1.0-py3-none-any.whl"


def json_file(filename=WHEEL, sha256=A, **changes):
    return {
        "filename": filename,
        "url": f"https://files.pythonhosted.org/packages/{filename}",
        "hashes": {"sha256": sha256},
        "upload-time": "2026-01-02T03:04:05.000000Z",
        **changes,
    }


def json_index(*files, **changes):
    document = {"meta": {"api-version": "1.4"}, "name": "thing", "files": list(files), **changes}
    return json.dumps(document).encode()


def parse(*files, **changes):
    return parse_index("thing", json_index(*files, **changes), JSON_TYPE, URL)


@pytest.mark.requirement("PKG-1")
def test_json_and_html_of_the_same_index_say_the_same():
    metadata = {"core-metadata": {"sha256": B}, "requires-python": ">=3.8"}
    from_json = parse(json_file(**metadata), json_file("thing-2.0.tar.gz", C, yanked="broken"))
    page = f"""<!DOCTYPE html><html><body>
      <a href="../../packages/{WHEEL}#sha256={A}" data-core-metadata="sha256={B}"
         data-requires-python="&gt;=3.8">{WHEEL}</a>
      <a href="https://files.pythonhosted.org/packages/thing-2.0.tar.gz#sha256={C}" data-yanked="broken">t</a>
    </body></html>"""
    from_html = parse_index("thing", page.encode(), "text/html; charset=utf-8", URL)
    described = [
        [
            (f.filename, f.sha256, f.version, f.yanked, f.requires_python, f.metadata_sha256)
            for f in index.files
        ]
        for index in (from_json, from_html)
    ]
    assert described[0] == described[1]
    assert from_html.files[0].url == f"https://pypi.org/packages/{WHEEL}"


@pytest.mark.requirement("PKG-1")
def test_a_file_without_a_hash_or_of_another_project_is_left_out():
    index = parse(
        json_file(),
        json_file("thing-1.1-py3-none-any.whl", ""),
        json_file("thing-1.2-py3-none-any.whl", "md5"),
        json_file("other-1.0-py3-none-any.whl"),
        json_file("thing-1.3.exe"),
        json_file("thing-1.4-py3-none-any.whl", url="file:///etc/passwd"),
    )
    assert [each.filename for each in index.files] == [WHEEL]
    assert index.omitted == 5


def test_upload_times_come_from_the_older_api_where_the_index_has_none():
    entry = json_file()
    del entry["upload-time"]
    releases = {
        "1.0": [{"digests": {"sha256": A}, "upload_time_iso_8601": "2025-05-06T07:08:09.1Z"}]
    }
    index = add_upload_times(parse(entry), json.dumps({"releases": releases}).encode())
    assert index.files[0].uploaded == datetime(2025, 5, 6, 7, 8, 9, 100000, UTC)


def test_facts_of_a_version_come_from_all_of_its_files():
    index = parse(
        json_file(),
        json_file("thing-1.0.tar.gz", B, **{"upload-time": "2026-06-01T00:00:00Z"}),
        json_file("thing-2.0.tar.gz", C, yanked=True),
        json_file("thing-3.0-py3-none-any.whl", B, provenance="https://pypi.org/x"),
        # A file that was added to an attested version, without an attestation.
        json_file("thing-4.0-py3-none-any.whl", B, provenance="https://pypi.org/x"),
        json_file("thing-4.0-cp311-cp311-linux_x86_64.whl", C),
    )
    facts = project_facts(index).releases
    assert facts["1.0"].uploaded == datetime(2026, 6, 1, tzinfo=UTC)  # the file added last
    assert (facts["1.0"].has_built_file, facts["1.0"].is_yanked) == (True, False)
    assert (facts["2.0"].has_built_file, facts["2.0"].is_yanked) == (False, True)
    assert {v: f.has_provenance for v, f in facts.items()} == {
        "1.0": False,
        "2.0": False,
        "3.0": True,
        "4.0": False,
    }


@pytest.mark.requirement("PKG-1")
def test_a_filtered_index_shows_only_the_allowed_versions():
    index = parse(
        json_file(), json_file("thing-1.0.tar.gz", B), json_file("thing-2.0-py3-none-any.whl", C)
    )
    shown = filter_index(index, {"1.0"})
    assert [each.filename for each in shown.files] == [WHEEL]
    again = parse_index("thing", render_json(shown), JSON_TYPE, URL)
    assert again.files == shown.files
    page = parse_index("thing", render_html(shown), HTML_TYPE, URL)
    assert [(f.url, f.sha256) for f in page.files] == [(f.url, f.sha256) for f in shown.files]


@pytest.mark.requirement("PKG-3")
def test_a_source_is_never_shown_and_its_own_wheel_only_where_a_build_is_allowed():
    index = parse(json_file("thing-1.0.tar.gz", B), json_file("thing-2.0.tar.gz", C))
    index = add_built_wheels(index, {B: (BuiltWheel(WHEEL, A, 9),)})
    facts = project_facts(index).releases
    assert {v: (f.has_built_file, f.has_own_build) for v, f in facts.items()} == {
        "1.0": (False, True),
        "2.0": (False, False),
    }
    assert filter_index(index, {"1.0", "2.0"}).files == ()
    (shown,) = filter_index(index, {"1.0", "2.0"}, built={"1.0", "2.0"}).files
    assert (shown.filename, shown.sha256, shown.size) == (WHEEL, A, 9)
    assert B in shown.url  # a lock names the hash of the source
    assert shown.source.sha256 == B


def test_a_hostile_attribute_cannot_leave_its_place_in_the_page():
    index = parse(json_file(**{"requires-python": '"><script>alert(1)</script>'}))
    assert b"<script>" not in render_html(index)


@pytest.mark.parametrize(
    ("marker", "status"),
    [("quarantined", ProjectStatus.QUARANTINED), ("archived", ProjectStatus.ARCHIVED), ("new-kind", ProjectStatus.QUARANTINED)],
)  # fmt: skip
def test_the_status_marker_is_read_and_an_unknown_one_counts_as_the_strictest(marker, status):
    assert parse(json_file(), **{"project-status": {"status": marker}}).status is status


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", JSON_TYPE),
        (b"{}", JSON_TYPE),
        (b"[]", JSON_TYPE),
        (b'{"files": 5}', JSON_TYPE),
        (b'{"files": [5]}', JSON_TYPE),
        (b"[" * 50_000, JSON_TYPE),
        (b"\xff", "text/html"),
        (b"x", "image/png"),
        (json_index(json_file(**{"upload-time": "yesterday"})), JSON_TYPE),
    ],
)
def test_a_document_that_is_not_an_index_is_refused(data, kind):
    with pytest.raises(BadIndex):
        parse_index("thing", data, kind, URL)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"info": 7}', b"[" * 100_000])
def test_a_malformed_description_is_no_license(data):
    with pytest.raises(BadIndex):
        parse_license("zebra", data)


@pytest.mark.parametrize(
    "page",
    ["<a " * 20_000, "<!--" * 20_000, "<a href='" * 20_000, "<b>x</b>" * 20_000],
    ids=["tags", "comments", "quotes", "text"],
)
def test_a_malformed_page_takes_linear_time(page):
    """html.parser took two minutes for the first one."""
    assert parse_index("thing", page.encode(), "text/html", URL).files == ()


@pytest.mark.slow
def test_a_page_with_too_many_files_is_refused():
    link = f'<a href="/{WHEEL}#sha256={A}">x</a>'
    assert len(parse_index("thing", link.encode() * 10, "text/html", URL).files) == 10
    with pytest.raises(BadIndex):
        parse_index("thing", link.encode() * 60_000, "text/html", URL)
    with pytest.raises(BadIndex):
        parse(*[json_file()] * 50_001)


@pytest.mark.requirement("PKG-4")
def test_a_base_element_does_not_move_files_to_another_host():
    page = f'<base href="https://evil.example/"><a href="/p/{WHEEL}#sha256={A}">x</a>'
    (found,) = parse_index("thing", page.encode(), "text/html", URL).files
    assert found.url == f"https://pypi.org/p/{WHEEL}"


def test_entries_that_no_client_could_use_safely_are_left_out():
    rest = "thing-1.0-py3-none-any"
    index = parse(
        json_file(),
        json_file(f"{rest}/../../evil.whl"),
        json_file(f'{rest}"onload=x.whl'),
        json_file(f"{rest}\n.whl"),
        json_file(f"{rest}{'x' * 300}.whl"),
        json_file("thing-2.0-py3-none-any.whl", url=f"https://pypi.org/{WHEEL}"),
    )
    assert [each.filename for each in index.files] == [WHEEL]


def test_odd_values_of_an_entry_do_not_reach_the_client():
    odd = {"requires-python": ["x"], "provenance": 5, "core-metadata": {"sha256": 5}, "size": -1}
    index = parse(json_file(**odd, **{"upload-time": "0001-01-01T00:00:00+23:59"}))
    (entry,) = json.loads(render_json(index))["files"]
    assert set(entry) == {"filename", "url", "hashes"}
    assert b"data-" not in render_html(index)
