"""Installs packages by name into a live sandbox (PKG-1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.packages import RegistryName, parse_install
from cellwall.interfaces.sdk.execution import TextSink, text_sink

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.hosts import Host


@dataclass(frozen=True, slots=True)
class InstalledVersion:
    """One file that the registry proxy served, with the hash under which the file was judged."""

    name: str
    version: str
    file: str
    digest: str
    """`sha256:…` for PyPI, `sha512:…` for npm."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The result of an installation."""

    outcome: Outcome = field(repr=False)
    installed: tuple[InstalledVersion, ...]
    """Empty where everything was there before, and where nothing was installed."""
    refused: tuple[str, ...]
    """Why packages and versions were not served, with the name or version to use instead."""

    @classmethod
    def of(cls, outcome: Outcome) -> Installation:
        refused = [each.message for each in outcome.findings if each.category == "packages"]
        if outcome.error is not None and outcome.error.code == "CW-PACKAGE-REFUSED":
            refused.append(outcome.error.message)
        return cls(outcome, installed_versions(outcome), tuple(refused))

    def raise_for_status(self) -> Installation:
        self.outcome.raise_for_status()
        return self

    @property
    def failure(self) -> str:
        """Why nothing was installed, with the reasons of each refused package; empty: installed."""
        try:
            self.outcome.raise_for_status()
        except CellwallError as error:
            return "\n".join(
                (str(error), *(each for each in self.refused if each not in str(error)))
            )
        return ""


def installed_versions(outcome: Outcome) -> tuple[InstalledVersion, ...]:
    """The installed files of an outcome."""
    match outcome.value:
        case {"installed": [*rows]}:
            return tuple(_version(row) for row in rows if isinstance(row, dict))
        case _:
            return ()


def _version(row: dict[str, object]) -> InstalledVersion:
    digest = next(f"{each}:{row[each]}" for each in ("sha256", "sha512", "sha1") if each in row)
    return InstalledVersion(str(row["name"]), str(row["version"]), str(row["file"]), digest)


class AsyncPackages:
    """Packages of PyPI and npm, installed by name into the sandbox."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def install(
        self,
        *requirements: str,
        ecosystem: RegistryName = "pypi",
        timeout: float | None = None,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
    ) -> Installation:
        """Install packages for the next `run_code` and command: `install("requests", "pandas<3")`.

        The package manager runs in a cell of its own that reaches the registry proxy alone; the
        sandbox itself gets no network. Sources that policy allows to build are built in a cell
        without network. A refusal is a value: see `refused`, or call `raise_for_status()`.
        """
        operation = parse_install(ecosystem, requirements)
        sink = text_sink(on_stdout, on_stderr)
        return Installation.of(await self._host.perform(operation, timeout=timeout, sink=sink))
