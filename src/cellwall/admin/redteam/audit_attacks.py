"""The layer audit: copies of a log that this run has written are changed, and verified."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from cellwall.admin import audit_queries
from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.segments import CHECKPOINTS, RECORDS, find_notes, segment_name
from cellwall.core.errors import CellwallError
from cellwall.core.keys import make_key
from cellwall.core.types import Action, UseTool
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.runtime.home import local_principal
from cellwall.runtime.recording import audit_directory
from cellwall.runtime.wiring import open_app

_ACTIONS = 6
_MIDDLE = 4
_GENESIS = "0" * 64
_KEYS = "trusted-keys"


class _LogCopy:
    """One copy of the log, with what a careful person has kept elsewhere: key and checkpoint."""

    def __init__(self, folder: str, kept: str) -> None:
        self.folder = folder
        self.keys = os.path.join(kept, _KEYS)
        self.checkpoint = os.path.join(kept, "last.checkpoint")
        self.records = os.path.join(folder, segment_name(1, RECORDS))
        self.notes = os.path.join(folder, segment_name(1, CHECKPOINTS))

    def lines(self) -> list[bytes]:
        return _read(self.records).splitlines()

    def put(self, lines: Iterable[bytes]) -> None:
        _write(self.records, b"".join(line + b"\n" for line in lines))

    def verify(self) -> Observation:
        """What the verification reports about this copy; "through" is a log that verifies."""
        try:
            report = audit_queries.check([self.keys], [self.checkpoint], directory=self.folder)
        except CellwallError as error:
            return Observation("refused", error.code)
        if report.ok:
            return Observation("through", f"{report.records} records verify")
        return Observation("refused", report.reason)


async def run(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Write a log, then verify one changed copy for each attack."""
    home = os.path.join(host.folder, "log")
    await _write_log(host, home)
    return await in_thread(partial(_verify_copies, host, home, attacks))


async def _write_log(host: TrialHost, home: str) -> None:
    os.mkdir(home, 0o700)
    app = open_app(config=host.config, environ={**host.environ, "CELLWALL_HOME": home})
    try:
        for number in range(_ACTIONS):
            operation = UseTool("Bash", {"command": f"cat notes-{number}.txt"}, "/")
            await app.runtime.perform(
                Action(principal=local_principal("hook"), operation=operation)
            )
    finally:
        await in_thread(app.close)  # signs what was written


def _verify_copies(host: TrialHost, home: str, attacks: Sequence[Attack]) -> list[AttackResult]:
    original = audit_directory(home)
    kept = host.new_folder("kept")
    shutil.copy(os.path.join(original, _KEYS), kept)
    untouched = _LogCopy(original, kept)
    notes = find_notes(_read(untouched.notes))
    if len(untouched.lines()) <= _MIDDLE or not notes:
        return [judge(attack, control=NOT_TRIED, attempt=NOT_TRIED) for attack in attacks]
    _write(untouched.checkpoint, notes[-1])
    # A copy as well: if copies did not verify, every changed one would seem to be found.
    control = _new_copy(host, original, kept).verify()
    results = []
    for attack in attacks:
        copy = _new_copy(host, original, kept)
        _CHANGES[attack.data["change"]](copy)
        results.append(judge(attack, control=control, attempt=copy.verify()))
    return results


def _new_copy(host: TrialHost, original: str, kept: str) -> _LogCopy:
    folder = os.path.join(host.new_folder("copy"), "audit")
    shutil.copytree(original, folder)
    return _LogCopy(folder, kept)


def _relinked(lines: Iterable[bytes], *, start: int = 1, prev: str = _GENESIS) -> list[bytes]:
    """The records numbered and linked anew: what anyone can do who knows the format."""
    done: list[bytes] = []
    for seq, line in enumerate(lines, start=start):
        record = json.loads(line) | {"seq": seq, "prev": prev}
        done.append(json.dumps(record, sort_keys=True, separators=(",", ":")).encode())
        prev = leaf_hash(done[-1]).hex()
    return done


