"""The service: sessions from any loop, live ones that stay, ends that end, and forks."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from dataclasses import replace

import pytest

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.core.network import Page
from cellwall.core.ports import EgressPort
from cellwall.core.types import FetchUrl
from cellwall.egress.proxy.cell_network import ProxyNetwork
from cellwall.egress.service import EgressService
from unit.egress.loopback import (
    WAIT_S,
    Cell,
    House,
    action,
    answer,
    echo,
    everything,
    refusal_of,
    request_of,
)
from unit.egress.proxy.test_listeners import connect_to

SESSION = "ses_0123456789abcdefghjk"


def with_network(
    service: EgressService, *domains: str, session_id: str | None = None
) -> ProxyNetwork:
    """A session as the runtime gets it, from a loop that is gone right after."""

    async def once() -> ProxyNetwork:
        async with service.session(action(*domains, session_id=session_id), ()) as network:
            assert isinstance(network, ProxyNetwork)
            return network

    return asyncio.run(once())


def fetch(service: EgressPort, url: str, *domains: str) -> Page:
    async def once() -> Page:
        return await service.fetch(replace(action(*domains), operation=FetchUrl(url)), ())

    return asyncio.run(once())


@pytest.mark.requirement("NET-4")
def test_page_is_fetched_by_the_same_rules_and_is_on_record(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        request_of(sock)
        sock.sendall(answer(b"hello", extra=b"Content-Type: text/plain\r\n"))

    server = house.server(talk, "api.example.com")
    service = house.service()
    url = f"http://api.example.com:{server.port}/"
    page = fetch(service, url, f"api.example.com:{server.port}")
    assert (page.status, page.text) == (200, "hello")
    with pytest.raises(EgressRefused):
        fetch(service, url, "b.example.com")
    events = [body["event"] for body in house.record.bodies]
    assert events == ["opened", "closed", "refused"]
    service.close()
    with pytest.raises(EgressRefused, match="CW-EGRESS-CLOSED"):
        fetch(service, url, f"api.example.com:{server.port}")


def test_environment_names_the_proxy_in_every_spelling_that_tools_read(house: House) -> None:
    env = house.cell("api.example.com").network.env
    proxy = "http://127.0.0.1:3128"
    assert env == {
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"), proxy),
        **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"), proxy),
        **dict.fromkeys(("npm_config_proxy", "npm_config_https_proxy"), proxy),
        **dict.fromkeys(("NO_PROXY", "no_proxy", "npm_config_noproxy"), "localhost,127.0.0.1,::1"),
        "NODE_USE_ENV_PROXY": "1",
    }


def test_session_ends_with_its_action_and_takes_its_connections_along(house: House) -> None:
    server = house.server(echo, "api.example.com")
    service = house.service()

    async def run() -> socket.socket:
        async with service.session(action(f"api.example.com:{server.port}"), ()) as network:
            assert isinstance(network, ProxyNetwork)
            cell = Cell(network, house.record, service)
            return await asyncio.to_thread(cell.tunnel, "api.example.com", server.port)

    sock = asyncio.run(run())
    with sock, pytest.raises(ConnectionResetError):
        everything(sock)
    # On record before the action's own outcome is.
    assert [body["event"] for body in house.record.bodies] == ["opened", "closed"]


def test_sessions_from_several_loops_at_once_are_apart(house: House) -> None:
    server = house.server(echo, "a.example.com", "b.example.com")
    service = house.service()
    answers: dict[str, list[bytes]] = {}
    both = threading.Barrier(2, timeout=WAIT_S)

    async def run(mine: str, other: str) -> None:
        async with service.session(action(f"{mine}:{server.port}"), ()) as network:
            assert isinstance(network, ProxyNetwork)
            cell = Cell(network, house.record, service)
            both.wait()
            tunnel = await asyncio.to_thread(cell.tunnel, mine, server.port)
            tunnel.close()
            answers[mine] = [await asyncio.to_thread(cell.ask, connect_to(other, server.port))]
            both.wait()

    names = ("a.example.com", "b.example.com")
    threads = [
        threading.Thread(target=lambda pair=pair: asyncio.run(run(*pair)))
        for pair in (names, names[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [refusal_of(answers[name][0]) for name in names] == [(403, "CW-NOT-ALLOWED")] * 2


@pytest.mark.requirement("NET-2")
def test_live_sandbox_keeps_its_egress_until_it_ends(house: House) -> None:
    server = house.server(echo, "api.example.com")
    service = house.service()
    rule = f"api.example.com:{server.port}"
    network = with_network(service, rule, session_id=SESSION)
    assert with_network(service, rule, session_id=SESSION) is network
    cell = Cell(network, house.record, service)
    sock = cell.tunnel("api.example.com", server.port)
    assert house.record.travellers[-1].session_id == SESSION
    service.end_session(SESSION)
    with sock, pytest.raises(ConnectionResetError):
        everything(sock)
    service.end_session(SESSION)
    assert with_network(service, rule, session_id=SESSION) is not network


@pytest.mark.requirement("NET-2")
def test_allowlist_of_a_live_sandbox_changes_from_the_next_connection_on(house: House) -> None:
    server = house.server(echo, "a.example.com", "b.example.com")
    service = house.service()
    network = with_network(service, f"a.example.com:{server.port}", session_id=SESSION)
    cell = Cell(network, house.record, service)
    with cell.tunnel("a.example.com", server.port) as old:
        refused = cell.ask(connect_to("b.example.com", server.port))
        assert refusal_of(refused) == (403, "CW-NOT-ALLOWED")
        service.allow(SESSION, [f"b.example.com:{server.port}"])
        cell.tunnel("b.example.com", server.port).close()
        refused = cell.ask(connect_to("a.example.com", server.port))
        assert refusal_of(refused) == (403, "CW-NOT-ALLOWED")
        old.sendall(b"x")
        assert old.recv(1) == b"x"
    with pytest.raises(BadInput):
        service.allow(SESSION, ["*.com"])
    with pytest.raises(EgressRefused, match="CW-NO-SESSION"):
        service.allow("ses_00000000000000000000", ["a.example.com"])


def test_bad_rule_makes_no_session(house: House) -> None:
    with pytest.raises(BadInput, match="CW-BAD-DOMAIN"):
        with_network(house.service(), "*")


def test_closed_service_has_no_thread_and_makes_no_session(house: House) -> None:
    before = set(threading.enumerate())
    service = house.service()
    network = with_network(service, "api.example.com", session_id=SESSION)
    assert "cellwall-egress" in {each.name for each in set(threading.enumerate()) - before}
    service.close()
    service.close()
    left = {each.name for each in set(threading.enumerate()) - before}
    assert not [name for name in left if name.startswith("cellwall-egress")]
    with pytest.raises(EgressRefused, match="CW-EGRESS-CLOSED"):
        with_network(service, "api.example.com")
    # What a cell hands over too late is closed, not served.
    listener = socket.create_server(("127.0.0.1", 0))
    network.adopt({"proxy": listener})
    assert listener.fileno() == -1


@pytest.mark.requirement("NET-2")
@pytest.mark.slow
def test_forked_process_has_egress_of_its_own(house: House) -> None:
    server = house.server(echo, "api.example.com")
    service = house.service()
    rule = f"api.example.com:{server.port}"
    parent = Cell(with_network(service, rule, session_id=SESSION), house.record, service)
    child = os.fork()
    if child == 0:
        # Nothing of pytest's may run on in here.
        status = 1
        try:
            network = with_network(service, rule, session_id=SESSION)
            if network is not parent.network:
                tunnel = Cell(network, house.record, service).tunnel("api.example.com", server.port)
                tunnel.sendall(b"x")
                status = 0 if tunnel.recv(1) == b"x" else 2
            service.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with parent.tunnel("api.example.com", server.port) as sock:
        sock.sendall(b"y")
        assert sock.recv(1) == b"y"
