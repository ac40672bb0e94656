"""The offline check finds every change of history and names the first bad record (AUD-2)."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.audit import verify as verify_module
from cellwall.audit.log import AuditLog
from cellwall.audit.merkle import Checkpoint, leaf_hash, sign_checkpoint
from cellwall.audit.packed_frames import read_frames
from cellwall.audit.retention import maintain_segments
from cellwall.audit.segments import find_notes
from cellwall.audit.verify import VerifyReport, verify
from cellwall.core.keys import make_key
from unit.audit.audit_logs import (
    ANN,
    NEVER,
    event,
    lines_of,
    note_over,
    notes_path,
    packed_path,
    private_key,
    put_lines,
    records_path,
    relinked,
    sign,
    trusted,
)

COUNT, SIGNED, MIDDLE = 9, 7, 4
"""Records, of which so many are signed, the first part of them by a checkpoint of its own."""

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A log of one segment: checkpoints over 1, 4 and 7 of 9 records."""
    folder = tmp_path_factory.mktemp("built") / "audit"
    log = AuditLog.open(str(folder), settings=NEVER)
    for number in range(2, COUNT + 1):
        log.write(event(number, text="a b"))
        if number in (MIDDLE, SIGNED):
            sign(log)
    log.notary._unsigned = 0  # leave the end unsigned
    log.close()
    return folder


@pytest.fixture(scope="module")
def built_segments(tmp_path_factory) -> Path:
    """Three sealed segments, of which the first two are packed, and a growing one."""
    folder = tmp_path_factory.mktemp("segments") / "audit"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number in range(3):
            log.write(event(number))
            log.seal()
            if number == 1:
                maintain_segments(str(folder), NEVER, log.write, log.notary)
        log.write(event(3))
    return folder


def copied(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built.parent, tmp_path / "home")
    return tmp_path / "home" / "audit"


@pytest.fixture
def folder(built, tmp_path):
    return copied(built, tmp_path)


@pytest.fixture
def segments(built_segments, tmp_path):
    return copied(built_segments, tmp_path)


def check(folder: Path, **more) -> VerifyReport:
    return verify(str(folder), trusted(folder), **more)


def found(report: VerifyReport) -> tuple[bool, int | None]:
    return report.ok, report.first_bad


def test_untouched_log_verifies(folder):
    assert check(folder) == VerifyReport(
        ok=True,
        records=COUNT,
        first_bad=None,
        reason="",
        signed=SIGNED,
        checkpoints=3,
        origin=(folder / "origin").read_text().strip(),
        keys=(str(private_key(folder).public),),
    )
    assert lines_of(folder) == relinked(lines_of(folder)), "what the forgers below build upon"


def test_new_log_is_signed_at_once(tmp_path):
    with AuditLog.open(str(tmp_path / "audit"), settings=NEVER) as log:
        report = log.verify()
    assert (report.ok, report.records, report.signed) == (True, 1, 1)


def test_missing_log_does_not_verify(tmp_path, folder):
    keys = trusted(folder)
    nothing = VerifyReport(False, 0, None, "there is no audit log")
    assert verify(str(tmp_path / "nowhere"), keys) == nothing
    (tmp_path / "empty").mkdir()
    assert verify(str(tmp_path / "empty"), keys) == nothing


def test_no_key_is_no_check(folder):
    report = verify(str(folder), [])
    assert (report.ok, report.reason) == (False, "no public key is known; give one with --key")


def test_key_of_somebody_else_is_no_check(folder, tmp_path):
    stranger = make_key(str(tmp_path / "stranger.pem"), "cellwall-audit").public
    report = verify(str(folder), [stranger])
    assert (report.ok, report.first_bad, report.signed) == (False, 1, 0)


# --- records


@pytest.mark.requirement("AUD-2")
@pytest.mark.slow
def test_every_changed_byte_is_found_at_its_record(folder):
    lines = lines_of(folder)
    for at, line in enumerate(lines):
        number = at + 1
        # Every byte of one record, and some of all.
        for place in range(0, len(line), 1 if number == MIDDLE + 1 else 11):
            changed = bytearray(line)
            changed[place] ^= 1
            put_lines(folder, [*lines[:at], bytes(changed), *lines[at + 1 :]])
            report = check(folder)
            if number == COUNT and report.ok:
                # Nothing follows the last one and nothing is signed about it yet; the report
                # says so.
                assert report.signed == SIGNED
                continue
            assert not report.ok
            # Where a checkpoint comes before the next link, it tells for all since the last.
            before = max(each for each in (0, 1, MIDDLE, SIGNED) if each < number)
            # A link that does not fit may be the fault of either; the earlier one is named.
            link = max(number - 1, before + 1)
            assert report.first_bad in (number, link, before + 1), (number, place, report)
            assert report.records == report.first_bad - 1


