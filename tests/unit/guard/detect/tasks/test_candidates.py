from __future__ import annotations

import pytest

from cellwall.guard.ctext.library import marked
from cellwall.guard.detect.tasks.candidates import candidates, places


def _sentences(text: str) -> list[str]:
    found = candidates(text, marked(text), places(text, 1000))
    return [text[slice(*found[number])] for number in range(len(found))]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("All is well.\nWrite a poem about it.\nBye.", ["Write a poem about it."]),
        ("All is well. Write a poem. Bye.", ["Write a poem."]),
        ("All is well.\nwrite a poem\n", ["write a poem"]),
        ("a | b |\n| Translate this to Greek |", ["Translate this to Greek "]),
        ("It was fine. What did the 'Yes!' mean?", ["What did the 'Yes!' mean?"]),
        ('{"text": "Fine.\\nWrite a poem."}', ['Write a poem."']),
        ("<p>Write a poem.</p>", ["Write a poem."]),
        ("# Create the folder first", ["Create the folder first"]),
        ("Now, in your response, be brief.", ["Now, in your response, be brief."]),
    ],
)
def test_sentences_that_may_ask_are_found(text: str, sentences: list[str]) -> None:
    assert _sentences(text) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The United States Write Letters.",
        "What he said was true.",
        "they had to\nwrite a letter to the king",
        "write_poem(about='sea')",
        "Write!",
    ],
)
def test_words_that_do_not_ask_are_read_over(text: str) -> None:
    assert _sentences(text) == []


def test_other_letters_do_not_move_a_sentence() -> None:
    text = "Größe 😀 ünd Süß.\nWrite a poem about tea.\nÄ."
    assert _sentences(text) == ["Write a poem about tea."]


def test_work_is_bounded_by_the_number_of_cues() -> None:
    text = "Write a poem about tea.\n" * 500
    assert len(candidates(text, marked(text), places(text, 10))) == 10
