"""The Landlock rights of each ABI, and those that a cell keeps. Pure.

`cell/walls.c` makes the ruleset in the cell. Landlock is the second layer behind the mounts: if a
mount is wrong or undone, writing is still confined to the directories named here.
"""

from __future__ import annotations

from dataclasses import dataclass

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13  # ABI 2: rename and link between directories
TRUNCATE = 1 << 14  # ABI 3
IOCTL_DEV = 1 << 15  # ABI 5

SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0  # ABI 6
SCOPE_SIGNAL = 1 << 1  # ABI 6

_ABI_1 = (1 << 13) - 1
_READ = EXECUTE | READ_FILE | READ_DIR
_DEVICE_NODES = MAKE_CHAR | MAKE_BLOCK  # never allowed inside


@dataclass(frozen=True, slots=True)
class Ruleset:
    """The arguments of `landlock_create_ruleset`, and the rights for each path."""

    handled: int
    scoped: int
    rules: tuple[tuple[str, int], ...]


def handled(abi: int) -> int:
    """Every file right that this kernel can restrict."""
    rights = _ABI_1
    if abi >= 2:
        rights |= REFER
    if abi >= 3:
        rights |= TRUNCATE
    if abi >= 5:
        rights |= IOCTL_DEV
    return rights


def ruleset(abi: int, *, writable: tuple[str, ...], devices: tuple[str, ...]) -> Ruleset:
    """Read and execute everything mounted; write only in `writable`, and to `devices`."""
    known = handled(abi)
    write = known & ~_DEVICE_NODES & ~IOCTL_DEV
    device = (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & known
    rules = [("/", _READ & known)]
    rules += [(place, write) for place in writable]
    rules += [(place, device) for place in devices]
    scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0
    return Ruleset(known, scoped, tuple(rules))
