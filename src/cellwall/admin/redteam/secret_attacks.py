"""The layer secrets: a value of the vault is searched for inside, in output, and in storage."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.cell_programs import describe
from cellwall.admin.redteam.trial_host import TrialHost, system_calls
from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.core.network import Binding
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, RunCode, RunCommand
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.redteam.catalog import program_text
from cellwall.redteam.outside import run_cellwall
from cellwall.redteam.sealed_report import new_key, read_report

_NAME = "REDTEAM_TOKEN"
_HOST = "api.example.com"
_PREFIX = "rtmark-"
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve")
_SEARCHES = ("environment", "processes", "command_lines", "files", "memory")
_HASH_CHARACTERS = 16
_RECORDS = 200

# How code that knows a value tries to bring it out; `value` is read from standard input.
_PRINTS = {
    "plain": "print(value)",
    "stderr": "sys.stderr.write(value)",
    "base64": "print(base64.b64encode(value.encode()).decode())",
    "hex": "print(value.encode().hex())",
    "url": "print('https://example.com/?q=' + urllib.parse.quote(value, safe=''))",
    "split": "sys.stdout.write(value[:12]); sys.stdout.flush(); sys.stdout.write(value[12:])",
    "value": "value",
    "error": "raise ValueError(value)",
}
_READ = "import base64, sys, urllib.parse\nvalue = sys.stdin.read()\n"


def _forms(value: str) -> dict[str, str]:
    """What a print must not contain, where that is not the value itself."""
    return {
        "base64": base64.b64encode(value.encode()).decode(),
        "hex": value.encode().hex(),
        "url": quote(value, safe=""),
    }


def _new_value() -> str:
    """Words, not a token: rules about the form of a value must not redact the control."""
    choose = random.SystemRandom().choice
    words = ("".join(choose(_SYLLABLES) for _ in range(3)) for _ in range(5))
    return _PREFIX + "-".join(words)


@dataclass(frozen=True, slots=True)
class _Values:
    """A value of the vault, and one that is no secret."""

    secret: str
    open: str


async def run(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Store a secret, lease it, and search for its value."""
    values = _Values(_new_value(), _new_value())
    await in_thread(partial(_store, host, values.secret))
    results: dict[str, AttackResult] = {}
    searches = [attack for attack in attacks if "search" in attack.data]
    if searches:
        control = await _search(host, planted=values.open, wanted=values.open)
        attempt = await _search(host, planted="", wanted=values.secret)
        for attack in searches:
            name = attack.data["search"]
            results[attack.id] = judge(
                attack,
                control=control.get(name, NOT_TRIED),
                attempt=attempt.get(name, NOT_TRIED),
            )
    for attack in attacks:
        if "print" in attack.data:
            how = attack.data["print"]
            control_of = await _print(host, how, values.open)
            results[attack.id] = judge(
                attack, control=control_of, attempt=await _print(host, how, values.secret)
            )
        if "store" in attack.data:
            look = _in_records if attack.data["store"] == "records" else _in_folder
            results[attack.id] = await look(host, attack, values)
    return [results[attack.id] for attack in attacks]


def _store(host: TrialHost, value: str) -> None:
    vault = VaultAdmin(host.app.store.home, host.app.settings, audit=host.app.audit)
    if not vault.exists:
        vault.init(choice=VaultKeyChoice(), principal=host.who)
    vault.set(_NAME, value.encode(), host.who)
    vault.grant(_NAME, Binding(host=_HOST), host.who)


def _leasing(host: TrialHost, action: Action) -> Action:
    return replace(action, secrets=(_NAME,), allow_domains=(_HOST,), limits=host.app.limits)


async def _search(host: TrialHost, *, planted: str, wanted: str) -> dict[str, Observation]:
    """What each search of the program finds, by its hash: redaction cannot hide that."""
    key = new_key()
    facts = {
        "calls": dict(system_calls()),
        "sealed": True,
        "cell": True,
        "only": list(_SEARCHES),
        "prefix": _PREFIX,
        "planted": planted,
    }
    action = Action(
        principal=host.who,
        operation=RunCode("python", program_text("secret_search").encode()),
        env={"ATTACK": json.dumps(facts)},
        stdin=key,
    )
    outcome = await host.app.runtime.perform(_leasing(host, action))
    if outcome.status is not Status.OK:
        return dict.fromkeys(_SEARCHES, Observation("broken", describe(outcome)))
    found = read_report(outcome.stdout_bytes or outcome.stdout.encode(), key) or {}
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:_HASH_CHARACTERS]
    return {name: _compare(seen, digest) for name, seen in found.items()}


def _compare(seen: Observation, digest: str) -> Observation:
    if seen.kind != "through":
        return seen
    if digest in seen.words.split(","):
        return Observation("through", "the value was found")
    return Observation("refused", "something was found, and it is not the value")


async def _print(host: TrialHost, how: str, value: str) -> Observation:
    action = Action(
        principal=host.who,
        operation=RunCode("python", (_READ + _PRINTS[how]).encode()),
        stdin=value.encode(),
    )
    outcome = await host.app.runtime.perform(_leasing(host, action))
    expected = Status.FAILED if how == "error" else Status.OK
    if outcome.status is not expected:
        return Observation("broken", describe(outcome))
    if _forms(value).get(how, value) in _all_text(outcome):
        return Observation("through", "the value is in the result")
    return Observation("refused", "the result does not contain the value")


def _all_text(outcome: Outcome) -> str:
    fields = [outcome.stdout, outcome.stderr, outcome.text or "", outcome.shown]
    streams = [outcome.stdout_bytes, outcome.stderr_bytes]
    told = json.dumps(outcome.to_json(), ensure_ascii=False)
    return "\n".join([*fields, *(each.decode("utf-8", "replace") for each in streams), told])


async def _in_records(host: TrialHost, attack: Attack, values: _Values) -> AttackResult:
    for value in (values.open, values.secret):
        action = Action(principal=host.who, operation=RunCommand(("echo", value)))
        await host.app.runtime.perform(_leasing(host, action))
    words = ["audit", "search", "-n", str(_RECORDS), "--json"]
    shown = await in_thread(lambda: run_cellwall(words, env=host.environ))
    if shown is None:
        return judge(attack, control=NOT_TRIED, attempt=NOT_TRIED)
    control, attempt = (_contains(shown, value) for value in (values.open, values.secret))
    return judge(attack, control=control, attempt=attempt)


def _contains(data: bytes, value: str) -> Observation:
    if value.encode() in data:
        return Observation("through", "the value was found")
    return Observation("refused", "the value was not found")


async def _in_folder(host: TrialHost, attack: Attack, values: _Values) -> AttackResult:
    def look() -> AttackResult:
        home = host.app.store.home
        path = os.path.join(home, "redteam-control")
        with open(path, "w", encoding="ascii") as file:
            file.write(values.open)
        try:
            control, attempt = (_found_below(home, each) for each in (values.open, values.secret))
        finally:
            os.unlink(path)
        return judge(attack, control=control, attempt=attempt)

    return await in_thread(look)


def _found_below(folder: str, value: str) -> Observation:
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    if value.encode() in file.read():
                        return Observation("through", f"the value is in {name[:60]}")
    return Observation("refused", "no file contains the value")
