"""A host applies the newest policy of the authority, and refuses requests with any other (SRV-6)."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import zstandard

from cellwall.admin.host_releases import HostFeeds, HostReleases, check_policy, pack_feed
from cellwall.core.errors import CellwallError
from cellwall.core.host_trust import SignedRelease
from cellwall.core.verdict import Verdict
from cellwall.fleet.certificates import FleetAuthority, open_authority
from cellwall.fleet.releases import FEED, POLICY, sign_release
from cellwall.packages.feed import Feed
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import Advisory, Affected
from cellwall.runtime.package_judging import packages_folder
from cellwall.runtime.policies import effective_policy, parse_call
from cellwall.runtime.policy_places import is_given

pytestmark = pytest.mark.requirement("SRV-6")
FIRST = b'[permissions]\nallow = ["Bash"]\ndeny = ["Bash(curl *)"]\n'
SECOND = b'[permissions]\nallow = ["Bash"]\ndeny = ["Bash(curl *)", "Bash(git push *)"]\n'


class Database:
    """As far as a host reads it; the attacker writes it."""

    def __init__(self) -> None:
        self.newest: SignedRelease | None = None
        self.fetched = 0

    async def newest_release(self, kind: str) -> SignedRelease | None:
        assert kind in (POLICY, FEED)
        self.fetched += 1
        return self.newest

    async def newest_release_note(self, kind: str) -> tuple[int, str] | None:
        assert kind == FEED
        return None if self.newest is None else (self.newest.version, self.newest.note)


class Machine:
    """A host and the authority of its fleet."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (folder / "first").mkdir()
        self.authority: FleetAuthority = open_authority(str(folder / "first"), creates=True)
        self.database = Database()
        self.releases = HostReleases(str(self.home), self.authority.pem)

    def look(self) -> str:
        """The code with which the host refuses; empty where it serves."""
        anyio.run(self.releases.look, self.database)
        return "" if self.releases.problem is None else self.releases.problem.code

    def sign(self, version: int, content: bytes) -> SignedRelease:
        return sign_release(self.authority, kind=POLICY, version=version, content=content)

    def verdict(self, command: str) -> Verdict:
        environ = {**os.environ, "CELLWALL_HOME": str(self.home)}
        policy = effective_policy(grants=None, cwd="/", environ=environ)
        return policy.check(parse_call(f"Bash({command})")).verdict


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Machine(tmp_path)


def test_a_published_policy_judges_and_a_later_one_replaces_it(machine):
    environ = {"CELLWALL_HOME": str(machine.home)}
    assert machine.look() == ""
    assert not is_given((), environ)
    machine.database.newest = machine.sign(1, FIRST)
    assert machine.look() == ""
    assert is_given((), environ)  # also for what a person asks for
    assert machine.verdict("curl example.com") is Verdict.DENY
    assert machine.verdict("git push origin") is Verdict.ALLOW
    machine.database.newest = machine.sign(2, SECOND)
    assert machine.look() == ""
    assert machine.verdict("git push origin") is Verdict.DENY


def test_a_rolled_back_policy_is_refused_and_not_applied(machine):
    old = machine.sign(1, FIRST)
    machine.database.newest = machine.sign(2, SECOND)
    assert machine.look() == ""
    for given in (old, None, machine.sign(2, FIRST)):
        machine.database.newest = given
        assert machine.look() == "CW-FLEET-OLD"
        assert machine.verdict("git push origin") is Verdict.DENY
    restarted = HostReleases(str(machine.home), machine.authority.pem)
    machine.releases = restarted  # what it knows is on its disk
    machine.database.newest = old
    assert machine.look() == "CW-FLEET-OLD"
    machine.database.newest = machine.sign(3, FIRST)
    assert machine.look() == ""  # the control: it serves again
    assert machine.verdict("git push origin") is Verdict.ALLOW


def test_a_forged_policy_is_refused_and_not_applied(machine, tmp_path):
    (tmp_path / "eve").mkdir()
    eve = open_authority(str(tmp_path / "eve"), creates=True)
    machine.database.newest = machine.sign(1, SECOND)
    assert machine.look() == ""
    open_to_all = b'[permissions]\nallow = ["Bash"]\n'
    true = machine.sign(2, open_to_all)
    for forged in (
        sign_release(eve, kind=POLICY, version=2, content=open_to_all),
        replace(machine.sign(2, SECOND), content=open_to_all),
        replace(machine.sign(1, open_to_all), version=2),
        replace(sign_release(machine.authority, kind="feed", version=2, content=open_to_all),
                kind=POLICY),
        replace(true, note=""),
        replace(true, note="no base64"),
    ):  # fmt: skip
        machine.database.newest = forged
        assert machine.look() == "CW-FLEET-FORGED"
        assert machine.verdict("git push origin") is Verdict.DENY
    machine.database.newest = true
    assert machine.look() == ""  # the control
    assert machine.verdict("git push origin") is Verdict.ALLOW


def test_a_policy_that_was_changed_on_the_host_is_written_again(machine):
    machine.database.newest = machine.sign(1, SECOND)
    assert machine.look() == ""
    (machine.home / "fleet" / "policy.toml").write_bytes(FIRST)
    assert machine.look() == ""
    assert machine.verdict("git push origin") is Verdict.DENY


def test_a_text_that_is_no_policy_is_not_published_and_not_applied(machine):
    for bad in (b"[permissions]\nallow = 1\n", b"\xff", b"not toml"):
        with pytest.raises(CellwallError):
            check_policy(bad)
    machine.database.newest = machine.sign(1, b"not toml")
    assert machine.look() != ""
    assert not (machine.home / "fleet" / "policy.toml").exists()


