"""Programs of the host are heard line by line, and end when they must."""

from __future__ import annotations

import os
import time

import pytest

from cellwall.sandbox.linux.programs import stream_lines


def run(script: str, *, within_s: float = 30.0, **more) -> tuple[int, list[str]]:
    heard: list[str] = []
    words = ["/bin/sh", "-c", script]
    code = stream_lines(words, env={}, on_line=heard.append, within_s=within_s, **more)
    return code, heard


def test_lines_of_both_streams_and_the_exit_code():
    script = r"echo a; echo b >&2; printf 'c\n\n\377'; exit 7"
    assert run(script) == (7, ["a", "b", "c", "\ufffd"])


def test_it_has_neither_our_input_nor_our_environment():
    assert run("cat; echo $HOME; pwd") == (0, ["/"])


def test_a_line_without_end_is_cut_into_pieces():
    code, heard = run("head -c 300000 /dev/zero | tr '\\0' x; echo")
    assert code == 0
    assert len(heard) > 1
    assert max(map(len, heard)) <= 8192


def ended(pid: int) -> bool:
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_a_program_that_takes_too_long_ends_with_its_children():
    heard: list[str] = []
    words = ["/bin/sh", "-c", "sleep 1000 & echo $!; wait"]
    with pytest.raises(TimeoutError):
        stream_lines(words, env={}, on_line=heard.append, within_s=0.5)
    assert ended(int(heard[0]))


def test_a_listener_that_fails_ends_the_program():
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream_lines(
            ["/bin/sh", "-c", "echo $$; sleep 1000"], env={}, on_line=interrupt, within_s=30
        )
    assert ended(pids[0])


def test_only_what_is_held_for_it_is_open_in_it():
    reading, writing = os.pipe()
    try:
        assert run(f"test -e /proc/self/fd/{writing}")[0] == 1
        assert run(f"test -e /proc/self/fd/{writing}", held_fds=(writing,))[0] == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_what_does_not_exist_is_an_error_of_the_host():
    with pytest.raises(FileNotFoundError):
        stream_lines(["/no/such/program"], env={}, on_line=print, within_s=1)
