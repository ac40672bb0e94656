"""Runs an attack program of the red team's catalog in a peer, and reads what it reports."""

from __future__ import annotations

import glob
import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cellwall.admin.redteam.trial_host import system_calls
from cellwall.redteam.attack import Observation
from cellwall.redteam.catalog import program_text
from peers.job import Job
from peers.peer import Peer

_PROGRAM_WITHIN_S = 75.0
_MARK = "PEERS-REPORT "
_WORKS = "works"
_MAKES_DIRECTORIES = ("kernel_calls",)
"""Programs that make directories in /tmp, which some peers share, named by process numbers."""
_directories = threading.Lock()
# The attacks run as in `stage.play`, but without a seal: not every peer passes standard input on,
# and the programs are the bench's own.
_DRIVER = """
import json, os
os.environ["ATTACK"] = {facts!r}
space = {{"__name__": "attack"}}
exec(compile({text!r}, "attack", "exec"), space)
given = space["GIVEN"]

def works():
    path = os.path.join(given["workspace"], "written")
    with open(path, "w") as file:
        file.write("x")
    os.remove(path)
    return "the workspace can be written, and processes started"

def lacks():
    raise space["Lacking"]("no such attack on this machine")

found = {{"works": space["in_child"](works)}}
for name in given["only"]:
    found[name] = space["in_child"](space["ATTACKS"].get(name, lacks))
print("\\n{mark}" + json.dumps(found), flush=True)
"""


def program_job(
    program: str, keys: Sequence[str], facts: Mapping[str, Any], *, workspace: str, inside: str
) -> Job:
    """A job that tries the attacks `keys` of a program."""
    given = {"workspace": inside, **facts, "only": list(keys), "calls": dict(system_calls())}
    text = _DRIVER.format(facts=json.dumps(given), text=program_text(program), mark=_MARK)
    return Job(workspace=workspace, python=text)


def run_program(
    peer: Peer, program: str, keys: Sequence[str], facts: Mapping[str, Any], *, workspace: str
) -> dict[str, Observation]:
    """What each attack got; a peer in which the program does not work gives broken attempts."""
    probe = Job(workspace=workspace)
    job = program_job(program, keys, facts, workspace=workspace, inside=peer.inside(probe))
    if program in _MAKES_DIRECTORIES:
        with _directories:  # one process would find the directory of another with its number
            _remove_leftovers()
            ended = peer.run(job, _PROGRAM_WITHIN_S)
    else:
        ended = peer.run(job, _PROGRAM_WITHIN_S)
    found = read_report(ended.stdout)
    if found is None:
        return dict.fromkeys(keys, Observation("broken", f"no report; {ended.reason()}"))
    return found


def read_report(output: bytes) -> dict[str, Observation] | None:
    """The observations, from whatever else the peer has printed; None if nothing worked inside."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if line.startswith(_MARK):
            try:
                report = json.loads(line.removeprefix(_MARK))
            except ValueError:
                return None
            if not isinstance(report, dict):
                return None
            found = {name: Observation.of(value) for name, value in report.items()}
            works = found.pop(_WORKS, None)
            return found if works is not None and works.kind == "through" else None
    return None


def _remove_leftovers() -> None:
    """Directories of an earlier program: a process of the same number would not get its own."""
    for path in glob.glob("/tmp/scratch-*"):
        with suppress(OSError):
            if os.lstat(path).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
