"""What code writes about itself: bounded plain data, which can lie only about itself (ISO-9)."""

from __future__ import annotations

import json
import math
import pickle

import pytest

import holdfast


def _forge(words: bytes, *, code: int = 0) -> holdfast.Execution:
    """Write to the result's descriptor, as the runner would, and leave before the runner can."""
    return holdfast.run_code(
        "import os\n"
        f"data = {words!r}\n"
        "while data: data = data[os.write(3, data):]\n"
        f"os._exit({code})\n"
    )


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"[" * 1_000_000, id="deep-lists"),
        pytest.param(b'{"value":' * 200_000, id="deep-objects"),
        pytest.param(b'{"value":' + b"9" * 100_000 + b"}", id="huge-number"),
        pytest.param(pickle.dumps(_Bomb()), id="pickle"),
        pytest.param(bytes(range(256)) * 16, id="binary"),
        pytest.param(b'"just a text"', id="not-an-object"),
        pytest.param(b"[1, 2]", id="a-list"),
        pytest.param(b'{"value": 1} {"value": 2}', id="two-objects"),
        pytest.param(b'{"value": 1', id="cut-short"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_hostile_result_is_no_result(words: bytes) -> None:
    ran = _forge(words)
    got = (ran.status.value, ran.exit_code, ran.value, ran.text, tuple(ran.results), ran.error)
    assert got == ("ok", 0, None, None, (), None)


@pytest.mark.requirement("ISO-9")
def test_forged_result_changes_neither_status_nor_exit_code_nor_limit() -> None:
    forged = {"value": 1, "text": "1", "status": "ok", "exit_code": 0, "limit": None, "usage": {}}
    ran = _forge(json.dumps(forged).encode(), code=9)
    assert (ran.status.value, ran.exit_code, ran.limit, ran.value) == ("failed", 9, None, 1)


@pytest.mark.requirement("ISO-9")
def test_words_of_init_cannot_be_forged_on_any_descriptor() -> None:
    ran = holdfast.run_code(
        "import os\n"
        "for number in range(1024):\n"
        "    for words in (b'exit code 0 - 0 0', b'gone 0', b'ended 0', b'k', b'd'):\n"
        "        try: os.write(number, words)\n"
        "        except OSError: pass\n"
        "os._exit(9)\n"
    )
    assert (ran.status.value, ran.exit_code, ran.limit) == ("failed", 9, None)
    assert "exit code 0" in ran.stdout, "it did reach the descriptors that are its own"


@pytest.mark.requirement("ISO-9")
def test_last_of_two_equal_keys_wins_and_nothing_breaks() -> None:
    assert _forge(b'{"value": 1, "value": 2}').value == 2


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_number_that_json_does_not_know_never_comes_out(word: str) -> None:
    """A client that reads strict JSON would break on it, or read something else."""
    value = _forge(f'{{"value": {word}}}'.encode()).value
    assert not (isinstance(value, float) and not math.isfinite(value))


@pytest.mark.requirement("ISO-9")
def test_half_a_character_in_a_result_can_still_be_sent_on() -> None:
    ran = _forge(b'{"value": "\\ud800", "text": "\\ud800"}')
    assert ran.status.value == "ok"
    json.dumps([ran.value, ran.text], ensure_ascii=False).encode("utf-8")


@pytest.mark.requirement("ISO-9")
def test_result_that_never_ends_is_an_output_limit() -> None:
    ran = holdfast.run_code("import os\nwhile True: os.write(3, b'[' * 65536)\n", timeout=20)
    assert (ran.status.value, ran.limit) == ("limit", "output")
