"""The Landlock ruleset: at every ABI only the named places can be written (ISO-1)."""

from __future__ import annotations

import pytest

from cellwall.sandbox.linux import landlock

WRITING = (
    landlock.WRITE_FILE | landlock.REMOVE_DIR | landlock.REMOVE_FILE | landlock.MAKE_DIR | landlock.MAKE_REG
    | landlock.MAKE_SOCK | landlock.MAKE_FIFO | landlock.MAKE_SYM | landlock.REFER | landlock.TRUNCATE
)  # fmt: skip
NODES = landlock.MAKE_CHAR | landlock.MAKE_BLOCK


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("abi", range(1, 9))
def test_only_named_places_can_be_written_and_nobody_makes_devices(abi: int) -> None:
    rules = landlock.ruleset(abi, writable=("/w",), devices=("/dev/null",))
    access = dict(rules.rules)
    assert access.keys() == {"/", "/w", "/dev/null"}
    assert access["/"] & (WRITING | NODES) == 0
    assert access["/w"] & WRITING == WRITING & rules.handled
    assert {place: granted & NODES for place, granted in access.items()} == dict.fromkeys(access, 0)
    assert access["/w"] & landlock.IOCTL_DEV == 0
    assert all(
        granted & ~rules.handled == 0 for granted in access.values()
    )  # else the kernel refuses all


@pytest.mark.parametrize(
    ("abi", "newest"),
    [(1, landlock.MAKE_SYM), (2, landlock.REFER), (3, landlock.TRUNCATE), (5, landlock.IOCTL_DEV)],
)
def test_each_abi_handles_what_it_brought_and_nothing_newer(abi: int, newest: int) -> None:
    assert landlock.handled(abi).bit_length() == newest.bit_length()
    assert landlock.handled(abi) == (newest << 1) - 1


@pytest.mark.parametrize("abi", range(1, 9))
def test_scopes_are_asked_for_only_where_the_kernel_has_them(abi: int) -> None:
    both = landlock.SCOPE_ABSTRACT_UNIX_SOCKET | landlock.SCOPE_SIGNAL
    assert landlock.ruleset(abi, writable=(), devices=()).scoped == (both if abi >= 6 else 0)
