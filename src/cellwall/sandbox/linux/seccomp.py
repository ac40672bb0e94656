"""The seccomp filter: `seccomp.toml` says which calls pass and why, this file compiles it to BPF.

The filter is a balanced search over system call numbers whose leaves check arguments. A plain
`allow` leaf reads only the number, so the kernel (5.11 and later) caches the answer and does not
run the filter for that number at all.

Instructions are emitted from the end of the program to its start. BPF jumps only go forward, so
every target is already emitted when a jump to it is, and its distance is known.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from cellwall.core.errors import BadInput, LayerMissing
from cellwall.sandbox.linux.seccomp_rules import (
    ALL_BITS,
    AUDIT_ARCH,
    Condition,
    Row,
    SeccompRules,
    load_rules,
    rules_error,
)

# linux/seccomp.h; the strictest answer of several filters wins, KILL_PROCESS first.
RET_ALLOW: Final = 0x7FFF0000
RET_ERRNO: Final = 0x00050000
RET_USER_NOTIF: Final = 0x7FC00000
RET_KILL_PROCESS: Final = 0x80000000

_X32_BIT: Final = 0x40000000
_NEGATIVE_BIT: Final = 0x80000000
_INSTRUCTIONS_MAX: Final = 4096  # BPF_MAXINSNS: the kernel refuses longer programs

# linux/bpf_common.h: class | size or operation | source
_LOAD: Final = 0x20  # LD | W | ABS
_AND: Final = 0x54  # ALU | AND | K
_JUMP: Final = 0x05  # JMP | JA
_JEQ: Final = 0x15
_JGE: Final = 0x35
_JSET: Final = 0x45
_RETURN: Final = 0x06

# struct seccomp_data: nr, arch, instruction pointer, six 64-bit arguments, little endian.
_OFFSET_NR: Final = 0
_OFFSET_ARCH: Final = 4
_OFFSET_ARGS: Final = 16


def host_arch() -> str:
    """The architecture of this host, or a refusal: without a filter there is no run (ISO-4)."""
    machine = os.uname().machine
    if machine not in AUDIT_ARCH:
        raise LayerMissing(
            f"No seccomp filter is known for the processor architecture {machine!r}.",
            hint="Use an x86_64 or aarch64 host with a 64-bit userland.",
        )
    return machine


@lru_cache(maxsize=32)
def build(
    arch: str,
    *,
    open_files: int | None,
    for_zygote: bool = False,
    has_cgroup: bool = True,
    reports_sockets: bool = False,
) -> bytes:
    """The filter as packed `struct sock_filter[]`.

    With `open_files`, the use of a descriptor with that number or a higher one causes a user
    notification: install the filter with a listener. `for_zygote` also allows the calls with which
    a template builds cells; each cell adds the ordinary filter. Without a cgroup (`has_cgroup`)
    calls are refused whose memory cannot be measured from outside. `reports_sockets`: a call that
    makes a socket causes a user notification, too, if it would pass.
    """
    if arch not in AUDIT_ARCH:
        raise BadInput(
            f"No seccomp filter is known for the architecture {arch!r}.",
            hint=f"Choose one of: {', '.join(AUDIT_ARCH)}.",
        )
    if open_files is not None and not 0 < open_files < _NEGATIVE_BIT:
        raise BadInput("The open-files limit must be a positive 31-bit number.")
    rules = load_rules()
    leaves = _leaves(rules, arch, checked=open_files is not None)
    table = rules.numbers[arch]
    if not has_cgroup:
        leaves |= {
            table[name]: _Leaf((), RET_ERRNO | group.errno)
            for group in rules.without_cgroup
            for name in group.names
            if name in table
        }
    if reports_sockets:
        leaves |= {
            table[name]: replace(leaves[table[name]], passes=RET_USER_NOTIF)
            for group in rules.reported
            for name in group.names
            if name in table
        }
    if for_zygote:
        building = (table[name] for group in rules.zygote for name in group.names if name in table)
        leaves |= dict.fromkeys(building, _Leaf(((),), RET_ALLOW))
    return _compile(leaves, arch, open_files)


# Not those whose refusals an emulator may need: fcntl, setsockopt, prctl, personality, signals.
_AROUND_EMULATOR: Final = (
    "clone", "socket", "socketpair", "ioctl", "prlimit64", "setrlimit", "fadvise64",
    "fallocate", "memfd_create", "mmap", "shmget", "renameat2",
    "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr",
    "setpriority", "ioprio_set",
    "open", "openat", "creat", "chmod", "fchmod", "fchmodat", "fchmodat2", "mkdir", "mkdirat",
    "mknod", "mknodat",
)  # fmt: skip


@lru_cache(maxsize=2)
def build_around_emulator(arch: str) -> bytes:
    """The filter around the emulator of a virtual machine, on top of its own: every call that no
    cell may make is refused, namespaces too, and so are files with set-id bits and device nodes,
    which its file server would make for a hostile kernel inside; so are memory and blocks that
    no limit counts, and steering the relay, which is pid 1 there. Other calls pass: the emulator is
    no cell."""
    rules = load_rules()
    never = (*rules.deny, *rules.ignore)
    leaves = {name: _Leaf((), RET_ERRNO | g.errno) for g in never for name in g.names}
    leaves |= {
        c.name: _Leaf(c.rows, RET_ERRNO | c.errno, skipped=c.unless)
        for c in rules.conditional
        if c.name in _AROUND_EMULATOR
    }
    table = rules.numbers[arch]
    numbered = {table[name]: leaf for name, leaf in leaves.items() if name in table}
    return _compile(numbered, arch, None, unknown=_Leaf(((),), RET_ALLOW))


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The decision about one call. No rows: never passes. One empty row: always passes.

    `skipped` rows are checked when no other matches: reported as success, but not executed.
    """

    rows: tuple[Row, ...]
    otherwise: int
    args: tuple[int, ...] = ()
    when: Row = ()
    skipped: tuple[Row, ...] = ()
    passes: int = RET_ALLOW


