"""Records of runs whose directory has not been checked yet (FS-4, FS-8).

$CELLWALL_HOME/unchecked/DEVICE-INODE.RUN.json, locked by its owner. The record is written before
code can write to a user's directory, and removed after a complete check. The next run in that
directory that finds a record without a live owner (kill -9, or an incomplete check) does the check
first.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import NameTreatment
from cellwall.sandbox.files.descriptors import closing_fd, read_at_most, write_all
from cellwall.sandbox.protection.found_names import KnownLinks, ProtectedPath
from cellwall.sandbox.protection.post_run_check import Baseline

_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NOTE_BYTES = 64 * 1024 * 1024


class PendingCheck:
    """The record of one run, locked as long as the run's process lives."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def clear(self) -> None:
        """The directory was checked."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def close(self) -> None:
        os.close(self._fd)


class PendingChecks:
    """The records of one state folder."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._directory = os.path.join(home, "unchecked")
        os.makedirs(self._directory, mode=0o700, exist_ok=True)

    def record(self, identity: tuple[int, int], run_id: str, baseline: Baseline) -> PendingCheck:
        """Write a record before the run; a failure refuses the run."""
        path = os.path.join(self._directory, f"{_directory_key(identity)}.{run_id}.json")
        try:
            fd = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(fd, json.dumps(_baseline_json(baseline)).encode())
            os.rename(f"{path}.new", path)  # locked and complete before another process can find it
        except OSError as error:
            raise WorkspaceError(
                "the record that the directory must be checked cannot be written",
                hint="Check space and permissions of the Cellwall state folder.",
                code="CW-STATE",
                detail=str(error),
            ) from error
        return PendingCheck(path, fd)

    def abandoned(self, identity: tuple[int, int]) -> Iterator[tuple[str, Baseline, PendingCheck]]:
        """Records of this directory without a live owner, each locked while it is used."""
        prefix = _directory_key(identity) + "."
        for name in sorted(os.listdir(self._directory)):
            if not (name.startswith(prefix) and name.endswith(".json")):
                continue
            path = os.path.join(self._directory, name)
            try:
                fd = os.open(path, os.O_RDWR | _NO_FOLLOW)
            except FileNotFoundError:
                continue
            with closing_fd(fd):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # its run is alive, and does its own check
                if os.fstat(fd).st_nlink:  # else another run has just done the check
                    run_id = name.removeprefix(prefix).removesuffix(".json")
                    yield run_id, _read_baseline(fd, path), PendingCheck(path, fd)

    def quarantine_path(self, run_id: str) -> str:
        """The quarantine of a late check."""
        return os.path.join(self._home, "quarantine", run_id)


def _directory_key(identity: tuple[int, int]) -> str:
    return f"{identity[0]}-{identity[1]}"


def _baseline_json(baseline: Baseline) -> dict[str, object]:
    return {
        "started_ns": baseline.started_ns,
        "paths": sorted(baseline.paths),
        "before": [
            [f.path, f.treatment.value, f.is_dir, f.is_symlink, *f.directory_id, f.target]
            for f in baseline.before
        ],
        "symbolic": sorted([path, *ids, target] for path, ids, target in baseline.links.symbolic),
        "hard": {path: list(row) for path, row in baseline.links.hard.items()},
        "covered": dict(baseline.covered),
    }


def _read_baseline(fd: int, path: str) -> Baseline:
    try:
        record = json.loads(read_at_most(fd, _MAX_NOTE_BYTES))
        return Baseline(
            before=tuple(map(_protected_path, record["before"])),
            started_ns=int(record["started_ns"]),
            paths=frozenset(map(str, record["paths"])),
            links=_known_links(record["symbolic"], record["hard"]),
            covered={str(path): str(was) for path, was in record["covered"].items()},
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        # Truncated by a full disk, or written by another version: the changes of code are unknown.
        raise WorkspaceError(
            "an earlier run in this directory was never checked, and its record cannot be read",
            hint="Look through the directory for files that you did not write, then remove "
            f"unchecked/{os.path.basename(path)} from the Cellwall state folder.",
            code="CW-WORKSPACE-UNCHECKED",
        ) from error


def _known_links(
    symbolic: Sequence[Sequence[object]], hard: dict[str, Sequence[object]]
) -> KnownLinks:
    links = KnownLinks()
    for path, device, inode, target in symbolic:
        links.symbolic.add((str(path), (int(str(device)), int(str(inode))), str(target)))
    for path, (device, inode, changed_ns) in hard.items():
        links.hard[path] = (int(str(device)), int(str(inode)), int(str(changed_ns)))
    return links


def _protected_path(row: Sequence[object]) -> ProtectedPath:
    path, treatment, is_dir, is_symlink, device, inode, target = row
    return ProtectedPath(
        str(path),
        NameTreatment(str(treatment)),
        bool(is_dir),
        bool(is_symlink),
        (int(str(device)), int(str(inode))),
        str(target),
    )
