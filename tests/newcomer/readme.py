"""The README and the start page as a newcomer follows them: commands, and what each has to show.

`readme.toml` says what differs from "typed at a terminal, ends with 0": the answers that a person
types, the exit codes, the text that has to appear, the hosts on the Internet that a line needs. A
line of the README without an entry there is run all the same.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from newcomer.hosts import Answer, Shown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+#\s.*$")
_EXITS = re.compile(r"#\s+exit ((?:\d+ \w+(?:, )?)+)")
_NEVER_SHOWN = ("Traceback (most recent call last)", "CW-INTERNAL")
_PROGRAM = "/tmp/readme.py"
_BACKGROUND = "/tmp/readme-background.log"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the README or the start page has a newcomer type."""

    shown_as: str
    command: str
    exits: tuple[int, ...] = (0,)
    shows: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    needs: tuple[str, ...] = ()
    """Hosts on the Internet; where one has no public address, the line has to fail and say why."""
    packages: tuple[str, ...] = ()
    """Debian packages that the text beside the line says to install."""
    program: str = ""
    """Text of /tmp/readme.py, which the command runs."""

    def faults(self, shown: Shown) -> list[str]:
        """What is wrong with how the step ended."""
        if shown.exit_code is None:
            return [f"still running after {shown.seconds:.0f} s"]
        found = [f"shows {text!r}" for text in _NEVER_SHOWN if text in shown.text]
        if shown.exit_code not in self.exits:
            found.append(f"exit code {shown.exit_code}")
        found += [
            f"does not show {pattern!r}"
            for pattern in self.shows
            if re.search(pattern, shown.text, re.MULTILINE) is None
        ]
        return found


def steps(readme: str, marks: Mapping[str, Any]) -> list[Step]:
    """All of them, in order; `marks` is the content of readme.toml."""
    marked = {mark["line"]: mark for mark in marks.get("step", [])}
    found: list[Step] = []
    examples: list[Step] = []
    programs: list[str] = []
    for language, body in _FENCE.findall(readme):
        if language == "console":
            examples += [_step(line, marked) for line in _console_commands(body)]
        elif language == "python":
            programs.append(body)
            if len(programs) == 1:
                found.append(Step("python", ""))  # all blocks are one program, see below
        elif language == "sh":
            found += [_step(line, marked) for line in _shell_commands(body)]
            # The first block installs; only then can an example that stands above it be typed.
            found, examples = found + examples, []
    for step in found:
        for package in step.packages:
            if f"apt-get install {package}" not in readme:
                raise ValueError(f"the README does not say to install {package}")
    if unused := set(marked) - {step.shown_as for step in found} - {"python"}:
        raise ValueError(f"readme.toml marks lines that the README has not: {sorted(unused)}")
    program = "\n".join(programs)
    return [
        _step("python", marked, program=program) if step.shown_as == "python" else step
        for step in found
    ]


def read() -> list[Step]:
    marks = tomllib.loads((HERE / "readme.toml").read_text("utf-8"))
    return steps((ROOT / "README.md").read_text("utf-8"), marks)


def start_page() -> Step:
    """All commands of docs/index.md as one script, which has to show what the page shows."""
    page = (ROOT / "docs/index.md").read_text("utf-8")
    blocks = _FENCE.findall(page)
    script = "".join(body for language, body in blocks if language == "sh")
    shown = "".join(body for language, body in blocks if language == "text")
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in shown.splitlines()]
    return Step("docs/index.md", f"sh -eu {_PROGRAM}", shows=tuple(patterns), program=script)


def documented_container_options() -> list[str]:
    """Those that the guide to hosts gives to `docker run`."""
    guide = (ROOT / "docs/guides/hosts.md").read_text("utf-8")
    found = re.search(r"^docker run (.*) \.\.\.$", guide, re.MULTILINE)
    if found is None:
        raise ValueError("docs/guides/hosts.md shows no options of `docker run`")
    return found[1].split()


def _step(line: str, marked: Mapping[str, Mapping[str, Any]], program: str = "") -> Step:
    text = _COMMENT.sub("", line)
    mark = marked.get(text, {})
    told = _EXITS.search(line)
    exits = tuple(int(number) for number in re.findall(r"\d+", told[1])) if told else (0,)
    command = f".venv/bin/python {_PROGRAM}" if program else line
    return Step(
        text,
        _in_background(text) if mark.get("in_background") else command,
        tuple(mark.get("exits", exits)),
        tuple(mark.get("shows", ())),
        tuple(Answer(*pair) for pair in mark.get("answers", ())),
        tuple(mark.get("needs", ())),
        tuple(mark.get("packages", ())),
        program,
    )


def _in_background(line: str) -> str:
    """The line goes on without the terminal; what it shows until it is ready or fails is shown."""
    wait = f"for i in $(seq 600); do grep -q . {_BACKGROUND} && break; sleep 0.1; done"
    return f"(nohup {line} > {_BACKGROUND} 2>&1 &); {wait}; cat {_BACKGROUND}"


def _shell_commands(body: str) -> Iterator[str]:
    """Lines, each with those that a backslash continues and with the variable that is set before it."""
    joined = re.sub(r"\\\n\s*", "", body)
    for line in re.sub(r"^(\w+=\$\(.*\))\n", r"\1; ", joined, flags=re.MULTILINE).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.rstrip()


def _console_commands(body: str) -> Iterator[str]:
    return (line[2:] for line in body.splitlines() if line.startswith("$ "))
