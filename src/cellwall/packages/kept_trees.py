"""Trees of installed packages, kept for the next installation of the same request (PKG-1).

$CELLWALL_HOME/packages/trees/KEY    a line of JSON, then the archive of the tree

A tree is what uv made of a request in an empty environment: of the requirements, of Python, and of
the answers that the registry proxy gave. The entry has these answers. So a tree is that of the next
installation too exactly if the proxy would give the same answers now, under the rules, the feed and
the index of now; the user of an entry asks the proxy first (`runtime/registries.py`).

The archive comes from a cell. It is compared with its hash, and neither parsed nor unpacked here.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from typing import Any

from cellwall.core.limits import MIB
from cellwall.core.network import HostReply, Scheme
from cellwall.packages.registry.messages import RegistryRequest

MAX_ARCHIVE_BYTES = 64 * MIB
"""Of one tree: the cell that unpacks gets the archive as its input."""
_MAX_ENTRIES = 64
_MAX_BYTES = 512 * MIB
_MAX_HEAD_BYTES = 4 * MIB
_DRAFT = ".draft-"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """A request of uv, and what identifies the bytes of the answer."""

    method: str
    host: str
    path: str
    accept: str
    range: str
    scheme: Scheme
    status: int
    tag: str

    @classmethod
    def of(cls, request: RegistryRequest, reply: HostReply) -> RegistryAnswer:
        """The entity tag of a page or a file is its hash; other answers are short texts."""
        tag = dict(reply.headers).get("etag") or hashlib.sha256(reply.body).hexdigest()
        asked = request.method, request.host, request.path, request.accept, request.range
        return cls(*asked, request.scheme, reply.status, tag)

    @property
    def request(self) -> RegistryRequest:
        """The same request again."""
        return RegistryRequest(
            self.method, self.host, self.path, self.accept, self.range, scheme=self.scheme
        )


@dataclass(frozen=True, slots=True)
class KeptTree:
    """The answers that led to a tree, and its archive."""

    answers: tuple[RegistryAnswer, ...]
    archive: bytes


class KeptTrees:
    """The trees of one state folder. Safe for threads and processes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find(self, subject: Sequence[str]) -> KeptTree | None:
        """The tree of a request, if it is whole and unchanged. An entry that is not is removed."""
        key = _key(subject)
        path = os.path.join(self._folder, key)
        try:
            _check_folder(self._folder)
        except OSError:
            return None
        try:
            content = _read_private(path)
        except FileNotFoundError:
            return None
        except OSError:
            content = b""
        try:
            tree = _parse(content, key)
        except (ValueError, TypeError, KeyError, RecursionError):
            with suppress(OSError):
                os.unlink(path)
            return None
        with suppress(OSError):
            os.utime(path)  # used now: the entries that were not used for longest are trimmed
        return tree

    def keep(self, subject: Sequence[str], tree: KeptTree) -> None:
        """Replace the tree of this request. A failure costs the next installation time."""
        if len(tree.archive) > MAX_ARCHIVE_BYTES:
            return
        answers = [astuple(each) for each in tree.answers]
        key, digest = _key(subject), hashlib.sha256(tree.archive).hexdigest()
        note = {"key": key, "sha256": digest, "answers": answers}
        head = json.dumps(note).encode() + b"\n"
        if len(head) > _MAX_HEAD_BYTES:
            return
        with suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            _check_folder(self._folder)
            self._trim(len(head) + len(tree.archive))
            draft = os.path.join(self._folder, f"{_DRAFT}{secrets.token_hex(8)}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(draft, flags, 0o600), "wb") as file:
                    file.write(head)
                    file.write(tree.archive)
                os.rename(draft, os.path.join(self._folder, key))
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft)
                raise

    def _trim(self, needed_bytes: int) -> None:
        """Remove what was not used for the longest time; drafts of killed writers go as well."""
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for each in entries:
                with suppress(FileNotFoundError):  # another process trims as well
                    info = each.stat(follow_symlinks=False)
                    found.append((info.st_mtime, info.st_size, each.path))
        found.sort()
        total = sum(size for _, size, _ in found) + needed_bytes
        while found and (total > _MAX_BYTES or len(found) >= _MAX_ENTRIES):
            _, size, path = found.pop(0)
            total -= size
            with suppress(OSError):  # another process trims as well
                os.unlink(path)


def _key(subject: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(subject)).encode()).hexdigest()


def _check_folder(path: str) -> None:
    """`PermissionError` where others can write: they could rename one tree to another's name."""
    info = os.lstat(path)
    is_own = info.st_uid == os.geteuid() and not info.st_mode & _WRITABLE_BY_OTHERS
    if not is_own or not stat.S_ISDIR(info.st_mode):
        raise PermissionError(path)


def _read_private(path: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        info = os.fstat(file.fileno())
        is_own = info.st_uid == os.geteuid() and not info.st_mode & _WRITABLE_BY_OTHERS
        if not is_own or not stat.S_ISREG(info.st_mode):
            raise PermissionError(path)
        return file.read(_MAX_HEAD_BYTES + MAX_ARCHIVE_BYTES + 1)


def _parse(content: bytes, key: str) -> KeptTree:
    head, _, archive = content.partition(b"\n")
    if len(head) > _MAX_HEAD_BYTES:
        raise ValueError("too long")
    note = json.loads(head)
    if note["key"] != key or hashlib.sha256(archive).hexdigest() != note["sha256"]:
        raise ValueError("changed")
    return KeptTree(tuple(map(_answer, note["answers"])), archive)


def _answer(found: list[Any]) -> RegistryAnswer:
    answer = RegistryAnswer(*found)
    kinds = {name: type(value) for name, value in asdict(answer).items()}
    if kinds.pop("status") is not int or set(kinds.values()) != {str}:
        raise ValueError("not an answer")
    return answer
