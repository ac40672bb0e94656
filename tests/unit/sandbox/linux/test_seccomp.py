"""The filter against its data, entry by entry, against a naive reader of the data, and in a kernel."""

from __future__ import annotations

import copy
import errno
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, LayerMissing, SandboxFailed
from cellwall.sandbox.linux import seccomp, seccomp_rules
from cellwall.sandbox.linux.seccomp import (
    AUDIT_ARCH,
    RET_ALLOW,
    RET_ERRNO,
    RET_KILL_PROCESS,
    RET_USER_NOTIF,
    Condition,
    SeccompRules,
)
from unit.sandbox.linux.bpf_interpreter import Instruction, decode, run

ARCHES = tuple(AUDIT_ARCH)
RULES = seccomp_rules.load_rules()
LIMIT = 64
PROGRAMS = {
    (arch, limit): decode(seccomp.build(arch, open_files=limit))
    for arch in ARCHES
    for limit in (None, LIMIT)
}
EPERM = RET_ERRNO | errno.EPERM
ENOSYS = RET_ERRNO | errno.ENOSYS
AT_FDCWD = 0xFFFFFF9C

# What must never pass, written down a second time: dropping a line of the data cannot go unnoticed.
FORBIDDEN_NAMES = """
    unshare setns clone3 mount umount2 pivot_root chroot open_tree open_tree_attr move_mount
    mount_setattr fsopen fsconfig fsmount fspick statmount listmount ptrace process_vm_readv
    process_vm_writev process_madvise pidfd_getfd kcmp keyctl add_key request_key bpf perf_event_open
    userfaultfd io_uring_setup io_uring_enter io_uring_register kexec_load kexec_file_load init_module
    finit_module delete_module reboot swapon swapoff clock_settime settimeofday adjtimex clock_adjtime
    sethostname setdomainname iopl ioperm quotactl quotactl_fd acct syslog lookup_dcookie nfsservctl
    open_by_handle_at name_to_handle_at vhangup modify_ldt fanotify_init fanotify_mark openat2
    memfd_secret mbind migrate_pages move_pages
"""
# What ordinary programs cannot do without.
NEEDED_NAMES = """
    read write close openat mmap mprotect munmap brk futex clone execve exit_group wait4 pipe2 dup3
    epoll_create1 epoll_ctl epoll_pwait eventfd2 signalfd4 timerfd_create inotify_init1 memfd_create
    rseq set_robust_list prlimit64 getrandom sched_getaffinity socket connect bind listen accept4
    shmget semget msgget mq_open landlock_create_ruleset seccomp setuid setgid prctl ioctl fchmodat
    rt_sigaction rt_sigprocmask statx newfstatat getdents64 fchownat utimensat renameat2 unlinkat
"""


def answer(
    arch: str, nr: int, *args: int, limit: int | None = None, audit_arch: int | None = None
) -> int:
    token = AUDIT_ARCH[arch] if audit_arch is None else audit_arch
    return run(PROGRAMS[arch, limit], arch=token, nr=nr, args=args)[0]


def holds(condition: Condition, args: tuple[int, ...]) -> bool:
    word = args[condition.arg] >> (32 if condition.word == "high" else 0) & 0xFFFFFFFF
    return (word & condition.mask in condition.values) is not condition.negated


def reference(
    rules: SeccompRules, arch: str, nr: int, args: tuple[int, ...], limit: int | None
) -> int:
    """The data read the slow and plain way: a dictionary and a loop."""
    args = (*args, 0, 0, 0, 0, 0, 0)[:6]
    if arch == "x86_64" and nr & 1 << 30:
        return RET_KILL_PROCESS
    name = {number: name for name, number in rules.numbers[arch].items()}.get(nr)
    for group in (*rules.deny, *rules.ignore):
        if name in group.names:
            return RET_ERRNO | group.errno
    for entry in rules.conditional:
        if entry.name == name:
            if not any(all(holds(c, args) for c in row) for row in entry.rows):
                is_skipped = any(all(holds(c, args) for c in row) for row in entry.unless)
                return RET_ERRNO | (0 if is_skipped else entry.errno)
            break
    else:
        if not any(name in group.names for group in rules.allow):
            return ENOSYS
    for check in rules.descriptors:
        if limit is None or name not in check.names or not all(holds(c, args) for c in check.when):
            continue
        if any(limit <= args[arg] & 0xFFFFFFFF < 1 << 31 for arg in check.args):
            return RET_USER_NOTIF
    return RET_ALLOW


