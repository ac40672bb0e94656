"""The local store of OSV advisories: malicious packages and vulnerabilities (PKG-1).

A change is made in a copy of the database, which one rename then puts in its place: a reader sees
the old store or the new store, and an interrupted import changes nothing. The advisories of each
source are replaced together; those of other sources stay, also under the same identifiers, so that
no source takes back what another one reports. A lookup reads one index, so a verdict takes
microseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import Advisory, Affected, VersionRange
from cellwall.packages.osv_archive import FeedRefused, read_archive
from cellwall.packages.snapshot import snapshot_advisory

_OWN_SHARE = 0.01
"""An archive of npm names some packages of PyPI too, and is no feed about PyPI."""
_FORMAT = 2
_DATABASE = "feed.sqlite"
_SCHEMA = f"""
CREATE TABLE source (
  name TEXT PRIMARY KEY, updated TEXT NOT NULL, ecosystems TEXT NOT NULL) STRICT;
CREATE TABLE advisory (
  source TEXT NOT NULL, id TEXT NOT NULL, modified TEXT NOT NULL, summary TEXT NOT NULL,
  PRIMARY KEY (source, id)) STRICT;
CREATE TABLE affected (
  ecosystem TEXT NOT NULL, name TEXT NOT NULL, source TEXT NOT NULL, id TEXT NOT NULL,
  versions TEXT NOT NULL) STRICT;
CREATE INDEX affected_name ON affected (ecosystem, name);
CREATE INDEX affected_id ON affected (source, id);
PRAGMA user_version = {_FORMAT};
"""


@dataclass(frozen=True, slots=True)
class FeedSource:
    """One source: when its newest import finished, and the last change of an advisory in it."""

    name: str
    updated: datetime
    newest: str
    ecosystems: frozenset[Ecosystem]
    malicious: int
    vulnerabilities: int


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import read. `unreadable` counts records that are not OSV."""

    advisories: int
    withdrawn: int
    unreadable: int
    is_older: bool = False
    """Whether the store had a newer advisory of this source."""


