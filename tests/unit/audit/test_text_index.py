"""The text index changes how long a search takes, never what it finds, and keeps nothing of an
erased session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.audit import text_draft, text_index, text_indexing
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.search import Query, search, search_steps
from cellwall.audit.searchable_text import encoded_text
from cellwall.audit.text_chunk import BadChunk, open_chunk
from cellwall.audit.text_filter import PAGES, query_places
from cellwall.audit.text_index import list_chunks, text_folder
from cellwall.audit.text_indexing import (
    IndexingStopped,
    remove_damaged,
    remove_erased,
    update_text_index,
)
from cellwall.core.errors import VaultError
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.verdict import Verdict
from cellwall.secrets.session_keys import SessionKeys
from unit.audit.audit_logs import NEVER, lines_of, put_lines

WORDS = [
    "alpha",
    "be ta",
    "caf\u00e9",
    "d/e/f",
    "\U0001f600smile",
    "Alpha",
    "x" * 300,
    'q"uote',
    "z",
]
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of records makes several units and chunks."""
    monkeypatch.setattr(text_draft, "MAX_UNIT_RECORDS", 3)
    monkeypatch.setattr(text_draft, "MIN_UNIT_BYTES", 1)
    monkeypatch.setattr(text_draft, "MAX_UNITS", 4)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def keys(home: Path) -> Iterator[SessionKeys]:
    with closing(SessionKeys(str(home))) as opened:
        yield opened


def event(number: int, word: str, session: str = "") -> Event:
    body = {"code": f"{word} {number}", "sha256": f"{number:x}".rjust(4, "0") * 16}
    verdict = "deny" if number % 5 == 0 else "allow"
    subject = session or f"sbx_{number // 4}"
    return Event(
        EventKind.INTENT, new_id("act"), "ann", "sdk", {**body, "verdict": verdict}, subject
    )


def make_log(home: Path, keys: SessionKeys, count: int = 60, *, is_packed: bool = True) -> None:
    with AuditLog.open(str(home / "audit"), keys=keys, settings=NEVER) as log:
        for number in range(count):
            log.write(event(number, WORDS[number % len(WORDS)]))
            if is_packed and number in (count // 3, 2 * count // 3):
                log.seal()
        if is_packed:
            maintain_segments(str(home / "audit"), NEVER, log.write, log.notary)


def index(home: Path, keys: SessionKeys, **how: Callable[[], None]) -> None:
    done = update_text_index(str(home / "audit"), keys, is_complete=True, **how)
    assert done.indexed_bytes == done.all_bytes


def found(home: Path, keys: SessionKeys, text: str, **more: object) -> list[int]:
    query = Query(text=text, **more)  # type: ignore[arg-type]  # fields of the test's choice
    return [each.record["seq"] for each in search(str(home / "audit"), query, keys=keys)]


def scanned(home: Path, keys: SessionKeys, text: str, **more: object) -> list[int]:
    query = Query(text=text, **more)  # type: ignore[arg-type]  # fields of the test's choice
    all_of_them = search(str(home / "audit"), query, keys=keys, is_indexed=False)
    return [each.record["seq"] for each in all_of_them]


def looked_at(home: Path, keys: SessionKeys, text: str) -> int:
    return len(list(search_steps(str(home / "audit"), Query(text=text), keys=keys)))


def chunk_paths(home: Path) -> list[Path]:
    return sorted(Path(text_folder(str(home / "audit"))).glob("*.text"))


QUERIES = [
    *WORDS,
    "alpha 9",
    "a",
    "",
    "absent",
    "sbx_7",
    "sbx_1",
    "intent",
    "deny",
    "0001000100",
    "ann",
]
HOSTILE = [".*", "\\", '"', "\0", "\ud800", "%s", "a" * 200, " ", "\u202e", "\n", "{}", "'; --"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, SessionKeys]]:
    """Two packed segments and a growing one, indexed."""
    folder = tmp_path_factory.mktemp("text") / "home"
    folder.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch, closing(SessionKeys(str(folder))) as opened:
        patch.setattr(text_draft, "MAX_UNIT_RECORDS", 3)
        patch.setattr(text_draft, "MIN_UNIT_BYTES", 1)
        patch.setattr(text_draft, "MAX_UNITS", 4)
        make_log(folder, opened)
        index(folder, opened)
        yield folder, opened