# ------------------------------------------------------------------------- walking the data


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("arch", ARCHES)
def test_every_plain_entry_of_the_data_gets_its_answer(arch: str) -> None:
    numbers = RULES.numbers[arch]
    expected = {name: RET_ALLOW for group in RULES.allow for name in group.names if name in numbers}
    expected |= {
        name: RET_ERRNO | group.errno
        for group in (*RULES.deny, *RULES.ignore)
        for name in group.names
        if name in numbers
    }

    assert {name: answer(arch, numbers[name]) for name in expected} == expected


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("entry", RULES.conditional, ids=lambda entry: entry.name)
def test_every_example_of_the_data_gets_its_answer(
    entry: seccomp_rules.ConditionalSyscall, arch: str
) -> None:
    nr = RULES.numbers[arch].get(entry.name)
    if nr is None:
        assert entry.name in RULES.numbers["x86_64"]  # old calls that aarch64 never had
        return

    assert {a: answer(arch, nr, *a) for a in entry.passes} == dict.fromkeys(entry.passes, RET_ALLOW)
    refused = RET_ERRNO | entry.errno
    assert {a: answer(arch, nr, *a) for a in entry.fails} == dict.fromkeys(entry.fails, refused)
    assert {a: answer(arch, nr, *a) for a in entry.skips} == dict.fromkeys(entry.skips, RET_ERRNO)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", FORBIDDEN_NAMES.split())
@pytest.mark.requirement("ISO-6", "ISO-5", "LIM-6")
def test_forbidden_call_never_passes(name: str, arch: str) -> None:
    nr = RULES.numbers[arch].get(name)
    if nr is None:
        assert name in RULES.numbers["x86_64"]
        return
    arguments = [(), (1,) * 6, (2**64 - 1,) * 6, (0x10000000, 0, 0, 0, 0, 0)]

    answers = {
        answer(arch, nr, *args, limit=limit) for args in arguments for limit in (None, LIMIT)
    }

    assert answers <= {EPERM, ENOSYS}


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["sync", "syncfs"])
def test_write_back_of_the_whole_host_is_answered_success_and_not_done(
    name: str, arch: str
) -> None:
    nr = RULES.numbers[arch][name]
    arguments = [(), (3,), (LIMIT,), (2**64 - 1,) * 6]

    answers = {
        answer(arch, nr, *args, limit=limit) for args in arguments for limit in (None, LIMIT)
    }

    assert answers == {RET_ERRNO}  # errno 0


@pytest.mark.parametrize("arch", ARCHES)
def test_call_that_ordinary_programs_need_can_pass(arch: str) -> None:
    passing = {group_name for group in RULES.allow for group_name in group.names}
    passing |= {entry.name for entry in RULES.conditional}

    assert set(NEEDED_NAMES.split()) <= passing & set(RULES.numbers[arch])


# ------------------------------------------------------------------------- differential


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("limit", [None, LIMIT])
@pytest.mark.parametrize("args", [(), (LIMIT,) * 6, (0o6777,) * 6, (2**64 - 1,) * 6])
def test_every_number_is_answered_as_the_plain_reading_says(
    arch: str, limit: int | None, args: tuple[int, ...]
) -> None:
    numbers = range(601)

    assert {nr: answer(arch, nr, *args, limit=limit) for nr in numbers} == {
        nr: reference(RULES, arch, nr, args, limit) for nr in numbers
    }


INTERESTING = sorted(
    {
        value
        for entry in RULES.conditional
        for example in entry.passes + entry.fails + entry.skips
        for value in example
    }
    | {LIMIT - 1, LIMIT, LIMIT + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, AT_FDCWD, 0x20, 0x22}
)
ARGUMENT = st.one_of(
    st.sampled_from(INTERESTING),
    st.sampled_from(INTERESTING).map(lambda value: value | 1 << 40),
    st.integers(0, 2**64 - 1),
)
CONDITIONAL_NUMBERS = sorted(
    {
        RULES.numbers[arch][name]
        for arch in ARCHES
        for name in [e.name for e in RULES.conditional]
        + [name for check in RULES.descriptors for name in check.names]
        if name in RULES.numbers[arch]
    }
)


