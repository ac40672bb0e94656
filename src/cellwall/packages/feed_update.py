"""Brings the advisories of osv.dev, or of a mirror, into the store (PKG-1).

The layout of the bucket: `ECOSYSTEM/all.zip`, `ECOSYSTEM/modified_id.csv` (newest first, one
`TIME,ID` a line) and `ECOSYSTEM/ID.json`. The first update takes the archive; later ones take what
changed since, and the archive again where too much changed. An interrupted download goes on where
it ended, if the server still has the same file (If-Range with its ETag).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx2

from cellwall import __version__
from cellwall.core.errors import Busy, EgressRefused
from cellwall.packages.feed import Feed, FeedSource
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import (
    MAX_RECORD_BYTES,
    Advisory,
    BadAdvisory,
    parse_advisory,
    parse_modified,
)
from cellwall.packages.osv_archive import FeedRefused

DEFAULT_URL = "https://osv-vulnerabilities.storage.googleapis.com"
MAX_DOWNLOAD_BYTES = 4 * 2**30
MAX_SINGLE_RECORDS = 500
"""More changes than these cost more requests than one archive."""
_MAX_LIST_BYTES = 64 * 2**20
_OVERLAP = timedelta(hours=1)
_FOLDERS = {Ecosystem.PYPI: "PyPI", Ecosystem.NPM: "npm"}
_TIMEOUT = httpx2.Timeout(60.0, connect=15.0)

Progress = Callable[[str, int, int | None], None]
"""Called with the step, how much is done, and how much there is (None: unknown)."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """How one registry's advisories were updated."""

    ecosystem: Ecosystem
    is_incremental: bool
    advisories: int


def _no_progress(step: str, done: int, total: int | None) -> None:
    del step, done, total


