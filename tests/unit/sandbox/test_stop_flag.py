"""The flag of an emergency stop: its existence stops, and doubt stops as well (OBS-3)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, Busy, Denied, SandboxFailed
from cellwall.sandbox import stop_flag
from cellwall.sandbox.stop_flag import StopFlag

pytestmark = pytest.mark.requirement("OBS-3")


def test_a_flag_that_is_set_refuses_until_it_is_lifted(tmp_path: Path) -> None:
    flag = StopFlag(str(tmp_path))
    flag.check()
    assert flag.read() is None
    flag.set({"reason": "first"})
    flag.set({"reason": "second"})  # the first reason is the one that counts
    with pytest.raises(Denied) as refused:
        flag.check()
    assert refused.value.code == "CW-STOPPED"
    assert flag.read() == {"reason": "first"}
    assert (tmp_path / "stopped").stat().st_mode & 0o777 == 0o600
    assert (flag.lift(), flag.lift()) == (True, False)
    flag.check()


@pytest.mark.parametrize("kind", ["empty", "binary", "link", "fifo", "folder"])
def test_whatever_has_the_name_stops(tmp_path: Path, kind: str) -> None:
    """A file cut short by a full disk, and one that somebody planted."""
    place = tmp_path / "stopped"
    match kind:
        case "empty":
            place.touch()
        case "binary":
            place.write_bytes(b"\xff\0")
        case "link":
            place.symlink_to(tmp_path / "nowhere")
        case "fifo":
            os.mkfifo(place)
        case _:
            place.mkdir()
    flag = StopFlag(str(tmp_path))
    with pytest.raises(Denied):
        flag.check()
    flag.set({"reason": "again"})  # neither waits nor follows the link
    assert flag.read() == {}
    assert not (tmp_path / "nowhere").exists()


def test_a_state_that_cannot_be_read_refuses(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    flag = StopFlag(str(tmp_path / "home"))
    with pytest.raises(SandboxFailed) as refused:
        flag.check()
    assert refused.value.code == "CW-STOP-UNKNOWN"
    with pytest.raises(SandboxFailed) as refused:
        flag.set({})
    assert refused.value.code == "CW-STOP-NOT-SET"


def test_a_lift_waits_for_the_stop_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, lifted = StopFlag(str(tmp_path)), threading.Event()
    monkeypatch.setattr(stop_flag, "_LIFT_WITHIN_S", 60.0)

    def lift() -> None:
        StopFlag(str(tmp_path)).lift()
        lifted.set()

    with flag.held():
        flag.set({})
        with flag.held():  # two stops at once
            thread = threading.Thread(target=lift)
            thread.start()
            assert not lifted.wait(0.05)
        assert flag.is_set()
    thread.join()
    assert not flag.is_set()


def test_a_lift_gives_up_where_a_stop_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = StopFlag(str(tmp_path))
    monkeypatch.setattr(stop_flag, "_LIFT_WITHIN_S", 0.02)
    with flag.held():
        flag.set({})
        with pytest.raises(Busy):
            flag.lift()
    assert flag.is_set()


def test_only_a_failure_of_the_sandbox_is_put_down_to_the_stop(tmp_path: Path) -> None:
    flag, failed, other = StopFlag(str(tmp_path)), SandboxFailed("gone"), BadInput("no")
    assert flag.cause_of(failed) is failed
    flag.set({})
    assert flag.cause_of(failed).code == "CW-STOPPED"
    assert flag.cause_of(other) is other
