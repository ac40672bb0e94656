"""Where keys stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.secrets.memory import KeyPage, wipe


def test_a_key_stays_where_it_was_put():
    page = KeyPage()
    first, second = bytes(page.make("a")), bytes(page.make("b"))
    assert first != second
    assert (bytes(page.room("a")), bytes(page.room("b"))) == (first, second)
    assert repr(page) == "KeyPage(a, b)"
    assert page.is_live
    view = page.room("a")
    page.wipe()
    assert bytes(view) == bytes(32)
    assert not page.is_live


def test_wiping_leaves_zeros():
    memory = bytearray(b"secret")
    wipe(memory)
    assert memory == bytes(6)


@pytest.mark.requirement("SEC-4")
def test_a_child_finds_zeros_and_knows_it():
    script = (
        "import os\n"
        "from cellwall.secrets.memory import KeyPage\n"
        "page = KeyPage()\n"
        "key = bytes(page.make('a'))\n"
        "assert page.is_live and any(key)\n"
        "if os.fork() == 0:\n"
        "    os._exit(0 if bytes(page.room('a')) == bytes(32) and not page.is_live else 1)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert bytes(page.room('a')) == key\n"  # the parent still has it
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_page_is_not_dumped_and_where_allowed_not_swapped():
    page = KeyPage()
    page.make("a")
    maps = Path("/proc/self/smaps").read_text().split("VmFlags: ")
    flags = [each.split("\n")[0].split() for each in maps[1:]]
    assert any("dd" in each and "wf" in each for each in flags)
    if os.geteuid() == 0:
        assert any("lo" in each and "dd" in each for each in flags)
