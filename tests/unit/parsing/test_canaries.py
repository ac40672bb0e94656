"""Registered texts are found by digests, however they are spelled, and cannot be read from them."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.parsing.canaries.canary_set import WINDOW, Canary, CanarySet

PROMPT = """You are Harbour, the assistant of a shipping company. Never tell a customer which
containers are delayed unless the order number was checked against the manifest. Escalate every
complaint about dangerous goods to the duty officer, and do not mention the internal code KESTREL.
Answer in the language of the customer; keep answers below six sentences & be polite: "always"."""
RUSSIAN = (
    "Ты помощник морской компании. Никогда не сообщай клиенту, какие контейнеры задержаны, пока "
    "номер заказа не проверен по манифесту. Каждую жалобу передавай дежурному офицеру немедленно."
)
PART = PROMPT[40:220]

SPELLINGS = {
    "as it is": lambda text: text,
    "upper case": str.upper,
    "spaced letters": " ".join,
    "no blanks": lambda text: "".join(text.split()),
    "zero-width": lambda text: "\u200b".join(text),
    "markdown": lambda text: text.replace(" ", " **").replace(",", "_,"),
    "quoted lines": lambda text: "> " + text.replace("\n", "\n> "),
    "full-width": lambda text: "".join(
        chr(ord(each) + 0xFEE0) if "a" <= each <= "z" else each for each in text
    ),
    "JSON": json.dumps,
    "JSON in JSON": lambda text: json.dumps({"a": json.dumps(text)}),
    "URL": lambda text: quote(text, safe=""),
    "HTML": html.escape,
    "HTML, padded numbers": lambda text: "".join(f"&#{ord(each):012};" for each in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 with a prefix": lambda text: "x" + base64.b64encode(b"ab" + text.encode()).decode(),
    "base64 after noise": lambda text: base64.b64encode(b"\xff\x00\x91" + text.encode()).decode(),
    "base64 in lines": lambda text: base64.encodebytes(text.encode()).decode(),
    "URL-safe base64": lambda text: base64.urlsafe_b64encode(text.upper().encode()).decode(),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal with colons": lambda text: text.encode().hex(":"),
}


def canaries(*texts: str) -> CanarySet:
    made = [Canary.of(f"c{number}", text) for number, text in enumerate(texts)]
    assert all(made)
    return CanarySet([each for each in made if each])


@pytest.mark.requirement("GRD-5", "NET-5")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_part_of_a_registered_text_is_found_in_every_spelling(spelling: str) -> None:
    data = f"Sure: {SPELLINGS[spelling](PART)} .".encode()
    found = canaries(RUSSIAN, PROMPT)
    assert found.find(data) == "c1"
    for size in (1, 7, 64):
        stream = found.stream()
        answers = [stream.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert answers[-1] == "c1", size
    assert CanarySet().find(data) is None


@pytest.mark.parametrize("size", [1, 7, 40, 10_000])
def test_malformed_bytes_inside_an_escape_hide_nothing_in_any_pieces(size: int) -> None:
    """They are left out where the text is decoded, so that the escape is whole."""
    data = quote(PART, safe="").encode().replace(b"%20", b"%2" + b"\xd2" * 90 + b"0")
    canary = Canary.of("prompt", PROMPT)
    assert canary is not None
    stream = CanarySet([canary]).stream()
    answers = [stream.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert answers[-1] == "prompt"


@pytest.mark.requirement("GRD-5", "RED-2")
@pytest.mark.parametrize(
    "number", ["&#" + "9" * 5000, "&#" + "0" * 5000 + "65;", "&#x" + "f" * 5000]
)
def test_number_that_is_no_character_hides_nothing(number: str) -> None:
    found = canaries(PROMPT)
    assert found.find(number.encode()) is None
    assert found.find(f"{number} {PROMPT}".encode()) == "c0"


@pytest.mark.requirement("GRD-5")
def test_other_scripts_and_short_parts() -> None:
    found = canaries(PROMPT, RUSSIAN)
    assert found.find(RUSSIAN[30:130].encode()) == "c1"
    assert found.find(base64.b64encode(RUSSIAN[30:130].upper().encode())) == "c1"
    assert found.find(PROMPT[:30].encode()) is None  # a phrase is no leak
    assert Canary.of("x", "too short") is None
    assert Canary.of("x", "!" * 1000) is None
    assert Canary.of("x", "a" * 2_000_000) is None


@pytest.mark.requirement("GRD-8")
def test_other_words_for_the_same_are_not_found_and_ordinary_text_is_not_either() -> None:
    found = canaries(PROMPT)
    other = "I help customers of a shipping firm, and I may not say which containers are late."
    assert found.find(other.encode()) is None
    assert found.find((__doc__ or "").encode() * 100) is None


@pytest.mark.requirement("SEC-2")
def test_digests_show_nothing_and_windows_do_not_overlap() -> None:
    first, second = Canary.of("a", PROMPT), Canary.of("a", PROMPT)
    assert first is not None
    assert second is not None
    assert set(first.prints.values()).isdisjoint(second.prints.values())  # a key of its own
    letters = sum(each.isalnum() for each in PROMPT)
    # With overlapping windows a known beginning would give the rest letter by letter.
    assert len(first.prints) <= letters // WINDOW
    assert "Harbour" not in repr(first)


@pytest.mark.requirement("RED-2")
@given(st.lists(st.binary(max_size=80), max_size=20), st.binary(max_size=40))
def test_stream_finds_what_the_whole_has_and_never_raises(
    pieces: list[bytes], noise: bytes
) -> None:
    found = canaries(PROMPT)
    stream = found.stream()
    for piece in pieces:
        stream.feed(piece)
    stream.feed(noise + b" ")
    assert stream.feed(PART.encode()) == "c0"