class Feed:
    """The advisories in one state folder. Safe for threads and processes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, _DATABASE)
        # Escaped: a `?`, `#` or `%` in the path would name another file.
        self._uri = f"{Path(self._path).absolute().as_uri()}?mode=ro"

    @property
    def revision(self) -> tuple[int, int] | None:
        """Another one after each import: the store is replaced, never changed in place."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def sources(self) -> tuple[FeedSource, ...]:
        """All sources that were imported, by name."""
        with self._reading() as database:
            rows = [] if database is None else database.execute(_SOURCES).fetchall()
            return tuple(
                FeedSource(
                    name,
                    datetime.fromisoformat(updated),
                    newest,
                    frozenset(map(Ecosystem, ecosystems.split())),
                    malicious,
                    total - malicious,
                )
                for name, updated, newest, ecosystems, malicious, total in rows
            )

    def updated(self, ecosystem: Ecosystem) -> datetime | None:
        """When the newest source about this registry was imported; None: there is none."""
        with self._reading() as database:
            if database is None:
                return None
            rows = database.execute("SELECT updated, ecosystems FROM source").fetchall()
            times = [updated for updated, named in rows if ecosystem.value in named.split()]
            return datetime.fromisoformat(max(times)) if times else None

    def advisories(self, ecosystem: Ecosystem, name: str) -> tuple[Advisory, ...]:
        """Those that name this canonical package, malicious ones first; also of the snapshot."""
        with self._reading() as database:
            rows = []
            if database is not None:
                rows = database.execute(_ADVISORIES, (ecosystem.value, name)).fetchall()
            found = [_merged(ecosystem, name, reports) for reports in _by_identifier(rows)]
        shipped = snapshot_advisory(ecosystem, name)
        if shipped is not None:
            found.append(shipped)
        return tuple(sorted(found, key=lambda each: (not each.is_malicious, each.id)))

    def import_archive(
        self,
        path: str,
        *,
        source: str,
        progress: Callable[[int, int], None] | None = None,
        refuse_older: bool = False,
    ) -> ImportResult:
        """Replace the advisories of a source by the OSV records of a zip archive.

        With `refuse_older`, an archive that would take the source back to an earlier state is
        refused: a server, or a person between, that answers with an old archive hides new attacks.
        """
        counts = [0, 0, 0]
        with self._writing() as database:
            before = _state(database, source)
            database.execute("DELETE FROM affected WHERE source = ?", (source,))
            database.execute("DELETE FROM advisory WHERE source = ?", (source,))
            seen: set[str] = set()
            for advisory in read_archive(path, counts, progress):
                _insert(database, advisory, source, keep_affected=advisory.id in seen)
                seen.add(advisory.id)
            after = _state(database, source)
            if refuse_older and (
                after.newest < before.newest or 2 * after.malicious < before.malicious
            ):
                raise FeedRefused(
                    "the archive is older than the advisories that are stored, or has far fewer",
                    hint="Check feed_url in [packages]; to take the archive all the same: "
                    "cellwall packages feed import FILE.",
                    code="CW-FEED-OLDER",
                )
            if not counts[0]:
                raise FeedRefused(
                    "the archive holds no OSV record of PyPI or npm",
                    hint="Give all.zip of an ecosystem from osv.dev.",
                    code="CW-FEED-EMPTY",
                )
            _mark(database, source)
        advisories, withdrawn, unreadable = counts
        is_older = after.newest < before.newest
        return ImportResult(advisories, withdrawn, unreadable, is_older)

    def add(self, advisories: Iterable[Advisory], *, source: str) -> int:
        """Add or replace single advisories of a source, and remove the withdrawn ones.

        Returns how many changed the store.
        """
        changed = 0
        with self._writing() as database:
            for advisory in advisories:
                stored = _modified(database, advisory.id, source)
                if advisory.is_withdrawn:
                    changed += stored is not None
                    _delete(database, advisory.id, source)
                else:
                    changed += stored != advisory.modified
                    _insert(database, advisory, source)
            _mark(database, source)
        return changed

    def modified(self, advisory_id: str, *, source: str) -> str | None:
        """The time of the stored change of a source's advisory; None where the store does not have
        it."""
        with self._reading() as database:
            return None if database is None else _modified(database, advisory_id, source)

    def replace_by(self, path: str) -> None:
        """Put a whole store in the place of this one; after an import that is under way, which
        would undo it."""
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.replace(path, self._path)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        if not os.path.exists(self._path):
            yield None
            return
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as database:
                (found,) = database.execute("PRAGMA user_version").fetchone()
                if found != _FORMAT:
                    raise sqlite3.DatabaseError(f"format {found}")
                yield database
        except (sqlite3.Error, KeyError, ValueError, TypeError) as error:
            # A verdict without the feed would pass malicious packages: fail closed. Rows of another
            # version come with the feed of a fleet.
            raise FeedRefused(
                "the store of advisories is damaged",
                hint="Import the archive again: cellwall packages feed update.",
                code="CW-FEED-DAMAGED",
                detail=repr(error),
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A copy of the store, which replaces it at the end of the block."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        draft = f"{self._path}.draft"
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # of an import that was killed
                os.unlink(draft)
            try:
                with closing(sqlite3.connect(draft)) as database:
                    self._copy_into(database)
                    yield database
                    database.commit()
                with open(draft, "rb") as written:
                    os.fsync(written.fileno())
                os.replace(draft, self._path)
            except (sqlite3.Error, OSError) as error:
                raise FeedRefused(
                    "the store of advisories cannot be written, and is as before",
                    hint="Check the disk space of the state folder.",
                    code="CW-FEED-UNWRITABLE",
                    detail=repr(error),
                ) from error
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft)

    def _copy_into(self, draft: sqlite3.Connection) -> None:
        """A damaged store is not copied: every source is imported again then."""
        with suppress(FeedRefused), self._reading() as stored:
            if stored is not None:
                stored.backup(draft)
                return
        draft.executescript(_SCHEMA)