@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(
    arch=st.sampled_from(ARCHES),
    limit=st.sampled_from([None, LIMIT]),
    nr=st.one_of(
        st.sampled_from(CONDITIONAL_NUMBERS), st.integers(0, 600), st.integers(0, 2**32 - 1)
    ),
    args=st.tuples(*[ARGUMENT] * 6),
)
def test_any_call_is_answered_as_the_plain_reading_says(
    arch: str, limit: int | None, nr: int, args: tuple[int, ...]
) -> None:
    assert answer(arch, nr, *args, limit=limit) == reference(RULES, arch, nr, args, limit)


@settings(max_examples=60, deadline=None)
@given(
    actions=st.dictionaries(st.integers(0, 2000), st.integers(1, 1000), min_size=1, max_size=700),
    arch=st.sampled_from(ARCHES),
)
@example(actions={2 * n: n % 251 + 1 for n in range(900)}, arch="x86_64")
@example(actions={3 * n: n + 1 for n in range(600)}, arch="aarch64")
def test_jumps_stay_right_in_programs_far_longer_than_their_reach(
    actions: dict[int, int], arch: str
) -> None:
    # Each leaf is code of its own that ends in one of many answers, so that both kinds of
    # stand-in for a far target are needed: the copied answer and the unconditional jump.
    def leaf(value: int) -> seccomp._Leaf:
        bit = Condition(arg=value % 6, word="low", mask=1, values=(0,), negated=False)
        return seccomp._Leaf(((bit,),), RET_ERRNO | value)

    program = decode(
        seccomp._compile({nr: leaf(value) for nr, value in actions.items()}, arch, None)
    )

    def outcome(nr: int, args: tuple[int, ...]) -> int:
        return run(program, arch=AUDIT_ARCH[arch], nr=nr, args=args)[0]

    probes = sorted({near for nr in actions for near in (nr - 1, nr, nr + 1) if near >= 0})
    assert {nr: outcome(nr, (1,) * 6) for nr in probes} == {
        nr: RET_ERRNO | actions.get(nr, errno.ENOSYS) for nr in probes
    }
    assert {outcome(nr, (0,) * 6) for nr in actions} == {RET_ALLOW}


# ------------------------------------------------------------------------- known tricks


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", [0, 1, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("command", [0x5412, 0x541C, 0x5423])
def test_high_bits_do_not_carry_a_terminal_ioctl_past_the_filter(
    arch: str, high: int, command: int
) -> None:
    nr = RULES.numbers[arch]["ioctl"]

    assert answer(arch, nr, 0, high << 32 | command) == EPERM


@pytest.mark.requirement("ISO-6")
def test_x32_numbers_end_the_process() -> None:
    answers = {answer("x86_64", 1 << 30 | nr) for nr in range(601)}

    assert answers == {RET_KILL_PROCESS}


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "foreign", [0x40000003, 0x40000028, 0, 0xFFFFFFFF, 0xC000003E, 0xC00000B7], ids=hex
)
def test_foreign_architecture_ends_the_process(arch: str, foreign: int) -> None:
    if foreign == AUDIT_ARCH[arch]:
        foreign ^= 0x80000000  # the same machine with the 64-bit flag off

    assert {answer(arch, nr, audit_arch=foreign) for nr in range(601)} == {RET_KILL_PROCESS}


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "flag",
    [0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000],
    ids=["time", "mount", "cgroup", "uts", "ipc", "user", "pid", "net"],
)
def test_clone_with_a_namespace_flag_is_refused(arch: str, flag: int) -> None:
    nr = RULES.numbers[arch]["clone"]
    thread = 0x3D0F00

    assert [answer(arch, nr, flags) for flags in (flag, flag | 17, flag | thread, thread)] == [
        EPERM,
        EPERM,
        EPERM,
        RET_ALLOW,
    ]


# ------------------------------------------------------------------------- descriptors


@pytest.mark.requirement("LIM-1")
@pytest.mark.parametrize("arch", ARCHES)
def test_first_use_of_a_descriptor_past_the_limit_is_notified(arch: str) -> None:
    passing = {entry.name: entry.passes[0] for entry in RULES.conditional}
    for check in RULES.descriptors:
        for name in set(check.names) & set(RULES.numbers[arch]):
            nr = RULES.numbers[arch][name]
            for arg in check.args:
                answers = {}
                for value in (0, LIMIT - 1, LIMIT, 0x7FFFFFFF, 0x80000000, AT_FDCWD, 2**64 - 1):
                    args = [*passing.get(name, ()), *[0] * 6][:6]
                    args[arg] = value
                    answers[value] = answer(arch, nr, *args, limit=LIMIT)
                assert answers == {
                    0: RET_ALLOW,
                    LIMIT - 1: RET_ALLOW,
                    LIMIT: RET_USER_NOTIF,
                    0x7FFFFFFF: RET_USER_NOTIF,
                    0x80000000: RET_ALLOW,
                    AT_FDCWD: RET_ALLOW,
                    2**64 - 1: RET_ALLOW,
                }, name


