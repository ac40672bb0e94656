"""The one text that stands for a skill: bounds, names, and nothing that reads two ways (SKL-1)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import CellwallError
from cellwall.core.keys import make_key
from cellwall.core.notes import signed_note
from cellwall.skills.manifest import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_FILES,
    Manifest,
    ManifestFile,
    build_manifest,
    check_name,
    check_path,
    open_manifest,
    parse,
    sign_manifest,
)

SHA = hashlib.sha256(b"x").hexdigest()
TEXT = f"cellwall-skill/v1\nname a\nx 1 {SHA} b c/d\n- 1 {SHA} é.md\n"


def code_of(raised: pytest.ExceptionInfo[CellwallError]) -> str:
    return raised.value.code


def test_a_manifest_is_written_as_it_is_read():
    manifest = parse(TEXT)
    assert manifest == build_manifest("a", {"é.md": b"x", "b c/d": b"x"}, {"b c/d"})
    assert manifest.encode() == TEXT
    assert manifest.digest == hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "cellwall-skill/v1",
        "cellwall-skill/v1\nname a\n",
        TEXT.replace("v1", "v2"),
        TEXT.replace("name a", "names a"),
        TEXT.replace("name a", "name  a"),
        TEXT[:-1],
        TEXT + "\n",
        TEXT + f"- 1 {SHA} a\n",  # not sorted
        TEXT + f"- 1 {SHA} é.md\n",  # twice
        TEXT.replace("x 1", "x 01"),
        TEXT.replace("x 1", "x +1"),
        TEXT.replace("x 1", "X 1"),
        TEXT.replace("x 1", "x -1"),
        TEXT.replace("x 1", "x 1 "),
        TEXT.replace("x 1", "x \u0661"),
        TEXT.replace("x 1", "x 9999999999"),
        TEXT.replace(SHA, SHA.upper()),
        TEXT.replace(SHA, SHA[:-1]),
        TEXT.replace("\n", "\r\n"),
    ],
)
def test_whatever_is_not_written_as_it_must_be_is_refused(text):
    with pytest.raises(CellwallError) as raised:
        parse(text)
    assert code_of(raised).startswith("CW-SKILL")


@pytest.mark.requirement("SKL-1")
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "a/../../b",
        "./a",
        "a//b",
        "a/",
        "a\\b",
        "a\tb",
        "a\x7fb",
        "a\x9bb",
        "a\u202eb",
        "a\u200bb",
        "a\ufe0fb",
        "a\u3164b",
        "a\u00a0b",
        "a\udc80b",
        "e\u0301.md",  # not NFC: another name that looks the same
        " a",
        "a /b",
        ".cellwall-skill",
        "a/.Cellwall-Skill",
        ".cellwall-skill.0011",
        "/".join("a" * (MAX_DEPTH + 1)),
        "a" * 256,
        "/".join(["a" * 200] * 3),
    ],
)
def test_names_that_lead_elsewhere_or_look_like_others_are_refused(path):
    with pytest.raises(CellwallError) as raised:
        check_path(path)
    assert code_of(raised) == "CW-SKILL-PATH"
    assert raised.value.message.isprintable()


@pytest.mark.parametrize("path", ["SKILL.md", "a b/c-d_e.f", "日本/é.md", ".config", "a..b", "..a"])
def test_ordinary_names_pass(path):
    assert check_path(path) == path


@pytest.mark.requirement("SKL-1")
@pytest.mark.parametrize(
    "paths",
    [
        ("README.md", "readme.md"),
        ("A/x", "a/y"),
        ("a", "a/b"),
        ("ﬁle", "file"),
        ("straße", "strasse"),
        ("K", "\u212a"),
    ],
)
def test_two_names_that_can_be_taken_for_one_are_refused(paths):
    with pytest.raises(CellwallError) as raised:
        build_manifest("a", dict.fromkeys(paths, b"x"), ())
    assert code_of(raised) == "CW-SKILL-PATH"


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "A", "a/b", "a b", "a_b", "é", "a\n", "a" * 65, "-a"]
)
def test_names_of_skills_are_plain(name):
    with pytest.raises(CellwallError) as raised:
        check_name(name)
    assert code_of(raised) == "CW-SKILL-NAME"


def test_count_and_size_are_bounded():
    with pytest.raises(CellwallError) as raised:
        Manifest("a", ())
    assert code_of(raised) == "CW-SKILL-EMPTY"
    many = f"- 1 {SHA} a\n" * (MAX_FILES + 1)
    for text in (f"cellwall-skill/v1\nname a\n{many}", TEXT.replace("x 1", f"x {MAX_BYTES}")):
        with pytest.raises(CellwallError) as raised:
            parse(text)
        assert code_of(raised) == "CW-SKILL-TOO-LARGE"


def test_the_largest_manifest_fits_into_a_note(key):
    paths = [f"{number:0250}/{'b' * 255}" for number in range(MAX_FILES)]
    manifest = Manifest("a" * 64, tuple(ManifestFile(path, 1, SHA, False) for path in paths))
    assert open_manifest(sign_manifest(manifest, key), (key.public,))[0] == manifest


@pytest.mark.requirement("SKL-1")
def test_only_a_trusted_key_opens_it_and_the_text_cannot_be_changed(key, tmp_path):
    note = sign_manifest(parse(TEXT), key)
    assert open_manifest(note, (key.public,)) == (parse(TEXT), (key.public,))
    stranger = make_key(str(tmp_path / "other.pem"), "tester")
    for bad, keys in (
        (note, (stranger.public,)),
        (note, ()),
        (note.replace(b"name a", b"name b"), (key.public,)),
        (note.replace(b"tester", b"toaster"), (key.public,)),
        (note[:-9], (key.public,)),
        (b"", (key.public,)),
        (b"\xff" * 100, (key.public,)),
        (b"a" * 2_000_000, (key.public,)),
    ):
        with pytest.raises(CellwallError) as raised:
            open_manifest(bad, keys)
        assert code_of(raised) == "CW-SKILL-UNSIGNED"


def test_a_signature_on_another_kind_of_text_is_no_manifest(key):
    note = signed_note("cellwall-audit/v1\nname a\n", key)
    with pytest.raises(CellwallError) as raised:
        open_manifest(note, (key.public,))
    assert code_of(raised) == "CW-SKILL-MANIFEST"


@pytest.mark.requirement("RED-2")
@given(
    st.text(max_size=200) | st.text(alphabet="cellwall-skill/v1\n name x01 abcdef", max_size=200)
)
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_manifest_or_one_of_our_errors(text):
    try:
        found = parse(text)
    except CellwallError:
        return
    assert found.encode() == text
