"""The attacks on isolation again, with one inner layer of the cold path off at a time (RED-3).

Layers are switched off by replacing functions of this process, so only a test can do that: no
setting, variable or file of Cellwall reaches it. `python tests/adversarial/layer_dropout.py` writes
the matrix to docs/layers.md.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import anyio

from cellwall.admin.redteam import program_attacks
from cellwall.admin.redteam.trial_host import trial_host
from cellwall.redteam.attack import Attack, AttackVerdict, Observation
from cellwall.redteam.catalog import attacks
from cellwall.sandbox.linux import cell_plan, outer_wall, visible_host
from cellwall.sandbox.linux.plan import Plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"
PROGRAMS = ("kernel_calls", "set_id", "processes", "files", "writes", "network")
_ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)  # BPF_RET, SECCOMP_RET_ALLOW
Change = Callable[[], Any]


def _inner_walls(**changes: Any) -> Any:
    original = cell_plan.plan_inner_walls
    return mock.patch.object(
        cell_plan,
        "plan_inner_walls",
        lambda plan, walls, limits: original(plan, replace(walls, **changes), limits),
    )


@contextmanager
def without_steps(*skipped: tuple[str, ...]) -> Iterator[None]:
    """Plans without the steps that begin with these words."""
    original = Plan.step

    def step(self: Plan, *words: str | int) -> None:
        if not any(words[: len(each)] == each for each in skipped):
            original(self, *words)

    cached = (cell_plan._cover_steps, cell_plan._root_steps)
    with mock.patch.object(Plan, "step", step):
        for each in cached:
            each.cache_clear()
        try:
            yield
        finally:
            for each in cached:
                each.cache_clear()


@contextmanager
def with_arguments(change: Callable[[list[str]], list[str]]) -> Iterator[None]:
    """Another command line of bubblewrap."""
    original = outer_wall.arguments
    with mock.patch.object(
        outer_wall, "arguments", lambda *words, **more: change(original(*words, **more))
    ):
        yield


def _without_words(*left_out: str) -> Callable[[list[str]], list[str]]:
    return lambda words: [word for word in words if word not in left_out]


def _all_capabilities(words: list[str]) -> list[str]:
    at = words.index("--cap-drop")
    return [*words[:at], "--cap-add", "ALL", *words[at + 2 :]]


def _writable(words: list[str]) -> list[str]:
    return ["--bind" if word == "--ro-bind" else word for word in words]


def _host_network(words: list[str]) -> list[str]:
    return _without_words("--unshare-net")(words)


def _no_settings() -> bytes:
    plan = Plan()
    plan.step("rlimit", resource.RLIMIT_CORE, 1)  # as later anyway: a plan has no empty step
    return plan.joined()


@contextmanager
def no_change() -> Iterator[None]:
    yield


@contextmanager
def _both(*changes: Any) -> Iterator[None]:
    if not changes:
        yield
        return
    with changes[0], _both(*changes[1:]):
        yield


LAYERS: Mapping[str, Change] = {
    "none": no_change,
    "seccomp": lambda: _inner_walls(seccomp_filter=_ALLOW_ALL),
    "Landlock": lambda: _inner_walls(landlock_abi=0),
    "capabilities": lambda: _both(without_steps(("drop",)), with_arguments(_all_capabilities)),
    "read-only mounts": lambda: _both(
        without_steps(("seal", "/"), ("cover", "ro")), with_arguments(_writable)
    ),
    "masked /proc": lambda: without_steps(("cover",)),
    "network namespace": lambda: _both(
        with_arguments(_host_network),
        mock.patch.object(cell_plan, "network_steps", _no_settings),
    ),
    "no user namespaces": lambda: mock.patch.object(cell_plan, "user_steps", _no_settings),
    "IPC namespace": lambda: with_arguments(_without_words("--unshare-ipc")),
    "UTS namespace": lambda: with_arguments(
        _without_words("--unshare-uts", "--hostname", visible_host.HOSTNAME)
    ),
}


def chosen_attacks(processor: str = "") -> tuple[Attack, ...]:
    """Those that exist on this processor, or on the named one: some system calls do not."""
    return tuple(attack for attack in attacks(processor) if attack.program in PROGRAMS)


def processor_of(text: str) -> str:
    """The processor of the host on which a page was written."""
    found = re.search(r"^Cells were made on the cold path of an (\w+) host", text, re.MULTILINE)
    if found is None:
        raise ValueError("the page names no processor")
    return found[1]


def held_in(text: str) -> list[str]:
    """The attacks of a page's matrix: held and proved with all layers on."""
    _, _, matrix = text.partition("\n## Matrix\n")
    rows = re.findall(r"^\| ([a-z]+/[^|]+) \|", matrix, re.MULTILINE)
    return [name for row in rows for name in row.split(", ")]


