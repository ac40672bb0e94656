"""What a peer may cost, what pays for it, and what becomes of each frame (NET-2)."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from cellwall.egress.protocols.h2_frames import (
    PREFACE,
    REFUSED_COST,
    RESPONSE_CREDIT,
    FrameCostBudget,
    FrameGate,
    GoAway,
    goaway,
)
from cellwall.egress.protocols.http1_framing import BadMessage
from http2 import frame

SETTINGS = frame(4, 0, 0)
MAX_FRAME_SIZE = b"\0\x05\0\0\x40\0"
PING = frame(6, 0, 0, bytes(8))
DATA = frame(0, 0, 1, b"data")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def gate(clock: Clock | None = None, *, is_client: bool = True) -> FrameGate:
    clock = clock or Clock()
    return begun(FrameCostBudget(clock), FrameCostBudget(clock), is_client=is_client)


def begun(
    frame_costs: FrameCostBudget, waste: FrameCostBudget, *, is_client: bool = True
) -> FrameGate:
    found = FrameGate(is_client=is_client, frame_costs=frame_costs, waste=waste)
    found.feed((PREFACE if is_client else b"") + SETTINGS)
    assert b"".join(taken(found)) == (PREFACE if is_client else b"") + SETTINGS
    return found


def taken(found: FrameGate) -> list[bytes]:
    return [piece for piece in found.take() if isinstance(piece, bytes)]


def is_borne(found: FrameGate, data: bytes) -> bool:
    found.feed(data)
    try:
        return b"".join(taken(found)) == data
    except BadMessage:
        return False


@pytest.mark.requirement("NET-2")
def test_flood_is_refused_and_forgotten_with_time_or_paid_with_data() -> None:
    assert not is_borne(gate(), PING * 2000)
    assert is_borne(gate(), PING * 500)
    # As clients of gRPC measure: one ping for each piece of data.
    assert is_borne(gate(), (PING + DATA) * 5000)
    clock = Clock()
    wait_while_moved = gate(clock)
    for _ in range(20):
        assert is_borne(wait_while_moved, PING * 500)
        clock.now_s += 10.0


@pytest.mark.requirement("NET-2")
def test_reset_of_a_client_costs_more_than_one_of_a_server() -> None:
    resets = frame(3, 0, 1, bytes(4)) * 500
    assert not is_borne(gate(is_client=True), resets)
    assert is_borne(gate(is_client=False), resets)


@pytest.mark.requirement("NET-2")
def test_resets_are_paid_by_answers_and_not_by_data() -> None:
    """CVE-2023-44487, with some bytes of data before each reset."""
    asked = frame(1, 4, 1, b"\x82") + frame(0, 0, 1, b"12345") * 5 + frame(3, 0, 1, bytes(4))
    assert is_borne(gate(), asked * 90)
    assert not is_borne(gate(), asked * 110)
    waste = FrameCostBudget(Clock())
    found = begun(FrameCostBudget(Clock()), waste)
    for _ in range(500):
        waste.credit(RESPONSE_CREDIT)
        assert is_borne(found, asked)


@pytest.mark.requirement("NET-2")
def test_heads_of_who_wastes_too_much_are_read_no_more() -> None:
    waste = FrameCostBudget(Clock())
    found = begun(FrameCostBudget(Clock()), waste)
    head = frame(1, 5, 1, b"\x82")
    refused = 0
    while is_borne(found, head) and refused < 1000:
        waste.charge(REFUSED_COST)
        refused += 1
    assert refused == 251


@pytest.mark.requirement("NET-2")
def test_each_head_is_handed_on_by_itself() -> None:
    found = gate()
    head, parts = frame(1, 5, 1, b"\x82"), frame(1, 1, 3, b"\x82") + frame(9, 4, 3, b"\x84")
    found.feed(DATA * 3 + head + parts + head + DATA * 2)
    assert taken(found) == [DATA * 3 + head, parts, head, DATA * 2]


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(("is_client", "most"), [(True, 128), (False, 256)])
def test_head_of_too_many_fields_is_not_unpacked(is_client: bool, most: int) -> None:
    def head(count: int) -> bytes:
        block = b"\x82" * (count - 1)
        padded = frame(1, 8 | 0x20, 1, b"\x03" + bytes(5) + block + bytes(3))
        return padded + frame(9, 4, 1, b"\x84")

    assert is_borne(gate(is_client=is_client), head(most) * 3)
    assert not is_borne(gate(is_client=is_client), head(most + 1))


def test_goodbye_is_kept_and_what_says_nothing_is_dropped() -> None:
    found = gate()
    dropped = frame(2, 0, 1, bytes(5)), frame(0x0A, 0, 0, b"\0\0x"), frame(0x42, 0, 0)
    found.feed(DATA + b"".join(dropped) + PING + goaway(7, 2) + DATA)
    pieces = [piece for piece in found.take() if piece]
    assert pieces == [DATA, PING, GoAway(7, 2), DATA]


@pytest.mark.parametrize("step", [1, 5, 9, 10, 100])
def test_frames_are_the_same_however_they_are_cut(step: int) -> None:
    data = PREFACE + SETTINGS + frame(1, 5, 1, b"head") + DATA * 3 + PING
    found = FrameGate(
        is_client=True, frame_costs=FrameCostBudget(Clock()), waste=FrameCostBudget(Clock())
    )
    passed = b""
    for start in range(0, len(data), step):
        found.feed(data[start : start + step])
        passed += b"".join(taken(found))
    assert passed == data


def test_head_that_has_begun_is_known() -> None:
    found = gate()
    head = frame(1, 0, 1, b"head"), frame(9, 4, 1, b"more")
    found.feed(head[0][:6])
    assert (taken(found), found.is_in_head) == ([], True)
    found.feed(head[0][6:])
    assert (taken(found), found.is_in_head) == ([head[0]], True)
    found.feed(head[1])
    assert (taken(found), found.is_in_head) == ([head[1]], False)


@pytest.mark.requirement("NET-2", "LIM-6")
def test_settings_that_nobody_knows_are_not_kept() -> None:
    """h2 keeps each of 65,536, with 1 KB for each, and looks through all at every SETTINGS frame."""
    server = H2Connection(H2Configuration(client_side=False))
    plain = H2Connection(H2Configuration(client_side=False))
    found = gate()
    for data in (PREFACE, SETTINGS):
        server.receive_data(data)
        plain.receive_data(data)
    usual = len(server.remote_settings)
    for first in range(9, 1000, 20):
        unknown = [number.to_bytes(2, "big") + bytes(4) for number in range(first, first + 20)]
        sent = frame(4, 0, 0, b"".join([*unknown[:7], MAX_FRAME_SIZE, *unknown[7:]]))
        found.feed(sent + DATA * 5)
        pieces = b"".join(taken(found))
        assert pieces == frame(4, 0, 0, MAX_FRAME_SIZE) + DATA * 5
        server.receive_data(pieces[: -5 * len(DATA)])
        plain.receive_data(sent)
    assert len(server.remote_settings) == usual
    assert len(plain.remote_settings) > 900, "without the gate all of them are kept"


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("body", [b"", MAX_FRAME_SIZE, MAX_FRAME_SIZE * 2, b"\0\x63\0"])
def test_settings_that_are_known_or_broken_stay_as_they_are(body: bytes) -> None:
    assert is_borne(gate(), frame(4, 0, 0, body))
