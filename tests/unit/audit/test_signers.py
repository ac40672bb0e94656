"""Keys of a log: announced before they sign, rotated, lost, retired (AUD-2)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from cellwall.audit.log import AuditLog
from cellwall.audit.signers import parse_keys
from cellwall.core.errors import AuditFailed, KeyFailed
from cellwall.core.keys import make_key
from cellwall.core.notes import open_note
from unit.audit.audit_logs import (
    ANN,
    NEVER,
    all_records,
    event,
    notes_path,
    private_key,
    sign,
    trusted,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def log(folder):
    with AuditLog.open(str(folder), settings=NEVER) as opened:
        opened.write(event(0))
        yield opened


def key_records(folder) -> list[dict]:
    return [each for each in all_records(folder) if each["kind"] == "key"]


def test_first_key_is_made_beside_the_log_and_not_in_it(log, folder, tmp_path):
    assert sorted(os.listdir(tmp_path / "keys")) == ["audit.pem", "audit.signed"]
    public = private_key(folder).public
    assert (trusted(folder), log.notary.signers.current()) == ([public], public)
    assert not any(b"PRIVATE" in each.read_bytes() for each in folder.iterdir())


@pytest.mark.requirement("AUD-2")
def test_rotation_is_announced_signed_by_both_and_adopted(log, folder, tmp_path):
    old = log.notary.signers.current()
    new = log.notary.rotate(None, ANN)
    (record,) = key_records(folder)
    note = record["body"].pop("note")
    assert record["body"] == {"key": str(new), "reason": "rotation"}
    assert open_note(note.encode(), [old])[1] == (old,), "the old one vouches"
    assert (record["principal"], record["interface"]) == ("ann", "cli")
    assert notes_path(folder).read_text().rstrip().count("\u2014") == 3, "one, then two"
    assert (log.notary.signers.current(), private_key(folder).public) == (new, new)
    assert sorted(os.listdir(tmp_path / "keys")) == ["audit.pem", "audit.signed"]
    assert trusted(folder) == [old, new]
    log.write(event(1))
    sign(log)
    assert (log.verify().ok, len(key_records(folder))) == (True, 1)


def test_other_process_goes_on_with_the_new_key(log, folder):
    with AuditLog.open(str(folder), settings=NEVER) as other:
        other.write(event(1))
        sign(other)
        new = log.notary.rotate(None, ANN)
        other.write(event(2))
        sign(other)
        assert other.notary.signers.current() == new
        assert (other.verify().ok, len(key_records(folder))) == (True, 1)


@pytest.mark.requirement("AUD-2")
def test_lost_key_is_announced_as_lost(log, folder, tmp_path):
    (tmp_path / "keys" / "audit.pem").unlink()
    sign(log)
    (record,) = key_records(folder)
    assert record["body"] == {
        "key": str(private_key(folder).public),
        "reason": "the key before it was lost or replaced",
        "note": "",
    }
    assert not log.verify().ok


@pytest.mark.requirement("AUD-2")
def test_key_retired_by_a_rotation_and_put_back_does_not_sign(log, folder, tmp_path):
    path = tmp_path / "keys" / "audit.pem"
    old = path.read_bytes()
    log.notary.rotate(None, ANN)
    log.write(event(1))
    sign(log)
    path.unlink()
    path.write_bytes(old)
    path.chmod(0o600)
    log.write(event(2))
    with pytest.raises(KeyFailed, match="retired"):
        sign(log)
    assert log.verify().ok


def test_rotation_back_to_an_old_key_is_a_rotation(log, folder, tmp_path):
    old = tmp_path / "old.pem"
    old.write_bytes((tmp_path / "keys" / "audit.pem").read_bytes())
    old.chmod(0o600)
    first = log.notary.signers.current()
    log.notary.rotate(None, ANN)
    log.write(event(1))
    sign(log)
    assert log.notary.rotate(str(old), ANN) == first
    log.write(event(2))
    sign(log)
    assert log.verify().ok


# --- keys from outside


@pytest.fixture
def given(tmp_path):
    for name in ("one", "two"):
        make_key(str(tmp_path / f"{name}.pem"), "cellwall-audit")
    return tmp_path


def opened(folder, key) -> AuditLog:
    return AuditLog.open(str(folder), settings=replace(NEVER, signing_key=str(key)))


def test_key_from_outside_signs_and_none_is_made(folder, given):
    with opened(folder, given / "one.pem") as log:
        log.write(event(0))
        sign(log)
        assert log.verify().ok
    assert os.listdir(given / "keys") == ["audit.signed"]


def test_missing_key_from_outside_is_told(folder, given):
    with pytest.raises(KeyFailed):
        opened(folder, given / "none.pem")
    assert not (given / "none.pem").exists()


def test_rotation_of_a_key_from_outside_needs_the_next_one(folder, given):
    with opened(folder, given / "one.pem") as log:
        with pytest.raises(KeyFailed):
            log.notary.rotate(None, ANN)
        with pytest.raises(KeyFailed):
            log.notary.rotate(str(given / "none.pem"), ANN)
        assert key_records(folder) == []


@pytest.mark.requirement("AUD-2")
def test_rotation_of_a_key_from_outside_never_goes_back(folder, given):
    """A process that still has the old configuration must not make the log unbelievable."""
    with opened(folder, given / "one.pem") as log, opened(folder, given / "one.pem") as other:
        log.notary.rotate(str(given / "two.pem"), ANN)
        log.write(event(1))
        sign(log)
        assert log.verify().ok
        other.write(event(2))
        with pytest.raises(KeyFailed, match="retired"):
            sign(other)
        assert log.verify().ok
    with opened(folder, given / "two.pem") as log:
        log.write(event(3))
        sign(log)
        report = log.verify()
    assert (report.ok, report.signed) == (True, report.records)
    assert len(key_records(folder)) == 1


def test_rotation_from_an_own_key_to_one_from_outside(log, folder, given):
    log.notary.rotate(str(given / "two.pem"), ANN)
    log.write(event(1))
    sign(log)
    assert log.verify().ok
    log.close()
    with opened(folder, given / "two.pem") as again:
        again.write(event(2))
        sign(again)
        assert again.verify().ok


def test_event_of_a_rotation_that_cannot_be_written_stops_it(log, folder, monkeypatch):
    def fail(_):
        raise AuditFailed("no")

    monkeypatch.setattr(log.notary.signers, "write", fail)
    before = log.notary.signers.current()
    with pytest.raises(AuditFailed):
        log.notary.rotate(None, ANN)
    assert log.notary.signers.current() == before
    assert len(trusted(folder)) == 1


@pytest.mark.parametrize("text", ["nonsense", "a+b+c", "x\ny"])
def test_nonsense_among_public_keys_is_told(text):
    with pytest.raises(KeyFailed):
        parse_keys(text)
