"""A proof shows one record to somebody who has nothing else of the log, and only that one."""

from __future__ import annotations

import base64
import os
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from cellwall.audit.log import AuditLog
from cellwall.audit.merkle import BadProof
from cellwall.audit.proofs import check_proof, prove
from cellwall.audit.retention import maintain_segments
from cellwall.core.errors import AuditFailed, BadInput
from cellwall.core.keys import make_key
from unit.audit.audit_logs import ANN, NEVER, aged, all_records, event, private_key, sign, trusted


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("proofs") / "audit"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number in range(17):
            log.write(event(number))
            if number in (3, 6, 12):
                log.seal()
            if number in (5, 9, 10, 15):
                sign(log)
        maintain_segments(str(folder), NEVER, log.write, log.notary)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    shutil.copytree(built.parent, tmp_path / "home")
    return tmp_path / "home" / "audit"


@pytest.fixture(scope="module")
def one(built) -> str:
    return prove(str(built), all_records(built)[6]["id"], trusted(built))


def bad(text: str, keys) -> str:
    with pytest.raises(BadProof) as caught:
        check_proof(text, keys)
    return str(caught.value)


@pytest.mark.requirement("AUD-2")
def test_every_record_can_be_proven(built):
    keys = trusted(built)
    for record in all_records(built):
        proof = check_proof(prove(str(built), record["id"], keys), keys)
        assert proof.record == record
        assert proof.checkpoint.size >= record["seq"]
        assert proof.signed_by == (private_key(built).public,)


@pytest.mark.requirement("AUD-2", "AUD-4")
@pytest.mark.parametrize("deleted", [1, 2, 3])
def test_records_are_proven_after_older_ones_were_deleted(folder, deleted, monkeypatch):
    packed = sorted(int(path.name[:16]) for path in folder.glob("*.zst"))
    aged(monkeypatch, folder, 2, *packed[:deleted])
    with AuditLog.open(str(folder), settings=NEVER) as log:
        gone = maintain_segments(str(folder), replace(NEVER, keep_days=1), log.write, log.notary)
        assert len(gone) == deleted
        sign(log)
    keys = trusted(folder)
    for record in all_records(folder):
        assert check_proof(prove(str(folder), record["id"], keys), keys).record == record


@pytest.mark.slow
def test_records_are_proven_whatever_was_deleted(tmp_path):
    """Every way in which the deleted part and the tree's subtrees can lie to each other."""
    for count in range(1, 9):
        folder = tmp_path / str(count) / "audit"
        with AuditLog.open(str(folder), settings=NEVER) as log:
            for number in range(count):
                log.write(event(number))
            log.seal()
            for number in range(9):
                log.write(event(number))
                if number % 3 == count % 3:
                    sign(log)
            assert maintain_segments(
                str(folder), replace(NEVER, keep_days=0), log.write, log.notary
            ) == [1]
            sign(log)
            keys = trusted(folder)
            for record in all_records(folder):
                assert check_proof(prove(str(folder), record["id"], keys), keys).record == record


def test_deleted_record_cannot_be_proven(folder):
    gone = all_records(folder)[1]["id"]
    with AuditLog.open(str(folder), settings=NEVER) as log:
        maintain_segments(str(folder), replace(NEVER, keep_days=0), log.write, log.notary)
    with pytest.raises(BadInput) as caught:
        prove(str(folder), gone, trusted(folder))
    assert caught.value.code == "CW-NO-RECORD"


def test_record_that_is_not_signed_yet_is_told(folder):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        event_id = log.write(event(99))
        with pytest.raises(BadInput) as caught:
            prove(str(folder), event_id, trusted(folder))
        assert caught.value.code == "CW-NOT-SIGNED"
        sign(log)
        assert prove(str(folder), event_id, trusted(folder))


def test_records_signed_by_a_rotated_key_are_proven(folder):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        new = log.notary.rotate(None, ANN)
        event_id = log.write(event(99))
        sign(log)
    proof = check_proof(prove(str(folder), event_id, trusted(folder)), [new])
    assert proof.signed_by == (new,)