@pytest.mark.requirement("SRV-5")
@pytest.mark.parametrize("text", [*QUERIES, *HOSTILE])
def test_an_indexed_search_finds_what_a_scan_finds(built, text):
    home, keys = built
    assert found(home, keys, text) == scanned(home, keys, text)
    assert len(list_chunks(str(home / "audit"))) == 3


@many
@given(data=st.data())
def test_conditions_and_pages_are_those_of_a_scan(built, data):
    home, keys = built
    text = data.draw(st.sampled_from(QUERIES) | st.text(max_size=6))
    more = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "verdict": st.sampled_from(list(Verdict)),
                "kind": st.sampled_from([EventKind.INTENT, EventKind.SEAL]),
                "session_id": st.sampled_from(["sbx_3", "sbx_99"]),
                "before": st.integers(1, 70),
            },
        )
    )
    assert found(home, keys, text, **more) == scanned(home, keys, text, **more)


def test_a_rare_text_reads_few_records(built):
    home, keys = built
    assert looked_at(home, keys, "alpha 9 ") == 0
    assert looked_at(home, keys, "d/e/f 12") <= 6
    assert looked_at(home, keys, "d/e") > 60, "too short for a filter"


corpora = st.lists(
    st.text(max_size=30) | st.text(alphabet="ab1", max_size=60) | st.sampled_from(WORDS),
    min_size=1,
    max_size=12,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)
@given(words=corpora, data=st.data())
def test_any_corpus_reads_alike_with_and_without_index(tmp_path_factory, words, data):
    home = tmp_path_factory.mktemp("corpus")
    home.chmod(0o700)
    with closing(SessionKeys(str(home))) as keys:
        with AuditLog.open(str(home / "audit"), keys=keys, settings=NEVER) as log:
            for number, word in enumerate(words):
                log.write(event(number, word))
        index(home, keys)
        word = data.draw(st.sampled_from(words))
        start = data.draw(st.integers(0, len(word)))
        wanted = data.draw(st.just(word[start:]) | st.just(word) | st.text(max_size=5))
        assert found(home, keys, wanted) == scanned(home, keys, wanted)
    shutil.rmtree(home)


def test_new_records_are_found_before_and_after_they_are_indexed(home, keys):
    make_log(home, keys, 10, is_packed=False)
    index(home, keys)
    with AuditLog.open(str(home / "audit"), keys=keys, settings=NEVER) as log:
        for number in range(100, 130):
            log.write(event(number, "later"))
            assert len(found(home, keys, "later")) == number - 99
            if number % 7 == 0:
                index(home, keys)
                assert looked_at(home, keys, "absent text") == 0


def test_few_new_records_are_left_to_the_scan(home, keys):
    make_log(home, keys, 10, is_packed=False)
    update_text_index(str(home / "audit"), keys)
    assert chunk_paths(home) == []
    assert len(found(home, keys, "alpha")) == 2


# --- what lies on the disk


@pytest.mark.requirement("FS-5")
def test_a_stolen_index_shows_no_word_and_no_stable_hash(home, keys):
    make_log(home, keys, 10, is_packed=False)
    index(home, keys)
    (path,) = chunk_paths(home)
    first = path.read_bytes()
    for word in WORDS[:-1]:
        for form in (word.encode(), encoded_text(word), word.encode("utf-16-le")):
            assert form not in first
    # The control: unsealed, the same filters tell which words there are.
    with closing(open_chunk(str(path), keys)) as chunk:
        assert chunk.candidates(query_places(b"alpha"))
        assert not chunk.candidates(query_places(b"absent word"))
        pages = [chunk.page(number) for number in range(PAGES)]
    assert not any(page in first for page in pages)
    # Made anew of the same records, nothing behind the header is the same.
    path.unlink()
    index(home, keys)
    second = path.read_bytes()
    assert len(second) == len(first)
    blocks = {first[at : at + 16] for at in range(1024, len(first), 16)}
    assert not any(second[at : at + 16] in blocks for at in range(1024, len(second), 16))