@pytest.mark.parametrize("arch", ARCHES)
def test_high_bits_do_not_hide_a_descriptor(arch: str) -> None:
    nr = RULES.numbers[arch]["read"]

    assert answer(arch, nr, 0xFFFFFFFF_00000000 | LIMIT, limit=LIMIT) == RET_USER_NOTIF


@pytest.mark.parametrize("arch", ARCHES)
def test_anonymous_mapping_with_chance_in_the_descriptor_argument_passes(arch: str) -> None:
    nr = RULES.numbers[arch]["mmap"]

    assert answer(arch, nr, 0, 4096, 3, 0x22, LIMIT, limit=LIMIT) == RET_ALLOW


@pytest.mark.parametrize("arch", ARCHES)
def test_refused_call_stays_refused_whatever_its_descriptor(arch: str) -> None:
    numbers = RULES.numbers[arch]

    assert answer(arch, numbers["ioctl"], LIMIT, 0x5412, limit=LIMIT) == EPERM
    assert answer(arch, numbers["fchmod"], LIMIT, 0o4755, limit=LIMIT) == EPERM


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("limit", [None, LIMIT])
def test_a_socket_is_notified_before_it_is_made_where_that_is_asked(
    arch: str, limit: int | None
) -> None:
    reporting = decode(seccomp.build(arch, open_files=limit, reports_sockets=True))
    reported = {name for group in RULES.reported for name in group.names}
    assert reported == {"socket", "socketpair"}

    def told(nr: int, arguments: tuple[int, ...]) -> int:
        return run(reporting, arch=AUDIT_ARCH[arch], nr=nr, args=arguments)[0]

    for entry in RULES.conditional:
        nr = RULES.numbers[arch].get(entry.name)
        if nr is None:
            continue
        for arguments in (*entry.passes, *entry.fails, *entry.skips):
            plain = answer(arch, nr, *arguments, limit=limit)
            passes = RET_USER_NOTIF if entry.name in reported and plain == RET_ALLOW else plain
            assert told(nr, arguments) == passes, (entry.name, arguments)
    for name, nr in RULES.numbers[arch].items():
        if name not in reported:
            assert told(nr, (LIMIT, 0)) == answer(arch, nr, LIMIT, 0, limit=limit), name


@pytest.mark.requirement("ISO-7")
def test_no_call_that_passes_makes_a_socket_unseen() -> None:
    """A socket comes from a call that makes one, from a socket, or from another process."""
    makers = {"socket", "socketpair", "socketcall", "io_uring_setup", "pidfd_getfd"}
    passing = {name for group in RULES.allow for name in group.names}
    passing |= {entry.name for entry in RULES.conditional}
    assert makers & passing == {"socket", "socketpair"}


@pytest.mark.parametrize("arch", ARCHES)
def test_without_a_limit_nothing_is_notified(arch: str) -> None:
    returned = {i.k for i in PROGRAMS[arch, None] if i.code == 0x06}

    assert RET_USER_NOTIF not in returned


# ------------------------------------------------------------------------- size and shape


@pytest.mark.parametrize("arch", ARCHES)
def test_filter_is_short_and_no_call_takes_a_long_way(arch: str) -> None:
    program: list[Instruction] = PROGRAMS[arch, LIMIT]
    steps = max(run(program, arch=AUDIT_ARCH[arch], nr=nr)[1] for nr in range(601))

    assert len(program) < 400  # install time grows with length
    assert steps < 32


def test_numbers_from_424_on_are_the_same_on_every_architecture() -> None:
    newer = [
        {name: number for name, number in table.items() if number >= 424}
        for table in RULES.numbers.values()
    ]

    assert newer[0] == newer[1]
    assert len(newer[0]) == 470 - 424 + 1
    assert all(len(set(t.values())) == len(t) for t in RULES.numbers.values())