_UNKNOWN: Final = _Leaf((), RET_ERRNO | errno.ENOSYS)


def _leaves(rules: SeccompRules, arch: str, *, checked: bool) -> dict[int, _Leaf]:
    """The leaf of every call that the rules name and this architecture has, by number."""
    checks = {name: check for check in rules.descriptors for name in check.names if checked}

    def passing(
        name: str, rows: tuple[Row, ...], otherwise: int, skipped: tuple[Row, ...] = ()
    ) -> _Leaf:
        check = checks.get(name)
        leaf = _Leaf(rows, otherwise, skipped=skipped)
        return replace(leaf, args=check.args, when=check.when) if check else leaf

    leaves = {name: passing(name, ((),), RET_ALLOW) for g in rules.allow for name in g.names}
    never = (*rules.deny, *rules.ignore)
    leaves |= {name: _Leaf((), RET_ERRNO | g.errno) for g in never for name in g.names}
    leaves |= {
        c.name: passing(c.name, c.rows, RET_ERRNO | c.errno, c.unless) for c in rules.conditional
    }
    table = rules.numbers[arch]
    return {table[name]: leaf for name, leaf in leaves.items() if name in table}


@dataclass(slots=True)
class _BpfProgram:
    """Instructions in reverse order; a label is an index into them."""

    code: list[tuple[int, int, int, int]] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)
    nearest: dict[int, int] = field(default_factory=dict)

    def put(self, operation: int, operand: int, on_true: int = 0, on_false: int = 0) -> int:
        self.code.append((operation, on_true, on_false, operand))
        return len(self.code) - 1

    def once(self, key: object, write: Callable[[], int]) -> int:
        """The label of code that is emitted only once."""
        if key not in self.known:
            self.known[key] = write()
        return self.known[key]

    def answer(self, action: int) -> int:
        return self.once(action, lambda: self.put(_RETURN, action))

    def jump(self, operation: int, operand: int, *, yes: int, no: int) -> int:
        on_true, on_false = self._reachable(yes), self._reachable(no)
        here = len(self.code) - 1
        return self.put(operation, operand, here - on_true, here - on_false)

    def _reachable(self, label: int) -> int:
        """`label`, or a trampoline within the 8 bits of a conditional jump."""
        near = self.nearest.get(label, label)
        # 254: the trampoline of the other branch may add one to the distance.
        if len(self.code) - 1 - near > 254:
            operation, _, _, operand = self.code[label]
            near = (
                self.put(_RETURN, operand)
                if operation == _RETURN
                else self.put(_JUMP, len(self.code) - 1 - label)
            )
            self.nearest[label] = near
        return near

    def all_of(self, row: Row, *, yes: int, no: int) -> int:
        for condition in reversed(row):
            yes = self.test(condition, yes=yes, no=no)
        return yes

    def test(self, condition: Condition, *, yes: int, no: int) -> int:
        return self.once((condition, yes, no), lambda: self._write_test(condition, yes=yes, no=no))

    def _write_test(self, condition: Condition, *, yes: int, no: int) -> int:
        if condition.negated:
            yes, no = no, yes
        if condition.values == (0,):  # "none of these bits" needs no AND
            self.jump(_JSET, condition.mask, yes=no, no=yes)
        else:
            for value in reversed(condition.values):
                no = self.jump(_JEQ, value, yes=yes, no=no)
            if condition.mask != ALL_BITS:
                self.put(_AND, condition.mask)
        return self.put(_LOAD, condition.offset)

    def descriptor(self, arg: int, limit: int, *, otherwise: int) -> int:
        """A notification if the argument is a descriptor of `limit` or higher."""
        notify = self.answer(RET_USER_NOTIF)
        # Negative numbers (-1, AT_FDCWD) are not descriptors.
        high = self.jump(_JGE, _NEGATIVE_BIT, yes=otherwise, no=notify)
        self.jump(_JGE, limit, yes=high, no=otherwise)
        return self.put(_LOAD, _OFFSET_ARGS + 8 * arg)

    def leaf(self, leaf: _Leaf, open_files: int | None) -> int:
        return self.once(leaf, lambda: self._write_leaf(leaf, open_files))

    def _write_leaf(self, leaf: _Leaf, open_files: int | None) -> int:
        # Descriptors are checked only for calls that would pass: a listener that continues a
        # notification can then never allow a call that the rules refuse.
        passed = self.answer(leaf.passes)
        if open_files is not None and leaf.args:
            allowed = passed
            for arg in reversed(leaf.args):
                passed = self.descriptor(arg, open_files, otherwise=passed)
            passed = self.all_of(leaf.when, yes=passed, no=allowed)
        target = self.answer(leaf.otherwise)
        for row in reversed(leaf.skipped):
            target = self.all_of(row, yes=self.answer(RET_ERRNO), no=target)
        for row in reversed(leaf.rows):
            target = self.all_of(row, yes=passed, no=target)
        return target


