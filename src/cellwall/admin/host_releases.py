"""What a host applies of the fleet's releases: the newest version of each, or the host refuses.

A host reads the newest version as often as it renews its lease:
  (1) it must be signed by the fleet's authority;
  (2) it must not be older than the one that this host has;
  (3) it must be a valid policy, or a readable feed of advisories about packages;
  (4) then it is written into the state folder, where it is read as one of the administrator's.
Where a step fails, the host refuses all requests until it has one that passes: an old policy may
allow what the new one forbids, and an old feed lets packages pass that are known to be malicious.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile

import anyio
import anyio.to_thread
import zstandard

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.host_trust import ReleasesPort, SignedRelease
from cellwall.fleet.identity import CA_FILE, fleet_folder, replace_private_file
from cellwall.fleet.releases import (
    FEED,
    MAX_CONTENT_BYTES,
    POLICY,
    ReleaseRefused,
    check_release,
    check_successor,
)
from cellwall.packages.feed import Feed
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.runtime.package_judging import packages_folder
from cellwall.runtime.policy_places import FLEET_POLICY_NAME

_POLICY_FILE = "policy.toml"
_MAX_NOTE_BYTES = 1 << 16
_MAX_CA_BYTES = 1 << 16
_MAX_FEED_BYTES = 1 << 30
_log = logging.getLogger("cellwall.fleet")


class HostReleases:
    """The policy of the fleet on one host."""

    kind = POLICY
    file_name = _POLICY_FILE

    def __init__(self, home: str, authority: str) -> None:
        self._home, self._folder, self._authority = home, fleet_folder(home), authority
        self.problem: CellwallError | None = None
        """Why this host refuses requests."""
        self.version = 0
        """Of what this host applies; 0: none was published."""

    async def follow(self, store: ReleasesPort, *, every_s: float) -> None:
        """Until cancelled. Without the database the lease ends, and the host refuses for that."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look(store)
            except (CellwallError, OSError) as error:
                _log.warning(
                    "the %s of the fleet was not read: %s", self.kind, type(error).__name__
                )

    async def look(self, store: ReleasesPort) -> None:
        """Apply the newest version, or set `problem`."""
        newest = await store.newest_release(self.kind)
        try:
            await anyio.to_thread.run_sync(self._take, newest)
        except CellwallError as error:
            self._refuse(error)
        except OSError:  # a full disk is no reason to go on with an older one
            self._refuse(_unusable(self.kind))
        else:
            self.problem = None

    def _refuse(self, error: CellwallError) -> None:
        if self.problem is None or self.problem.code != error.code:
            _log.error("this host refuses requests: %s (%s)", error.message, error.code)
        self.problem = error

    def _take(self, newest: SignedRelease | None) -> None:
        if newest is not None:
            check_release(newest, self._authority, kind=self.kind)  # (1)
        is_new = check_successor(newest, self.kept())  # (2)
        if newest is None or not is_new:
            self.version = 0 if newest is None else newest.version
            return
        self._check(newest.content)  # (3)
        note = json.dumps({"version": newest.version, "note": newest.note})
        # (4): after a crash in between, the note does not fit the file, and both are written again
        # before the host serves.
        self._apply(newest.content)
        replace_private_file(os.path.join(self._folder, self.file_name), newest.content)
        replace_private_file(self._note_path, note.encode())
        self.version = newest.version
        _log.info("the %s of the fleet is version %d", self.kind, newest.version)

    @property
    def _note_path(self) -> str:
        return os.path.join(self._folder, f"{self.kind}.release")

    def _check(self, content: bytes) -> None:
        check_policy(content)

    def _apply(self, content: bytes) -> None:
        """The file itself is read."""

    def kept(self) -> SignedRelease | None:
        """What this host has; None before the first one, and where files were changed by hand:
        then the newest one is written again."""
        note = self._read_own(self._note_path, _MAX_NOTE_BYTES)
        path = os.path.join(self._folder, self.file_name)
        content = self._read_own(path, MAX_CONTENT_BYTES[self.kind])
        try:
            fields = json.loads(note)
            found = SignedRelease(
                kind=self.kind,
                version=int(fields["version"]),
                note=str(fields["note"]),
                content=content,
            )
            check_release(found, self._authority, kind=self.kind)
        except (ReleaseRefused, ValueError, KeyError, TypeError):
            return None
        return found

    def _read_own(self, path: str, max_bytes: int) -> bytes:
        """Empty where there is none. Raises where a file is there and cannot be read, for example
        without a free descriptor: the host would take an older version for the first one."""
        try:
            with open(path, "rb") as file:
                return file.read(max_bytes + 1)
        except FileNotFoundError:
            return b""
        except OSError:
            raise _unusable(self.kind) from None