@pytest.mark.requirement("AUD-2")
@many
@given(index=st.integers(0, COUNT - 2), count=st.integers(1, COUNT))
def test_removed_records_are_found(folder, built, index, count):
    lines = lines_of(built)
    put_lines(folder, lines[:index] + lines[min(index + count, COUNT - 1) :])
    assert found(check(folder)) == (False, index + 1)


@pytest.mark.requirement("AUD-2")
@many
@given(order=st.permutations(range(COUNT)).filter(lambda order: order != list(range(COUNT))))
def test_reordered_records_are_found(folder, built, order):
    lines = lines_of(built)
    first = next(index for index in range(COUNT) if order[index] != index)
    put_lines(folder, [lines[index] for index in order])
    assert found(check(folder)) == (False, first + 1)


@pytest.mark.requirement("AUD-2")
@many
@given(index=st.integers(0, COUNT - 1), to=st.integers(0, COUNT))
def test_doubled_record_is_found(folder, built, index, to):
    lines = lines_of(built)
    put_lines(folder, [*lines[:to], lines[index], *lines[to:]])
    # Put right before itself it is the first of two equals, so the second is the bad one.
    assert found(check(folder)) == (False, to + 2 if to == index else to + 1)


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("at", range(COUNT))
def test_inserted_record_is_found_even_if_forged_to_fit(folder, at):
    lines = lines_of(folder)
    prev = leaf_hash(lines[at - 1]).hex() if at else "0" * 64
    (forged,) = relinked([lines[1].replace(b"ann", b"bob")], start=at + 1, prev=prev)
    put_lines(folder, [*lines[:at], forged, *lines[at:]])
    report = check(folder)
    number = at + 1
    assert report.first_bad in (number, number + 1) or report.first_bad == 1 + max(
        each for each in (0, 1, MIDDLE, SIGNED) if each <= at
    )
    assert not report.ok


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("at", range(SIGNED))
def test_history_written_anew_without_the_key_is_found(folder, at):
    """Every link and number is right again: only what was signed tells."""
    lines = lines_of(folder)
    lines[at] = lines[at].replace(b'"sdk"', b'"api"').replace(b'"audit"', b'"oddit"')
    put_lines(folder, relinked(lines))
    signed = max(each for each in (0, 1, MIDDLE) if each <= at)
    end = min(each for each in (1, MIDDLE, SIGNED) if each > at)
    report = check(folder)
    assert (report.first_bad, report.records, report.reason) == (
        signed + 1,
        signed,
        f"record {signed + 1}: from here to record {end} the log is not the one that was signed",
    )


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("at", range(1, SIGNED))
def test_record_removed_and_the_rest_linked_anew_is_found(folder, at):
    lines = lines_of(folder)
    put_lines(folder, relinked(lines[:at] + lines[at + 1 :]))
    signed = max(each for each in (0, 1, MIDDLE) if each <= at)
    assert found(check(folder)) == (False, signed + 1)


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("left", range(SIGNED))
def test_log_cut_back_behind_its_checkpoints_is_found(folder, left):
    put_lines(folder, lines_of(folder)[:left])
    report = check(folder)
    assert (report.ok, report.first_bad, report.records) == (False, left + 1, left)


def test_unsigned_end_cut_off_is_counted(folder):
    """What is lost there is what the report calls not signed; see the kept checkpoint below."""
    put_lines(folder, lines_of(folder)[:SIGNED])
    report = check(folder)
    assert (report.ok, report.records, report.signed) == (True, SIGNED, SIGNED)


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize(
    "extra", [b"\n", b"{}\n", b"\xff\n", b"\0" * 700, b"x" * 300_000 + b"\n", b"x" * 2_000_000]
)
def test_foreign_line_is_found(folder, extra):
    path = records_path(folder)
    path.write_bytes(path.read_bytes() + extra)
    assert (found(check(folder)), check(folder).records) == ((False, COUNT + 1), COUNT)


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_unfinished_record_at_the_end_is_named(folder, cut):
    path = records_path(folder)
    path.write_bytes(path.read_bytes()[:-cut])
    assert check(folder).reason == f"record {COUNT}: it is not complete"
    assert found(check(folder)) == (False, COUNT)


