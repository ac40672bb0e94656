"""A run of many texts in batches, repeatable by its seed, up to the first difference."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cellwall.policy.engine import Policy
from fuzz.shell.cell import ShellInCell
from fuzz.shell.grammar import Texts
from fuzz.shell.properties import Difference, differences, is_allowed, load_policy, read

BATCH = 250
_COMMANDS_OF_BATCH = 60
_TOKENS_OF_BATCH = 20
_SHRINKING_ROUNDS = 40


@dataclass(slots=True)
class Tally:
    """What a run has seen."""

    texts: int = 0
    words: int = 0
    commands: int = 0
    understood: int = 0
    allowed: int = 0
    calls: int = 0
    opened: int = 0
    late: int = 0
    found: list[Difference] = field(default_factory=list)

    def line(self) -> str:
        """For people."""
        share = 100 * self.understood // max(self.texts, 1)
        return (
            f"{self.texts} texts ({self.commands} of them commands), {self.words} words, "
            f"{share} % understood, {self.allowed} allowed; the shell started {self.calls} commands and "
            f"opened {self.opened} files; {self.late} ran too long; {len(self.found)} differences"
        )


def batch_of(seed: str) -> tuple[list[str], int]:
    """The texts of one batch, words first, and how many words they hold."""
    texts = Texts(seed)
    found = [texts.word_text() for _ in range(BATCH - _COMMANDS_OF_BATCH - _TOKENS_OF_BATCH)]
    found += [texts.command_text() for _ in range(_COMMANDS_OF_BATCH)]
    found += [texts.token_text() for _ in range(_TOKENS_OF_BATCH)]
    return found, texts.words


def compare(texts: Sequence[str], bash: ShellInCell, policy: Policy, tally: Tally) -> None:
    """Reads, judges and runs each of them. Only bash does what was read; what is allowed must start
    and open nothing that is denied in zsh, and behind `sh -c` in dash, either."""
    is_bash = bash.shell == "bash"
    readings = [read(text) if is_bash else None for text in texts]
    is_sh = bash.shell == "dash"
    verdicts = [
        is_allowed(policy, f"sh -c {shlex.quote(text)}" if is_sh else text) for text in texts
    ]
    # What is refused is denied: bash need not run it.
    wanted = [at for at in range(len(texts)) if readings[at] is not None or verdicts[at]]
    for at, observed in zip(wanted, bash.observe([texts[at] for at in wanted]), strict=True):
        tally.calls += len(observed.calls)
        tally.opened += len(observed.opened)
        tally.late += observed.is_late
        tally.found += differences(texts[at], readings[at], observed, allowed=verdicts[at])
    tally.texts += len(texts)
    tally.understood += sum(reading is not None for reading in readings)
    tally.allowed += sum(verdicts)


def shrink(found: Difference, bash: ShellInCell, policy: Policy) -> Difference:
    """The shortest text with a difference that is left when stretches are cut out of this one."""
    for _ in range(_SHRINKING_ROUNDS):
        text = found.text
        sizes = [size for size in (16, 8, 4, 2, 1) if size < len(text)]
        shorter = {
            text[:at] + text[at + size :] for size in sizes for at in range(len(text) - size + 1)
        }
        tally = Tally()
        compare(sorted(shorter, key=len)[:400], bash, policy, tally)
        if not tally.found:
            return found
        found = min(tally.found, key=lambda each: len(each.text))
    return found


def run(
    seed: str,
    *,
    shell: str = "bash",
    seconds: float | None = None,
    batches: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Until the time or the number of batches is over."""
    tally, number, start = Tally(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ShellInCell(shell) as bash:
        policy = load_policy(Path(folder))
        while batches is None or number < batches:
            if seconds is not None and time.monotonic() - start >= seconds:
                break
            texts, words = batch_of(f"{seed}:{number}")
            before = len(tally.found)
            compare(texts, bash, policy, tally)
            tally.words += words
            tally.commands += _COMMANDS_OF_BATCH
            number += 1
            for each in tally.found[before:]:
                report(f"difference in batch {seed}:{number - 1}: {each.what}\n    {each.text!r}")
            report(f"{time.monotonic() - start:6.0f} s: {tally.line()}")
        if tally.found:
            tally.found.insert(0, shrink(min(tally.found, key=lambda e: len(e.text)), bash, policy))
    return tally