def _change_byte(copy: _LogCopy) -> None:
    lines = copy.lines()
    changed = bytearray(lines[_MIDDLE - 1])
    changed[len(changed) // 2] ^= 1
    copy.put([*lines[: _MIDDLE - 1], bytes(changed), *lines[_MIDDLE:]])


def _forged(line: bytes) -> bytes:
    record = json.loads(line)
    record["principal"] = "mallory"
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def _change_word(copy: _LogCopy) -> None:
    lines = copy.lines()
    copy.put([*lines[: _MIDDLE - 1], _forged(lines[_MIDDLE - 1]), *lines[_MIDDLE:]])


def _change_and_relink(copy: _LogCopy) -> None:
    lines = copy.lines()
    copy.put(_relinked([*lines[: _MIDDLE - 1], _forged(lines[_MIDDLE - 1]), *lines[_MIDDLE:]]))


def _remove(copy: _LogCopy) -> None:
    lines = copy.lines()
    copy.put([*lines[: _MIDDLE - 1], *lines[_MIDDLE:]])


def _remove_and_relink(copy: _LogCopy) -> None:
    lines = copy.lines()
    copy.put(_relinked([*lines[: _MIDDLE - 1], *lines[_MIDDLE:]]))


def _reorder(copy: _LogCopy) -> None:
    lines = copy.lines()
    lines[_MIDDLE - 2], lines[_MIDDLE - 1] = lines[_MIDDLE - 1], lines[_MIDDLE - 2]
    copy.put(lines)


def _double(copy: _LogCopy) -> None:
    lines = copy.lines()
    copy.put([*lines[:_MIDDLE], *lines[_MIDDLE - 1 :]])


def _insert(copy: _LogCopy) -> None:
    lines = copy.lines()
    prev = leaf_hash(lines[_MIDDLE - 1]).hex()
    forged = _relinked([_forged(lines[_MIDDLE - 1])], start=_MIDDLE + 1, prev=prev)
    copy.put([*lines[:_MIDDLE], *forged, *lines[_MIDDLE:]])


def _cut_back(copy: _LogCopy) -> None:
    copy.put(copy.lines()[: _MIDDLE - 1])


def _empty(copy: _LogCopy) -> None:
    copy.put([])


def _append(copy: _LogCopy) -> None:
    _write(copy.records, _read(copy.records) + b'{"seq": 0}\n')


def _halve(copy: _LogCopy) -> None:
    data = _read(copy.records)
    _write(copy.records, data[: -len(copy.lines()[-1]) // 2])


def _change_checkpoint(copy: _LogCopy) -> None:
    notes = find_notes(_read(copy.notes))
    head, count, root, rest = notes[-1].split(b"\n", 3)
    # Still base64: a note that is none counts as torn by a crash, and is left out.
    other = (b"B" if root[:1] == b"A" else b"A") + root[1:]
    forged = b"\n".join([head, count, other, rest])
    _write(copy.notes, b"".join(note + b"\n" for note in (*notes[:-1], forged)))


def _roll_back(copy: _LogCopy) -> None:
    """To a state that was valid once: only what was kept elsewhere shows that more was signed."""
    notes = find_notes(_read(copy.notes))
    count = int(notes[0].split(b"\n")[1])
    copy.put(copy.lines()[:count])
    _write(copy.notes, notes[0] + b"\n")


def _replace_key(copy: _LogCopy) -> None:
    """With a key of the attacker's own, given to the verification in place of the trusted one."""
    folder = os.path.dirname(copy.folder)
    key = make_key(os.path.join(folder, "attacker.pem"), "cellwall-audit").public
    copy.keys = os.path.join(folder, _KEYS)
    _write(copy.keys, f"{key}\n".encode())


def _remove_log(copy: _LogCopy) -> None:
    for name in (copy.records, copy.notes):
        with suppress(FileNotFoundError):
            os.unlink(name)


_CHANGES: dict[str, Callable[[_LogCopy], None]] = {
    "changed_byte": _change_byte,
    "changed_word": _change_word,
    "changed_and_relinked": _change_and_relink,
    "removed": _remove,
    "removed_and_relinked": _remove_and_relink,
    "reordered": _reorder,
    "doubled": _double,
    "inserted": _insert,
    "cut_back": _cut_back,
    "emptied": _empty,
    "foreign_line": _append,
    "half_a_record": _halve,
    "changed_checkpoint": _change_checkpoint,
    "rolled_back": _roll_back,
    "foreign_key": _replace_key,
    "removed_log": _remove_log,
}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