# --- checkpoints


def put_notes(folder: Path, notes: list[bytes]) -> None:
    notes_path(folder).write_bytes(b"".join(note + b"\n" for note in notes))


def notes_of(folder: Path) -> list[bytes]:
    return find_notes(notes_path(folder).read_bytes())


@pytest.mark.requirement("AUD-2")
def test_forked_history_is_found(folder):
    """Two checkpoints of one size, both signed by the right key: somebody was told another one."""
    lines = lines_of(folder)
    other = relinked([*lines[: MIDDLE - 1], lines[MIDDLE - 1].replace(b"ann", b"bob")])
    rival = note_over(folder, other, private_key(folder))
    report = check(folder, checkpoints=[rival])
    assert found(report) == (False, 2)
    assert "not the one that was signed" in report.reason
    put_notes(folder, [*notes_of(folder), rival])
    assert found(check(folder)) == (False, 2)


@pytest.mark.requirement("AUD-2")
def test_log_and_checkpoints_cut_back_is_found_by_a_checkpoint_kept_elsewhere(folder):
    kept = notes_of(folder)[-1]
    put_lines(folder, lines_of(folder)[:MIDDLE])
    put_notes(folder, notes_of(folder)[:2])
    assert check(folder).ok, "nothing in it can tell"
    report = check(folder, checkpoints=[kept])
    assert (report.first_bad, report.records, report.reason) == (
        MIDDLE + 1,
        MIDDLE,
        f"record {MIDDLE + 1}: it is missing, but a checkpoint over {SIGNED} is signed",
    )


@pytest.mark.requirement("AUD-2")
def test_log_begun_anew_is_found_by_a_checkpoint_kept_elsewhere(folder, tmp_path):
    kept = notes_of(folder)[-1]
    shutil.rmtree(folder)
    with AuditLog.open(str(folder), settings=NEVER) as log:  # with the same key
        for number in range(COUNT):
            log.write(event(number))
    assert check(folder).ok
    assert not check(folder, checkpoints=[kept]).ok


def test_checkpoint_of_another_log_of_the_same_key_is_found(folder, tmp_path):
    lines = lines_of(folder)
    note = note_over(folder, lines[:MIDDLE], private_key(folder))
    origin = note.split(b"\n")[0].decode()
    told = Checkpoint.parse(note.decode().partition("\n\n")[0])
    other = sign_checkpoint(replace(told, origin=origin + "0"), private_key(folder))
    put_notes(folder, [other])
    report = check(folder)
    assert (report.ok, report.reason) == (
        False,
        "record 1: the checkpoint after it is of another log",
    )


def test_removed_checkpoints_in_the_middle_change_nothing_that_is_said(folder):
    first, _, last = notes_of(folder)
    put_notes(folder, [first, last])
    assert (check(folder).ok, check(folder).signed) == (True, SIGNED)
    put_notes(folder, [last, first])
    assert (check(folder).ok, check(folder).signed) == (True, SIGNED)


@pytest.mark.requirement("AUD-2")
def test_log_without_checkpoints_does_not_verify(folder):
    notes_path(folder).unlink()
    assert (found(check(folder)), check(folder).reason) == (
        (False, 1),
        "record 1: nothing of this log is signed",
    )


@pytest.mark.requirement("AUD-2")
def test_forged_checkpoint_is_found(folder, tmp_path):
    mallory = make_key(str(tmp_path / "m.pem"), "cellwall-audit")
    lines = relinked([line.replace(b"ann", b"bob") for line in lines_of(folder)])
    put_lines(folder, lines)
    put_notes(folder, [note_over(folder, lines, mallory)])
    report = check(folder)
    assert (found(report), report.reason) == (
        (False, 1),
        "record 1: the checkpoint after it: no known key has signed it",
    )


@pytest.mark.requirement("AUD-2")
@pytest.mark.slow
def test_every_changed_byte_of_the_checkpoints_is_found_or_makes_them_fewer(folder):
    whole = notes_path(folder).read_bytes()
    for at in range(0, len(whole), 2):
        changed = bytearray(whole)
        changed[at] ^= 1
        notes_path(folder).write_bytes(changed)
        report = check(folder)
        if report.ok:
            is_same = report.checkpoints == 3 and report.signed == SIGNED
            assert report.checkpoints < 3 or is_same  # base64 has bits that mean nothing


