"""Bodies under the keys of their sessions: the log verifies without keys, and after an erasure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.audit.export.delivery import records_after
from cellwall.audit.log import AuditLog
from cellwall.audit.search import Query, search
from cellwall.core.errors import AuditFailed
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.verdict import Verdict
from cellwall.secrets.session_keys import SessionKeys
from unit.audit.audit_logs import all_records, lines_of, put_lines, records_path

pytestmark = pytest.mark.requirement("FS-5")
CANARY = "canary-5f2a"


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[SessionKeys]:
    opened = SessionKeys(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def open_log(folder: Path, keys: SessionKeys | None) -> AuditLog:
    return AuditLog.open(str(folder), keys=keys)


def event(number: int, session: str = "sbx_1", **body: object) -> Event:
    return Event(
        EventKind.INTENT,
        f"act_{number}",
        "ann",
        "sdk",
        {"code": CANARY, "n": number, **body},
        session,
    )


def read(folder: Path, keys: SessionKeys | None = None, **wanted: object) -> list[dict]:
    found = records_after(str(folder), Query(**wanted), keys=keys)
    return [each.record for each in found if each.record["kind"] != "begin"]


def test_a_sealed_log_shows_nothing_and_reads_as_before_with_the_keys(folder, keys):
    verdict = {"decision": {"verdict": "deny", "rule": CANARY}}
    with open_log(folder, keys) as log:
        log.write(event(1, status="denied", **verdict))
        log.write(Event(EventKind.VAULT, "act_2", "ann", "sdk", {"message": CANARY}))
        log.write(Event(EventKind.CONFIG, "", "ann", "sdk", {"settings": CANARY}))
        assert log.verify().ok
    assert CANARY.encode() not in records_path(folder).read_bytes()
    sealed, _, _ = read(folder)
    assert sealed["body"].keys() == {"key", "sealed", "status", "verdict"}
    opened = read(folder, keys)
    assert [record["body"] for record in opened] == [
        {"code": CANARY, "n": 1, "status": "denied", **verdict},
        {"message": CANARY},
        {"settings": CANARY},
    ]


def test_searches_work_without_keys_but_for_texts(folder, keys):
    with open_log(folder, keys) as log:
        log.write(event(1, verdict="deny"))
        log.write(event(2, verdict="allow"))
    found = search(str(folder), Query(verdict=Verdict.DENY))
    assert [each.record["action_id"] for each in found] == ["act_1"]
    assert list(search(str(folder), Query(text=CANARY))) == []
    found = search(str(folder), Query(text=CANARY), keys=keys)
    assert [each.record["body"]["n"] for each in found] == [2, 1]
    assert list(search(str(folder), Query(text="absent"), keys=keys)) == []


def test_an_erased_session_reads_as_erased_and_the_log_verifies(folder, keys):
    with open_log(folder, keys) as log:
        log.write(event(1, status="ok"))
        log.write(event(2, "sbx_2"))
        before = records_path(folder).read_bytes()
        keys.destroy("sbx_1")
        assert log.verify().ok
        log.write(event(3, "sbx_2"))
        assert log.verify().ok
        assert records_path(folder).read_bytes().startswith(before.rstrip(b"\0"))
    bodies = [record["body"] for record in read(folder, keys)]
    assert bodies[0] == {"sealed": "erased", "status": "ok"}
    assert [body["n"] for body in bodies[1:]] == [2, 3]


def test_only_short_words_stay_in_clear(folder, keys):
    texts = {
        "status": f"{CANARY} and more",
        "error_code": "x" * 41,
        "limit": ["memory"],
        "verdict": {"deny": CANARY},
    }
    with open_log(folder, keys) as log:
        log.write(event(1, **texts))
    assert read(folder)[0]["body"].keys() == {"key", "sealed"}
    assert read(folder, keys)[0]["body"] == {"code": CANARY, "n": 1, **texts}


def swap(one: dict, two: dict) -> tuple[dict, dict]:
    return one | {"body": two["body"]}, two | {"body": one["body"]}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(swap, id="bodies swapped within one session"),
        pytest.param(
            lambda one, two: (one | {"body": one["body"] | {"status": "ok"}}, two), id="word"
        ),
        pytest.param(lambda one, two: (one | {"kind": "outcome"}, two), id="kind"),
        pytest.param(lambda one, two: (one | {"session_id": "sbx_2"}, two), id="session"),
        pytest.param(lambda one, two: (one | {"id": "evt_0" + "0" * 25}, two), id="id"),
        pytest.param(
            lambda one, two: (one | {"body": one["body"] | {"sealed": "AAAA"}}, two), id="short"
        ),
        pytest.param(
            lambda one, two: (one | {"body": one["body"] | {"sealed": "not base64"}}, two),
            id="no base64",
        ),
    ],
)
def test_a_body_in_another_place_is_damaged_also_where_nobody_verifies_the_chain(
    folder, keys, change
):
    with open_log(folder, keys) as log:
        log.write(event(1, status="denied"))
        log.write(event(2, status="denied"))
    begin, *lines = lines_of(folder)
    assert [body["n"] for body in (each["body"] for each in read(folder, keys))] == [1, 2]
    changed = change(*map(json.loads, lines))
    spelled = [json.dumps(each, sort_keys=True, separators=(",", ":")).encode() for each in changed]
    put_lines(folder, [begin, *spelled])
    assert read(folder, keys)[0]["body"]["sealed"] == "damaged"


def test_a_log_from_before_reads_and_verifies_and_goes_on_sealed(folder, keys):
    with open_log(folder, None) as log:
        log.write(event(1))
    with open_log(folder, keys) as log:
        log.write(event(2))
        log.seal()
        log.write(event(3))
        assert log.verify().ok
    assert [record["v"] for record in all_records(folder)] == [2, 2, 3, 2, 3]
    found = [record["body"].get("n") for record in read(folder, keys)]
    assert found == [1, 2, None, 3]  # the third is the seal


def test_the_log_s_own_records_stay_in_clear(folder, keys):
    with open_log(folder, keys) as log:
        log.write(Event(EventKind.HOLD, "", "ann", "cli", {"what": "hold", "name": "x"}))
        log.write(Event(EventKind.ERASURE, "act_1", "ann", "cli", {"session": "sbx_1"}))
    assert [record["v"] for record in read(folder)] == [2, 2]


def test_without_a_key_nothing_is_written(folder, tmp_path):
    keys = SessionKeys(str(tmp_path))
    with open_log(folder, keys) as log:
        (tmp_path / "session-keys").mkdir(mode=0o700)
        (tmp_path / "session-keys").chmod(0o755)
        with pytest.raises(AuditFailed) as caught:
            log.write(event(1))
        assert caught.value.code == "CW-SESSION-KEYS"
        (tmp_path / "session-keys").chmod(0o700)
        log.write(event(2))  # the control: the same log, once the folder is private
    assert [record["body"]["n"] for record in read(folder, SessionKeys(str(tmp_path)))] == [2]


def test_the_longest_body_still_fits_into_a_record(folder, keys):
    large = {f"part{number}": "\x00" * 8192 for number in range(64)}
    with AuditLog.open(str(folder), max_field_bytes=8192, keys=keys) as log:
        log.write(Event(EventKind.INTENT, "act_1", "\x01" * 400, "cli", large, "\x01" * 400))
        assert log.verify().ok
    assert len(read(folder, keys)) == 1
