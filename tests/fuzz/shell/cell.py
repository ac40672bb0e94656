"""The real shell, in a cell: what it starts and opens for each text. Hostile texts are harmless."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import cellwall
from fuzz.shell import driver

_DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True, slots=True)
class Observed:
    """Of one text."""

    calls: tuple[tuple[str, ...], ...]
    opened: frozenset[str]
    """Files of the driver's folders, however they are opened."""
    written: frozenset[str]
    read: frozenset[str]
    """Those that were closed again; what is in neither was open when bash ended."""
    is_late: bool


class ShellInCell:
    """`with ShellInCell() as bash: bash.observe(texts)`; `shell` is "bash", "zsh" or "dash"."""

    def __init__(self, shell: str = "bash") -> None:
        self.shell = shell
        self._sandbox = cellwall.Sandbox.create(timeout=600, memory="512m")

    def __enter__(self) -> Self:
        self._sandbox.files.write("driver.py", _DRIVER.read_text())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sandbox.kill()

    def observe(self, texts: Sequence[str]) -> list[Observed]:
        """All texts, each in a shell of its own, in folders that are as they were."""
        self._sandbox.files.write("texts.json", json.dumps(list(texts)))
        done = self._sandbox.commands.run(f"python3 driver.py texts.json results.json {self.shell}")
        if done.exit_code != 0:
            raise RuntimeError(f"the driver failed: {done.status} {done.stderr}")
        results = json.loads(self._sandbox.files.read_bytes("results.json"))
        return [
            Observed(
                tuple(tuple(call) for call in each["calls"]),
                frozenset(each["opened"]),
                frozenset(each["written"]),
                frozenset(each["read"]),
                each["late"],
            )
            for each in results
        ]


FILES, HOME, WORK = driver.FILES, driver.HOME, driver.WORK
