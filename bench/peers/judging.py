"""All attacks on one peer, with a verdict for each."""

from __future__ import annotations

from collections.abc import Sequence

from cellwall.redteam.attack import NOT_TRIED, Attack, AttackVerdict, Observation, judge
from peers.attack_choice import KEY_OF_SSH, Choice
from peers.deno_trials import DENO_KEYS, run_deno
from peers.figures import Grouped, grouped
from peers.limit_trials import is_offered, try_limit
from peers.peer import Peer
from peers.trials import Observations, Trials

_OWN_KERNEL = "answered by the sandbox's own kernel, not by that of the host"
_OTHER_LANGUAGE = "no such program can run inside"
_NO_SETTING = "no setting for this limit"
_WORDS = {
    AttackVerdict.HELD: "held",
    AttackVerdict.THROUGH: "through",
    AttackVerdict.NOT_PROVED: "n/a",
}
_MAX_REASON = 160


def by_program(choices: Sequence[Choice]) -> dict[str, list[Attack]]:
    """The attacks of each program, in order; those of ~/.ssh have targets of their own."""
    found: dict[str, list[Attack]] = {}
    for choice in choices:
        if choice.attack.program and choice.attack.id != KEY_OF_SSH:
            found.setdefault(choice.attack.program, []).append(choice.attack)
    return found


class Judging:
    """Controls are run once, and belong to every peer."""

    def __init__(self, choices: Sequence[Choice], trials: Trials, folder: str) -> None:
        self._choices = choices
        self._trials = trials
        self._folder = folder
        self._programs = by_program(choices)
        self._controls: dict[str, Observations] = {}

    def run_controls(self) -> dict[str, int]:
        """Run them; by program, how many succeed."""
        for program, attacks in self._programs.items():
            keys = [attack.key for attack in attacks]
            self._controls[program] = self._trials.control(program, keys)
        return {
            program: sum(seen.kind == "through" for seen in found.values())
            for program, found in self._controls.items()
        }

    def verdicts(self, peer: Peer) -> Grouped:
        """The verdict and the reason of each attack, by column."""
        attempts, controls = self._attempts(peer)
        found: dict[str, dict[str, str]] = {}
        for choice in self._choices:
            attack = choice.attack
            if attack.layer == "limits":
                entry = self._limit(peer, attack)
            else:
                attempt = attempts.get(attack.id, NOT_TRIED)
                control = controls.get(attack.id, NOT_TRIED)
                entry = verdict_of(peer, choice, control=control, attempt=attempt)
            found[attack.id] = {"layer": choice.layer, **entry}
        return grouped(found)

    def _attempts(self, peer: Peer) -> tuple[Observations, Observations]:
        attempts: Observations = {}
        controls: Observations = {}
        if peer.language == "javascript":
            return run_deno(peer, self._choices, self._folder)
        for program, attacks in self._programs.items():
            keys = [attack.key for attack in attacks]
            seen = self._trials.attempt(peer, program, keys)
            for attack in attacks:
                attempts[attack.id] = seen.get(attack.key, NOT_TRIED)
                controls[attack.id] = self._controls[program].get(attack.key, NOT_TRIED)
        attempts[KEY_OF_SSH] = self._trials.read_ssh_key(peer)
        controls[KEY_OF_SSH] = controls["files/read-by-its-path"]
        return attempts, controls

    def _limit(self, peer: Peer, attack: Attack) -> dict[str, str]:
        if peer.language != "python":
            return {"verdict": "n/a", "reason": _OTHER_LANGUAGE}
        control, attempt = try_limit(peer, attack, self._folder)
        result = judge(attack, control=control, attempt=attempt)
        verdict = _WORDS[result.verdict]
        reason = result.reason
        if verdict == "through" and not is_offered(attack, peer):
            reason = _NO_SETTING
        return {"verdict": verdict, "reason": reason[:_MAX_REASON]}


def verdict_of(
    peer: Peer, choice: Choice, *, control: Observation, attempt: Observation
) -> dict[str, str]:
    """The red team's verdict, except where it would be unfair to the peer."""
    attack = choice.attack
    if peer.language == "javascript" and attack.id not in DENO_KEYS:
        return {"verdict": "n/a", "reason": _OTHER_LANGUAGE}
    result = judge(attack, control=control, attempt=attempt)
    verdict = _WORDS[result.verdict]
    is_emulated = choice.layer == "system calls" or attack.key.startswith(
        ("socket-", "read-proc-", "bring-")
    )
    if peer.has_own_kernel and is_emulated and verdict == "through":
        return {"verdict": "n/a", "reason": _OWN_KERNEL}
    return {"verdict": verdict, "reason": result.reason[:_MAX_REASON]}
