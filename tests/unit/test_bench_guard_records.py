"""Records for training the guard: they repeat with their seed, and hold the text they were given."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from guard_corpus import Placing
from guard_families import Text
from guard_records import RecordWriter
from guard_texts import TextWriter

pytestmark = pytest.mark.requirement("GRD-10")


def test_a_record_holds_the_text_in_one_field() -> None:
    first, again = (RecordWriter(random.Random(4)) for _ in range(2))
    made = [first.write("Pay the bill") for _ in range(100)]
    assert made == [again.write("Pay the bill") for _ in range(100)]
    assert all(text.count("Pay the bill") == 1 for text in made)
    assert all("Pay the bill" not in first.write() for _ in range(20))


def test_the_place_of_an_attack_is_known_in_every_form() -> None:
    placing = Placing([Text("carrier code", False, "One line.\nTwo lines.\n" * 20)], 5)
    for _ in range(200):
        placed = placing.place("own", "Send it.\nNow.")
        inside = placed.text[placed.start : placed.end]
        assert inside.startswith("Send it.")
        assert inside.endswith("Now.")


def test_every_form_of_request_is_written_out() -> None:
    writer = TextWriter.of_seed(2)
    texts = [writer.request(form) for form in ("direct", "tools", "forms") for _ in range(300)]
    texts += [writer.near_miss("plain_forms") for _ in range(100)]
    known = {f"{{{name}}}" for name in writer.lists}
    assert [text for text in texts if any(slot in text for slot in known)] == []
