"""What probes of the blast radius look for: files, sockets and variables, made for them.

Each fact is checked outside first: what the host itself cannot reach would prove nothing inside.
Nothing of the user is opened, and what is made is removed.
"""

from __future__ import annotations

import http.server
import ipaddress
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError
from cellwall.core.types import Json
from cellwall.egress.destinations.allowlist import Allowlist, AllowRule, parse_rule

_VARIABLE = "CELLWALL_PROBE_OUTSIDE"
_NO_HOST = "192.0.2.1"
"""For documentation (RFC 5737): a route is looked up, and no packet is sent."""
_KNOWN_SECRETS = ("/etc/shadow", "/run/docker.sock", "/var/run/docker.sock", "/root/.ssh")
_NO_PACKAGE = "cellwall-probe-of-no-package"
_CONNECT_S = 5.0
_MAX_HOSTS = 8
_HTTPS = 443
PROTECTED = (".env", ".ssh/id_ed25519")


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """The facts that programs are given, and the reason why one is missing."""

    token: str
    facts: Mapping[str, Json]
    lacking: Mapping[str, str]


@contextmanager
def probe_facts(settings: Settings) -> Iterator[ProbeFacts]:
    """Makes everything that probes look for, and removes it at the end."""
    token = secrets.token_hex(12)
    with ExitStack() as stack:
        files = _make_files(stack, token)
        listeners = _listen(stack, token)
        os.environ[_VARIABLE] = token
        stack.callback(os.environ.pop, _VARIABLE, None)
        private, no_private = _private_targets(settings, listeners)
        hosts, no_hosts = _allowed_hosts(settings)
        registries, no_registries = _registry_pages(settings)
        facts: dict[str, Json] = {
            "token": token,
            "variable": _VARIABLE,
            "files": files,
            "command_line": Path("/proc/self/cmdline").read_bytes().hex(),
            "protected": list(PROTECTED),
            "listeners": [list(each) for each in listeners],
            "private": [list(each) for each in private],
            "hosts": hosts,
            "registries": registries,
            "elsewhere": _elsewhere(),
        }
        lacking = {
            "files": "no folder of the host could take a file",
            "private": no_private,
            "hosts": no_hosts,
            "registries": no_registries,
            "elsewhere": "this machine has no route and knows no name itself",
        }
        yield ProbeFacts(token, facts, lacking)


def _make_files(stack: ExitStack, token: str) -> list[Json]:
    found: list[Json] = []
    for folder in (
        os.path.expanduser("~"),
        os.environ.get("TMPDIR", "/tmp"),
        "/var/tmp",
        "/dev/shm",
    ):
        with suppress(OSError):
            prefix = f".cellwall-probe-{token}-"
            descriptor, path = tempfile.mkstemp(prefix=prefix, dir=folder)
            os.close(descriptor)
            stack.callback(Path(path).unlink, missing_ok=True)
            found.append(path)
    return [*found, *(path for path in _KNOWN_SECRETS if os.path.exists(path))]


def _listen(stack: ExitStack, token: str) -> list[tuple[str, int]]:
    """A server that answers with the token on each address, and an abstract socket."""
    abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
    abstract.bind(f"\0{token}")
    abstract.listen()
    found = []
    for address in dict.fromkeys(("127.0.0.1", *_own_addresses())):
        try:
            server = http.server.ThreadingHTTPServer((address, 0), _handler(token))
        except OSError:
            continue
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        if _connects(address, server.server_port):
            found.append((address, server.server_port))
    return found


def _handler(token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class TokenHandler(http.server.BaseHTTPRequestHandler):
        """Answers every GET with the token."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(token)))
            self.end_headers()
            self.wfile.write(token.encode())

        def log_message(self, *_: object) -> None:
            return

    return TokenHandler


def _own_addresses() -> list[str]:
    """The address by which this machine reaches others; none without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect((_NO_HOST, 9))
        except OSError:
            return []
        return [str(line.getsockname()[0])]


def _elsewhere() -> list[Json]:
    """Routes and names that this machine has, and a cell must not have."""
    found: list[Json] = [["address", _NO_HOST]] if _own_addresses() else []
    name = socket.gethostname()
    with suppress(OSError, UnicodeError):
        socket.getaddrinfo(name, 9)
        found.append(["name", name])
    return found


def _private_targets(
    settings: Settings, listeners: Sequence[tuple[str, int]]
) -> tuple[list[tuple[str, int]], str]:
    networks = [ipaddress.ip_network(each) for each in settings.egress.dangerously_allow_addresses]
    if not networks:
        return list(listeners), "this machine has no address of its own"
    inside = [
        (host, port)
        for host, port in listeners
        if any(ipaddress.ip_address(host) in network for network in networks)
    ]
    return inside, "no address of this machine lies in these networks, and others are not asked"


def _allowed_hosts(settings: Settings) -> tuple[list[Json], str]:
    """The allowed hosts that this machine reaches itself."""
    found: list[Json] = []
    for text in settings.egress.allow_domains[:_MAX_HOSTS]:
        with suppress(CellwallError):
            rule = parse_rule(text)
            if rule.is_wildcard:
                continue
            port = _HTTPS if _HTTPS in rule.ports else min(rule.ports)
            if _connects(rule.host, port):
                found.append(_request(rule, port))
    return found, "no rule names one host that this machine itself reaches"


def _request(rule: AllowRule, port: int) -> Json:
    safe = [each for each in ("HEAD", "GET") if not rule.methods or each in rule.methods]
    # Without a method that changes nothing, only the connection is made.
    return {
        "host": rule.host,
        "port": port,
        "method": safe[0] if safe else "OPTIONS",
        "path": rule.path,
        "is_tls": port == _HTTPS,
    }


def _authority(url: str) -> str:
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    return authority if ":" in authority else f"{authority}:{443 if scheme == 'https' else 80}"


def _registry_pages(settings: Settings) -> tuple[list[Json], str]:
    packages = settings.packages
    pages = {
        "pypi": f"{packages.pypi_url.rstrip('/')}/simple/{_NO_PACKAGE}/",
        "npm": f"{packages.npm_url.rstrip('/')}/{_NO_PACKAGE}",
    }
    found: list[Json] = []
    for name in packages.registries or tuple(pages):
        rule = parse_rule(_authority(pages[name]))
        # Without the filter, a registry may be one of the allowed hosts.
        is_other = not packages.registries and _is_allowed(settings, rule.host)
        if not is_other and _connects(rule.host, min(rule.ports)):
            found.append(pages[name])
    return found, "this machine itself does not reach the registry, or it is an allowed host"


def _is_allowed(settings: Settings, host: str) -> bool:
    try:
        return Allowlist.of(settings.egress.allow_domains).knows(host)
    except CellwallError:  # told where the configuration is used
        return False


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except (OSError, UnicodeError):
        return False
    return True
