"""What code writes about itself: bounded plain data, which can lie only about itself (ISO-9)."""

from __future__ import annotations

import json
import math
import pickle
import struct
import time

import pytest

import cellwall


def _frame(text: bytes, blob: bytes = b"") -> bytes:
    """Two lengths, then what they are of: what the runner speaks."""
    return struct.pack(">II", len(text), len(blob)) + text + blob


def _forge(words: bytes, *, code: int = 0) -> cellwall.Execution:
    """Write to the channel, as the runner would, and leave before the runner can."""
    return cellwall.run_code(
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
        pytest.param(_frame(b"[" * 1_000_000), id="deep-lists"),
        pytest.param(_frame(b"[" * 190_000), id="lists-too-deep-for-a-parser"),
        pytest.param(_frame(b'{"done":' * 190_000), id="deep-objects"),
        pytest.param(_frame(b'{"done":1,"value":' + b"9" * 100_000 + b"}"), id="huge-number"),
        pytest.param(_frame(pickle.dumps(_Bomb())), id="pickle"),
        pytest.param(_frame(b"", pickle.dumps(_Bomb())), id="pickle-as-blob"),
        pytest.param(_frame(bytes(range(256)) * 16), id="binary"),
        pytest.param(_frame(b'"just a text"'), id="not-an-object"),
        pytest.param(_frame(b"[1, 2]"), id="a-list"),
        pytest.param(_frame(b'{"done": 1, "value": 1} {"value": 2}'), id="two-objects"),
        pytest.param(_frame(b'{"done": 1, "value": 1'), id="cut-short"),
        pytest.param(_frame(b'{"done": 1, "value": 1}')[:-1], id="half-a-frame"),
        pytest.param(_frame(b'{"done": 1, "value": 1}')[:7], id="half-a-head"),
        pytest.param(_frame(b""), id="an-empty-frame"),
        pytest.param(_frame(b'{"value": 1, "text": "1"}'), id="not-a-report"),
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
    forged |= {"done": 1, "exit": 0, "code": 0, "state": "kept", "path": "host"}
    ran = _forge(_frame(json.dumps(forged).encode()), code=9)
    assert (ran.status.value, ran.exit_code, ran.limit, ran.value) == ("failed", 9, None, 1)


@pytest.mark.requirement("ISO-9")
def test_words_of_init_cannot_be_forged_on_any_descriptor() -> None:
    ran = cellwall.run_code(
        "import os, struct\n"
        "for number in range(1024):\n"
        "    for words in (b'exit 0 code 0 - 0 0', b'ready', b'rest -', b'gone 0', b'ended 0', b'k', b'd'):\n"
        # As a frame on the channel: anything else there is an end of its own.
        "        if number == 3: words = struct.pack('>II', 2, len(words)) + b'{}' + words\n"
        "        try: os.write(number, words)\n"
        "        except OSError: pass\n"
        "os._exit(9)\n"
    )
    assert (ran.status.value, ran.exit_code, ran.limit) == ("failed", 9, None)
    assert "exit 0 code 0" in ran.stdout, "it did reach the descriptors that are its own"


@pytest.mark.requirement("ISO-9")
def test_last_of_two_equal_keys_wins_and_nothing_breaks() -> None:
    assert _forge(_frame(b'{"done": 1, "value": 1, "value": 2}')).value == 2


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_number_that_json_does_not_know_never_comes_out(word: str) -> None:
    """A client that reads strict JSON would break on it, or read something else."""
    forged = _forge(_frame(f'{{"done": 1, "value": {word}, "text": "t"}}'.encode()))
    value = forged.value
    assert not (isinstance(value, float) and not math.isfinite(value))
    assert forged.status.value == "ok"


@pytest.mark.requirement("ISO-9")
def test_half_a_character_in_a_result_can_still_be_sent_on() -> None:
    ran = _forge(_frame(b'{"done": 1, "value": "\\ud800", "text": "\\ud800"}'))
    assert ran.status.value == "ok"
    assert ran.text is not None  # the control: the frame was taken
    json.dumps([ran.value, ran.text], ensure_ascii=False).encode("utf-8")


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize(
    ("flood", "limit"),
    [
        pytest.param(struct.pack(">II", 8 << 20, 0), "output", id="text too long"),
        pytest.param(
            _frame(b'{"a": "' + b"x" * 60_000 + b'"}'), "output", id="good frames for ever"
        ),
        pytest.param(_frame(b'{"call": 1, "name": "x"}') * 1000, "output", id="calls for ever"),
        # No frame of a cell's has raw bytes: nobody reads on, and the writer waits for its end.
        pytest.param(struct.pack(">II", 2, 0xFFFFFFFF) + b"{}", "wall", id="a blob"),
        pytest.param(b"[" * 65_536, "wall", id="no frame at all"),
    ],
)
def test_result_that_never_ends_is_a_limit(flood: bytes, limit: str) -> None:
    ran = cellwall.run_code(
        f"import os\nflood = {flood!r}\nwhile True: os.write(3, flood)\n",
        timeout=60 if limit == "output" else 1,
        limits={"cpu_s": 20},
    )
    assert (ran.status.value, ran.limit, ran.value) == ("limit", limit, None)


@pytest.mark.requirement("ISO-9", "LIM-2")
def test_flood_of_tiny_frames_costs_the_supervisor_little() -> None:
    # Once: a million frames are parsed before their bytes are too many: 0.05 s of the cell's
    # processor time cost 5 to 10 s of the supervisor's, which all its other sandboxes wait for.
    tiny = _frame(b'{"call":1}') * 4000
    before = time.process_time()
    ran = cellwall.run_code(
        f"import os\nflood = {tiny!r}\nwhile True: os.write(3, flood)\n",
        timeout=60,
    )
    assert ran.status.value == "limit"
    assert time.process_time() - before < 2


@pytest.mark.requirement("ISO-8", "ISO-9")
def test_child_that_keeps_the_descriptors_keeps_neither_the_run_nor_its_result() -> None:
    ran = cellwall.run_code(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    while True: os.write(1, b'.'); time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "os._exit(6)\n"
    )
    assert (ran.status.value, ran.exit_code, ran.value) == ("failed", 6, None)
    # The exit code is the parent's: the run did not wait for the child until its wall limit.
    assert ran.stdout.startswith(".")  # the control: the child did write
