"""Updates from a real HTTP server with the layout of osv.dev (PKG-1)."""

from __future__ import annotations

import io
import json
import resource
import sqlite3
import threading
import zipfile
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cellwall.core.errors import Busy, EgressRefused
from cellwall.packages.feed import Feed, FeedRefused
from cellwall.packages.feed_update import MAX_SINGLE_RECORDS, FeedUpdater
from cellwall.packages.names import Ecosystem

pytestmark = pytest.mark.slow  # each client loads the authorities that the host trusts


def record(name, number, modified="2026-11-01T00:00:00Z", **changes):
    package = {"ecosystem": "PyPI", "name": name}
    return {
        "id": f"MAL-2026-{number}",
        "modified": modified,
        "affected": [{"package": package}],
        **changes,
    }


def packed(*records):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for each in records:
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    return data.getvalue()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        files, tag = self.server.files, self.server.tag
        self.server.seen.append((self.path, self.headers.get("range")))
        if self.path not in files:
            return self._answer(404, b"", {})
        body, start = files[self.path], 0
        asked = self.headers.get("range")
        if asked and self.headers.get("if-range") == tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return self._answer(416, b"", {})
        if self.server.cut_at and self.path.endswith(".zip"):
            cut, self.server.cut_at = self.server.cut_at, 0
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(body[:cut])
            self.close_connection = True
            return None
        headers = {"ETag": tag}
        if start and self.server.content_range:
            headers["Content-Range"], self.server.content_range = self.server.content_range, ""
        return self._answer(206 if start else 200, body[start:], headers)

    def _answer(self, status, body, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen, running.files, running.tag, running.cut_at = [], {}, '"one"', 0
        running.content_range = ""
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def feed(tmp_path):
    return Feed(str(tmp_path / "feed"))


def update(server, feed, tmp_path):
    with FeedUpdater(feed, str(tmp_path / "downloads"), server.url) as updater:
        return updater.update(Ecosystem.PYPI)


def names(feed, *wanted):
    return [name for name in wanted if feed.advisories(Ecosystem.PYPI, name)]


@pytest.mark.requirement("PKG-1")
def test_the_first_update_takes_the_archive_and_later_ones_the_changes(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(record("one", 1), record("two", 2))
    assert update(server, feed, tmp_path).advisories == 2
    later = "2026-11-02T00:00:00Z"
    server.files["/PyPI/modified_id.csv"] = (
        f"{later},MAL-2026-3\n{later},MAL-2026-1\n2026-11-01T00:00:00Z,MAL-2026-2\n".encode()
    )
    server.files["/PyPI/MAL-2026-3.json"] = json.dumps(record("three", 3, later)).encode()
    server.files["/PyPI/MAL-2026-1.json"] = json.dumps(
        record("one", 1, later, withdrawn=later)
    ).encode()
    del server.files["/PyPI/all.zip"]
    result = update(server, feed, tmp_path)
    assert (result.is_incremental, result.advisories) == (True, 2)
    assert names(feed, "one", "two", "three") == ["two", "three"]
    assert update(server, feed, tmp_path).advisories == 0


def test_after_too_many_changes_the_archive_is_taken_again(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(record("one", 1))
    update(server, feed, tmp_path)
    lines = "".join(f"2026-12-01T00:00:00Z,MAL-{n}\n" for n in range(MAX_SINGLE_RECORDS + 1))
    server.files["/PyPI/modified_id.csv"] = lines.encode()
    assert update(server, feed, tmp_path).is_incremental is False


@pytest.mark.requirement("PKG-1")
def test_an_interrupted_download_goes_on_where_it_ended(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(*(record(f"name{n}", n) for n in range(500)))
    server.cut_at = 20_000
    with pytest.raises(EgressRefused):
        update(server, feed, tmp_path)
    assert update(server, feed, tmp_path).advisories == 500
    assert server.seen[-1] == ("/PyPI/all.zip", "bytes=20000-")


def test_a_download_of_a_changed_file_begins_anew(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(*(record(f"name{n}", n) for n in range(500)))
    server.cut_at = 20_000
    with pytest.raises(EgressRefused):
        update(server, feed, tmp_path)
    server.tag = '"two"'
    server.files["/PyPI/all.zip"] = packed(*(record(f"other{n}", n) for n in range(400)))
    assert update(server, feed, tmp_path).advisories == 400


def test_without_a_server_the_store_stays_and_the_hint_names_the_other_way(server, feed, tmp_path):
    with pytest.raises(EgressRefused) as error:
        update(server, feed, tmp_path)  # 404
    assert "feed import" in error.value.hint
    assert feed.sources() == ()


def test_a_list_of_changes_cannot_name_another_path(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(record("one", 1))
    update(server, feed, tmp_path)
    server.files["/PyPI/modified_id.csv"] = b"2026-12-01T00:00:00Z,../../secret\n"
    with pytest.raises(FeedRefused):
        update(server, feed, tmp_path)
    assert names(feed, "one") == ["one"]


def test_a_download_that_was_killed_after_its_last_byte_begins_anew(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = whole = packed(record("one", 1))
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "pypi.zip").write_bytes(whole)
    (tmp_path / "downloads" / "pypi.zip.etag").write_text(server.tag)
    assert update(server, feed, tmp_path).advisories == 1
    assert [asked for _, asked in server.seen] == [f"bytes={len(whole)}-", None]


def test_a_server_that_continues_at_another_place_is_refused_and_asked_anew(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(*(record(f"name{n}", n) for n in range(500)))
    server.cut_at = 20_000
    with pytest.raises(EgressRefused):
        update(server, feed, tmp_path)
    server.content_range = "bytes 0-9/10"
    with pytest.raises(FeedRefused):
        update(server, feed, tmp_path)
    assert update(server, feed, tmp_path).advisories == 500


@pytest.mark.parametrize("damage", ["garbage", "another version"])
def test_a_damaged_store_is_made_anew_by_an_update(server, feed, tmp_path, damage):
    server.files["/PyPI/all.zip"] = packed(record("one", 1))
    update(server, feed, tmp_path)
    path = tmp_path / "feed" / "feed.sqlite"
    if damage == "garbage":
        path.write_bytes(b"not a database" * 100)
    else:
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 1")
    with pytest.raises(FeedRefused):
        feed.advisories(Ecosystem.PYPI, "one")
    assert update(server, feed, tmp_path).is_incremental is False
    assert names(feed, "one") == ["one"]


def test_a_second_update_at_the_same_time_is_refused(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(record("one", 1))
    seen = []

    def start_another(step, done, total):
        del done, total
        if step == "download":
            with pytest.raises(Busy) as error:
                update(server, feed, tmp_path)
            seen.append(error.value.code)

    downloads = str(tmp_path / "downloads")
    with FeedUpdater(feed, downloads, server.url, progress=start_another) as updater:
        assert updater.update(Ecosystem.PYPI).advisories == 1
    assert set(seen) == {"CW-FEED-BUSY"}


def test_an_older_archive_of_the_server_is_refused(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(record("one", 1), record("two", 2))
    update(server, feed, tmp_path)
    server.files["/PyPI/all.zip"] = packed(record("one", 1, "2025-01-01T00:00:00Z"))
    with pytest.raises(FeedRefused) as error:
        update(server, feed, tmp_path)
    assert error.value.code == "CW-FEED-OLDER"
    assert names(feed, "one", "two") == ["one", "two"]


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("listed", ["", "2025-01-01T00:00:00Z,MAL-2026-1\n"])
def test_an_older_list_of_changes_does_not_make_the_store_fresh(server, feed, tmp_path, listed):
    newest = "2026-11-01T00:00:00Z"
    server.files["/PyPI/all.zip"] = packed(record("one", 1), record("two", 2))
    update(server, feed, tmp_path)
    (before,) = feed.sources()
    server.files["/PyPI/modified_id.csv"] = listed.encode()
    server.files["/PyPI/all.zip"] = packed(record("one", 1, "2025-01-01T00:00:00Z"))
    with pytest.raises(FeedRefused) as error:
        update(server, feed, tmp_path)
    assert error.value.code == "CW-FEED-OLDER"
    assert feed.sources() == (before,)
    # The control: a list that reaches the store.
    server.files["/PyPI/modified_id.csv"] = f"{newest},MAL-2026-1\n{newest},MAL-2026-2\n".encode()
    assert update(server, feed, tmp_path).is_incremental


@pytest.mark.requirement("PKG-1")
def test_another_advisory_than_the_list_names_is_refused(server, feed, tmp_path):
    later = "2026-11-02T00:00:00Z"
    server.files["/PyPI/all.zip"] = packed(record("one", 1))
    update(server, feed, tmp_path)
    server.files["/PyPI/modified_id.csv"] = f"{later},MAL-2026-2\n".encode()
    withdrawn = record("one", 1, later, withdrawn=later)
    server.files["/PyPI/MAL-2026-2.json"] = json.dumps(withdrawn).encode()
    with pytest.raises(FeedRefused):
        update(server, feed, tmp_path)
    assert names(feed, "one") == ["one"]


def test_a_change_that_is_published_late_is_taken(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(record("one", 1, "2026-11-01T12:00:00Z"))
    update(server, feed, tmp_path)
    # Half an hour before the newest change that is stored.
    late = "2026-11-01T11:30:00.000Z"
    server.files["/PyPI/modified_id.csv"] = (
        f"2026-11-01T12:00:00Z,MAL-2026-1\n{late},MAL-2026-2\n2026-10-01T00:00:00Z,MAL-2026-9\n".encode()
    )
    server.files["/PyPI/MAL-2026-2.json"] = json.dumps(record("two", 2, late)).encode()
    result = update(server, feed, tmp_path)
    assert (result.is_incremental, result.advisories) == (True, 1)
    assert names(feed, "one", "two") == ["one", "two"]


def test_a_full_disk_ends_the_download_with_a_hint(server, feed, tmp_path):
    server.files["/PyPI/all.zip"] = packed(*(record(f"name{n}", n) for n in range(2000)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(FeedRefused) as error:
            update(server, feed, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.code == "CW-FEED-UNWRITABLE"
    assert update(server, feed, tmp_path).advisories == 2000
