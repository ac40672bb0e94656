"""What C reads inside of ordinary text is what plain Python reads there."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plain_inline import MAX_EDITS, decoded_lines, joined

from cellwall.guard.normalise.characters import as_image
from cellwall.guard.normalise.inline_escapes import decode_inline
from cellwall.guard.normalise.offsets import IDENTITY, PatchMap
from cellwall.parsing.budget import AttemptBudget

_HTML = ("&", "#", "x", "amp;", "65", "41;", "&amp;", "&lt;", "&nGt;", "&notit;", "&#0065;",
         "&#128;", "&#x110000;", "&#xD800;", "&#1234567", "&foo;", "&q=a%20b;", "&#0;", "&#xfdd0;")  # fmt: skip
_URL = ("%", "%41", "%e9", "%C3%A9", "%ff%fe", "?", "q=", "a.b=", "+", "?x=+a", "&a=b+c", "%3D")
_ESCAPES = ("\\", "\\x41", "\\xC3\\xA9", "\\xff", "\\101", "\\377", "\\303\\251", "\\u0042",
            "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\u{41}", "\\u{0000041}", "\\u{1234567}",
            "\\u{110000}", "\\U0001F600", "\\u12345678", "U+0041 ", "u+00e9", "U+1F600\n")  # fmt: skip
_QUOTED = ("=", "=41", "=3D", "=20", "=C3=A9", "=E2=80=8B", "=00=01=02=03", "=\n", "=\r\n", "==")
_OTHERS = ("<", '"', " ", "a", "0", "\n", "\r\n", "{", "\\n", "\\t", '\\"', "x" * 239, " the ", ".",
           "\u00e9", "\u4e2d", "\U0001f600", "\u2028")  # fmt: skip
_TEXTS = st.lists(
    st.sampled_from((_HTML, _URL, _ESCAPES, _QUOTED, _OTHERS)).flatmap(st.sampled_from), max_size=40
).map("".join)
_ENOUGH = 1 << 30
_ATTEMPTS = 150_000


def check(plain: str, attempts: int = _ATTEMPTS, room: int = _ENOUGH) -> int:
    """Compares both; returns how many encodings were read."""
    image, ours, theirs = as_image(plain), AttemptBudget(attempts), AttemptBudget(attempts)
    expected = [each for each in decoded_lines(plain, image, theirs) if each[1]]
    found = list(decode_inline(plain, image, ours, lambda: room))
    assert [each.via for each in found] == [(name,) for name, _ in expected]
    assert max(ours.left, -1) == max(theirs.left, -1)
    for (_, lines), (_, pieces) in zip(found, expected, strict=True):
        # Parts are taken while there is room for one more character.
        fitting, size = [], 0
        for piece in pieces:
            if size >= room:
                break
            fitting.append(piece)
            size += len(piece.text)
        text, track = joined(fitting)
        assert lines.text == text
        assert (lines.characters, lines.is_cut) == (size, len(fitting) < len(pieces))
        patches = PatchMap(lines.patches, len(text), IDENTITY)
        places = range(0, len(text) + 1, max(1, len(text) // 500))
        for at in places if fitting else ():
            assert patches.span(at, at + 3) == track.span(at, at + 3)
            assert patches.span(at, at) == track.span(at, at)
    return len(found)


@pytest.mark.requirement("GRD-1")
@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(_TEXTS)
def test_lines_are_those_that_the_patterns_read(plain: str) -> None:
    check(plain)


@settings(deadline=None)
@given(_TEXTS, st.integers(0, 30), st.integers(0, 300))
def test_limits_end_both_at_the_same_place(plain: str, attempts: int, room: int) -> None:
    check(plain, attempts, room)


@pytest.mark.requirement("GRD-1")
@pytest.mark.parametrize(
    ("plain", "encodings"),
    [
        ("&lt;p&gt;&#65;&amp;\n" * 30_000, 1),
        ("&foo;&ltq; " * 5_000 + "&q=+a\u00e9;" * 3_000, 1),
        ("\\x41\\u0042 \\ud83d\\ude00\n" * 20_000, 1),
        ("https://example.com/a?q=3D7&r=%20x=20=3D=20=3D\n" * 2_000, 2),
        ("https://example.com/a?q=3D7&r=%20x=20=3D=\n" * 300, 2),
        ("+%41" * 60_000 + "?a=+b", 1),
        ("?a=+b" + "+" * (MAX_EDITS + 5), 1),
        ("?a=b+c" + "+" * (MAX_EDITS - 1), 1),
        ("=41=42=43=44\n" * (MAX_EDITS + 1), 1),
        ("=41=42=43=44 =41=42=43=01\n=E2=80=8B=E2=80=8B=20\n" * 3_000, 1),
        ('{"a": "' + "line\\n" * (MAX_EDITS + 1) + '"}', 1),
        ("U+0041 " * 30_000, 1),
        ("a" * 500 + "%41" + "b" * 500 + "\n" + "c" * 500, 1),
        ("\u00e9" * 300 + "&amp;" + "\U0001f600" * 300, 1),
    ],
)
@pytest.mark.sample(5)
def test_floods_are_read_alike(plain: str, encodings: int) -> None:
    assert check(plain) == encodings


@pytest.mark.requirement("GRD-8")
@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "&#000000",
        "&a=bbbb",
        "?a.b-c_d=",
        "\\u{0000",
        "%41",
        "=41",
        "\\x41",
        "u+00",
        "&amp",
        "=\n",
        "=41\n",
    ],
)
@pytest.mark.sample(4)
def test_time_grows_with_the_text_and_not_with_its_square(piece: str) -> None:
    assert min(cost_s(piece * 240_000) / cost_s(piece * 60_000) for _ in range(3)) < 9


def cost_s(plain: str) -> float:
    image, begun = as_image(plain), time.thread_time()
    list(decode_inline(plain, image, AttemptBudget(_ATTEMPTS), lambda: _ENOUGH))
    return time.thread_time() - begun