class HostFeeds(HostReleases):
    """The advisories about packages of the fleet on one host."""

    kind = FEED
    file_name = "feed.sqlite.zst"
    _applied: tuple[int, str] | None = None

    async def look(self, store: ReleasesPort) -> None:
        """Megabytes are fetched only where the version is another one."""
        told = await store.newest_release_note(self.kind)
        if told is None or told != self._applied or self.problem is not None:
            await super().look(store)
            self._applied = told if self.problem is None else None

    def _check(self, content: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            _unpack(content, folder)
            Feed(folder).sources()

    def _apply(self, content: bytes) -> None:
        folder = packages_folder(self._home)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            _unpack(content, draft)
            Feed(folder).replace_by(os.path.join(draft, _FEED_FILE))


_FEED_FILE = "feed.sqlite"


def pack_feed(home: str) -> bytes:
    """The advisories of a state folder, as a release carries them."""
    folder = packages_folder(home)
    if not Feed(folder).sources():
        raise BadInput(
            "this machine has no feed of advisories",
            hint="Fetch one first: `cellwall packages feed update`.",
            code="CW-FLEET-FEED",
        )
    content = read_bounded(os.path.join(folder, _FEED_FILE), _MAX_FEED_BYTES)
    packed = zstandard.ZstdCompressor(level=10).compress(content)
    if len(packed) > MAX_CONTENT_BYTES[FEED]:
        raise BadInput("the feed is larger than 64 MiB, compressed", code="CW-FLEET-FEED")
    return packed


def _unpack(content: bytes, folder: str) -> None:
    try:
        plain = zstandard.ZstdDecompressor().decompress(content, max_output_size=_MAX_FEED_BYTES)
    except zstandard.ZstdError:
        raise ReleaseRefused(
            "the feed of the fleet cannot be unpacked", hint="Publish the feed again."
        ) from None
    replace_private_file(os.path.join(folder, _FEED_FILE), plain)


def open_releases(home: str) -> tuple[HostReleases, HostFeeds] | None:
    """Of the host of this state folder; None where it has no certificate of the fleet."""
    try:
        pem = read_bounded(os.path.join(fleet_folder(home), CA_FILE), _MAX_CA_BYTES).decode("ascii")
    except BadInput:
        return None
    return HostReleases(home, pem), HostFeeds(home, pem)


def _unusable(kind: str) -> ReleaseRefused:
    return ReleaseRefused(
        f"the {kind} of the fleet cannot be read or written on this host",
        hint="Check space and permissions of the state folder, and the limit of open files.",
    )


def check_policy(content: bytes) -> None:
    """Raises where it is no valid policy."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("the policy is not UTF-8 text", code="CW-POLICY") from None
    parse_policy(
        text, file=FLEET_POLICY_NAME, name=_POLICY_FILE, layer=Layer.ADMINISTRATOR, folder="/"
    )


def read_bounded(path: str, max_bytes: int) -> bytes:
    """Raises `BadInput` for a larger file."""
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise BadInput(
            "the file cannot be read", hint="Check its path.", detail=str(error)
        ) from None
    if len(content) > max_bytes:
        raise BadInput(f"the file is larger than {max_bytes >> 20} MiB")
    return content
