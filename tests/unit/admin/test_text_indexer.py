"""A service indexes the text of records by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellwall.admin import audit_queries, text_indexer
from cellwall.admin.text_indexer import TextIndexer
from cellwall.audit import text_indexing
from cellwall.audit.log import AuditLog
from cellwall.audit.search import Query, search, search_steps
from cellwall.audit.text_index import list_chunks, text_folder
from cellwall.core.outcomes import Event, EventKind
from cellwall.secrets.session_keys import SessionKeys

_DEADLINE_S = 60.0


@pytest.fixture
def keys(state_home: str) -> Iterator[SessionKeys]:
    with closing(SessionKeys(state_home)) as opened:
        yield opened


@pytest.fixture
def directory(state_home: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(text_indexing, "_MIN_GROWTH_BYTES", 1)
    return f"{state_home}/audit"


def write(log: AuditLog, word: str) -> None:
    log.write(Event(EventKind.INTENT, "act_1", "ann", "sdk", {"code": word}, "sbx_1"))


def until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.02)


def is_indexed(directory: str, keys: SessionKeys) -> bool:
    return not list(search_steps(directory, Query(text="absent text"), keys=keys))


def test_new_records_are_indexed_until_the_service_ends(state_home, directory, keys):
    with AuditLog.open(directory, keys=keys) as log:
        write(log, "first word")
        indexer = TextIndexer(state_home, lambda: SessionKeys(state_home), every_s=0.01)
        indexer.start()
        until(lambda: is_indexed(directory, keys))
        write(log, "second word")
        until(lambda: is_indexed(directory, keys))
        (found,) = search(directory, Query(text="second word"), keys=keys)
        assert found.record["body"] == {"code": "second word"}
        indexer.stop()
        write(log, "third word")
        assert not is_indexed(directory, keys)


def test_a_damaged_chunk_and_one_of_an_erased_session_are_built_anew(
    state_home, directory, keys, monkeypatch
):
    monkeypatch.setattr(text_indexer, "_REPAIR_EVERY_S", 0.0)
    with AuditLog.open(directory, keys=keys) as log:
        write(log, "canary word")
    text_indexing.update_text_index(directory, keys)
    (path,) = Path(text_folder(directory)).glob("*.text")
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    keys.destroy("sbx_1")  # as if the process had been killed before it removed the chunk
    indexer = TextIndexer(state_home, lambda: SessionKeys(state_home), every_s=0.01)
    indexer.start()
    until(lambda: path.exists() and path.read_bytes()[:200] != good[:200])
    indexer.stop()
    assert list(search(directory, Query(text="canary word"), keys=keys)) == []
    assert len(list(search(directory, Query(text="erased"), keys=keys))) == 1


def test_a_long_search_of_a_command_indexes_what_it_scanned(directory, keys, monkeypatch):
    with AuditLog.open(directory, keys=keys) as log:
        write(log, "first word")
    assert len(audit_queries.latest(Query(text="first"), 5)) == 1
    assert list_chunks(directory) == {}  # it was quick
    monkeypatch.setattr(audit_queries, "_LONG_SEARCH_S", 0.0)
    assert len(audit_queries.latest(Query(text="first"), 5)) == 1
    assert is_indexed(directory, keys)


def test_a_vault_that_opens_later_lets_the_index_be_built(state_home, directory, keys, monkeypatch):
    monkeypatch.setattr(text_indexer, "_REPAIR_EVERY_S", 0.0)
    with AuditLog.open(directory, keys=keys) as log:
        write(log, "first word")
    private = Path(state_home, "session-keys", "private")
    aside = private.rename(Path(state_home, "aside"))
    tries = threading.Semaphore(0)

    def open_keys() -> SessionKeys:
        tries.release()
        return SessionKeys(state_home)

    indexer = TextIndexer(state_home, open_keys, every_s=0.01)
    indexer.start()
    for _ in range(4):
        assert tries.acquire(timeout=_DEADLINE_S)
    assert list_chunks(directory) == {}
    aside.rename(private)
    until(lambda: is_indexed(directory, keys))
    indexer.stop()