def test_filter_is_built_once() -> None:
    assert seccomp.build("x86_64", open_files=LIMIT) is seccomp.build("x86_64", open_files=LIMIT)


@pytest.mark.requirement("ISO-4")
def test_unknown_host_architecture_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))

    with pytest.raises(LayerMissing) as refusal:
        seccomp.host_arch()

    assert (refusal.value.code, bool(refusal.value.hint)) == ("CW-LAYER-MISSING", True)


@pytest.mark.parametrize("open_files", [0, -1, 1 << 31])
def test_impossible_limit_is_bad_input(open_files: int) -> None:
    with pytest.raises(BadInput):
        seccomp.build("x86_64", open_files=open_files)


def test_unknown_architecture_is_bad_input() -> None:
    with pytest.raises(BadInput):
        seccomp.build("i386", open_files=None)


# ------------------------------------------------------------------------- broken data

NATIVE = Path(seccomp.__file__).parent
DOCUMENT = tomllib.loads((NATIVE / "seccomp.toml").read_text("utf-8"))
NUMBERS = tomllib.loads((NATIVE / "syscall_numbers.toml").read_text("utf-8"))


def _first(section: str, **changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[section][0].update(changes)


BREAKAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "an allowed group without a reason": _first("allow", reason=" "),
    "a denied group without a reason": _first("deny", reason=""),
    "a group without names": _first("allow", names=[]),
    "a name no architecture has": _first("allow", names=["no_such_call"]),
    "a name allowed and denied": _first("deny", names=["read"]),
    "a name both plain and conditional": _first("allow", names=["clone"]),
    "an errno out of the list": _first("deny", errno="EINTR"),
    "an unknown key": _first("allow", comment="x"),
    "a condition without rows": _first("allow_if", any=[]),
    "a row that always holds": _first("allow_if", any=[[]]),
    "a value outside the mask": _first("allow_if", any=[[{"arg": 0, "mask": 1, "in": [2]}]]),
    "a seventh argument": _first("allow_if", any=[[{"arg": 6, "in": [0]}]]),
    "a value wider than a word": _first("allow_if", any=[[{"arg": 0, "in": [1 << 32]}]]),
    "a condition both ways": _first("allow_if", any=[[{"arg": 0, "in": [0], "not_in": [1]}]]),
    "no failing example": _first("allow_if", fails=[]),
    "a pretended call with an errno": _first("pretend", errno="EPERM"),
    "a descriptor of a denied call": _first("descriptor", names=["mount"]),
    "a descriptor of an ignored call": _first("descriptor", names=["syncfs"]),
    "a name allowed and ignored": _first("ignore", names=["read"]),
    "an ignored call with an errno": _first("ignore", errno="EPERM"),
    "a descriptor argument out of range": _first("descriptor", args=[9]),
    "a call refused without a cgroup that never passes": _first("without_cgroup", names=["mount"]),
    "a reported call that never passes": _first("reported", names=["mount"]),
    "a reported call that takes a descriptor": _first("reported", names=["connect"]),
    "a missing section": lambda document: document.pop("deny"),
    "an unknown section": lambda document: document.update(extra=[]),
    "a section of the wrong type": lambda document: document.update(allow=[1]),
}


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize("arch", AUDIT_ARCH)
def test_memory_that_nobody_can_measure_is_refused_without_a_cgroup(arch: str) -> None:
    weaker = decode(seccomp.build(arch, open_files=None, has_cgroup=False))
    for group in RULES.without_cgroup:
        for name in group.names:
            number = RULES.numbers[arch][name]
            assert answer(arch, number) == RET_ALLOW  # the control
            told = run(weaker, arch=AUDIT_ARCH[arch], nr=number, args=())[0]
            assert told == ENOSYS


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_broken_data_is_refused(breakage: Callable[[dict[str, Any]], None]) -> None:
    document = copy.deepcopy(DOCUMENT)
    breakage(document)

    with pytest.raises(SandboxFailed) as failure:
        seccomp_rules.parse_rules(document, NUMBERS)

    assert (failure.value.code, str(NATIVE) in str(failure.value)) == ("CW-SECCOMP-RULES", False)


def test_name_that_one_architecture_lacks_is_left_out_there() -> None:
    assert "open" not in RULES.numbers["aarch64"]
    assert answer("x86_64", RULES.numbers["x86_64"]["open"]) == RET_ALLOW


