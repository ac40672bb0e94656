"""One function for each parser of untrusted bytes: any bytes get a result or the declared error.

A function raises for a finding: an exception that is not declared, a result that breaks an
invariant, or two readers that disagree. Time and memory are bounded by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

MODULES = ("e2b", "egress", "guard", "messages", "packages", "policy", "state")


@dataclass(frozen=True, slots=True)
class Target:
    """A parser and how it is fuzzed."""

    name: str
    says: str
    run: Callable[[bytes], None]
    covers: tuple[str, ...]
    """Modules whose branches guide the search."""
    tokens: tuple[bytes, ...]
    """Words of the format, which the mutations put in."""
    max_bytes: int


_found: dict[str, Target] = {}


def target(
    *covers: str, tokens: tuple[bytes, ...] = (), max_bytes: int = 2048
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Registers a function under its own name; its docstring says what is fuzzed."""

    def register(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        name = run.__name__.replace("_", "-")
        assert name not in _found, f"two targets are named {name}"
        says = " ".join((run.__doc__ or "").split())
        paths = tuple(f"cellwall.{each}" for each in covers)
        _found[name] = Target(name, says, run, paths, tokens, max_bytes)
        return run

    return register


def load(name: str) -> Target:
    """One target, without importing the parsers of all others."""
    start = f"def {name.replace('-', '_')}("
    for module in MODULES:
        if start in Path(__file__).with_name(f"{module}.py").read_text("utf-8"):
            import_module(f"fuzz.targets.{module}")
    return _found[name]


def all_targets() -> Mapping[str, Target]:
    """Every target by name."""
    for module in MODULES:
        import_module(f"fuzz.targets.{module}")
    return dict(sorted(_found.items()))


def text_of(data: bytes) -> str:
    """For parsers whose caller decodes strictly."""
    return data.decode("utf-8", "replace")


def wild_text_of(data: bytes) -> str:
    """For parsers of texts that come out of JSON, where lone surrogates are possible."""
    return data.decode("utf-8", "surrogateescape")