def packed_feed(folder: Path, *names: str) -> bytes:
    """A feed in which these packages are malicious."""
    folder.mkdir()
    advisories = [
        Advisory(
            f"MAL-2026-{number}",
            "2026-11-01T00:00:00.000000Z",
            name,
            is_withdrawn=False,
            affected=(Affected(Ecosystem.PYPI, name, frozenset({"1.0"}), ()),),
        )
        for number, name in enumerate(names)
    ]
    Feed(packages_folder(str(folder))).add(advisories, source="test")
    return pack_feed(str(folder))


@pytest.mark.requirement("PKG-1")
def test_a_published_feed_is_applied_and_an_old_or_forged_one_makes_the_host_refuse(
    machine, tmp_path
):
    old, new = packed_feed(tmp_path / "a", "evil"), packed_feed(tmp_path / "b", "evil", "worse")
    machine.releases = HostFeeds(str(machine.home), machine.authority.pem)

    def sign(version: int, content: bytes) -> SignedRelease:
        return sign_release(machine.authority, kind=FEED, version=version, content=content)

    def is_known(name: str) -> bool:
        feed = Feed(packages_folder(str(machine.home)))
        return bool(feed.advisories(Ecosystem.PYPI, name))

    assert machine.look() == ""
    machine.database.newest = first = sign(1, old)
    assert machine.look() == ""
    assert (is_known("evil"), is_known("worse")) == (True, False)
    machine.database.newest = second = sign(2, new)
    assert machine.look() == ""
    assert is_known("worse")
    fetched = machine.database.fetched
    assert machine.look() == ""
    assert machine.database.fetched == fetched  # megabytes are fetched once
    (tmp_path / "eve").mkdir()
    eve = open_authority(str(tmp_path / "eve"), creates=True)
    attacks = {
        "CW-FLEET-OLD": (first, None, sign(2, old)),
        "CW-FLEET-FORGED": (
            sign_release(eve, kind=FEED, version=3, content=old),
            replace(sign(3, new), content=old),
            replace(second, version=3),
            replace(machine.sign(3, old), kind=FEED),
        ),
        "CW-FLEET-RELEASE": (sign(3, b"no feed"),),
        "CW-FEED-DAMAGED": (sign(3, zstandard.compress(b"no database" * 99)),),
    }
    for code, given in attacks.items():
        for release in given:
            machine.database.newest = release
            assert machine.look() == code
            assert is_known("worse")
            machine.releases = HostFeeds(str(machine.home), machine.authority.pem)
            assert machine.look() == code  # also after a restart
    machine.database.newest = second
    assert machine.look() == ""  # the control: it serves again
    machine.database.newest = sign(3, new)
    assert machine.look() == ""


@pytest.mark.requirement("PKG-1")
def test_a_feed_that_this_version_cannot_read_makes_the_host_refuse_and_not_end(machine, tmp_path):
    """An exception would end the task that follows releases, and with it the service."""
    whole = packed_feed(tmp_path / "a", "evil")
    machine.releases = HostFeeds(str(machine.home), machine.authority.pem)
    changes = ("ecosystems = 'cargo'", "updated = 'today'")
    for version, change in enumerate(changes, start=1):
        store = tmp_path / f"changed-{version}"
        store.write_bytes(zstandard.decompress(whole))
        with closing(sqlite3.connect(store)) as database:
            database.execute(f"UPDATE source SET {change}")
            database.commit()
        content = zstandard.compress(store.read_bytes())
        machine.database.newest = sign_release(
            machine.authority, kind=FEED, version=version, content=content
        )
        assert machine.look() == "CW-FEED-DAMAGED"
    machine.database.newest = sign_release(machine.authority, kind=FEED, version=9, content=whole)
    assert machine.look() == ""  # the control


@pytest.mark.requirement("PKG-1")
def test_a_host_that_cannot_write_or_read_a_release_refuses(machine, tmp_path):
    """It would go on with the older one, or take an older one for the first."""
    old, new = packed_feed(tmp_path / "a", "evil"), packed_feed(tmp_path / "b", "evil", "worse")
    first, second = (
        sign_release(machine.authority, kind=FEED, version=number, content=content)
        for number, content in ((1, old), (2, new))
    )
    folder = Path(packages_folder(str(machine.home)))
    machine.releases = HostFeeds(str(machine.home), machine.authority.pem)
    machine.database.newest = second
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"in the way")
    assert machine.look() == "CW-FLEET-RELEASE"
    folder.unlink()
    assert machine.look() == ""
    note = machine.home / "fleet" / "feed.release"
    kept = note.read_bytes()
    note.unlink()
    note.mkdir()  # as a file that cannot be opened
    machine.database.newest = first
    assert machine.look() == "CW-FLEET-RELEASE"
    assert Feed(str(folder)).advisories(Ecosystem.PYPI, "worse")
    note.rmdir()
    note.write_bytes(kept)
    assert machine.look() == "CW-FLEET-OLD"
    machine.database.newest = second
    assert machine.look() == ""  # the control


@pytest.mark.requirement("PKG-1")
def test_an_import_that_is_under_way_does_not_undo_a_published_feed(tmp_path):
    for name in ("own", "fleet"):
        packed_feed(tmp_path / name, name)
    own, given = (Path(packages_folder(str(tmp_path / name))) for name in ("own", "fleet"))
    feed = Feed(str(own))
    with feed._writing():
        published = threading.Thread(
            target=feed.replace_by, args=(str(given / "feed.sqlite"),), daemon=True
        )
        published.start()
        published.join(0.2)  # without the lock it is done by then, and the import undoes it
    published.join(30)
    assert feed.advisories(Ecosystem.PYPI, "fleet")


def test_a_machine_without_a_feed_publishes_none(tmp_path):
    with pytest.raises(CellwallError, match="no feed"):
        pack_feed(str(tmp_path))