class FeedUpdater:
    """Updates one store from one server. Blocking; to be used as a context manager."""

    def __init__(
        self, feed: Feed, folder: str, url: str = DEFAULT_URL, *, progress: Progress = _no_progress
    ) -> None:
        """`folder` keeps what was downloaded so far."""
        self._feed = feed
        self._folder = folder
        self._url = url.rstrip("/")
        self._progress = progress
        self._client = httpx2.Client(
            headers={"user-agent": f"cellwall/{__version__}"}, timeout=_TIMEOUT
        )

    def __enter__(self) -> FeedUpdater:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def update(self, ecosystem: Ecosystem) -> UpdateResult:
        """Bring the advisories of one registry up to date."""
        source = f"{self._url}/{_FOLDERS[ecosystem]}"
        stored = self._stored(source)
        with _locked(self._folder, ecosystem), _mapped_errors():
            if stored is not None:
                changed = self._changed_since(source, stored.newest)
                if changed is not None:
                    count = self._feed.add(self._records(source, changed), source=source)
                    return UpdateResult(ecosystem, True, count)
            path = self._download(f"{source}/all.zip", ecosystem)
            result = self._feed.import_archive(
                path,
                source=source,
                progress=lambda done, total: self._progress("import", done, total),
                refuse_older=True,
            )
            os.unlink(path)
        return UpdateResult(ecosystem, False, result.advisories)

    def _stored(self, source: str) -> FeedSource | None:
        """What the store has of the source; a damaged store is made anew, of the archive."""
        try:
            return next((each for each in self._feed.sources() if each.name == source), None)
        except FeedRefused as error:
            if error.code != "CW-FEED-DAMAGED":
                raise
            return None

    def _changed_since(self, source: str, newest: str) -> list[str] | None:
        """The identifiers that changed since; None where one archive is cheaper, or no list.

        The list is read a while further back than the newest stored change, for a server may
        publish records out of order. A list that ends before that, or is empty, is older than the
        store: the archive then has to show that the server has not gone back.
        """
        if not newest:
            return None
        found: list[str] = []
        until = parse_modified((datetime.fromisoformat(newest) - _OVERLAP).isoformat())
        read = 0
        is_first = True
        with self._client.stream("GET", f"{source}/modified_id.csv") as response:
            if response.status_code != httpx2.codes.OK:
                return None
            for line in response.iter_lines():
                read += len(line)
                time, identifier = _parse_change(line)
                if time < until:
                    return None if is_first else found
                is_first = False
                if self._feed.modified(identifier, source=source) != time:
                    found.append(identifier)
                if len(found) > MAX_SINGLE_RECORDS or read > _MAX_LIST_BYTES:
                    return None
            # Where only the end of the connection ends the list, it may have been cut.
            return found if _is_framed(response) and not is_first else None

    def _records(self, source: str, identifiers: list[str]) -> Iterator[Advisory]:
        for number, identifier in enumerate(identifiers, 1):
            self._progress("changes", number, len(identifiers))
            with self._client.stream("GET", f"{source}/{identifier}.json") as response:
                response.raise_for_status()
                data = b"".join(_bounded(response.iter_bytes(), MAX_RECORD_BYTES))
            with suppress(BadAdvisory):
                advisory = parse_advisory(data)
                if advisory.id != identifier:
                    raise FeedRefused("the server sends another advisory than the list names")
                yield advisory

    def _download(self, url: str, ecosystem: Ecosystem) -> str:
        """The file, whole; continues an earlier attempt."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, f"{ecosystem.value}.zip")
        done, tag = _read_partial(path)
        headers = {"accept-encoding": "identity"}
        if done and tag:
            headers |= {"range": f"bytes={done}-", "if-range": tag}
        with self._client.stream("GET", url, headers=headers) as response:
            if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE and done:
                # Killed between the last byte and the import, or the file is shorter by now.
                os.unlink(f"{path}.etag")
                return self._download(url, ecosystem)
            response.raise_for_status()
            is_continued = response.status_code == httpx2.codes.PARTIAL_CONTENT
            if is_continued and not _continues_at(response, done):
                os.unlink(f"{path}.etag")
                raise FeedRefused("the server continues the download at another place")
            done = done if is_continued else 0
            _write_tag(path, response.headers.get("etag", ""))
            length = response.headers.get("content-length")
            total = None if length is None else done + int(length)
            if total is not None and total > MAX_DOWNLOAD_BYTES:
                raise FeedRefused("the archive is too large", code="CW-FEED-TOO-LARGE")
            with open(path, "ab" if is_continued else "wb") as written:
                for chunk in _bounded(response.iter_raw(), MAX_DOWNLOAD_BYTES - done):
                    written.write(chunk)
                    done += len(chunk)
                    self._progress("download", done, total)
        os.unlink(f"{path}.etag")
        return path


def _parse_change(line: str) -> tuple[str, str]:
    """The time and the identifier of one change; the identifier becomes part of a path."""
    time, _, identifier = line.partition(",")
    try:
        if not identifier.replace("-", "").isalnum() or not identifier.isascii():
            raise ValueError("not an identifier")
        return parse_modified(time), identifier
    except (ValueError, OverflowError):
        raise FeedRefused("the list of changes is malformed") from None


def _is_framed(response: httpx2.Response) -> bool:
    """Whether the protocol says where the body ends, so that a cut body is an error."""
    headers = response.headers
    return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "")


def _continues_at(response: httpx2.Response, start: int) -> bool:
    given = response.headers.get("content-range")
    return given is None or given.startswith(f"bytes {start}-")


@contextmanager
def _locked(folder: str, ecosystem: Ecosystem) -> Iterator[None]:
    """One update of a registry at a time: two would write one download."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, f"{ecosystem.value}.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    "another update of the feed is running",
                    hint="Wait until it ends; `cellwall packages feed status` shows the result.",
                    code="CW-FEED-BUSY",
                ) from None
            yield
    except OSError as error:
        raise FeedRefused(
            "the download cannot be written",
            hint="Check the disk space of the state folder.",
            code="CW-FEED-UNWRITABLE",
            detail=repr(error),
        ) from error


def _read_partial(path: str) -> tuple[int, str]:
    try:
        with open(f"{path}.etag") as tag:
            return os.path.getsize(path), tag.read(200)
    except FileNotFoundError:
        return 0, ""


def _write_tag(path: str, tag: str) -> None:
    # A weak validator does not promise the same bytes (RFC 9110, 13.1.5).
    with open(f"{path}.etag", "w") as written:
        written.write("" if tag.startswith("W/") else tag)


def _bounded(chunks: Iterator[bytes], most: int) -> Iterator[bytes]:
    for chunk in chunks:
        most -= len(chunk)
        if most < 0:
            raise FeedRefused("the server sends too much", code="CW-FEED-TOO-LARGE")
        yield chunk


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except httpx2.HTTPError as error:
        raise EgressRefused(
            "the feed cannot be downloaded",
            hint="Check the network of this host; or download all.zip elsewhere, and: "
            "cellwall packages feed import FILE.",
            code="CW-FEED-UNAVAILABLE",
            detail=repr(error),
        ) from None