def test_wrong_index_gives_no_wrong_proof(folder):
    for path in folder.glob("*.index"):
        path.write_bytes(b"\xff" * 1000)
    keys = trusted(folder)
    record = all_records(folder)[3]
    assert check_proof(prove(str(folder), record["id"], keys), keys).record == record


@pytest.mark.parametrize("plant", ["fifo", "nonsense"])
def test_log_that_cannot_be_read_is_told(folder, plant):
    record = all_records(folder)[-1]
    path = min(folder.glob("*.zst"))
    path.unlink()
    if plant == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(b"nonsense")
    with pytest.raises(AuditFailed) as caught:
        prove(str(folder), record["id"], trusted(folder))
    assert caught.value.code == "CW-AUDIT-ALTERED"


# --- lies


def parts(proof: str) -> list[str]:
    return proof.split("\n")


def with_line(proof: str, number: int, line: str) -> str:
    lines = parts(proof)
    lines[number] = line
    return "\n".join(lines)


@pytest.mark.requirement("AUD-2")
def test_other_record_is_not_proven(one, built):
    record = base64.b64decode(parts(one)[1].removeprefix("extra "))
    forged = base64.b64encode(record.replace(b"ann", b"bob")).decode()
    text = with_line(one, 1, f"extra {forged}")
    assert bad(text, trusted(built)) == "the record is not in the log that was signed"


@pytest.mark.requirement("AUD-2")
def test_every_other_place_is_not_proven(one, built):
    for place in (0, 1, 5, 7, 8, 100, -1):
        bad(with_line(one, 2, f"index {place}"), trusted(built))


@pytest.mark.requirement("AUD-2")
def test_every_changed_byte_is_found(one, built):
    keys, proof = trusted(built), check_proof(one, trusted(built))
    data = one.encode()
    for at in range(0, len(data), 2):
        changed = bytearray(data)
        changed[at] ^= 1
        try:
            found = check_proof(bytes(changed).decode("utf-8", "surrogateescape"), keys)
        except BadProof:
            continue
        assert found == proof  # bits of base64 that mean nothing


def test_key_of_somebody_else_proves_nothing(one, tmp_path):
    stranger = make_key(str(tmp_path / "s.pem"), "cellwall-audit").public
    assert bad(one, [stranger]).startswith("its checkpoint does not hold")
    assert bad(one, []).startswith("its checkpoint does not hold")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[1:],
        lambda lines: [],
        lambda lines: [lines[0], "", *lines[1:]],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [lines[0], lines[1].removeprefix("extra "), *lines[2:]],
        lambda lines: [*lines[:2], lines[2].removeprefix("index "), *lines[3:]],
        lambda lines: [*lines[:2], "index \u0666", *lines[3:]],
        lambda lines: [*lines[:2], "index x", *lines[3:]],
        lambda lines: [*lines[:3], *lines[4:]],
        lambda lines: [*lines[:3], lines[3], *lines[3:]],
        lambda lines: [*lines[:3], lines[3][:-4], *lines[4:]],
        lambda lines: [*lines[:3], *[lines[3]] * 64, *lines[4:]],
        lambda lines: [*lines[:3], "!" * 44, *lines[4:]],
        lambda lines: lines[: lines.index("")],
    ],
)
def test_what_is_no_proof_is_refused(one, built, spoil):
    bad("\n".join(spoil(parts(one))), trusted(built))


def test_hash_of_another_length_is_refused(one, built):
    long = base64.b64encode(sha256(b"").digest() * 2).decode()
    assert bad(with_line(one, 3, long), trusted(built)) == "it is not a proof of a record"


@pytest.mark.requirement("AUD-2")
def test_proof_of_another_log_is_refused_if_one_is_meant(one, built):
    keys, origin = trusted(built), (built / "origin").read_text().strip()
    assert check_proof(one, keys, origin=origin) == check_proof(one, keys)
    for other in ("cellwall/audit/" + "0" * 32, "", origin + " "):
        with pytest.raises(BadProof, match="another log"):
            check_proof(one, keys, origin=other)
