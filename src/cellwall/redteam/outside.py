"""Runs attack programs without any wall: the positive control, and the targets on the host.

Only controls of the red team run here. They have the rights of the user who starts `redteam`, so a
program names targets that this run has made, or runs in throwaway namespaces.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from cellwall.redteam.attack import Observation
from cellwall.redteam.catalog import program_text
from cellwall.redteam.sealed_report import new_key, read_report

_WITHIN_S = 100.0
_END_WITHIN_S = 10.0
_MAX_LINE_BYTES = 65_536

# An overlay above the whole root: the control may write everywhere and changes nothing.
COPY_OF_THE_HOST = """
set -e
cd /tmp
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount --rbind /proc root/proc
mount -t tmpfs tmpfs root/dev
mknod -m 666 root/dev/null c 1 3 2>/dev/null || touch root/dev/null
for place in "$(stat -c %m "$CELLWALL_CONTROL_PYTHON")" /var /home; do
  if [ "$place" != / ] && mountpoint -q "$place"; then mount --rbind "$place" "root$place"; fi
done
exec chroot root "$@"
"""


def throwaway_namespaces(*, network: bool = False) -> tuple[str, ...] | None:
    """The start of a command that runs in namespaces of its own; None where the host cannot."""
    if shutil.which("unshare") is None:
        return None
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    net = ("--net",) if network else ()
    words = ("unshare", *user, *net, "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
    return (*words, "sh", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "sh")


def run_outside(
    program: str,
    facts: Mapping[str, Any],
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, Observation]:
    """What each attack of the program gets without walls; empty if the program did not report."""
    key = new_key()
    try:
        done = subprocess.run(
            [*prefix, _python(), "-I", "-c", program_text(program)],
            env={**_environment(facts), **(env or {})},
            input=key,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return read_report(done.stdout, key) or {}


@contextmanager
def holding(program: str, facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A program of the host that makes targets and holds them until the block ends.

    Its first line is a JSON object with what it made; the end of its standard input ends it.
    """
    with subprocess.Popen(
        [_python(), "-I", "-c", program_text(program)],
        env=_environment(facts),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    ) as process:
        try:
            yield _first_line(process.stdout)
        finally:
            _end(process)


@contextmanager
def serving(words: Sequence[str], *, env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A Cellwall command that serves until the block ends; yields its first line, as JSON."""
    with subprocess.Popen(
        cellwall_command(words),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for this process, which ends the service itself
    ) as process:
        try:
            yield _first_line(process.stdout)
        finally:
            process.terminate()
            _end(process)


def cellwall_command(words: Sequence[str]) -> list[str]:
    """This installation's own program."""
    return [sys.executable, "-I", "-m", "cellwall.interfaces.entry", *words]


def run_cellwall(words: Sequence[str], *, env: Mapping[str, str]) -> bytes | None:
    """The output of a short Cellwall command; None if the command failed."""
    try:
        done = subprocess.run(
            cellwall_command(words),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def new_mark() -> str:
    """A text that no attempt can guess."""
    return f"cellwall-mark-{secrets.token_hex(12)}"


def _first_line(stream: IO[bytes] | None) -> dict[str, Any]:
    line = b"" if stream is None else stream.readline(_MAX_LINE_BYTES)
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _python() -> str:
    """Without the virtual environment, which may lie in a folder that a control covers."""
    return os.path.realpath(sys.executable)


def _environment(facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "ATTACK": json.dumps(facts),
        "CELLWALL_CONTROL_PYTHON": os.path.dirname(_python()),
    }
