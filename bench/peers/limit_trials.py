"""Code that takes too much, in the small amounts of the catalog: each is safe on the bare host.

A peer gets the limit where it has a setting for it. The same code with less must run to its end in
the same peer; without a limit the code takes what it asks for, and that is counted as through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cellwall.redteam.attack import Attack, Observation
from peers.job import Ended, Job
from peers.peer import Peer
from peers.work import new_workspace

_ENDLESS = ("limits/sleep-forever", "limits/spin")
_LIMIT_WITHIN_S = 30.0
"""How long an endless run is watched, for a limit of one second and of two: processor time takes
long on a busy machine."""
_ENDLESS_WITHIN_S = 1.5
"""The same where the peer has no setting for the limit."""
_USUAL_WITHIN_S = 8.0
_AMOUNT = "AMOUNT"
_TOOK = b"PEERS-TOOK-IT"
_TMP = "limits/fill-tmp"
# Of the catalog's amount the last two bytes would stay in Python's buffer, which no limit sees.
_OVER = {"limits/one-large-file": 4 << 20}


def limits_of(attack: Attack, offered: frozenset[str]) -> dict[str, float]:
    """The limits of the attack for which the peer has a setting; /tmp may have one of its own."""
    limits: Mapping[str, float] = attack.data.get("limits", {})
    if attack.id == _TMP and "tmp_bytes" in offered:
        return {"tmp_bytes": limits["disk_bytes"]}
    return {name: value for name, value in limits.items() if name in offered}


def is_offered(attack: Attack, peer: Peer) -> bool:
    return bool(limits_of(attack, peer.limits))


def limit_job(attack: Attack, amount: float, offered: frozenset[str], workspace: str) -> Job:
    """The code with this amount; Python prints a word at its end."""
    text = f"{amount:g}" if amount < 10**6 else str(int(amount))
    code = str(attack.data["code"]).replace(_AMOUNT, text)
    is_shell = attack.data.get("language") == "sh"
    return Job(
        workspace=workspace,
        argv=("/bin/sh", "-c", code) if is_shell else (),
        python="" if is_shell else f"{code}\nprint({_TOOK.decode()!r}, flush=True)",
        limits=limits_of(attack, offered),
        needs_workspace=False,
    )


def try_limit(peer: Peer, attack: Attack, folder: str) -> tuple[Observation, Observation]:
    """The control (less of the same, in the peer) and the attempt."""
    control = _run(peer, attack, attack.data["below"], folder, within_s=_USUAL_WITHIN_S)
    if control.kind != "through":
        return control, Observation("broken", "it was not tried")
    within_s = _USUAL_WITHIN_S
    if attack.id in _ENDLESS:
        within_s = _LIMIT_WITHIN_S if is_offered(attack, peer) else _ENDLESS_WITHIN_S
    amount = _OVER.get(attack.id, attack.data["over"])
    return control, _run(peer, attack, amount, folder, within_s=within_s)


def _run(peer: Peer, attack: Attack, amount: float, folder: str, *, within_s: float) -> Observation:
    job = limit_job(attack, amount, peer.limits, new_workspace(folder))
    ended = peer.run(job, within_s)
    if job.argv:  # of the floods the output itself tells
        took = ended.is_ok and len(ended.stdout) + len(ended.stderr) >= amount
        ended = replace(ended, stdout=_TOOK if took else b"")
    return observe(ended, is_endless=attack.id in _ENDLESS, within_s=within_s)


def observe(ended: Ended, *, is_endless: bool, within_s: float) -> Observation:
    """Through if the code took all of it: children that it leaves may run on, and a peer that
    names the limit has enforced it."""
    if _TOOK in ended.stdout and not ended.limit:
        return Observation("through", "the code ran to its end")
    if ended.code is None and is_endless:
        return Observation("through", f"still running after {within_s:g} s")
    if ended.code is None:
        return Observation("refused", "the code did not get to its end")
    return Observation("refused", ended.reason())