def _segments(leaves: Mapping[int, _Leaf], unknown: _Leaf) -> Iterator[tuple[int, _Leaf]]:
    """The first number of each range with the same leaf; together the ranges cover all numbers."""
    last: _Leaf | None = None
    for number in sorted({0, *leaves, *(number + 1 for number in leaves)}):
        leaf = leaves.get(number, unknown)
        if leaf != last:
            yield number, leaf
            last = leaf


def _search(program: _BpfProgram, segments: list[tuple[int, int]]) -> int:
    """A balanced search for the segment of a number; `segments` are (first, label)."""
    if len(segments) == 1:
        return segments[0][1]
    if len(segments) == 3 and segments[0][1] == segments[2][1]:
        (number, label), (after, outside) = segments[1:]
        if after == number + 1:
            return program.jump(_JEQ, number, yes=label, no=outside)
    middle = len(segments) // 2
    above, below = _search(program, segments[middle:]), _search(program, segments[:middle])
    return program.jump(_JGE, segments[middle][0], yes=above, no=below)


def _compile(
    leaves: Mapping[int, _Leaf], arch: str, open_files: int | None, unknown: _Leaf = _UNKNOWN
) -> bytes:
    program = _BpfProgram()
    kill = program.answer(RET_KILL_PROCESS)
    segments = [
        (number, program.leaf(leaf, open_files)) for number, leaf in _segments(leaves, unknown)
    ]
    start = _search(program, segments)
    if arch == "x86_64":
        start = program.jump(_JSET, _X32_BIT, yes=kill, no=start)
    start = program.put(_LOAD, _OFFSET_NR)
    program.jump(_JEQ, AUDIT_ARCH[arch], yes=start, no=kill)
    program.put(_LOAD, _OFFSET_ARCH)
    if len(program.code) > _INSTRUCTIONS_MAX:
        raise rules_error("the filter is longer than the kernel accepts")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in reversed(program.code))
