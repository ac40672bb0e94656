"""Where keys stand while they are used: one page that is not swapped, dumped or inherited.

What this cannot do: a value that Python handed out as `bytes` stays wherever Python left it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

from cellwall.core.forks import OwnerProcess

# In <linux/mman.h> for every architecture that Python has wheels for, but not in the module.
_MAP_LOCKED = 0x2000
_MADV_WIPEONFORK = 18
_KEY_BYTES = 32


def wipe(memory: bytearray | memoryview | mmap.mmap) -> None:
    """Zeros over all of it."""
    memory[:] = bytes(len(memory))


class KeyPage:
    """Named keys of 32 bytes each. A forked child finds zeros, and is told so."""

    __slots__ = ("_map", "_names", "_owner")

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._map = mmap.mmap(-1, mmap.PAGESIZE, flags=flags | _MAP_LOCKED)
        except OSError:  # more than RLIMIT_MEMLOCK: then it may be swapped out, as any memory
            self._map = mmap.mmap(-1, mmap.PAGESIZE, flags=flags)
        for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):
            with suppress(OSError):
                self._map.madvise(advice)
        self._names: dict[str, int] = {}
        self._owner = OwnerProcess()

    def __repr__(self) -> str:
        return f"KeyPage({', '.join(self._names)})"

    @property
    def is_live(self) -> bool:
        """Whether its keys can be used: not wiped, and not in a child."""
        return bool(self._names) and self._owner.is_current

    def room(self, name: str) -> memoryview:
        """Where a key is, or goes if it is a new one."""
        at = self._names.setdefault(name, len(self._names) * _KEY_BYTES)
        return memoryview(self._map)[at : at + _KEY_BYTES]

    def make(self, name: str) -> memoryview:
        """A new random key."""
        room = self.room(name)
        # The only way into a buffer that leaves no copy behind.
        with open("/dev/urandom", "rb", buffering=0) as source:
            if source.readinto(room) != _KEY_BYTES:
                raise OSError("no random bytes")
        return room

    def wipe(self) -> None:
        if self._owner.is_current:
            wipe(self._map)
        self._names.clear()
