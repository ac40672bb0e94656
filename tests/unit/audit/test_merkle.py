"""The tree is that of RFC 6962 and 9162: known answers, a naive twin, and proofs that lie."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.audit.merkle import (
    EMPTY_ROOT,
    BadProof,
    Frontier,
    inclusion_path,
    leaf_hash,
    node_hash,
    root_by_inclusion,
)

# The vectors of certificate-transparency's own tests.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
A = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
B = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
C = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
D = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
E = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
INCLUSION = {
    (0, 1): [],
    (0, 8): [A, B, C],
    (5, 8): [D, E, ROOTS[4]],
    (2, 3): [ROOTS[2]],
    (1, 5): [ROOTS[1], B, D],
}
HASHES = [leaf_hash(each) for each in LEAVES]


def subtrees(hashes):
    return lambda start, end: naive_root(hashes[start:end])


def naive_root(hashes: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word by word."""
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return sha256(b"\x01" + naive_root(hashes[:k]) + naive_root(hashes[k:])).digest()


def naive_path(m: int, hashes: list[bytes]) -> list[bytes]:
    """RFC 6962, 2.1.1."""
    if len(hashes) == 1:
        return []
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    if m < k:
        return [*naive_path(m, hashes[:k]), naive_root(hashes[k:])]
    return [*naive_path(m - k, hashes[k:]), naive_root(hashes[:k])]


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_of_certificate_transparency(size):
    frontier = Frontier()
    for leaf in HASHES[:size]:
        frontier.push(leaf)
    assert frontier.root().hex() == ROOTS[size]
    assert EMPTY_ROOT.hex() == ROOTS[0]


@pytest.mark.parametrize(("place", "path"), INCLUSION.items())
def test_inclusion_proofs_are_those_of_certificate_transparency(place, path):
    index, size = place
    found = inclusion_path(index, size, subtrees(HASHES))
    assert [each.hex() for each in found] == path
    assert root_by_inclusion(HASHES[index], index, size, found).hex() == ROOTS[size]


leaves = st.lists(st.binary(max_size=8), min_size=1, max_size=70).map(
    lambda each: [leaf_hash(data) for data in each]
)


@given(leaves, st.data())
def test_frontier_is_the_naive_tree_and_goes_on_from_anywhere(hashes, data):
    split = data.draw(st.integers(0, len(hashes)))
    frontier = Frontier()
    for each in hashes[:split]:
        frontier.push(each)
    again = Frontier(frontier.size, frontier.hashes)
    other = frontier.copy()
    for each in hashes[split:]:
        again.push(each)
    assert (again.size, again.root()) == (len(hashes), naive_root(hashes))
    # A copy does not follow.
    assert (other.size, other.root()) == (split, naive_root(hashes[:split]))


@given(leaves, st.data())
def test_inclusion_proofs_are_the_naive_ones_and_prove_nothing_else(hashes, data):
    size = len(hashes)
    index = data.draw(st.integers(0, size - 1))
    path = inclusion_path(index, size, subtrees(hashes))
    root = naive_root(hashes)
    assert path == naive_path(index, hashes)
    assert root_by_inclusion(hashes[index], index, size, path) == root
    assert root_by_inclusion(leaf_hash(b"something else"), index, size, path) != root
    if path:
        at = data.draw(st.integers(0, len(path) - 1))
        wrong = [*path[:at], sha256(path[at]).digest(), *path[at + 1 :]]
        assert root_by_inclusion(hashes[index], index, size, wrong) != root
        with pytest.raises(BadProof, match="too short"):
            root_by_inclusion(hashes[index], index, size, path[:-1])
    with pytest.raises(BadProof, match="too long"):
        root_by_inclusion(hashes[index], index, size, [*path, root])


@given(st.lists(st.binary(max_size=8), min_size=2, max_size=40, unique=True), st.data())
def test_no_leaf_is_proven_at_the_place_of_another(datas, data):
    hashes = [leaf_hash(each) for each in datas]
    one, other = data.draw(
        st.lists(st.integers(0, len(hashes) - 1), min_size=2, max_size=2, unique=True)
    )
    path = inclusion_path(one, len(hashes), subtrees(hashes))
    try:
        assert root_by_inclusion(hashes[one], other, len(hashes), path) != naive_root(hashes)
    except BadProof:
        pass  # the path has not even the right length


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (0, 0), (1, 1), (8, 8)])
def test_leaf_outside_of_the_tree_has_no_proof(index, size):
    with pytest.raises(BadProof):
        inclusion_path(index, size, subtrees(HASHES))
    with pytest.raises(BadProof):
        root_by_inclusion(HASHES[0], index, size, [])


def test_leaf_cannot_be_passed_off_as_a_node():
    """The second preimage that RFC 6962 puts the prefixes against."""
    assert leaf_hash(HASHES[0] + HASHES[1]) != node_hash(HASHES[0], HASHES[1])


@pytest.mark.parametrize(
    ("size", "hashes"), [(-1, []), (3, HASHES[:1]), (1, []), (0, HASHES[:1]), (1, [b"short"])]
)
def test_subtrees_that_are_none_of_that_size_are_refused(size, hashes):
    with pytest.raises(ValueError, match="not"):
        Frontier(size, hashes)
