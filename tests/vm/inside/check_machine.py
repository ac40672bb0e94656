"""The checks of a processor that is not the host's: the C program, the filter's table, the cold path."""

from __future__ import annotations

import functools
import json
import os
import platform
from dataclasses import replace

os.environ["CELLWALL_PATH"] = "cold"
os.environ["CELLWALL_HOME"] = "/root/state"

import anyio
from tap import Check, equal, run_checks

import cellwall
from cellwall.core.types import WorkspaceRequest
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox.conformance import CheckResult, checks, run_conformance
from cellwall.sandbox.linux import pool, seccomp
from cellwall.sandbox.linux.prepared_cell import spare_cells
from cellwall.sandbox.linux.seccomp_rules import load_rules

ROOM = {"timeout": 600, "memory": "192m"}
KILLED_BY_FILTER = 128 + 31
# Software emulation: a process starts in seconds, so that a time limit of a check ends it too early.
SLOW_LIMITS = {"wall_s": 600.0, "cpu_s": 300.0}
_PROBE = """
import ctypes, json
call = ctypes.CDLL(None, use_errno=True).syscall
found = {}
for name, number in json.loads(TABLE).items():
    ctypes.set_errno(0)
    found[name] = ctypes.get_errno() if call(number, *[0] * 6) == -1 else 0
found
"""
# mov eax, 20 (getpid of 32 bits); int 0x80; ret
_OLD_CALL = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))
print("before", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
_X32_CALL = """
import ctypes
print("before", flush=True)
ctypes.CDLL(None).syscall(NUMBER | 0x40000000)
"""


def machine_is_another() -> None:
    with open("/job/machine", encoding="ascii") as file:
        equal(platform.machine(), file.read())


def filter_is_built_for_it() -> None:
    equal(seccomp.host_arch(), platform.machine())


def code_runs() -> None:
    result = cellwall.run_code("import platform; platform.machine()", **ROOM)
    equal((result.status, result.value), ("ok", platform.machine()))


def denied_calls_are_denied() -> None:
    """Every refusal of seccomp.toml, by the numbers of this processor, in a cell."""
    rules = load_rules()
    numbers = rules.numbers[platform.machine()]
    wanted = {n: g.errno for g in rules.deny for n in g.names if n in numbers}
    table = json.dumps({name: numbers[name] for name in wanted})
    code = _PROBE.replace("TABLE", repr(table))
    result = cellwall.run_code(code, **ROOM)
    equal(result.status, "ok")
    equal({n: e for n, e in result.value.items() if wanted[n] != e}, {})
    # The control: getpid, by the same table and the same code, is answered.
    table = json.dumps({"getpid": numbers["getpid"]})
    result = cellwall.run_code(_PROBE.replace("TABLE", repr(table)), **ROOM)
    equal(result.value, {"getpid": 0})


def other_tables_end_the_process() -> None:
    if platform.machine() != "x86_64":
        return
    number = load_rules().numbers["x86_64"]["getpid"]
    for code in (_OLD_CALL, _X32_CALL.replace("NUMBER", str(number))):
        result = cellwall.run_code(code, **ROOM)
        equal((result.exit_code, result.stdout), (KILLED_BY_FILTER, "before\n"))


@functools.cache
def conformance() -> dict[str, CheckResult]:
    async def work() -> list[CheckResult]:
        app = wiring.open_app()
        with app.session(WorkspaceRequest(), local_principal("sdk")) as session_id:
            return await run_conformance(
                app.runtime.perform,
                principal=local_principal("sdk"),
                session_id=session_id,
                limits=replace(app.limits, **SLOW_LIMITS),
            )

    return {result.name: result for result in anyio.run(work)}


def passes(name: str) -> None:
    equal(conformance()[name].found, "")


def main() -> None:
    """Run all checks, then end what is kept ready."""
    own: list[tuple[str, Check]] = [
        ("the machine is another than the host's", machine_is_another),
        ("the filter is built for its table", filter_is_built_for_it),
        ("code runs in a cold cell", code_runs),
        ("every refusal of seccomp.toml by this table", denied_calls_are_denied),
        ("calls by another table end the process", other_tables_end_the_process),
    ]
    suite = [(f"conformance: {c.name}", functools.partial(passes, c.name)) for c in checks()]
    run_checks([*own, *suite])
    spare_cells.close()
    pool.close_all()


main()
