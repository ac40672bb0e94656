"""bash starts nothing and opens nothing that was not read, for texts that nobody would write.

The real bash runs inside of a cell. `./dev fuzz policy --minutes N` runs the same for longer.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.parsing.shell import expand
from cellwall.parsing.shell.reader import _read as cached_reading
from cellwall.parsing.shell.words import UNKNOWN, Word
from conftest import need
from fuzz.shell.campaign import BATCH, Tally, batch_of, compare
from fuzz.shell.cell import HOME, WORK, Observed, ShellInCell
from fuzz.shell.properties import could_become, differences, is_allowed, load_policy, read

pytestmark = pytest.mark.requirement("POL-2", "POL-12")

_BATCHES = int(os.environ.get("CELLWALL_FUZZ_BATCHES", "2"))
_BYPASSES = Path(__file__).parents[1] / "contract" / "policy" / "bypasses.toml"
_FAMILIES = ("expansion-order", "tildes", "targets", "escapes", "two-readings")
_NOTHING = Observed((), frozenset(), frozenset(), frozenset(), is_late=False)


@pytest.fixture(scope="module")
def bash() -> Iterator[ShellInCell]:
    with ShellInCell() as cell:
        yield cell


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load_policy(tmp_path_factory.mktemp("policy"))


@pytest.mark.requirement("RED-2")
@pytest.mark.parametrize("number", range(_BATCHES))
def test_bash_does_no_more_than_was_read_and_judged(number, bash, policy):
    tally = Tally()
    texts, _ = batch_of(f"ci:{number}")
    compare(texts, bash, policy, tally)
    assert tally.found == []
    # Neither side is idle: texts are understood, some are allowed, and bash runs them.
    assert tally.understood > BATCH // 4
    assert tally.allowed > BATCH // 10
    assert tally.calls > BATCH // 3
    assert tally.opened > 0


@pytest.mark.parametrize("shell", ["zsh", "dash"])
def test_other_shells_do_no_more_than_is_allowed(shell, policy):
    need(shutil.which(shell), f"{shell} is missing")
    tally = Tally()
    with ShellInCell(shell) as cell:
        compare(batch_of("ci:0")[0], cell, policy, tally)
        assert tally.found == []
        assert tally.calls > BATCH // 20
        # The comparison sees a program that is not allowed.
        assert ("p1", "a") in cell.observe(["p1 a"])[0].calls


def test_the_same_seed_gives_the_same_texts():
    assert batch_of("a") == batch_of("a")
    assert batch_of("a") != batch_of("b")


def test_the_bypasses_of_expansion_really_do_what_they_are_denied_for(bash):
    """The positive control of those families: each starts `id`, or opens a file that is denied."""
    families = tomllib.loads(_BYPASSES.read_text("utf-8"))["bypasses"]
    entries = [entry for family in _FAMILIES for entry in families[family]]
    harmless = [
        entry["id"]
        for entry, seen in zip(entries, bash.observe([e["command"] for e in entries]), strict=True)
        if not any("id" in call[0] for call in seen.calls)
        and not any(path.endswith((".env", "id_rsa", ".bashrc")) for path in seen.opened)
    ]
    assert harmless == []


# --- the comparison sees what it must see


def test_a_reader_that_leaves_braces_alone_is_found_out(bash, policy, monkeypatch):
    cached_reading.cache_clear()
    monkeypatch.setattr(expand, "expand_braces", lambda marks: [list(marks)])
    tally = Tally()
    compare(["p0 {a,b}", "cat {~/.ssh/id_rsa,x}", "cat < .en{v..v}"], bash, policy, tally)
    cached_reading.cache_clear()
    assert {each.what.partition(" (")[0].partition(",")[0] for each in tally.found} >= {
        "starts",
        "allowed",
    }


@pytest.mark.parametrize(
    ("text", "observed"),
    [
        ("p0 a", Observed((("p0", "b"),), *[frozenset()] * 3, is_late=False)),
        ("p0 a", Observed((("p0",),), *[frozenset()] * 3, is_late=False)),
        ("p0 a", Observed((("p1",),), *[frozenset()] * 3, is_late=False)),
        ("p0 a", Observed((), *[frozenset((f"{WORK}/.env",))] * 3, is_late=False)),
        ("p0 > a", Observed((), *[frozenset((f"{WORK}/a",))] * 3, is_late=False)),
        ("p0 > a", Observed((), *[frozenset((f"{HOME}/a",))] * 3, is_late=False)),
    ],
)
def test_what_was_not_read_is_a_difference(text, observed):
    assert list(differences(text, read(text), observed, allowed=False))
    assert not list(differences(text, read(text), _NOTHING, allowed=True))


def test_what_is_allowed_must_not_start_or_open_what_is_denied(policy):
    assert is_allowed(policy, "p0 a")
    started = Observed((("p1",),), *[frozenset()] * 3, is_late=False)
    key = frozenset((f"{HOME}/.ssh/id_rsa",))
    opened = Observed((("p0", "a"),), key, frozenset(), key, is_late=False)
    for observed in (started, opened):
        found = list(differences("p0 a", None, observed, allowed=True))
        assert [each.what.split()[0] for each in found] == ["allowed,"]


def test_words_become_only_what_they_can():
    unknown, many, names = Word(UNKNOWN), Word(UNKNOWN, is_split=True), Word("*.py", has_glob=True)
    assert could_become((Word("a"), unknown), ("a", "b c"))
    assert not could_become((Word("a"), unknown), ("a", "b", "c"))
    assert not could_become((Word("a"), unknown), ("a",))
    assert could_become((Word("a"), many), ("a",))
    assert could_become((Word("a"), many, Word("b")), ("a", "x", "y", "b"))
    assert not could_become((Word("a"), many, Word("b")), ("a", "x", "y"))
    assert could_become((names,), ("x.py", "y.py"))
    assert not could_become((names,), ("x.py", "y.sh"))
    assert not could_become((names,), ())
