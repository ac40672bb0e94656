"""A proof of consistency holds for a continuation and for nothing else (AUD-2)."""

from __future__ import annotations

import os

import pytest

from cellwall.audit.consistency import CheckpointOffer, check_consistency, consistency_path
from cellwall.audit.merkle import BadProof, Frontier, leaf_hash

pytestmark = pytest.mark.requirement("AUD-2")
_MOST = 40


def tree(leaves: list[bytes]) -> Frontier:
    found = Frontier()
    for each in leaves:
        found.push(each)
    return found


LEAVES = [leaf_hash(str(number).encode()) for number in range(_MOST)]


def test_every_pair_of_sizes_has_a_proof():
    for new in range(_MOST + 1):
        for old in range(new + 1):
            before, after = tree(LEAVES[:old]), tree(LEAVES[:new])
            path = consistency_path(before, LEAVES[old:new])
            check_consistency(old, before.root(), new, after.root(), path)


def test_a_rewritten_record_has_no_proof():
    """Whoever rewrites an old record has to show the old root, which the new tree does not have."""
    for new in range(2, _MOST):
        for old in range(1, new):
            changed = [*LEAVES[: old - 1], leaf_hash(b"another"), *LEAVES[old:new]]
            honest, forged = tree(LEAVES[:old]), tree(changed)
            for path in (
                consistency_path(honest, LEAVES[old:new]),
                consistency_path(tree(changed[:old]), changed[old:new]),
            ):
                with pytest.raises(BadProof):
                    check_consistency(old, honest.root(), new, forged.root(), path)


def test_a_changed_shortened_or_prolonged_proof_is_refused():
    before, after = tree(LEAVES[:11]), tree(LEAVES[:29])
    path = consistency_path(before, LEAVES[11:29])
    roots = (11, before.root(), 29, after.root())
    check_consistency(*roots, path)
    for bad in ([], path[1:], path[:-1], [*path, path[0]], path[::-1], [os.urandom(32), *path[1:]]):
        with pytest.raises(BadProof):
            check_consistency(*roots, bad)
    for wrong in (
        (29, after.root(), 11, before.root()),
        (11, before.root(), 11, after.root()),
        (-1, before.root(), 11, after.root()),
    ):
        with pytest.raises(BadProof):
            check_consistency(*wrong, [])


def test_an_offer_is_read_as_it_was_written_and_malformed_ones_are_refused():
    offer = CheckpointOffer(11, tuple(LEAVES[:3]), b"origin\n12\nx\n\n\xe2\x80\x94 name c2ln\n")
    assert CheckpointOffer.parse(offer.text()) == offer
    assert CheckpointOffer.parse(CheckpointOffer(0, (), offer.note).text()).path == ()
    for text in ("", "old 1", "old x\n\nnote", "1\n\nnote", "old 1\nAAAA\n\nnote", "old -1\n\nn"):
        with pytest.raises(BadProof):
            CheckpointOffer.parse(text)