def test_without_the_private_key_a_chunk_does_not_open(home, keys):
    make_log(home, keys, 10, is_packed=False)
    index(home, keys)
    (path,) = chunk_paths(home)
    (home / "session-keys" / "private").unlink()
    with closing(SessionKeys(str(home))) as thief, pytest.raises(BadChunk):
        open_chunk(str(path), thief)


# --- erasing


@pytest.mark.requirement("FS-5")
def test_nothing_of_an_erased_session_is_findable(home, keys):
    with AuditLog.open(str(home / "audit"), keys=keys, settings=NEVER) as log:
        for number in range(23):
            log.write(event(number, "canary" if number == 7 else "other", f"sbx_{number % 3}"))
        index(home, keys)
        before = {path: path.read_bytes() for path in chunk_paths(home)}
        assert len(found(home, keys, "canary")) == 1
        keys.destroy("sbx_1")
        assert remove_erased(str(home / "audit"), keys) == len(before)
        assert found(home, keys, "canary") == []
        # An old copy of the files, with the private key of the state folder, opens no more.
        for path, content in before.items():
            path.write_bytes(content)
            with pytest.raises(BadChunk):
                open_chunk(str(path), keys)
        assert remove_erased(str(home / "audit"), keys) == len(before)
        index(home, keys)
        for path in chunk_paths(home):
            with closing(open_chunk(str(path), keys)) as chunk:
                assert not chunk.candidates(query_places(b"canary 7"))
        assert found(home, keys, "canary") == []
        assert found(home, keys, "other") == scanned(home, keys, "other")
        assert found(home, keys, "erased") == scanned(home, keys, "erased") != []
        assert log.verify().ok


def test_an_erasure_elsewhere_leaves_other_chunks(home, keys):
    make_log(home, keys, 40, is_packed=False)
    index(home, keys)
    count = len(chunk_paths(home))
    keys.destroy("sbx_5")
    assert 0 < remove_erased(str(home / "audit"), keys) < count
    assert found(home, keys, "alpha") == scanned(home, keys, "alpha")
    index(home, keys)
    assert len(chunk_paths(home)) == count
    assert looked_at(home, keys, "absent text") == 0
    assert remove_erased(str(home / "audit"), keys) == 0


def test_an_erasure_while_a_chunk_is_built_leaves_no_chunk(home, keys, monkeypatch):
    make_log(home, keys, 10, is_packed=False)
    real, erased = text_indexing.files.replace_file, []

    def erase_first(*given: object, **how: object) -> None:
        if not erased:
            erased.append(keys.destroy("sbx_1"))
            assert remove_erased(str(home / "audit"), keys) == 0
        real(*given, **how)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(text_indexing.files, "replace_file", erase_first)
    update_text_index(str(home / "audit"), keys, is_complete=True)
    assert chunk_paths(home) == []
    index(home, keys)
    assert found(home, keys, "alpha") == scanned(home, keys, "alpha")


def test_chunks_go_with_the_segment_that_retention_deletes(home, keys, monkeypatch):
    make_log(home, keys, 30)
    index(home, keys)
    directory = str(home / "audit")
    assert min(list_chunks(directory)) == 1
    monkeypatch.setattr("cellwall.audit.retention._DAY_S", 0.0)
    with AuditLog.open(directory, keys=keys, settings=NEVER) as log:
        log.notary.sign_now(timeout_s=10.0)
        old = LogSettings(keep_days=1, checkpoint_events=10**9, checkpoint_s=10**6)
        gone = maintain_segments(directory, old, log.write, log.notary)
    assert gone
    assert not set(gone) & set(list_chunks(directory))