# ------------------------------------------------------------------------- a real kernel

PRELUDE = """
import ctypes, errno, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(function, *args):
    ctypes.set_errno(0)
    result = function(*args)
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def install(flags=0):
    program = bytes.fromhex(sys.argv[1])
    if not program:
        return None
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    result = libc.syscall(SECCOMP, 1, flags, fprog)
    assert result >= 0, ctypes.get_errno()
    return result
"""


def run_child(
    script: str, *, filtered: bool, limit: int | None = None, cwd: Path
) -> subprocess.CompletedProcess[str]:
    arch = seccomp.host_arch()
    number = RULES.numbers[arch]["seccomp"]
    text = f"SECCOMP = {number}\n{PRELUDE}\n{textwrap.dedent(script)}"
    program = seccomp.build(arch, open_files=limit).hex() if filtered else ""
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", text, program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


def assert_prints(process: subprocess.CompletedProcess[str], expected: str) -> None:
    assert (process.returncode, process.stdout.split(), process.stderr) == (0, expected.split(), "")


@pytest.mark.requirement("ISO-6")
def test_kernel_refuses_a_user_namespace_under_the_filter(tmp_path: Path) -> None:
    script = "install(); print(call(libc.unshare, 0x10000000))"

    control = run_child(script, filtered=False, cwd=tmp_path)
    if control.stdout.strip() != "ok" and os.environ.get("CELLWALL_MUST_WORK") != "1":
        pytest.skip("this host allows no user namespace, so a refusal would prove nothing")
    assert_prints(control, "ok")
    assert_prints(run_child(script, filtered=True, cwd=tmp_path), "EPERM")


@pytest.mark.requirement("ISO-6")
def test_kernel_refuses_terminal_injection_under_the_filter(tmp_path: Path) -> None:
    # On its own controlling terminal even an unprivileged process may inject; kernels with
    # dev.tty.legacy_tiocsti=0 say EIO. Either shows that EPERM is the filter's word.
    script = """
    import pty, termios
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _, terminal = pty.openpty()
        assert call(libc.ioctl, terminal, ctypes.c_ulong(termios.TIOCSCTTY), 0) == "ok"
        install()
        for request in (0x5412, 0x1_0000_5412):
            print(call(libc.ioctl, terminal, ctypes.c_ulong(request), b"x"), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    """

    control = run_child(script, filtered=False, cwd=tmp_path)
    assert set(control.stdout.split()) <= {"ok", "EIO"}, control
    assert len(control.stdout.split()) == 2, control
    assert_prints(run_child(script, filtered=True, cwd=tmp_path), "EPERM EPERM")


@pytest.mark.requirement("ISO-6")
def test_kernel_refuses_setuid_files_under_the_filter(tmp_path: Path) -> None:
    script = """
    install()
    def attempt(action):
        try:
            action()
            print("ok")
        except OSError as error:
            print(errno.errorcode[error.errno])
    open("plain", "w").close()
    attempt(lambda: os.chmod("plain", 0o755))
    attempt(lambda: os.chmod("plain", 0o4755))
    attempt(lambda: os.close(os.open("planted", os.O_CREAT | os.O_WRONLY, 0o4755)))
    attempt(lambda: os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o2755)))
    attempt(lambda: os.mkfifo("pipe"))
    attempt(lambda: os.mknod("null", 0o020666, os.makedev(1, 3)))
    """
    for name in ("control", "filtered"):
        (tmp_path / name).mkdir()

    control = run_child(script, filtered=False, cwd=tmp_path / "control").stdout.split()
    assert control[:3] == ["ok", "ok", "ok"]
    filtered = run_child(script, filtered=True, cwd=tmp_path / "filtered")
    assert_prints(filtered, "ok EPERM EPERM EPERM ok EPERM")
    assert sorted(p.name for p in (tmp_path / "filtered").iterdir()) == ["pipe", "plain"]