# An advisory dated in the future does not count: every later change would look old beside it.
_NEWEST = (
    "coalesce(max(a.modified) FILTER (WHERE a.modified <= strftime('%Y-%m-%dT%H:%M:%fZ')), '')"
)
_MALICIOUS = "count(a.id) FILTER (WHERE a.id LIKE 'MAL-%')"
_SOURCES = (
    f"SELECT s.name, s.updated, {_NEWEST}, s.ecosystems, {_MALICIOUS}, count(a.id)"  # noqa: S608  # constants
    " FROM source s LEFT JOIN advisory a ON a.source = s.name GROUP BY s.name ORDER BY s.name"
)
_ADVISORIES = (
    "SELECT a.id, a.modified, a.summary, f.versions FROM affected f"
    " JOIN advisory a USING (source, id) WHERE f.ecosystem = ? AND f.name = ? ORDER BY a.id"
)
_STATE = f"SELECT {_NEWEST}, {_MALICIOUS} FROM advisory a WHERE a.source = ?"  # noqa: S608  # constants


def _insert(
    database: sqlite3.Connection, advisory: Advisory, source: str, *, keep_affected: bool = False
) -> None:
    """Add or replace an advisory. With `keep_affected`, a second record of one archive under the
    same identifier adds its packages and removes none."""
    if not keep_affected:
        _delete(database, advisory.id, source)
        database.execute(
            "INSERT INTO advisory VALUES (?, ?, ?, ?)",
            (source, advisory.id, advisory.modified, advisory.summary),
        )
    rows: Iterable[tuple[str, ...]] = (
        (each.ecosystem.value, each.name, source, advisory.id, _encode(each))
        for each in advisory.affected
    )
    database.executemany("INSERT INTO affected VALUES (?, ?, ?, ?, ?)", rows)


def _modified(database: sqlite3.Connection, advisory_id: str, source: str) -> str | None:
    found = database.execute(
        "SELECT modified FROM advisory WHERE source = ? AND id = ?", (source, advisory_id)
    )
    row = found.fetchone()
    return None if row is None else str(row[0])


def _delete(database: sqlite3.Connection, advisory_id: str, source: str) -> None:
    for table in ("affected", "advisory"):
        database.execute(
            f"DELETE FROM {table} WHERE source = ? AND id = ?",  # noqa: S608  # constants
            (source, advisory_id),
        )


_Report = tuple[str, str, str, str]
"""Identifier, time of the change, summary, and versions of one affected package."""


def _by_identifier(rows: Iterable[_Report]) -> Iterator[tuple[_Report, ...]]:
    for _, reports in groupby(rows, key=lambda row: row[0]):
        yield tuple(reports)


def _merged(ecosystem: Ecosystem, name: str, reports: Sequence[_Report]) -> Advisory:
    """One advisory of all entries and sources: it covers what any of them names."""
    newest = max(reports, key=lambda report: report[1])
    affected = tuple(
        _decode(ecosystem, name, each) for each in dict.fromkeys(r[3] for r in reports)
    )
    return Advisory(newest[0], newest[1], newest[2], is_withdrawn=False, affected=affected)


class _SourceState(NamedTuple):
    newest: str
    malicious: int


def _state(database: sqlite3.Connection, source: str) -> _SourceState:
    found = database.execute(_STATE, (source,))
    return _SourceState(*found.fetchone())


def _mark(database: sqlite3.Connection, source: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    named = database.execute(
        "SELECT ecosystem, count(DISTINCT id) FROM affected WHERE source = ? GROUP BY ecosystem",
        (source,),
    ).fetchall()
    least = _OWN_SHARE * sum(count for _, count in named)
    ecosystems = " ".join(sorted(ecosystem for ecosystem, count in named if count >= least))
    database.execute("INSERT OR REPLACE INTO source VALUES (?, ?, ?)", (source, now, ecosystems))


def _encode(affected: Affected) -> str:
    ranges = [asdict(each) for each in affected.ranges]
    return json.dumps({"versions": sorted(affected.versions), "ranges": ranges})


def _decode(ecosystem: Ecosystem, name: str, text: str) -> Affected:
    stored: dict[str, Any] = json.loads(text)
    ranges = tuple(VersionRange(**each) for each in stored["ranges"])
    return Affected(ecosystem, name, frozenset(stored["versions"]), ranges)