def copies_of(home: Path, pattern: str = "*.text") -> dict[Path, bytes]:
    """Of chunks as a backup has them."""
    return {
        path: path.read_bytes() for path in Path(text_folder(str(home / "audit"))).glob(pattern)
    }


def units_with(copies: dict[Path, bytes], keys: SessionKeys, wanted: bytes, place: Path) -> int:
    """What the owner of the vault learns from copies of chunks."""
    count = 0
    for content in copies.values():
        place.write_bytes(content)
        try:
            with closing(open_chunk(str(place), keys)) as chunk:
                count += len(chunk.candidates(query_places(wanted)))
        except BadChunk:
            pass
    return count


@pytest.mark.requirement("FS-5")
def test_copies_of_chunks_of_a_deleted_segment_do_not_open(home, keys, monkeypatch, tmp_path):
    make_log(home, keys, 30)
    index(home, keys)
    directory, copies = str(home / "audit"), copies_of(home)
    assert units_with(copies, keys, b"alpha 0", tmp_path / "copy") == 1  # the control
    monkeypatch.setattr("cellwall.audit.retention._DAY_S", 0.0)
    with AuditLog.open(directory, keys=keys, settings=NEVER) as log:
        log.notary.sign_now(timeout_s=10.0)
        old = LogSettings(keep_days=1, checkpoint_events=10**9, checkpoint_s=10**6)
        assert 1 in maintain_segments(directory, old, log.write, log.notary)
    keys.destroy("sbx_0")  # after its records were deleted: no chunk names the session now
    assert units_with(copies, keys, b"alpha 0", tmp_path / "copy") == 0


def test_a_chunk_that_was_built_while_its_segment_was_deleted_goes(home, keys, monkeypatch):
    make_log(home, keys, 30)
    index(home, keys)
    directory, copies = str(home / "audit"), copies_of(home)
    monkeypatch.setattr("cellwall.audit.retention._DAY_S", 0.0)
    with AuditLog.open(directory, keys=keys, settings=NEVER) as log:
        log.notary.sign_now(timeout_s=10.0)
        old = LogSettings(keep_days=1, checkpoint_events=10**9, checkpoint_s=10**6)
        gone = maintain_segments(directory, old, log.write, log.notary)
    for path, content in copies.items():
        if not path.exists():
            path.write_bytes(content)
    assert set(gone) <= set(list_chunks(directory))  # the control
    index(home, keys)
    assert not set(gone) & set(list_chunks(directory))
    assert set(list_chunks(directory))


@pytest.mark.requirement("FS-5")
def test_nothing_of_an_erased_session_is_in_the_draft_of_a_killed_process(home, keys, tmp_path):
    make_log(home, keys, 10, is_packed=False)
    subprocess.run([sys.executable, "-c", KILLED, str(home), "-1"], check=False)
    drafts = copies_of(home, ".*")
    assert units_with(drafts, keys, b"alpha 0", tmp_path / "copy") > 0  # the control
    keys.destroy("sbx_0")
    remove_erased(str(home / "audit"), keys)
    assert copies_of(home, ".*") == {}
    assert units_with(drafts, keys, b"alpha 0", tmp_path / "copy") == 0


def test_an_erasure_that_removes_a_draft_does_not_end_the_indexing(home, keys, monkeypatch):
    make_log(home, keys, 10, is_packed=False)
    real, drafts = os.rename, []

    def erase_first(draft: str, *given: object, **how: object) -> None:
        if drafts:
            return real(draft, *given, **how)  # type: ignore[arg-type]  # passed through
        drafts.append(draft)
        keys.destroy("sbx_1")
        remove_erased(str(home / "audit"), keys)
        return real(draft, *given, **how)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(os, "rename", erase_first)
    assert update_text_index(str(home / "audit"), keys, is_complete=True).indexed_bytes == 0
    assert drafts
    assert copies_of(home, "*text*") == {}
    index(home, keys)
    assert found(home, keys, "alpha") == scanned(home, keys, "alpha")


