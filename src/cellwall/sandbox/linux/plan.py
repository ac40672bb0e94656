"""The plan that `cellwall-cell` carries out, and the steps for Landlock and the network. Pure.

A plan is NUL-terminated words, a verb and its arguments each. The C side (cell/plan.c) reads
exactly this form and dies on any other.

Landlock (cell/walls.c) is the second layer behind the mounts: if a mount is wrong or undone,
writing is still confined to the directories named in the ruleset.

Egress: init makes sockets in the cell's own network namespace before any code runs, and sends them
over a socket pair used for nothing else (`EgressSockets` in channels.py). A proxy that accepts on
such a socket knows which cell connects: there is no token to steal, no file to find and no process
in between.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cellwall.core.errors import BadInput
from cellwall.core.network import NETWORK_INSIDE, PROXY_PORT, TRANSPARENT_NET
from cellwall.core.text import to_bytes

_WHAT = "an argument, path or variable"


class Plan:
    """Steps in the order in which they are carried out."""

    def __init__(self) -> None:
        self._words: list[bytes] = []

    def step(self, verb: str, *arguments: str | int) -> None:
        for word in (verb, *arguments):
            if isinstance(word, int):
                self._words.append(b"%d" % word)
                continue
            is_plain = type(word) is str and word.isascii()  # nearly all of them
            encoded = word.encode() if is_plain else to_bytes(word, what=_WHAT)
            if b"\0" in encoded:  # it would end the word early and inject a step
                raise BadInput(
                    f"{_WHAT} holds a NUL byte",
                    hint="Remove it; no program can be given one.",
                    code="CW-NUL-BYTE",
                )
            self._words.append(encoded)

    def blob(self, data: bytes) -> None:
        """Raw bytes, whose length the previous step states."""
        self._words.append(data)

    def add(self, steps: bytes) -> None:
        """Steps encoded by `joined` of another plan."""
        self._words.append(steps)

    def files(self, files: Mapping[str, bytes]) -> None:
        """path inside -> content, world-readable."""
        for path, content in files.items():
            self.step("file", path, 0o444, len(content))
            self.blob(content)

    def joined(self) -> bytes:
        return b"\0".join(self._words)

    def encode(self) -> bytes:
        return self.joined() + b"\0"


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
class LandlockRuleset:
    """The arguments of `landlock_create_ruleset`, and the rights for each path."""

    handled: int
    scoped: int
    rules: tuple[tuple[str, int], ...]


def landlock_rights(abi: int) -> int:
    """Every file right that this kernel can restrict."""
    rights = _ABI_1
    if abi >= 2:
        rights |= REFER
    if abi >= 3:
        rights |= TRUNCATE
    if abi >= 5:
        rights |= IOCTL_DEV
    return rights


def landlock_ruleset(
    abi: int, *, writable: tuple[str, ...], devices: tuple[str, ...]
) -> LandlockRuleset:
    """Read and execute everything mounted; write only in `writable`, and to `devices`."""
    known = landlock_rights(abi)
    write = known & ~_DEVICE_NODES & ~IOCTL_DEV
    device = (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV) & known
    rules = [("/", _READ & known)]
    rules += [(place, write) for place in writable]
    rules += [(place, device) for place in devices]
    scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0
    return LandlockRuleset(known, scoped, tuple(rules))


PAGE_ROOM = 64 * 1024  # the largest page size of a kernel, for each file and directory
_DNS_PORT = 53
# Socket memory that no cgroup counts and no list of the kernel shows (LIM-6). Each is a setting of
# the network namespace since the Linux version named; older kernels use the host's value.
_NETWORK_SETTINGS = (
    # Copies of sent data in the error queue, for transmit time stamps: requested by a control
    # message, which a seccomp filter cannot see. Linux 6.18.
    ("/proc/sys/net/core/tstamp_allow_data", "0"),
    # Options, multicast memberships and control messages in flight: 128 KiB by default. A message
    # with the maximum number of descriptors needs 1 KiB. Linux 6.8.
    ("/proc/sys/net/core/optmem_max", "4096"),
)


# Of the cell's own user namespace: no process may make another one in it, so that the kernel's code
# for namespaces, mounts and netfilter stays out of reach even if the filter failed (ISO-1).
_USER_SETTINGS = (("/proc/sys/user/max_user_namespaces", "0"),)


@dataclass(frozen=True, slots=True)
class EgressPlan:
    """The sockets that init makes inside the cell and sends out."""

    socket_number: int
    """The number, in the cell, of the socket over which init sends them."""
    ports: tuple[int, ...]
    files: Mapping[str, bytes]
    offered: Mapping[str, bytes] = field(default_factory=dict)
    """Path below the home -> content: files that programs can do without."""


@functools.cache
def network_steps() -> bytes:
    """Settings of the network namespace, written before any socket is opened in it."""
    plan = Plan()
    for path, value in _NETWORK_SETTINGS:
        plan.step("setting", path, value)
    return plan.joined()


@functools.cache
def kept_network_steps() -> bytes:
    """The first steps of a cell whose network namespace the zygote makes and may hand on
    (cell/networks.c). It writes the same settings when it makes one."""
    plan = Plan()
    plan.step("kept-network")
    for path, value in _NETWORK_SETTINGS:
        plan.step("network-setting", path, value)
    return plan.joined()


@functools.cache
def user_steps() -> bytes:
    """Settings of the user namespace, written before /proc/sys is covered."""
    plan = Plan()
    for path, value in _USER_SETTINGS:
        plan.step("setting", path, value)
    return plan.joined()


def plan_egress(plan: Plan, egress: EgressPlan | None, *, homes: Sequence[str] = ()) -> None:
    """Before capabilities are dropped: ports below 1024 and an own address need two of them."""
    if egress is None:
        return
    offer_files(plan, egress, homes=homes)
    if egress.files:
        room = sum(map(len, egress.files.values())) + PAGE_ROOM * (1 + len(egress.files))
        plan.step("tmpfs", NETWORK_INSIDE, f"size={room},mode=0755")
        plan.files({f"{NETWORK_INSIDE}/{name}": data for name, data in egress.files.items()})
        plan.step("seal", NETWORK_INSIDE)
    line = egress.socket_number
    plan.step("listen", line, "proxy", "127.0.0.1", PROXY_PORT)
    if egress.ports:
        plan.step("prefix", str(TRANSPARENT_NET.network_address + 1), str(TRANSPARENT_NET.netmask))
        plan.step("datagrams", line, "dns", "127.0.0.1", _DNS_PORT)
        for port in egress.ports:
            # On all addresses: the destination address identifies the requested host name.
            plan.step("listen", line, f"tcp:{port}", "0.0.0.0", port)  # noqa: S104  # its own namespace
    plan.step("handed", line)


def offer_files(plan: Plan, egress: EgressPlan, *, homes: Sequence[str]) -> None:
    """Settings of programs, below each of the folders in which programs look for them."""
    for home in homes:
        for path, content in egress.offered.items():
            plan.step("offer", f"{home}/{path}", 0o644, len(content))
            plan.blob(content)
