"""With one inner layer off, exactly the attacks that it carries alone get through (RED-3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from adversarial.conftest import ATTACKS
from adversarial.layer_dropout import (
    LAYERS,
    PAGE,
    chosen_attacks,
    held_in,
    page,
    processor_of,
    run_without,
)
from cellwall.admin.redteam import cell_programs
from cellwall.redteam.attack import AttackVerdict
from conftest import need

pytestmark = pytest.mark.only_on("cold", reason="a template is shared by cells with other walls")
HELD, THROUGH = AttackVerdict.HELD, AttackVerdict.THROUGH
BOTH = "seccomp and no user namespaces"
MAX_NOT_PROVED = 12


@pytest.mark.requirement("RED-3")
def test_an_attack_is_repeated_with_a_layer_off() -> None:
    """One attack that seccomp carries alone, one that two layers stop."""
    carried, doubled = "isolation/keyctl", "isolation/mount-tmpfs"
    chosen = [attack for attack in chosen_attacks() if attack.id in (carried, doubled)]
    found = run_without(("none", "seccomp", "capabilities"), chosen)
    need(AttackVerdict.NOT_PROVED not in found["none"].values(), "controls in namespaces")
    assert {layer: (each[carried], each[doubled]) for layer, each in found.items()} == {
        "none": (HELD, HELD),
        "seccomp": (THROUGH, HELD),
        "capabilities": (HELD, HELD),
    }


@pytest.mark.requirement("RED-3", "ISO-1")
def test_a_user_namespace_needs_two_layers_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter refuses the call; the cell's own user namespace has room for no other."""
    monkeypatch.setitem(LAYERS, BOTH, without_both)
    chosen = [attack for attack in chosen_attacks() if attack.key == "unshare-user"]
    found = run_without(("none", "seccomp", "no user namespaces", BOTH), chosen)
    verdicts = {layer: each["isolation/unshare-user"] for layer, each in found.items()}
    need(AttackVerdict.NOT_PROVED not in verdicts.values(), "controls in namespaces")
    assert verdicts.pop(BOTH) is THROUGH
    assert set(verdicts.values()) == {HELD}


@contextmanager
def without_both() -> Iterator[None]:
    with LAYERS["seccomp"](), LAYERS["no user namespaces"]():
        yield


_LIES = """
import os
@attack("unshare-user")
def _():
    syscall("unshare", 0x10000000)
    raise Stopped("no")
@attack("chroot")
def _():
    raise Stopped("no")
@attack("bpf")
def _():
    os._exit(0)
"""


@pytest.mark.requirement("RED-1")
def test_an_attack_that_denies_its_success_is_seen_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without both layers the first attack gets a user namespace, and reports a refusal."""
    text = (ATTACKS / "stage.py").read_text()
    monkeypatch.setattr(
        cell_programs,
        "program_text",
        lambda _: f"{text}\n{_LIES}\nif __name__ == '__main__':\n    play()\n",
    )
    names = ("unshare-user", "chroot", "bpf")
    chosen = [attack for attack in chosen_attacks() if attack.key in names]
    monkeypatch.setitem(LAYERS, BOTH, without_both)
    found = run_without(("none", BOTH), chosen)
    verdicts = {
        layer: {name: each[f"isolation/{name}"] for name in names} for layer, each in found.items()
    }
    need(verdicts["none"]["chroot"] is HELD, "controls in namespaces")
    silent = {"chroot": HELD, "bpf": AttackVerdict.NOT_PROVED}
    assert verdicts == {
        "none": {"unshare-user": HELD, **silent},
        BOTH: {"unshare-user": THROUGH, **silent},
    }


@pytest.mark.requirement("RED-3")
def test_the_published_matrix_names_every_attack_and_layer() -> None:
    text = PAGE.read_text("utf-8")
    # Of the processor that the page names: the test holds on each.
    existing = [attack.id for attack in chosen_attacks(processor_of(text))]
    held = held_in(text)
    assert len(set(held)) == len(held)
    assert set(held) <= set(existing)
    left_out = set(existing) - set(held)
    # Not proved on the host that wrote it: the kernel or the host lacks the target.
    assert f"\n{len(held)} of {len(existing)} attacks are held and proved" in text, left_out
    assert len(left_out) <= MAX_NOT_PROVED, left_out
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == [layer for layer in LAYERS if layer != "none"]
    assert {sum(map(int, row[1:])) for row in rows} == {len(held)}


@pytest.mark.requirement("RED-3")
@pytest.mark.parametrize(("processor", "own"), [("x86_64", {"isolation/iopl"}), ("aarch64", set())])
def test_a_page_names_the_attacks_of_the_processor_that_it_was_written_on(
    processor: str, own: set[str]
) -> None:
    """The control: the page that is compared says on which host it is true."""
    everything = {attack.id: HELD for attack in chosen_attacks(processor)}
    text = page({"none": everything, "seccomp": everything}, processor)
    assert processor_of(text) == processor
    assert sorted(held_in(text)) == sorted(everything)
    assert set(everything) & {"isolation/iopl"} == own
    assert f"\n{len(everything)} of {len(everything)} attacks are held and proved" in text


@pytest.mark.requirement("RED-3")
@pytest.mark.long
def test_no_layer_carries_more_attacks_alone_than_is_published() -> None:
    """Another kernel may have fewer of the calls; it must not let another attack through."""
    published = {
        line.split("**")[1]: line
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("**")
    }
    processor = processor_of(PAGE.read_text("utf-8"))
    described = {attack.id for attack in chosen_attacks(processor)}
    chosen = [attack for attack in chosen_attacks() if attack.id in described]
    found = run_without(tuple(LAYERS), chosen)
    through = {
        layer: {name for name, verdict in each.items() if verdict is THROUGH}
        for layer, each in found.items()
    }
    assert through.pop("none") == set()
    more = {
        layer: [name for name in names if f" {name}" not in published[layer]]
        for layer, names in through.items()
    }
    assert not any(more.values()), more
