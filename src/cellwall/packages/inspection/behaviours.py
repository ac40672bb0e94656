"""What code of a package does, and the combinations that only malware has (PKG-1). Pure.

A single behaviour proves nothing: SDKs read credential files, installers start programs. The rules
name combinations in one file, and when they happen. Import and installation run code without a
call by the user of the package; honest packages do little there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum

from cellwall.core.verdict import Verdict
from cellwall.packages.inspection.findings import ArtifactFinding


class When(IntEnum):
    """When code runs. The order is the semantics: what runs earlier is judged more strictly."""

    CALLED = 0  # by the code that uses the package
    IMPORT = 1
    INSTALL = 2  # also: at every start of Python


class Behaviour(Enum):
    """One thing that code does, as far as its text shows."""

    RUN_DECODED = "runs code that it decodes"
    RUN_FETCHED = "runs code that it downloads"
    LOAD_DECODED = "unpickles data that it decodes"
    RUN_PROGRAM = "starts a program"
    RUN_DOWNLOAD = "starts a command that downloads and runs a program"
    FETCH = "reads from the network"
    SEND = "sends to the network"
    DROP_URL = "names a collection point for stolen data"
    READ_CREDENTIALS = "names files with credentials"
    READ_PROFILES = "names browser profiles or wallets"
    READ_ENVIRONMENT = "reads all environment variables"
    READ_HOST = "reads the names of the host and the user"
    LOOK_UP = "looks up a computed host name"
    WRITE_START_FILE = "writes a file that runs by itself later"
    CONNECT_SHELL = "connects a shell to the network"
    USE_CLIPBOARD = "uses the clipboard"
    MATCH_WALLETS = "searches for addresses of wallets"
    WATCH_USER = "records keys or the screen"
    HIDE_BY_BLANKS = "hides code behind blanks"
    HIDE_BY_INVISIBLE = "carries data in invisible characters"
    HIDE_BY_ENCODING = "is written in an encoding that turns comments into code"
    OBFUSCATED = "is obfuscated"
    BUILT_NAME = "puts a dangerous name together from pieces"
    UNREADABLE = "cannot be parsed, or only in part, and names what the rules look for"


@dataclass(frozen=True, slots=True)
class ObservedBehaviour:
    """A behaviour, the line that shows it, and when it happens."""

    behaviour: Behaviour
    line: int
    when: When


@dataclass(frozen=True, slots=True)
class _BehaviourRule:
    code: str
    verdict: Verdict
    when: When
    needs: tuple[frozenset[Behaviour], ...]
    """Of each set, one behaviour must be there."""


B = Behaviour
_NETWORK = frozenset({B.SEND, B.FETCH})
_ACTS = _NETWORK | {B.RUN_PROGRAM}
_SECRETS = frozenset({B.READ_CREDENTIALS, B.READ_PROFILES, B.READ_ENVIRONMENT})


def _rule(
    code: str, verdict: Verdict, when: When, *needs: Behaviour | frozenset[B]
) -> _BehaviourRule:
    sets = tuple(frozenset({each}) if isinstance(each, Behaviour) else each for each in needs)
    return _BehaviourRule(code, verdict, when, sets)


_DENY, _ASK = Verdict.DENY, Verdict.ASK
# Of the rules with one code, the first that matches counts.
_RULES = (
    _rule("run-decoded", _DENY, When.IMPORT, B.RUN_DECODED),
    _rule("run-decoded", _ASK, When.CALLED, B.RUN_DECODED),
    _rule("run-decoded", _ASK, When.IMPORT, B.LOAD_DECODED),
    _rule("run-downloaded", _DENY, When.IMPORT, B.RUN_FETCHED),
    _rule("run-downloaded", _DENY, When.IMPORT, B.RUN_DOWNLOAD),
    _rule("run-downloaded", _ASK, When.CALLED, B.RUN_FETCHED),
    _rule("run-downloaded", _ASK, When.CALLED, B.RUN_DOWNLOAD),
    _rule("run-downloaded", _ASK, When.IMPORT, B.RUN_PROGRAM, _NETWORK),
    _rule("reverse-shell", _DENY, When.IMPORT, B.CONNECT_SHELL),
    _rule("reverse-shell", _ASK, When.CALLED, B.CONNECT_SHELL),
    _rule("steals-data", _DENY, When.IMPORT, _SECRETS, B.SEND),
    _rule("steals-data", _DENY, When.IMPORT, _SECRETS | {B.READ_HOST}, B.LOOK_UP),
    _rule("steals-data", _DENY, When.INSTALL, B.READ_HOST, B.SEND),
    _rule("steals-data", _DENY, When.CALLED, _SECRETS | {B.WATCH_USER}, B.DROP_URL),
    _rule("steals-data", _ASK, When.IMPORT, B.READ_HOST, B.SEND),
    _rule("steals-data", _ASK, When.CALLED, B.READ_PROFILES, B.SEND),
    _rule("collection-point", _DENY, When.IMPORT, B.DROP_URL, _ACTS),
    _rule("collection-point", _ASK, When.CALLED, B.DROP_URL),
    _rule("start-file", _DENY, When.IMPORT, B.WRITE_START_FILE, _ACTS),
    _rule("start-file", _ASK, When.IMPORT, B.WRITE_START_FILE),
    _rule("wallet-theft", _DENY, When.IMPORT, B.USE_CLIPBOARD, B.MATCH_WALLETS),
    _rule("wallet-theft", _ASK, When.CALLED, B.USE_CLIPBOARD, B.MATCH_WALLETS),
    _rule("watches-user", _DENY, When.IMPORT, B.WATCH_USER, B.SEND),
    _rule("watches-user", _ASK, When.CALLED, B.WATCH_USER, B.SEND),
    _rule("hidden-code", _DENY, When.CALLED, B.HIDE_BY_BLANKS),
    _rule("hidden-code", _DENY, When.CALLED, B.HIDE_BY_ENCODING),
    _rule("hidden-code", _DENY, When.CALLED, B.HIDE_BY_INVISIBLE, B.RUN_DECODED),
    _rule("hidden-code", _ASK, When.CALLED, B.HIDE_BY_INVISIBLE),
    _rule("hidden-code", _ASK, When.IMPORT, B.BUILT_NAME),
    _rule("obfuscated", _DENY, When.INSTALL, B.OBFUSCATED),
    _rule("obfuscated", _DENY, When.CALLED, B.OBFUSCATED, _ACTS | {B.RUN_DECODED}),
    _rule("obfuscated", _ASK, When.CALLED, B.OBFUSCATED),
    _rule("not-inspected", _ASK, When.CALLED, B.UNREADABLE),
)  # fmt: skip


def judge_code(path: str, observations: Iterable[ObservedBehaviour]) -> Iterator[ArtifactFinding]:
    """The findings on one file: for each code the strictest rule."""
    seen = list(observations)
    reported: set[str] = set()
    for rule in _RULES if seen else ():
        if rule.code in reported:
            continue
        if shown := _match(rule, seen):
            reported.add(rule.code)
            yield ArtifactFinding(
                rule.code,
                rule.verdict,
                _describe(path, shown),
                is_proof=rule.verdict is Verdict.DENY,
            )


def _match(rule: _BehaviourRule, seen: list[ObservedBehaviour]) -> list[ObservedBehaviour]:
    """One observation for each need, the earliest in the file; empty where one is missing."""
    shown = []
    for need in rule.needs:
        fitting = [each for each in seen if each.behaviour in need and each.when >= rule.when]
        if not fitting:
            return []
        shown.append(min(fitting, key=lambda each: each.line))
    return shown


_MOMENTS = {
    When.CALLED: "",
    When.IMPORT: ", when it is imported",
    When.INSTALL: ", when it is installed or Python starts",
}


def _describe(path: str, shown: list[ObservedBehaviour]) -> str:
    parts = " and ".join(f"{each.behaviour.value} (line {each.line})" for each in shown)
    return f"{path} {parts}{_MOMENTS[min(each.when for each in shown)]}"
