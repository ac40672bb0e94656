"""Proposals wait where nothing can load them (SKL-1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.skills import quarantine
from cellwall.skills.quarantine import Quarantine
from cellwall.skills.store import SkillStore

FILES = {"SKILL.md": b"Obey.\n", "bin/x": b"#!/bin/sh\n"}


@pytest.fixture
def proposals(state_home: str) -> Quarantine:
    return Quarantine(state_home)


def put(proposals: Quarantine, files=FILES, name: str = "greeting"):
    return proposals.put(name, files, frozenset({"bin/x"}), by="agent", source="sandbox sbx_1")


def code(work) -> str:
    with pytest.raises(CellwallError) as raised:
        work()
    return raised.value.code


def test_a_proposal_comes_back_as_it_was_put(proposals):
    made = put(proposals)
    assert proposals.list_proposals() == [made]
    found, draft = proposals.open(made.id)
    assert (found, dict(draft.files), draft.executables) == (made, FILES, {"bin/x"})
    proposals.remove(made.id)
    assert proposals.list_proposals() == []
    assert code(lambda: proposals.open(made.id)) == "CW-SKILL-PROPOSAL"
    assert code(lambda: proposals.remove(made.id)) == "CW-SKILL-PROPOSAL"


@pytest.mark.requirement("SKL-1")
def test_a_proposal_can_not_be_loaded_by_any_name(proposals, state_home):
    made = put(proposals)
    skills = SkillStore(state_home, [])
    for name in ("greeting", made.id, f"../quarantine/{made.id}/files"):
        assert code(lambda name=name: skills.load([name])) in {"CW-SKILL-UNKNOWN", "CW-SKILL-NAME"}
    assert skills.survey() == {}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"../../approved/greeting/SKILL.md": b""},
        {"/etc/cron.d/x": b""},
        {".cellwall-skill": b"a manifest of its own"},
        {"a": b"", "a/b": b""},
        {"a\x1b[2Jb": b""},
        {"a": b"x" * (8 * 1024 * 1024 + 1)},
    ],
)
def test_a_proposal_with_names_that_lie_is_refused(proposals, files):
    assert code(lambda: put(proposals, files)).startswith("CW-SKILL")
    assert proposals.list_proposals() == []


def test_an_agent_cannot_fill_the_disk(proposals, monkeypatch):
    monkeypatch.setattr(quarantine, "MAX_PROPOSALS", 2)
    put(proposals)
    put(proposals)
    assert code(lambda: put(proposals)) == "CW-SKILL-QUARANTINE-FULL"


@pytest.mark.parametrize(
    "text", ["{", "[" * 4000, '{"name": "a", "by": "", "source": "", "made_s": NaN}', "7", ""]
)
def test_a_damaged_proposal_hides_no_other(proposals, state_home, text):
    good, bad = put(proposals), put(proposals)
    note = Path(state_home, "skills", "quarantine", bad.id, "proposal.json")
    note.chmod(0o600)
    note.write_text(text)
    assert {each.id: each.name for each in proposals.list_proposals()} == {
        good.id: "greeting",
        bad.id: "damaged",
    }
    assert code(lambda: proposals.open(bad.id)) == "CW-SKILL-PROPOSAL"
    proposals.remove(bad.id)


@pytest.mark.parametrize("proposal_id", ["", "..", "../approved", "prop_1", "x" * 300])
def test_ids_are_never_paths(proposals, proposal_id):
    assert code(lambda: proposals.open(proposal_id)) == "CW-BAD-ID"
    assert code(lambda: proposals.remove(proposal_id)) == "CW-BAD-ID"
