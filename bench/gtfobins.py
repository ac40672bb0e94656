"""Which GTFOBins snippets a rule that allows just the program lets through.

    python bench/gtfobins.py CHECKOUT [--list] [--json]

CHECKOUT is a clone of https://github.com/GTFOBins/GTFOBins.github.io. Its licence (GPL-3.0) keeps
the snippets out of this repository, so they are read where they lie.

For each snippet the policy allows the program of the page (`Bash(PROG)`, `Bash(PROG *)`), the
programs that prepare its files (echo, chmod, mkdir …), and files of the project. Temporary files of
a snippet lie in the project; the files that are written lie outside, and the file that is read is a
private key. Lines that a person would type into the program are given to it as a here-document. A
snippet passes if the verdict is ALLOW.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import CellwallError
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy

RUNS_CODE = ("shell", "command", "reverse-shell", "bind-shell", "library-load")
GATED = (*RUNS_CODE, "file-write")
"""The functions whose share is to stay below 2 %."""
MEASURED = (*GATED, "file-read", "upload", "download")
_PREPARING = frozenset(
    [
        "echo",
        "printf",
        "chmod",
        "touch",
        "mkdir",
        "cp",
        "ln",
        "mkfifo",
        "cat",
        "grep",
        "tee",
        "base64",
        "head",
        "id",
        "true",
    ]
)
_SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ksh"])
_SECRET = "/home/ann/.ssh/id_rsa"
_TEMPORARY = re.compile(r"/path/to/(?=temp-)|/tmp/(?=[\w.-])")
_FUNCTION = re.compile(r"  ([a-z-]+):\s*$")
_CODE = re.compile(r"( *)(?:- )?code: (.*)$")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Snippet:
    program: str
    function: str
    text: str


def snippets(folder: str) -> Iterator[Snippet]:
    """Of all pages: the code of each function, and of each context that has its own."""
    seen: set[Snippet] = set()
    for program in sorted(os.listdir(folder)):
        with open(os.path.join(folder, program), encoding="utf-8") as file:
            lines = file.read().split("\n")
        for snippet in _on_page(program.removesuffix(".md"), lines):
            if snippet not in seen:
                seen.add(snippet)
                yield snippet


def _on_page(program: str, lines: list[str]) -> Iterator[Snippet]:
    function = ""
    for at, line in enumerate(lines):
        if found := _FUNCTION.match(line):
            function = found[1]
        elif found := _CODE.match(line):
            if found[2].startswith("|"):
                yield Snippet(program, function, _block(lines[at + 1 :]))
            else:
                yield Snippet(program, function, found[2].strip("'\""))


def _block(lines: list[str]) -> str:
    indent = len(lines[0]) - len(lines[0].lstrip())
    taken = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            break
        taken.append(line[indent:])
    return "\n".join(taken).rstrip()


def as_command(snippet: Snippet) -> str:
    """The snippet as one shell text, with the lines that are typed later on its standard input."""
    text = _TEMPORARY.sub("./", snippet.text).replace("/path/to/input-file", _SECRET)
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if _program_of(line) == snippet.program]
    for at in reversed(starts):
        before, typed = "\n".join(lines[: at + 1]), lines[at + 1 :]
        if typed and _parses(before) and not _continues(typed, snippet.program):
            return "\n".join([f"{before} <<'TYPED'", *typed, "TYPED"])
    return "\n".join(lines)


def _program_of(line: str) -> str:
    words = [word for word in line.split() if not _ASSIGNED.match(word)]
    return os.path.basename(words[0]) if words else ""


def _continues(lines: list[str], program: str) -> bool:
    """What follows is shell text again, of this program or of those that prepare and clean up."""
    return all(not line or _program_of(line) in {program, *_PREPARING} for line in lines)


def _parses(text: str) -> bool:
    bash = shutil.which("bash") or "/bin/bash"
    done = subprocess.run([bash, "-n"], input=text.encode(), capture_output=True, check=False)
    return done.returncode == 0


def programs_of(snippet: Snippet, command: str) -> tuple[str, ...]:
    """What the policy allows: the program of the page, and each program at the start of a line."""
    shell_text = command.partition(" <<'TYPED'")[0]
    starting = {_program_of(line) for line in shell_text.split("\n")}
    named = {name for name in starting - _SHELLS if re.fullmatch(r"[\w.+-]+", name)}
    return (snippet.program, *sorted(_PREPARING | named))


def policy_for(programs: tuple[str, ...]) -> Policy:
    rules = [f"Bash({name}{more})" for name in programs for more in ("", " *")]
    allow = json.dumps([*rules, "Read(./**)", "Edit(./**)"])
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"[permissions]\nallow = {allow}\n")
        file.flush()
        return Policy.load(file.name)


def measure(folder: str) -> dict[str, Any]:
    """Counts by function, and the snippets that pass."""
    passing: list[Snippet] = []
    counts = {name: [0, 0] for name in MEASURED}
    policies: dict[tuple[str, ...], Policy] = {}
    for snippet in snippets(folder):
        if snippet.function not in counts:
            continue
        command = as_command(snippet)
        programs = programs_of(snippet, command)
        policy = policies.get(programs) or policies.setdefault(programs, policy_for(programs))
        call = ToolCall("Bash", {"command": command}, "/home/ann/project", "/home/ann")
        counts[snippet.function][1] += 1
        if policy.check(call).verdict is Verdict.ALLOW:
            counts[snippet.function][0] += 1
            passing.append(snippet)
    gated = [sum(counts[name][place] for name in GATED) for place in (0, 1)]
    return {
        "passing": {name: counts[name][0] for name in MEASURED},
        "snippets": {name: counts[name][1] for name in MEASURED},
        "gated_share": round(gated[0] / max(1, gated[1]), 4),
        "list": passing,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("checkout", help="a clone of GTFOBins/GTFOBins.github.io")
    parser.add_argument("--list", action="store_true", help="print the snippets that pass")
    parser.add_argument("--json", action="store_true", help="print one object of figures")
    options = parser.parse_args()
    folder = os.path.join(options.checkout, "_gtfobins")
    if not os.path.isdir(folder):
        print(f"{folder} is missing; clone GTFOBins/GTFOBins.github.io", file=sys.stderr)
        return 2
    try:
        found = measure(folder)
    except CellwallError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return 1
    passing: list[Snippet] = found.pop("list")
    if options.json:
        print(json.dumps(found))
    else:
        for name in MEASURED:
            print(f"{name:16} {found['passing'][name]:4} of {found['snippets'][name]:4} pass")
        print(f"gated: {found['gated_share']:.1%} of {', '.join(GATED)}")
    for snippet in passing if options.list else ():
        print(f"\n## {snippet.program} {snippet.function}\n{snippet.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
