"""The uids of second users, and where there can be none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellwall.config.models import GovernorSection, SandboxSection
from cellwall.core.errors import CellwallError
from cellwall.sandbox.linux import layers, second_user
from cellwall.sandbox.linux.outer_wall import SecondUser
from cellwall.sandbox.linux.second_user import assigned_in, check_allowed, second_user_of

BASE = SandboxSection().uid_base


@pytest.fixture(autouse=True)
def plain_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every uid is mapped, and belongs to no user."""
    monkeypatch.setattr(second_user, "is_mapped", lambda uid: True)
    monkeypatch.setattr(second_user, "is_assigned", lambda uid: False)


def _code(call: Callable[[], object]) -> str:
    with pytest.raises(CellwallError) as refused:
        call()
    assert refused.value.hint
    return refused.value.code


@pytest.mark.requirement("ISO-7", "ISO-10")
def test_no_uid_of_a_second_user_is_that_of_another_sandbox() -> None:
    most = GovernorSection.model_fields["max_concurrent"].metadata
    slots = max(each.le for each in most if hasattr(each, "le"))
    last = layers.FIRST_LEASED_UID + layers._MAX_LEASED_UIDS
    assert slots <= layers.FIRST_LEASED_UID, "one-shot cells end below live ones"
    firsts = range(BASE, BASE + last)
    seconds = [second_user_of(uid, uid_base=BASE, has_cgroup=True) for uid in firsts]
    assert {each.stored_uid for each in seconds} == {BASE + 19_999}
    assert len({each.uid for each in seconds}) == last
    assert not {each.uid for each in seconds} & {*firsts, BASE + 19_999}
    assert BASE + 19_999 not in firsts
    assert max(each.uid for each in seconds) < BASE + 35_000, "as the documentation says"


@pytest.mark.requirement("ISO-4", "ISO-10")
@pytest.mark.parametrize("uid", [BASE + 20_001, BASE + 19_999])
@pytest.mark.parametrize("lack", ["is_mapped", "is_assigned"])
def test_a_uid_that_is_not_free_is_refused(
    uid: int, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = second_user_of(BASE + 1, uid_base=BASE, has_cgroup=True)
    assert made == SecondUser(BASE + 20_001, BASE + 19_999)
    answers = lack == "is_assigned"
    monkeypatch.setattr(second_user, lack, lambda each: (each == uid) is answers)
    refused = _code(lambda: second_user_of(BASE + 1, uid_base=BASE, has_cgroup=True))
    assert refused == "CW-LAYER-UID"


@pytest.mark.requirement("ISO-4")
def test_without_a_cgroup_or_root_or_a_setting_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _code(lambda: second_user_of(BASE, uid_base=BASE, has_cgroup=False)) == (
        "CW-SECOND-USER-HOST"
    )
    monkeypatch.setattr(second_user.os, "geteuid", lambda: 0)
    check_allowed(is_allowed=True, backend="native")
    off = _code(lambda: check_allowed(is_allowed=False, backend="native"))
    assert off == "CW-SECOND-USER-OFF"
    for backend in ("container", "gvisor", "kvm"):
        code = _code(lambda backend=backend: check_allowed(is_allowed=True, backend=backend))
        assert code == "CW-SECOND-USER-HOST"
    monkeypatch.setattr(second_user.os, "geteuid", lambda: 1000)
    assert _code(lambda: check_allowed(is_allowed=True, backend="native")) == "CW-SECOND-USER-HOST"


def test_the_uids_of_users_and_of_their_containers_are_read() -> None:
    passwd = ["root:x:0:0:root:/root:/bin/sh", "", "# none", "x:y:z", "a:x:1000:1000::/:/bin/sh"]
    subuid = ["a:100000:65536", "b:1:2:3", "c:-1:5", "d:1", "e:٣:4"]
    assert assigned_in(passwd, subuid) == ((0, 1), (1000, 1), (100_000, 65_536), (1, 2))