@contextmanager
def _controls_once() -> Iterator[None]:
    """A control does not depend on the walls: one run serves all columns."""
    original, known = program_attacks._control, {}

    async def control(program: str, facts: Any, **options: Any) -> dict[str, Observation]:
        if program not in known:
            known[program] = await original(program, facts, **options)
        return known[program]

    with mock.patch.object(program_attacks, "_control", control):
        yield


def run_without(
    layers: Sequence[str], chosen: Sequence[Attack]
) -> dict[str, dict[str, AttackVerdict]]:
    """layer that is off -> attack -> verdict. Cold cells only: a template would be shared."""
    found: dict[str, dict[str, AttackVerdict]] = {}
    with mock.patch.dict(os.environ, {"CELLWALL_PATH": "cold"}), _controls_once():
        for layer in layers:
            with LAYERS[layer](), trial_host(config=None, profile=None) as host:
                results = anyio.run(program_attacks.run, host, list(chosen))
            found[layer] = {each.attack.id: each.verdict for each in results}
    return found


_HEAD = """# Which layers overlap

Written by `tests/adversarial/layer_dropout.py`: the attacks of `cellwall redteam` on isolation, files and
network, repeated with one inner layer switched off at a time. Layers are switched off by a test that
replaces functions of its own process; no setting or variable of Cellwall can do that. The walls of a
cell are applied in the order namespaces, mounts, resource limits, capabilities, Landlock, seccomp.

Cells were made on the cold path of an {processor} host; a few attacks exist on one processor alone.
Not switched off: the mount, PID and user namespaces, without which no cell starts, and the flags that
init sets in C (not dumpable, no new privileges).

"""


_COULD = """## Where one layer is alone although two could stand

- System V memory, semaphores and queues of the host: the IPC namespace alone. Programs use these calls among themselves, so
  seccomp does not refuse them.
- `landlock-write-own-…`: Landlock alone. Files below `/proc/self` cannot be made read-only by a mount for each process.
- `read-init-…`, `follow-init-…`: with every capability left in its user namespace, code may inspect init although init is not
  dumpable. Only `ptrace` and `setns` have seccomp as a second wall.
- The other system calls of seccomp: most are refused to code without capabilities only after the kernel has looked at their
  arguments, or not at all. The filter is what keeps that code of the kernel out of reach, and there is no second mechanism for it.
"""


def page(found: Mapping[str, Mapping[str, AttackVerdict]], processor: str = "") -> str:
    """The document: a summary, then what each layer carries alone."""
    whole = found["none"]
    held = [name for name, verdict in whole.items() if verdict is AttackVerdict.HELD]
    lines = [
        _HEAD.format(processor=processor or platform.machine()),
        f"{len(held)} of {len(whole)} attacks are held and proved with all layers on.\n",
    ]
    lines += ["| Layer that is off | still held | get through | not proved |"]
    lines += ["|---|---|---|---|"]
    alone: dict[str, list[str]] = {}
    for layer, verdicts in found.items():
        if layer == "none":
            continue
        alone[layer] = [name for name in held if verdicts[name] is AttackVerdict.THROUGH]
        unproved = sum(verdicts[name] is AttackVerdict.NOT_PROVED for name in held)
        still = len(held) - len(alone[layer]) - unproved
        lines.append(f"| {layer} | {still} | {len(alone[layer])} | {unproved} |")
    lines += ["\n## Attacks that one layer carries alone\n"]
    lines += [
        "With this layer off the attack succeeds; every other attack is stopped by another layer.\n"
    ]
    for layer, names in alone.items():
        lines.append(f"**{layer}** ({len(names)}): {', '.join(names) or 'none'}.\n")
    lines += [_COULD]
    covered = set(held) - {name for names in alone.values() for name in names}
    lines += ["## Attacks that no single one of these layers carries\n"]
    lines += [
        f"{len(covered)} of {len(held)}. Each is stopped by at least two of the layers above, or by "
    ]
    lines += ["a namespace that was not switched off.\n"]
    return "\n".join(lines) + "\n" + _matrix(found, held)


def _matrix(found: Mapping[str, Mapping[str, AttackVerdict]], held: Sequence[str]) -> str:
    """Attack x layer; attacks with equal rows share one."""
    layers = [layer for layer in found if layer != "none"]
    marks = {AttackVerdict.HELD: "held", AttackVerdict.THROUGH: "**through**"}
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in held:
        row = tuple(marks.get(found[layer][name], "-") for layer in layers)
        rows.setdefault(row, []).append(name)
    lines = [
        "## Matrix\n",
        "Attacks with equal rows share one; `-` is not proved with this layer off.\n",
    ]
    lines += [f"| Attacks | {' | '.join(layers)} |", f"|---|{'---|' * len(layers)}"]
    for row, names in rows.items():
        lines.append(f"| {', '.join(names)} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    found = run_without(tuple(LAYERS), chosen_attacks())
    PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