@pytest.mark.requirement("LIM-1", "LIM-2")
def test_kernel_ends_a_program_that_ignores_the_file_size_signal(tmp_path: Path) -> None:
    script = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    install()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    descriptor = os.open("big", os.O_CREAT | os.O_WRONLY, 0o600)
    print(os.write(descriptor, bytes(16)), flush=True)
    try:
        os.write(descriptor, bytes(16))
    except OSError as error:
        print(errno.errorcode[error.errno])
    """

    control = run_child(script, filtered=False, cwd=tmp_path)
    assert_prints(control, "16 EFBIG")
    (tmp_path / "big").unlink()
    ended = run_child(script, filtered=True, cwd=tmp_path)
    assert (ended.returncode, ended.stdout.split()) == (-25, ["16"])


@pytest.mark.requirement("LIM-1", "LIM-2")
def test_kernel_notifies_the_listener_of_a_descriptor_past_the_limit(tmp_path: Path) -> None:
    # The filter holds for the worker thread alone; the main thread plays the cell's init.
    script = """
    import fcntl, queue, threading
    listeners = queue.Queue()
    outcomes = queue.Queue()
    high = fcntl.fcntl(0, fcntl.F_DUPFD, 64)
    def worker():
        listeners.put(install(flags=8))
        outcomes.put(os.fstat(0).st_mode)
        try:
            os.fstat(high)
            outcomes.put("ok")
        except OSError as error:
            outcomes.put(errno.errorcode[error.errno])
    thread = threading.Thread(target=worker)
    thread.start()
    listener = listeners.get()
    if listener is not None:
        notice = bytearray(80)
        fcntl.ioctl(listener, 0xC0502100, notice)
        identity, _, _, number, _, _, descriptor = struct.unpack_from("QIIiIQQ", notice)
        print("notified", descriptor == high)
        fcntl.ioctl(listener, 0xC0182101, struct.pack("QqiI", identity, 0, -errno.EMFILE, 0))
    thread.join()
    outcomes.get()
    print(outcomes.get())
    """

    assert_prints(run_child(script, filtered=False, cwd=tmp_path), "ok")
    filtered = run_child(script, filtered=True, limit=LIMIT, cwd=tmp_path)
    assert_prints(filtered, "notified True EMFILE")


@pytest.mark.slow
def test_kernel_lets_ordinary_python_work_under_the_filter(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        f"SECCOMP = {RULES.numbers[seccomp.host_arch()]['seccomp']}\n"
        + PRELUDE
        + textwrap.dedent(ORDINARY_WORK)
    )
    program = seccomp.build(seccomp.host_arch(), open_files=None).hex()

    process = subprocess.run(
        [sys.executable, "work.py", program],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
    )

    assert_prints(
        process,
        "subprocess threads asyncio loopback names multiprocessing-fork multiprocessing-spawn "
        "memory files events",
    )


ORDINARY_WORK = """
import asyncio, mmap, multiprocessing, select, shutil, signal, socket, subprocess, tempfile
import concurrent.futures
import multiprocessing.shared_memory

def double(number):
    return number * 2

async def echo():
    async def serve(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    assert await reader.readline() == b"hello\\n"
    writer.close()
    server.close()
    process = await asyncio.create_subprocess_exec("/bin/echo", "hi", stdout=subprocess.PIPE)
    assert (await process.communicate())[0] == b"hi\\n"

if __name__ == "__main__":
    install()
    done = subprocess.run("echo one | cat", shell=True, capture_output=True, check=True)
    assert done.stdout == b"one\\n"
    subprocess.run(["/bin/true"], check=True, start_new_session=True, preexec_fn=lambda: None)
    print("subprocess")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(double, range(8))) == list(range(0, 16, 2))
    print("threads")
    asyncio.run(echo())
    print("asyncio")
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(b"x")
            assert server.accept()[0].recv(1) == b"x"
    left, right = socket.socketpair()
    left.close(), right.close()
    print("loopback")
    assert socket.getaddrinfo("localhost", 80)
    assert socket.if_nameindex()
    print("names")
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(double, [1, 2, 3]) == [2, 4, 6]
        print("multiprocessing-" + method)
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    shared.close(), shared.unlink()
    mmap.mmap(-1, 1 << 20).close()
    os.close(os.memfd_create("memory"))
    print("memory")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "source")
        with open(source, "w") as file:
            file.write("text")
        os.chmod(source, 0o755)
        shutil.copy2(source, source + "2")
        os.link(source, source + "3")
        os.symlink(source, source + "4")
        os.mkfifo(source + "5")
        os.rename(source + "2", source + "6")
        assert len(os.listdir(folder)) == 5
    print("files")
    poller = select.epoll()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    poller.register(reading, select.EPOLLIN)
    os.write(writing, b"x")
    assert poller.poll(1)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.pause()
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    print("events")
"""
