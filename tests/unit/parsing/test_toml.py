"""TOML of untrusted origin costs no more than its size."""

from __future__ import annotations

import tomllib
import tracemalloc

import pytest

from cellwall.packages.inspection.sources import read_build_system
from cellwall.packages.locks.model import BadLock
from cellwall.packages.locks.workspace import read_workspace_lock
from cellwall.parsing.toml import load_untrusted_toml

LONG = "a." * 500 + "a"
COSTLY = {
    "key": f"{LONG} = 1",
    "header": f"x = 1\r\n[{LONG}]\n",
    "list": f"[[ {LONG} ]]\n",
    "inline": f"x = {{y = 1, {LONG} = 1}}",
    "spaced": LONG.replace(".", " \t. ") + " = 1",
    "quoted": '"\\"".' * 500 + "a = 1",
    "literal": "'='." * 500 + "a = 1",
}
ORDINARY = """
[tool.ruff.lint.per-file-ignores]
"tests/*" = ["S101"]
a.b."c.d".e = {x.y = "https://files.example/a.b.c.d.e.f/g-1.0.0-py3-none-any.whl"}
[[packages]]
wheels = [{url = "https://a.example/1.2.3.4.5", hashes = {sha256 = "0"}}, {size = 1}]
"""


@pytest.mark.requirement("PKG-5")
@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(text):
    tomllib.loads(text)  # the control: it is TOML
    with pytest.raises(ValueError, match="nested more than"):
        load_untrusted_toml(text.encode())
    with pytest.raises(BadLock):
        read_workspace_lock(text.encode())
    assert read_build_system(f"{text}\n[build-system]\nrequires = []\n".encode()) == {}


def test_tomllib_takes_memory_by_the_square_of_the_parts():
    """The reason for the bound; where this fails, the bound can go."""
    tracemalloc.start()
    try:
        tomllib.loads(COSTLY["key"])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes > 500 * len(COSTLY["key"])


def test_ordinary_documents_are_read():
    assert load_untrusted_toml(ORDINARY.encode()) == tomllib.loads(ORDINARY)
