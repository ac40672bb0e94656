"""Signatures under standing grants, and what a process of the same user can do to their files."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from approvers import ask
from cellwall.core.errors import CellwallError, Denied
from cellwall.core.standing_grants import GrantKind, StandingGrant, digest_of
from cellwall.runtime import signed_grants
from cellwall.runtime.approver_key import ApproverKey, decode, encode
from cellwall.runtime.signed_grants import SignedGrants

pytestmark = pytest.mark.requirement("POL-13")

GRANT = StandingGrant(GrantKind.POLICY, "/project/policy.toml", digest_of("allow"))
OTHER = replace(GRANT, digest=digest_of("allow all"))


@pytest.fixture
def grants(state_home: str, key: ApproverKey) -> SignedGrants:
    return SignedGrants(state_home, key)


def sign(grants: SignedGrants, *wanted: StandingGrant, replaces: bool = False) -> None:
    grants.sign(wanted, grants.key.unlock(ask()), replaces=replaces)


def fresh(grants: SignedGrants) -> SignedGrants:
    """As another process sees it, which remembers nothing."""
    return SignedGrants(grants._home, grants.key)


def file_of(grants: SignedGrants, name: str = "signed.json") -> Path:
    return Path(grants._home, "grants", name)


def rewrite(grants: SignedGrants, change: Callable[[list[dict]], object]) -> None:
    file = file_of(grants)
    whole = json.loads(file.read_text())
    change(whole["rows"])
    file.write_text(json.dumps(whole))


def code(work: Callable[[], object]) -> str:
    with pytest.raises(CellwallError) as raised:
        work()
    return raised.value.code


def test_a_signed_grant_counts_in_every_process_and_no_other_does(grants):
    assert not grants.is_signed(GRANT)
    assert code(lambda: grants.require(GRANT)) == "CW-UNSIGNED"
    sign(grants, GRANT)
    for each in (grants, fresh(grants)):
        assert each.is_signed(GRANT)
        each.require(GRANT)
        for part in (
            {"digest": OTHER.digest},
            {"subject": "/another/policy.toml"},
            {"kind": GrantKind.SKILL},
        ):
            assert not each.is_signed(replace(GRANT, **part))
    assert set(grants.listed()) == {GRANT}
    assert file_of(grants).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "forge",
    [
        lambda row: row.update(digest=OTHER.digest),
        lambda row: row.update(subject="/another"),
        lambda row: row.update(kind="skill"),
        lambda row: row.update(signed_ms=row["signed_ms"] + 1),
        lambda row: row.update(signature=""),
        lambda row: row.update(signature=row["signature"][:-2]),
        lambda row: row.update(signature="é" * 86),
    ],
)
def test_no_part_of_a_signed_row_can_be_another(forge, grants):
    sign(grants, GRANT)
    rewrite(grants, lambda rows: forge(rows[0]))
    for grant in (
        GRANT,
        OTHER,
        replace(GRANT, subject="/another"),
        replace(GRANT, kind=GrantKind.SKILL),
    ):
        assert not fresh(grants).is_signed(grant)


def test_a_row_written_by_hand_is_no_grant(grants, key):
    sign(grants, GRANT)
    mine = ApproverKey.make(bytearray(b"passphrase of the attacker"))
    signer = mine.unlock(bytearray(b"passphrase of the attacker"))
    assert code(lambda: grants.sign([OTHER], signer, replaces=True)) == "CW-APPROVER-KEY"
    now_ms = time.time_ns() // 1_000_000
    forged = encode(signer.sign(grants._text(OTHER, now_ms)))
    row = {"kind": "policy", "subject": OTHER.subject, "digest": OTHER.digest}
    row |= {"signed_ms": now_ms, "signature": forged}
    rewrite(grants, lambda rows: rows.append(row))
    assert not fresh(grants).is_signed(OTHER)
    assert fresh(grants).is_signed(GRANT)
    # The control: where the attacker's key is configured, the same row counts.
    assert SignedGrants(grants._home, mine).is_signed(OTHER)


def test_a_signature_counts_for_one_state_folder_one_user_and_one_key(
    grants,
    tmp_path,
    monkeypatch,
    key,
):
    sign(grants, GRANT)
    other = tmp_path / "other-home"
    shutil.copytree(Path(grants._home, "grants"), other / "grants")
    assert not SignedGrants(str(other), key).is_signed(GRANT)
    same_passphrase = ApproverKey.make(ask())
    assert not SignedGrants(grants._home, same_passphrase).is_signed(GRANT)
    text = grants._text(GRANT, 1)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert grants._text(GRANT, 1) != text


def test_a_withdrawn_grant_that_is_put_back_does_not_count(grants):
    sign(grants, GRANT)
    saved = file_of(grants).read_bytes()
    grants.withdraw(GRANT.kind, GRANT.subject)
    assert not fresh(grants).is_signed(GRANT)
    file_of(grants).write_bytes(saved)
    assert not fresh(grants).is_signed(GRANT)
    sign(grants, GRANT)  # the person grants it again
    assert fresh(grants).is_signed(GRANT)
    file_of(grants).write_bytes(saved)
    assert not fresh(grants).is_signed(GRANT)


def test_a_grant_that_was_hidden_at_the_withdrawal_does_not_count(grants):
    sign(grants, GRANT)
    saved = file_of(grants).read_bytes()
    rewrite(grants, lambda rows: rows.clear())
    grants.withdraw(GRANT.kind, GRANT.subject)
    file_of(grants).write_bytes(saved)
    assert not fresh(grants).is_signed(GRANT)


def test_a_folder_that_was_away_at_the_withdrawal_is_not_believed_by_a_live_process(grants):
    sign(grants, GRANT)
    folder, away = Path(grants._home, "grants"), Path(grants._home, "away")
    assert grants.is_signed(GRANT)
    folder.rename(away)
    grants.withdraw(GRANT.kind, GRANT.subject)
    assert not fresh(grants).is_signed(GRANT)
    shutil.rmtree(folder)
    away.rename(folder)
    assert not grants.is_signed(GRANT)  # it remembers
    # The limit that docs/limitations.md names, and what ends it: a new key.
    assert fresh(grants).is_signed(GRANT)
    assert not SignedGrants(grants._home, ApproverKey.make(ask())).is_signed(GRANT)


def test_a_withdrawal_ends_one_grant_or_all_of_a_subject(grants):
    elsewhere = replace(GRANT, subject="/elsewhere")
    sign(grants, GRANT, OTHER, elsewhere)
    grants.withdraw(GRANT.kind, GRANT.subject, digest=GRANT.digest)
    assert [grants.is_signed(each) for each in (GRANT, OTHER, elsewhere)] == [False, True, True]
    grants.withdraw(GRANT.kind, GRANT.subject)
    assert [grants.is_signed(each) for each in (GRANT, OTHER, elsewhere)] == [False, False, True]


def test_a_grant_that_replaces_ends_the_older_ones_for_good(grants):
    sign(grants, GRANT)
    saved = json.loads(file_of(grants).read_text())["rows"]
    sign(grants, OTHER, replaces=True)
    rewrite(grants, lambda rows: rows.extend(saved))
    assert [fresh(grants).is_signed(each) for each in (GRANT, OTHER)] == [False, True]
    both = [replace(GRANT, kind=GrantKind.MCP), replace(OTHER, kind=GrantKind.MCP)]
    sign(grants, *both, replaces=True)
    assert all(map(fresh(grants).is_signed, both))


def junk(count: int, subject: str) -> str:
    rows = [
        {"kind": "skill", "subject": f"{subject}{number}", "digest": "", "until_ms": 1}
        for number in range(count)
    ]
    return json.dumps({"version": 1, "rows": rows}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("count", "subject"), [(8192, "x"), (300, "\u4e00" * 8000)], ids=["rows", "bytes"]
)
def test_a_list_that_somebody_has_filled_keeps_no_withdrawal_out(count, subject, grants):
    skill = replace(GRANT, kind=GrantKind.SKILL)
    sign(grants, GRANT, OTHER, skill)
    file_of(grants, "withdrawn.json").write_text(junk(count, subject))
    whole = json.loads(file_of(grants).read_text())
    whole["rows"] += [
        {**whole["rows"][0], "subject": f"{subject}{number}"} for number in range(count - 3)
    ]
    file_of(grants).write_text(json.dumps(whole, ensure_ascii=False))
    assert fresh(grants).is_signed(GRANT)  # the control
    fresh(grants).withdraw(GRANT.kind, GRANT.subject, digest=GRANT.digest)
    assert not fresh(grants).is_signed(GRANT)
    assert fresh(grants).is_signed(OTHER)
    assert fresh(grants).is_signed(skill)  # joined withdrawals end what was signed until the last
    sign(grants, GRANT)
    assert fresh(grants).is_signed(GRANT)


def test_a_process_remembers_a_bounded_number_of_withdrawals(grants):
    for number in range(3):
        file_of(grants).parent.mkdir(mode=0o700, exist_ok=True)
        file = file_of(grants, "withdrawn.json")
        file.touch(0o600)
        file.write_text(junk(4000, f"{number}-"))
        assert not grants.is_signed(GRANT)
    assert len(grants._seen) <= 4096


def test_the_end_of_a_server_ends_its_tools_and_no_other_server(grants):
    server = StandingGrant(GrantKind.MCP, "notes", digest_of("server"))
    tool, other = replace(server, subject="notes/read"), replace(server, subject="notes_2/read")
    path = StandingGrant(GrantKind.POLICY, "notes/read", digest_of("server"))
    sign(grants, server, tool, other, path)
    grants.withdraw(GrantKind.MCP, "notes")
    signed = fresh(grants)
    assert [signed.is_signed(each) for each in (server, tool, other, path)] == [
        False,
        False,
        True,
        True,
    ]
    sign(grants, server, tool, replaces=True)
    assert fresh(grants).is_signed(server)
    assert fresh(grants).is_signed(tool)
    grants.withdraw(GrantKind.MCP, "notes/read")
    assert fresh(grants).is_signed(server)
    assert not fresh(grants).is_signed(tool)


def test_a_signature_of_the_future_does_not_count(grants, monkeypatch):
    now = signed_grants._now_ms()
    monkeypatch.setattr(signed_grants, "_now_ms", lambda: now + 86_400_000)
    sign(grants, GRANT)
    assert grants.is_signed(GRANT)  # the control
    monkeypatch.setattr(signed_grants, "_now_ms", lambda: now)
    assert not fresh(grants).is_signed(GRANT)


def test_a_withdrawal_of_the_future_is_damage_and_not_for_ever(grants):
    sign(grants, GRANT)
    file = file_of(grants, "withdrawn.json")
    row = {"kind": "policy", "subject": GRANT.subject, "digest": "", "until_ms": 1 << 52}
    file.write_text(json.dumps({"version": 1, "rows": [row]}))
    assert code(lambda: fresh(grants).is_signed(GRANT)) == "CW-GRANTS-BROKEN"
    assert code(lambda: sign(fresh(grants), GRANT)) == "CW-GRANTS-BROKEN"


@pytest.mark.parametrize("name", ["signed.json", "withdrawn.json"])
@pytest.mark.parametrize(
    "attack",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_text("{}"),
        lambda file: file.write_text('{"version": 1, "rows": [1]}'),
        lambda file: file.write_text('{"version": 1, "rows": [{"kind": "policy"}]}'),
        lambda file: file.write_text("[" * 100_000),
        lambda file: file.write_bytes(b" " * (9 << 20)),
        lambda file: file.chmod(0o644),
        lambda file: os.link(file, file.with_suffix(".second")),
        lambda file: (file.rename(file.with_suffix(".real")), file.symlink_to("signed.real")),
        lambda file: (file.unlink(), os.mkfifo(file, 0o600)),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_damaged_or_foreign_files_are_believed_in_nothing(name, attack, grants):
    sign(grants, GRANT)
    grants.withdraw(GrantKind.SKILL, "another")
    assert fresh(grants).is_signed(GRANT)  # the control
    attack(file_of(grants, name))
    if not os.path.lexists(file_of(grants, "signed.json")):  # as before the first signature
        assert not fresh(grants).is_signed(GRANT)
        return
    assert code(lambda: fresh(grants).is_signed(GRANT)) == "CW-GRANTS-BROKEN"
    assert code(lambda: grants.is_signed(GRANT)) == "CW-GRANTS-BROKEN"


def test_a_folder_open_to_others_or_a_link_is_not_believed(grants, tmp_path):
    sign(grants, GRANT)
    folder = Path(grants._home, "grants")
    folder.chmod(0o755)
    assert code(lambda: fresh(grants).is_signed(GRANT)) == "CW-GRANTS-BROKEN"
    folder.chmod(0o700)
    assert fresh(grants).is_signed(GRANT)  # the control
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert code(lambda: fresh(grants).is_signed(GRANT)) == "CW-GRANTS-BROKEN"


def test_writers_at_the_same_time_lose_no_grant_and_no_withdrawal(grants):
    signer = grants.key.unlock(ask())
    wanted = [replace(GRANT, subject=f"/{number}") for number in range(24)]

    def work(grant: StandingGrant) -> None:
        mine = fresh(grants)
        mine.sign([grant], signer)
        if int(grant.subject[1:]) % 2:
            mine.withdraw(grant.kind, grant.subject)

    threads = [threading.Thread(target=work, args=(each,)) for each in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [fresh(grants).is_signed(each) for each in wanted] == [True, False] * 12


def test_an_approval_is_no_signature_under_a_grant(grants, key):
    signer = key.unlock(ask())
    approval = b"cellwall approval 1\0" + grants._text(GRANT, 1).partition(b"\0")[2]
    assert not key.has_signed(grants._text(GRANT, 1), encode(signer.sign(approval)))
    assert key.has_signed(grants._text(GRANT, 1), encode(signer.sign(grants._text(GRANT, 1))))
    assert len(decode(encode(b"x" * 64))) == 64


def test_the_error_names_the_command(grants):
    with pytest.raises(Denied, match="cellwall approvals sign"):
        grants.require(GRANT)
