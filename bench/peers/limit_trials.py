"""Code that takes too much, in the small amounts of the catalog: each is safe on the bare host.

A peer gets the limit where it has a setting for it. The same code with less must run to its end in
the same peer; without a limit the code takes what it asks for, and that is counted as through.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellwall.redteam.attack import Attack, Observation
from peers.job import Job
from peers.peer import Peer
from peers.work import new_workspace

_ENDLESS = ("limits/sleep-forever", "limits/spin")
_LIMIT_WITHIN_S = 8.0
"""How long an endless run is watched, for a limit of one second and of two."""
_ENDLESS_WITHIN_S = 1.5
"""The same where the peer has no setting for the limit."""
_USUAL_WITHIN_S = 12.0
_AMOUNT = "AMOUNT"


def limit_job(attack: Attack, amount: float, offered: frozenset[str], workspace: str) -> Job:
    """The code with this amount, and the limits of the attack that the peer offers."""
    text = f"{amount:g}" if amount < 10**6 else str(int(amount))
    code = str(attack.data["code"]).replace(_AMOUNT, text)
    limits: Mapping[str, float] = attack.data.get("limits", {})
    chosen = {name: value for name, value in limits.items() if name in offered}
    is_shell = attack.data.get("language") == "sh"
    return Job(
        workspace=workspace,
        argv=("/bin/sh", "-c", code) if is_shell else (),
        python="" if is_shell else code,
        limits=chosen,
        needs_workspace=False,
    )


def is_offered(attack: Attack, peer: Peer) -> bool:
    return bool(set(attack.data.get("limits", {})) & peer.limits)


def try_limit(peer: Peer, attack: Attack, folder: str) -> tuple[Observation, Observation]:
    """The control (less of the same, in the peer) and the attempt."""
    control = _run(peer, attack, attack.data["below"], folder)
    if control.kind != "through":
        return control, Observation("broken", "it was not tried")
    return control, _run(peer, attack, attack.data["over"], folder)


def _run(peer: Peer, attack: Attack, amount: float, folder: str) -> Observation:
    within_s = _USUAL_WITHIN_S
    if attack.id in _ENDLESS and amount == attack.data["over"]:
        within_s = _LIMIT_WITHIN_S if is_offered(attack, peer) else _ENDLESS_WITHIN_S
    job = limit_job(attack, amount, peer.limits, new_workspace(folder))
    ended = peer.run(job, within_s)
    if ended.code is None:
        return Observation("through", f"still running after {within_s:g} s")
    if ended.is_ok:
        return Observation("through", "the code ran to its end")
    return Observation("refused", ended.reason())