# --- damage


def damages(path: Path) -> Iterator[str]:
    good = path.read_bytes()
    for at in (0, 9, 30, 60, 100, 150, 190, 250, 400, 2000, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        yield f"changed at {at}"
    for end in (0, 10, 150, 300, len(good) - 1):
        path.write_bytes(good[:end])
        yield f"cut at {end}"
    path.unlink()
    path.symlink_to("/etc/hostname")
    yield "a link"
    path.unlink()
    path.mkdir()
    yield "a folder"
    path.rmdir()
    os.mkfifo(path)
    yield "a pipe"
    path.unlink()
    path.write_bytes(os.urandom(len(good)))
    yield "noise"
    path.write_bytes(good)


@pytest.mark.requirement("SRV-5")
def test_a_damaged_chunk_hides_no_record_and_is_built_anew(home, keys):
    make_log(home, keys, 30, is_packed=False)
    index(home, keys)
    wanted = {text: scanned(home, keys, text) for text in ("alpha", "caf\u00e9", "absent")}
    middle = chunk_paths(home)[1]
    for damage in damages(middle):
        for text, seqs in wanted.items():
            assert found(home, keys, text) == seqs, damage
    middle.write_bytes(middle.read_bytes()[:-1])
    assert remove_damaged(str(home / "audit"), keys) == 1
    index(home, keys)
    assert looked_at(home, keys, "absent text") == 0


def test_a_chunk_of_another_place_or_log_hides_no_record(home, keys, tmp_path):
    make_log(home, keys, 40, is_packed=False)
    index(home, keys)
    one, two, *_ = chunk_paths(home)
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    assert found(home, keys, "alpha") == scanned(home, keys, "alpha")
    one.write_bytes(first)
    # Another history with the same keys and numbers, as after a restored backup.
    audit, kept = home / "audit", tmp_path / "kept"
    shutil.copytree(audit / "text-index", kept)
    shutil.rmtree(audit)
    with AuditLog.open(str(audit), keys=keys, settings=NEVER) as log:
        for number in range(40):
            log.write(event(number, "elsewhere"))
    shutil.copytree(kept, audit / "text-index")
    assert len(found(home, keys, "elsewhere")) == 40
    index(home, keys)
    assert len(found(home, keys, "elsewhere")) == 40
    assert looked_at(home, keys, "absent text") == 0


def test_records_that_were_rolled_back_and_replaced_are_found(home, keys):
    make_log(home, keys, 10, is_packed=False)
    index(home, keys)
    with AuditLog.open(str(home / "other"), keys=keys, settings=NEVER) as log:
        for number in range(12):
            log.write(event(number, "replaced"))
    kept, others = lines_of(home / "audit")[:9], lines_of(home / "other")[9:13]
    put_lines(home / "audit", [*kept, *others])
    assert len(found(home, keys, "replaced")) == 4
    index(home, keys)
    assert len(found(home, keys, "replaced")) == 4


def test_a_locked_vault_leaves_the_index_alone(home, keys):
    make_log(home, keys, 12, is_packed=False)
    index(home, keys)
    before = [path.read_bytes() for path in chunk_paths(home)]
    private = home / "session-keys" / "private"
    content = private.read_bytes()
    private.unlink()
    with closing(SessionKeys(str(home))) as locked:
        update_text_index(str(home / "audit"), locked, is_complete=True)
        assert remove_damaged(str(home / "audit"), locked) == 0
        assert remove_erased(str(home / "audit"), locked) == 0
        with pytest.raises(VaultError) as refused:
            found(home, locked, "alpha")
        assert refused.value.code == "CW-SESSION-LOCKED"
    private.write_bytes(content)
    assert [path.read_bytes() for path in chunk_paths(home)] == before
    assert len(found(home, keys, "alpha")) == 2


# --- kills, threads and processes

KILLED = """
import os, signal, sys
from cellwall.audit import text_draft, text_indexing
from cellwall.secrets.session_keys import SessionKeys
home, at = sys.argv[1], int(sys.argv[2])
text_draft.MAX_UNIT_RECORDS, text_draft.MIN_UNIT_BYTES, text_draft.MAX_UNITS = 3, 1, 4
text_indexing._REST_EVERY_RECORDS = 1
count = 0
def rest():
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
rename = os.rename
def rename_or_die(*given, **how):
    if at < 0:
        rest_of_files.append(1)
        if len(rest_of_files) == -at:
            os.kill(os.getpid(), signal.SIGKILL)
    rename(*given, **how)
rest_of_files = []
os.rename = rename_or_die
text_indexing.update_text_index(home + "/audit", SessionKeys(home), rest=rest, is_complete=True)
"""


@pytest.mark.slow
def test_a_kill_while_indexing_loses_no_record_and_the_next_goes_on(home, keys):
    make_log(home, keys, 40)
    for at in (-2, 1, 14):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(home), str(at)], check=False)
        assert killed.returncode == -signal.SIGKILL
        for text in ("alpha", "absent text", "d/e/f"):
            assert found(home, keys, text) == scanned(home, keys, text)
    index(home, keys)
    assert looked_at(home, keys, "absent text") == 0
    left = {path.name for path in Path(text_folder(str(home / "audit"))).iterdir()}
    assert left == {path.name for path in chunk_paths(home)} | {"building.lock"}