def test_checkpoint_that_is_nonsense_from_elsewhere_is_refused(folder):
    for note in (b"", b"\xff", b"x\ny\nz\n"):
        assert not check(folder, checkpoints=[note]).ok


# --- keys


@pytest.fixture
def log(tmp_path):
    with AuditLog.open(str(tmp_path / "audit"), settings=NEVER) as opened:
        opened.write(event(0))
        yield opened


def path_of(log: AuditLog) -> Path:
    return Path(log._directory)


@pytest.mark.requirement("AUD-2")
def test_rotated_key_is_believed_through_the_old_one(log):
    folder = path_of(log)
    old = log.notary.signers.current()
    new = log.notary.rotate(None, ANN)
    log.write(event(1))
    sign(log)
    report = verify(str(folder), [old])
    assert (report.ok, report.signed, report.keys) == (True, report.records, (str(old), str(new)))
    third = log.notary.rotate(None, ANN)
    log.write(event(2))
    sign(log)
    report = verify(str(folder), [old])
    assert (report.ok, report.keys) == (True, (str(old), str(new), str(third)))
    assert log.verify().ok


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("which", ["first only", "all"])
def test_retired_key_used_again_is_found(log, generations, which):
    folder = path_of(log)
    first = retired = private_key(folder)
    for number in range(generations):
        retired = private_key(folder)
        log.notary.rotate(None, ANN)
        log.write(event(number))
        sign(log)
    size = len(lines_of(folder))
    log.write(event(9))
    with notes_path(folder).open("ab") as file:
        file.write(note_over(folder, lines_of(folder), retired) + b"\n")
    keys = [first.public] if which == "first only" else trusted(folder)
    report = verify(str(folder), keys)
    assert (found(report), report.reason) == (
        (False, size + 1),
        f"record {size + 1}: the checkpoint after it is signed with a key that was retired",
    )


@pytest.mark.requirement("AUD-2")
def test_lost_key_is_visible_until_a_person_says_yes(log):
    folder = path_of(log)
    sign(log)
    size = len(lines_of(folder))
    (folder.parent / "keys" / "audit.pem").unlink()
    log.write(event(1))
    sign(log)
    report = log.verify()
    assert found(report) == (False, size + 2)
    assert "no earlier key confirms" in report.reason
    log.notary.signers.trust(log.notary.signers.current())
    assert log.verify().ok


def test_key_lost_after_a_rotation_can_be_said_yes_to(log):
    log.notary.rotate(None, ANN)
    log.write(event(1))
    sign(log)
    (path_of(log).parent / "keys" / "audit.pem").unlink()
    log.write(event(2))
    sign(log)
    assert not log.verify().ok
    log.notary.signers.trust(log.notary.signers.current())
    assert log.verify().ok


def test_key_of_somebody_else_announced_as_a_rotation_is_not_believed(log, tmp_path):
    """To write such a record is easy; to sign over it with the old key is not."""
    folder = path_of(log)
    sign(log)
    mallory = make_key(str(tmp_path / "mallory.pem"), "cellwall-audit")
    log.notary.signers._announce(mallory, "rotation", ANN)
    lines = lines_of(folder)
    with notes_path(folder).open("ab") as file:
        file.write(note_over(folder, lines, mallory) + b"\n")
    assert found(log.verify()) == (False, len(lines))


def test_rotation_broken_off_in_the_middle_leaves_a_good_log(log):
    """Both have signed, then the process died: the old key goes on."""
    log.notary.signers.announce(None, verify(str(path_of(log)), trusted(path_of(log))).origin, ANN)
    sign(log)
    with AuditLog.open(log._directory, settings=NEVER) as other:
        other.write(event(1))
        sign(other)
        assert other.verify().ok
        other.notary.rotate(None, ANN)
        other.write(event(2))
        sign(other)
        assert other.verify().ok


# --- segments


