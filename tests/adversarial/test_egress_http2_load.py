"""Little that costs the proxy much: bodies that unpack to much, heads that are refused, uploads that
nobody takes. What is counted is what it does, not how long that takes.
"""

from __future__ import annotations

import ssl
import struct
from collections import Counter
from collections.abc import Iterator
from queue import Queue

import pytest
import zstandard
from h2.settings import SettingCodes

from http2 import Client, ServerSide, serving, told
from unit.egress.loopback import WAIT_S, House, Known
from unit.egress.loopback import house as a_house
from unit.egress.proxy.test_h2_proxy import HOST, Outside, opened

pytestmark = pytest.mark.only_on("cold", reason="the proxy is one and the same on both")

ZSTD = (b"content-encoding", b"zstd")
CANCEL = 8


@pytest.fixture
def house() -> Iterator[House]:
    with a_house() as found:
        yield found


@pytest.fixture
def outside(house: House) -> Outside:
    return Outside(house)


def endless() -> bytes:
    """The beginning of a frame of zstd that makes its reader remember 8 MB of the same byte."""
    block = struct.pack("<I", 131_072 << 3 | 1 << 1)[:3] + b"A"
    return struct.pack("<I", 0xFD2FB528) + bytes([0, 13 << 3]) + block * 66


@pytest.mark.requirement("NET-2", "NET-5")
def test_bodies_that_unpack_to_much_are_few_at_a_time(house: House, outside: Outside) -> None:
    server = outside.server(serving())
    known = Known(PASSWORD=b"hunter2-correct-horse")
    rule = f"POST,GET {HOST}:{server.port}/v1"
    cell = house.cell(rule, upstream_tls=outside.trust, known=known)
    client = opened(house, cell, server.port)
    head = client.head("/v1", ZSTD, method="POST")
    good = zstandard.ZstdCompressor().compress(b"a body of no great size")
    assert client.answer(client.begin(head, good)).told["body"] == good.decode("latin-1")
    streams = [client.begin(head, endless(), is_end=False) for _ in range(100 - 1)]
    while sum(client.answers[stream].is_whole for stream in streams) < 95:
        client.read()
    answers = {stream: client.answers[stream] for stream in streams}
    refused = Counter(each.refusal for each in answers.values() if each.is_whole)
    assert refused.keys() == {(429, "CW-NET-LIMIT")}
    # Others are as they were, and so are its own bodies that are not packed.
    assert client.ask("/v1", method="POST", body=b"plain").status == 200
    for stream, answer in answers.items():
        if not answer.is_whole:
            client.h2.reset_stream(stream, CANCEL)
    client.flush()
    assert client.ask("/v1").status == 200
    assert client.answer(client.begin(head, good)).status == 200, "places are given back"


def asked_until_over(client: Client, path: str, most: int) -> int:
    """How many of these are answered, in groups, before the connection ends."""
    count = 0
    while count < most and not client.is_over and client.goodbye is None:
        streams = [client.begin(client.head(path)) for _ in range(20)]
        count += sum(client.answer(stream).is_whole for stream in streams)
    return count


@pytest.mark.requirement("NET-2")
def test_refusals_without_end_end_the_connection(house: House, outside: Outside) -> None:
    server = outside.server(serving())
    cell = house.cell(f"GET {HOST}:{server.port}/v1", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    assert asked_until_over(client, "/v1", 400) == 400
    assert 200 <= asked_until_over(client, "/v2", 4000) < 4000
    assert client.end() not in (None, 0)
    assert opened(house, cell, server.port).ask("/v1").status == 200


@pytest.mark.requirement("NET-2")
def test_upload_that_the_server_does_not_take_makes_its_client_wait(
    house: House, outside: Outside
) -> None:
    sides: Queue[ServerSide] = Queue()

    def talk(sock: ssl.SSLSocket) -> None:
        side = ServerSide(sock, told, [])
        side.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        sides.put(side)
        side.run()

    server = outside.server(talk)  # type: ignore[arg-type]  # with TLS
    cell = house.cell(f"GET,POST {HOST}:{server.port}/v1", upstream_tls=outside.trust)
    client = opened(house, cell, server.port)
    assert client.ask("/v1").status == 200  # by then both sides know each other's windows
    window = 65_535
    stream = client.begin(client.head("/v1/up", method="POST"), bytes(window), is_end=False)
    for _ in range(3):
        assert client.ask("/v1").status == 200
    # Some bytes may be held back by the search, and as much may come; no more.
    assert client.h2.local_flow_control_window(stream) < 4096
    side = sides.get(timeout=WAIT_S)
    side.h2.increment_flow_control_window(4 * window, 3)
    side.h2.increment_flow_control_window(4 * window)
    if data := side.h2.data_to_send():  # else its own thread has taken and sent the frames
        side.sock.sendall(data)
    client.more(stream, bytes(window), is_end=True)
    assert len(str(client.answer(stream).told["body"])) == 2 * window
