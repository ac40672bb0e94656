"""Run as a program: kills whoever changes a vault, at each step, and looks what is left.

    crashing.py DIRECTORY    each change, ended before its n-th call to the file system, for every n
    crashing.py DIRECTORY kill    real kill -9 of a process that rekeys again and again

Prints one JSON object; an assertion that fails ends it with a trace.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cellwall.core.errors import VaultError
from cellwall.secrets.store import VaultStore
from unit.secrets.vaults import BY_FILE, GITHUB, OTHER, QUICK, VALUE, at, made, passphrase

STEPS = ("fsync", "link", "rename", "unlink", "pwrite", "mkdir")
GENERATION = 5  # of `made`
BEFORE = {"TOKEN": VALUE, "TOKEN@1": b"the value before", "OTHER": OTHER}
NEW = "a new passphrase"


@dataclass(frozen=True)
class Change:
    """What is done, and what is there before and after it."""

    name: str
    settings: object
    do: Callable[[VaultStore], object]
    after: dict[str, bytes]
    after_settings: object = None
    after_words: str = ""


CHANGES = (
    Change("set", BY_FILE, lambda v: v.set("NEW", b"new"), {**BEFORE, "NEW": b"new"}),
    Change(
        "rotate",
        BY_FILE,
        lambda v: v.rotate("TOKEN", b"third"),
        {"TOKEN": b"third", "TOKEN@2": VALUE, "OTHER": OTHER},
    ),
    Change("remove", BY_FILE, lambda v: v.remove("TOKEN"), {"OTHER": OTHER}),
    Change("rekey file", BY_FILE, lambda v: v.rekey(), BEFORE),
    Change("rekey words", QUICK, lambda v: v.rekey(passphrase(NEW)), BEFORE, QUICK, NEW),
    Change(
        "rekey to words",
        BY_FILE,
        lambda v: v.rekey(passphrase(NEW), settings=QUICK),
        BEFORE,
        QUICK,
        NEW,
    ),
    Change("rekey to file", QUICK, lambda v: v.rekey(settings=BY_FILE), BEFORE, BY_FILE),
    Change("strengthen", QUICK, lambda v: v.strengthen(passphrase()), BEFORE),
)


def open_folder(home: Path, settings: object, words: str = "correct horse battery") -> VaultStore:
    vault = VaultStore(at(home), settings)
    vault.unlock(passphrase(words) if settings.key == "passphrase" else None)
    return vault


def state(home: Path, change: Change) -> str:
    """`old` or `new`, whole; anything else is an error."""
    try:
        vault = open_folder(home, change.settings)
    except VaultError:
        vault = open_folder(home, change.after_settings or change.settings, change.after_words)
    is_new = vault.generation > GENERATION
    assert vault.values() == (change.after if is_new else BEFORE)
    assert vault.contains_old(VALUE) == ("TOKEN",)
    # Whatever was left undone is done by now, or by the next change.
    vault.set("LATER", b"later")
    assert sorted(os.listdir(at(home))) == ["lock", "seen", "store"]
    assert not [name for name in os.listdir(home) if "draft" in name]
    key_file = home / "vault-key"
    lines = key_file.read_text().splitlines() if key_file.exists() else []
    assert len(lines) == (vault.source == "file")
    return "new" if is_new else "old"


def in_child(work: Callable[[], object], *, last: int) -> bool:
    """Whether the work came to its end before the `last` call."""
    pid = os.fork()
    if pid == 0:
        calls = 0

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def call(*words: object, **named: object) -> object:
                nonlocal calls
                calls += 1
                if calls == last:
                    os._exit(77)
                return real(*words, **named)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 77), code
    return code == 0


def at_every_step(place: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for change in CHANGES:
        home = place / change.name.replace(" ", "-")
        home.mkdir(mode=0o700)
        made(home, change.settings)
        seen = {"steps": 0, "old": 0, "new": 0}
        is_done = False
        while not is_done:
            seen["steps"] += 1
            copy = place / "copy"
            shutil.copytree(home, copy)
            vault = open_folder(copy, change.settings)
            is_done = in_child(
                lambda v=vault, c=change: c.do(again_in_child(v, c)), last=seen["steps"]
            )
            seen[state(copy, change)] += 1
            shutil.rmtree(copy)
        found[change.name] = seen
    found["init"] = at_every_step_of_init(place)
    return found


def again_in_child(vault: VaultStore, change: Change) -> VaultStore:
    """A child has no keys of its parent's."""
    assert not vault.is_unlocked
    vault.unlock(passphrase() if change.settings.key == "passphrase" else None)
    return vault


def at_every_step_of_init(place: Path) -> dict[str, int]:
    seen = {"steps": 0, "old": 0, "new": 0}
    home, is_done = place / "new", False
    while not is_done:
        seen["steps"] += 1
        home.mkdir(mode=0o700)
        is_done = in_child(lambda: VaultStore(at(home), BY_FILE).init(), last=seen["steps"])
        vault = VaultStore(at(home), BY_FILE)
        seen["new" if vault.exists else "old"] += 1
        vault.unlock() if vault.exists else vault.init()
        vault.set("TOKEN", VALUE)
        assert open_folder(home, BY_FILE).values() == {"TOKEN": VALUE}
        shutil.rmtree(home)
    return seen


def rekey_for_ever(home: Path, number: int, told: int) -> None:
    vault = open_folder(home, QUICK, f"passphrase {number}")
    while True:
        number += 1
        vault.rekey(passphrase(f"passphrase {number}"))
        os.write(told, b"%d\n" % number)


def killed(place: Path, rounds: int) -> dict[str, int]:
    home, number, chance = place / "killed", 0, random.Random(6)
    home.mkdir(mode=0o700)
    made(home, QUICK).rekey(passphrase("passphrase 0"))
    for _ in range(rounds):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            rekey_for_ever(home, number, theirs)
        os.close(theirs)
        with os.fdopen(ours, "rb") as told:
            # After some that were acknowledged, and some way into the next one.
            acknowledged = [int(told.readline()) for _ in range(chance.randint(1, 4))][-1]
            for _ in range(chance.randint(0, 20_000)):
                pass
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            rest = [int(line) for line in told if line.endswith(b"\n")]
        acknowledged = rest[-1] if rest else acknowledged
        number = acknowledged
        try:
            vault = open_folder(home, QUICK, f"passphrase {number}")
        except VaultError:  # the next one was done, and nobody had been told
            number += 1
            vault = open_folder(home, QUICK, f"passphrase {number}")
        assert vault.values() == BEFORE
        assert vault.lease(["TOKEN"], tool="run").uses[0].bindings == (GITHUB,)
    return {"rounds": rounds, "rekeys": number}


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(json.dumps(killed(where, 12) if sys.argv[2:] == ["kill"] else at_every_step(where)))