def test_segments_verify_packed_or_not(segments):
    report = check(segments)
    assert (report.ok, report.records, report.signed) == (True, 8, 8)
    assert sorted(each.name for each in segments.glob("*.jsonl*")) == [
        "0000000000000001.jsonl.zst",
        "0000000000000004.jsonl.zst",
        "0000000000000006.jsonl",
        "0000000000000008.jsonl",
    ]


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize(("first", "bad"), [(1, 1), (4, 4), (6, 6), (8, 8)])
def test_segment_deleted_by_hand_is_found(segments, first, bad):
    for path in (records_path(segments, first), packed_path(segments, first)):
        path.unlink(missing_ok=True)
    assert found(check(segments)) == (False, bad)
    for path in segments.glob(f"{first:016d}.*"):
        path.unlink()
    if first == 8:
        # Nothing in the log itself can tell; a checkpoint that was kept elsewhere can.
        assert check(segments).records == 7
    else:
        assert found(check(segments)) == (False, bad)


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("first", [4, 6])
def test_segment_in_the_place_of_another_is_found(segments, first):
    for path in (records_path(segments, first), packed_path(segments, first)):
        if path.exists():
            data = lines_of(segments, 8)[0] + b"\n"
            is_packed = path.name.endswith(".zst")
            path.write_bytes(zstandard.compress(data) if is_packed else data)
    assert found(check(segments)) == (False, first)


def unpacked(packed):
    with zstandard.ZstdDecompressor().stream_reader(bytes(packed)) as file:
        return file.read()


@pytest.mark.requirement("AUD-2")
@pytest.mark.slow
def test_changed_packed_segment_is_found(segments):
    path = packed_path(segments, 1)
    packed = path.read_bytes()
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    for at in range(len(packed)):
        changed = bytearray(packed)
        changed[at] ^= 1
        path.write_bytes(changed)
        report = check(segments)
        if report.ok:  # it is another packing of the very same records
            assert unpacked(changed) == plain
        elif report.first_bad == 4:  # its check sum, taken for one more block
            assert unpacked(changed).startswith(plain)
        else:
            assert report.first_bad in (1, 2, 3)
    path.write_bytes(zstandard.compress(plain.replace(b"ann", b"bob")))
    assert found(check(segments)) == (False, 2)
    path.write_bytes(packed)
    records_bytes = read_frames(str(path)).packed_ends[-1]  # behind them is a table only
    for end in (0, 10, records_bytes - 5):
        path.write_bytes(packed[:end])
        assert not check(segments).ok


@pytest.fixture
def deleted(segments):
    """The first two segments deleted by rule."""
    rule = replace(NEVER, keep_days=0)
    with AuditLog.open(str(segments), settings=NEVER) as log:
        assert maintain_segments(str(segments), rule, log.write, log.notary) == [1, 4, 6]
    return segments


@pytest.mark.requirement("AUD-4")
def test_segments_deleted_by_rule_verify(deleted):
    report = check(deleted)
    assert (report.ok, report.deleted, report.signed) == (True, 7, report.records)
    assert sorted(each.name for each in deleted.glob("*.jsonl*")) == ["0000000000000008.jsonl"]


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("first", [1, 4, 6])
@pytest.mark.parametrize("field", ["last", "subtrees", "gone", "first"])
def test_changed_seal_of_a_deleted_segment_is_found(deleted, first, field):
    path = deleted / f"{first:016d}.seal"
    told = json.loads(path.read_text())
    match field:
        case "last":
            told["last"] += 1
        case "subtrees":
            told["subtrees"][0] = "00" * 32
        case "first":
            told["first"] += 1
        case "gone":
            path.unlink()
    if field != "gone":
        path.write_text(json.dumps(told))
    report = check(deleted)
    assert not report.ok
    assert report.first_bad <= first


def test_changed_leaf_in_the_seal_before_a_record_that_is_there_is_found(deleted):
    """It is no part of the tree, but what the next record is linked to."""
    path = deleted / "0000000000000006.seal"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"leaf": "00" * 32}))
    assert found(check(deleted)) == (False, 8)


@pytest.mark.requirement("AUD-2")
def test_checkpoints_of_a_deleted_segment_removed_is_found(deleted):
    notes_path(deleted, 4).unlink()
    report = check(deleted)
    assert (found(report), report.reason) == (
        (False, 4),
        "record 4: no signed checkpoint confirms its seal",
    )


def test_changed_seal_of_a_segment_that_is_there_is_found(segments):
    """Nothing else will be left when the segment is deleted one day."""
    path = segments / "0000000000000006.seal"
    told = json.loads(path.read_text())
    for name, value in (("leaf", "00" * 32), ("subtrees", ["00" * 32] * len(told["subtrees"]))):
        path.write_text(json.dumps({**told, name: value}))
        assert found(check(segments)) == (False, 6)
    path.write_text("{}")
    assert not check(segments).ok


