"""Egress to public addresses, in a small Internet of two network namespaces.

In one of them is Cellwall, as on any host: no setting takes a wall away. In the other are servers on
a public and on a private address, both of which the first can reach (the controls), and a DNS server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from conftest import need

pytestmark = pytest.mark.only_on("cold", reason="the addresses are judged outside of all cells")

PUBLIC = "1.2.3.4"

# Runs in the namespace of the servers.
_SERVERS = """
import functools, http.server, ssl, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from outside import Outside, _answer_names, _Reflecting, _Server
import socket
folder = Path(sys.argv[1])
world = Outside(folder, None)
world.names = {
    "public.example": ["1.2.3.4"], "private.example": ["10.11.12.13"], "own.example": ["1.2.3.1"],
    "mixed.example": ["1.2.3.4", "10.11.12.13"],
}
for address in ("1.2.3.4", "10.11.12.13"):
    for port in (80, 443):
        server = _Server((address, port), functools.partial(_Reflecting, seen=[], reply=None))
        if port == 443:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem")
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("1.2.3.4", 53))
print("up", flush=True)
_answer_names(line, world)
"""

# Runs in the namespace of Cellwall, with the servers' process as its argument.
_HOST = """
import json, os, socket, subprocess, sys
import cellwall
servers, folder = int(sys.argv[1]), sys.argv[2]
def ip(*words, inside=False):
    enter = ["nsenter", "-t", str(servers), "-n"] if inside else []
    subprocess.run([*enter, "ip", *words], check=True)
ip("link", "set", "lo", "up")
ip("link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(servers))
for name, inside, addresses in (("here", False, ["1.2.3.1/24", "10.11.12.1/24"]),
                                ("there", True, ["1.2.3.4/24", "10.11.12.13/24"])):
    for address in addresses:
        ip("addr", "add", address, "dev", name, inside=inside)
    ip("link", "set", name, "up", inside=inside)
print("linked", flush=True)
sys.stdin.readline()
def reached(address, port):
    try:
        with socket.create_connection((address, port), 10):
            return True
    except OSError:
        return False
found = {"controls": [reached(address, port) for address in ("1.2.3.4", "10.11.12.13") for port in (80, 443)]}
CODE = '''
import json, ssl, urllib.request
def get(url):
    try:
        context = ssl.create_default_context(cadata=%r)
        with urllib.request.urlopen(url, timeout=20, context=context) as answer:
            return answer.read().decode()
    except OSError as error:
        headers = getattr(error, "headers", None)
        return headers.get("X-Cellwall-Refused") if headers else str(error)
[get(url) for url in json.loads(%r)]
'''
urls = ["http://public.example/", "https://public.example/", "http://private.example/", "http://own.example/",
        "http://mixed.example/", "http://10.11.12.13/", "http://other.example/"]
names = ["public.example", "private.example", "own.example", "mixed.example", "10.11.12.13"]
code = CODE % (open(f"{folder}/ca.pem").read(), json.dumps(urls))
ran = cellwall.run_code(code, allow_domains=names, config=f"{folder}/cellwall.toml")
found["answers"] = ran.value
found["error"] = ran.outcome.error and ran.outcome.error.message
print(json.dumps(found))
"""


@pytest.mark.requirement("NET-2", "NET-3", "NET-6")
def test_public_addresses_are_reached_and_private_ones_of_the_same_link_are_not(
    tmp_path: Path, state_home: str
) -> None:
    need(os.geteuid() == 0, "root, for network namespaces of the test's own")
    need(shutil.which("ip") and shutil.which("nsenter"), "iproute2 and nsenter")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("public.example", "private.example")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "cellwall.toml").write_text(f'[egress]\ndns_servers = ["{PUBLIC}:53"]\n')
    tests = str(Path(__file__).parents[1])
    alone = ["unshare", "-n", "--", sys.executable, "-c"]
    waits = [*alone, f"import sys; sys.stdin.readline(); exec({_SERVERS!r})", str(tmp_path), tests]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(waits, **pipes) as servers,
        subprocess.Popen([*alone, _HOST, str(servers.pid), str(tmp_path)], **pipes) as host,
    ):
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "linked\n"
            assert servers.stdin is not None
            assert servers.stdout is not None
            servers.stdin.write("go\n")
            servers.stdin.flush()
            assert servers.stdout.readline() == "up\n"
            told, _ = host.communicate("go\n", timeout=90)
        finally:
            servers.kill()
            host.kill()
    found = json.loads(told)
    assert found["controls"] == [True] * 4
    assert found["error"] is None
    assert found["answers"] == [
        "hello from outside\n",
        "hello from outside\n",
        *["CW-ADDRESS"] * 4,
        "CW-NOT-ALLOWED",
    ]