def test_indexing_that_was_stopped_goes_on_with_the_next_chunk(home, keys, monkeypatch):
    monkeypatch.setattr(text_indexing, "_REST_EVERY_RECORDS", 1)
    make_log(home, keys, 40, is_packed=False)
    turns = iter(range(15))

    def rest() -> None:
        if next(turns, None) is None:
            raise IndexingStopped

    with pytest.raises(IndexingStopped):
        update_text_index(str(home / "audit"), keys, rest=rest, is_complete=True)
    (first,) = chunk_paths(home)
    before = first.read_bytes()
    index(home, keys)
    assert first.read_bytes() == before


def test_one_process_builds_at_a_time(home, keys):
    make_log(home, keys, 12, is_packed=False)
    others: list[text_indexing.IndexedText] = []

    def rest() -> None:
        others.append(update_text_index(str(home / "audit"), keys))

    update_text_index(str(home / "audit"), keys, rest=rest, is_complete=True)
    assert set(others) == {(0, 0)}


@pytest.mark.slow
def test_writers_readers_and_the_indexer_do_not_disturb_each_other(home, keys):
    directory, is_over, problems = str(home / "audit"), threading.Event(), []
    with AuditLog.open(directory, keys=keys, settings=NEVER) as log:
        written: list[int] = []

        def write() -> None:
            for number in range(80):
                log.write(event(number, "together"))
                written.append(number)
                if number % 25 == 24:
                    log.seal()
                    maintain_segments(directory, NEVER, log.write, log.notary)

        def read() -> None:
            while not is_over.is_set():
                least = len(written)
                count = len(found(home, keys, "together"))
                if count < least:
                    problems.append((least, count))

        def build() -> None:
            while not is_over.is_set():
                update_text_index(directory, keys, is_complete=True)

        others = [threading.Thread(target=work) for work in (read, read, build)]
        for thread in others:
            thread.start()
        write()
        is_over.set()
        for thread in others:
            thread.join()
        assert problems == []
        index(home, keys)
        assert len(found(home, keys, "together")) == 80


def test_no_log_has_no_index(tmp_path, keys):
    assert update_text_index(str(tmp_path / "none"), keys) == (0, 0)
    assert list(search(str(tmp_path / "none"), Query(text="alpha"), keys=keys)) == []
    assert text_index.list_chunks(str(tmp_path / "none")) == {}