def test_since_skips_what_a_checkpoint_stands_for(segments):
    packed_path(segments, 1).write_bytes(b"nonsense")
    assert found(check(segments)) == (False, 1)
    for since in (4, 5, 6, 8, 100):
        report = check(segments, since=since)
        assert (report.ok, report.records) == (True, 8)
    assert found(check(segments, since=3)) == (False, 1)


def test_since_needs_a_seal_that_is_signed(segments):
    seal = segments / "0000000000000004.seal"
    told = json.loads(seal.read_text())
    told["subtrees"][0] = "00" * 32
    seal.write_text(json.dumps(told))
    assert not check(segments, since=6).ok
    seal.unlink()
    packed_path(segments, 4).unlink()
    assert found(check(segments, since=6)) == (False, 4)


def test_since_looks_through_what_was_sealed_a_moment_ago(log):
    """The seal is written when it is signed; until then a checkpoint further back stands in."""
    log.seal()
    log.write(event(1))
    log._writer.seal()
    log.write(event(2))
    first = log._writer._first
    assert not (path_of(log) / f"{first - 2:016d}.seal").exists()
    report = verify(log._directory, trusted(path_of(log)), since=first)
    assert (report.ok, report.reason, report.records) == (True, "", first)


@pytest.mark.requirement("AUD-4")
def test_rotation_in_a_deleted_segment_leaves_a_log_that_verifies(log):
    folder = path_of(log)
    new = log.notary.rotate(None, ANN)
    log.write(event(1))
    log.seal()
    log.write(event(2))
    assert maintain_segments(str(folder), replace(NEVER, keep_days=0), log.write, log.notary) == [1]
    sign(log)
    assert log.verify().ok
    assert verify(str(folder), [new]).ok


# --- files


def test_index_has_no_say(segments):
    for path in segments.glob("*.index"):
        path.write_bytes(b"\xff" * 1000)
    assert check(segments).ok


@pytest.mark.parametrize("plant", ["symlink", "fifo", "folder"])
def test_segment_that_is_no_plain_file_is_bad(folder, plant):
    path = records_path(folder)
    path.rename(folder / "elsewhere")
    match plant:
        case "symlink":
            path.symlink_to("elsewhere")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    report = check(folder)
    assert (found(report), report.reason) == (
        (False, 1),
        "record 1: a file of the log is not a plain file",
    )


def test_file_that_cannot_be_read_is_told_without_its_path(folder, monkeypatch):
    real = os.open

    def refuse(path, *rest, **named):
        if str(path).endswith(".jsonl"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    report = check(folder)
    assert report.reason == "record 1: a file of the log cannot be read (EACCES)"


def test_check_never_writes(folder):
    def state():
        return {
            each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in folder.iterdir()
        }

    path = records_path(folder)
    path.write_bytes(path.read_bytes() + b'{"torn')
    before = state()
    assert not check(folder).ok
    assert state() == before


def test_record_that_is_being_written_is_no_false_alarm(folder, monkeypatch):
    """A reader may see the first half of a write; a moment later it is whole."""
    path = records_path(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert not check(folder).ok

    class Finishing(verify_module._Bad):
        """Half a record was found: just then its other half arrives."""

        def __init__(self, record, problem):
            super().__init__(record, problem)
            path.write_bytes(whole)

    monkeypatch.setattr(verify_module, "_Bad", Finishing)
    assert check(folder).ok


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("is_truncated_again", [True, False])
def test_record_that_a_full_disk_did_not_take_is_no_false_alarm(
    folder, monkeypatch, is_truncated_again
):
    """A writer truncates what the disk has taken of a record, and the next attempt leaves as many
    bytes: the same size before and after a verification, and half a record in between."""
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(1))
    path = records_path(folder)
    whole, half = path.read_bytes(), b'{"half of a record'
    path.write_bytes(whole + half)
    real, calls = verify_module._verify_once, []

    def verify_once(*args):
        calls.append(args)
        if len(calls) > 1:
            path.write_bytes(whole)
        report, at_ns = real(*args), path.stat().st_ctime_ns
        while is_truncated_again and len(calls) == 1 and path.stat().st_ctime_ns == at_ns:
            path.write_bytes(whole + half)
        return report

    monkeypatch.setattr(verify_module, "_verify_once", verify_once)
    report = verify(str(folder), trusted(folder))
    assert (report.ok, len(calls)) == ((True, 2) if is_truncated_again else (False, 1))
