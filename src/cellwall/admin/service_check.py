"""What `cellwall serve` needs on this host: `doctor --service` (SRV-1).

`gather_service` reads the host, `judge_service` decides; `judge_service` is pure, so that tests
cover hosts that we do not have.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
from dataclasses import dataclass

from cellwall.admin.database import storage_settings
from cellwall.admin.tls_files import TlsFiles
from cellwall.config.models import Settings
from cellwall.config.server_section import is_loopback
from cellwall.core.errors import CellwallError
from cellwall.core.home import state_path
from cellwall.sandbox.doctor import HostCheck
from cellwall.sandbox.linux.cgroups import NEEDED
from cellwall.sandbox.linux.layers import HostLayers
from cellwall.storage import inspection

NO_DATABASE = "there is no database yet"
_EXPIRY_DAYS = 14
_LINGER = "/var/lib/systemd/linger"
_PUBLIC = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """The input of `judge_service`; tests write it by hand."""

    euid: int
    user: str
    cgroup_way: str
    cgroup_problem: str
    delegated: frozenset[str] | None
    """Controllers that systemd gives to this user's manager; None: it is not running."""
    has_systemd: bool
    lingers: bool
    home_problem: str
    database_problems: tuple[str, ...]
    is_exposed: bool
    """Whether the configured address is reachable from other machines."""
    allows_no_tls: bool
    tls_problem: tuple[str, str] | None
    """Message and hint."""
    tls_days_left: float | None
    port: int
    port_state: str
    """`free`, `used` or `ours`."""


def gather_service(settings: Settings, *, service: str | None) -> ServiceFacts:
    """Read the facts; `service` is the address of a running one, if there is one."""
    cgroup = HostLayers.detect().cgroup
    euid = os.geteuid()
    user = _user_name(euid)
    problem, days = _read_tls(settings)
    server = settings.server
    return ServiceFacts(
        euid=euid,
        user=user,
        cgroup_way=cgroup.way,
        cgroup_problem=cgroup.reason,
        delegated=_delegated(euid),
        has_systemd=os.path.isdir("/run/systemd/system"),
        lingers=os.path.exists(os.path.join(_LINGER, user)),
        home_problem=_check_home(),
        database_problems=_check_database(settings),
        is_exposed=not is_loopback(server.host),
        allows_no_tls=server.dangerously_without_tls,
        tls_problem=problem,
        tls_days_left=days,
        port=server.port,
        port_state="ours" if service else _try_port(server.host, server.port),
    )


def judge_service(facts: ServiceFacts, *, is_production: bool = False) -> tuple[HostCheck, ...]:
    """Decide for each need of the service. In production, root and an unencrypted network are
    errors, although a `dangerously_` option allows them."""
    return (
        _account(facts, is_production=is_production),
        _delegation(facts),
        *_linger(facts),
        _home(facts),
        _database(facts),
        _tls(facts, is_production=is_production),
        _port(facts),
    )


def _account(facts: ServiceFacts, *, is_production: bool) -> HostCheck:
    why = "a hole in a service that runs as root is one in the whole machine"
    if facts.euid != 0:
        return HostCheck("service account", "ok", facts.user, why)
    hint = "Run the service as an ordinary user; see docs/guides/serve.md."
    if is_production:
        return HostCheck("service account", "missing", "root", why, hint)
    return HostCheck("service account", "weak", "root", why, hint, required=False)


def _delegation(facts: ServiceFacts) -> HostCheck:
    name, why = "cgroup delegation", "limits of memory, processes and CPU are enforced by cgroups"
    if facts.cgroup_way in {"v2-root", "v1-root"}:
        return HostCheck(name, "ok", "root needs none", why)
    if facts.cgroup_way == "none" or facts.delegated is None:
        found = facts.cgroup_problem or "the user's systemd manager is not running"
        hint = f"Run `loginctl enable-linger {facts.user}` as root, and log in again."
        return HostCheck(name, "missing", found, why, hint)
    lacking = ", ".join(sorted(NEEDED - facts.delegated))
    if lacking:
        hint = (
            "As root, put the two lines [Service] and Delegate=cpu io memory pids into "
            "/etc/systemd/system/user@.service.d/delegate.conf, then restart the machine."
        )
        found = f"systemd does not delegate to users: {lacking}"
        return HostCheck(name, "missing", found, why, hint)
    return HostCheck(name, "ok", ", ".join(sorted(facts.delegated)), why)


def _linger(facts: ServiceFacts) -> tuple[HostCheck, ...]:
    if facts.euid == 0 or not facts.has_systemd:
        return ()
    why = "without lingering, systemd ends the service and its cgroups when the user logs out"
    if facts.lingers:
        return (HostCheck("lingering", "ok", "enabled", why),)
    hint = f"Run `loginctl enable-linger {facts.user}`."
    return (HostCheck("lingering", "weak", "not enabled", why, hint, required=False),)


def _home(facts: ServiceFacts) -> HostCheck:
    why = "it holds keys, accounts and the audit log"
    if not facts.home_problem:
        return HostCheck("state folder", "ok", "private and writable", why)
    hint = "Make it a folder of this user with mode 0700, or set CELLWALL_HOME to another one."
    return HostCheck("state folder", "missing", facts.home_problem, why, hint)


def _database(facts: ServiceFacts) -> HostCheck:
    why = "accounts and sessions are kept there"
    if not facts.database_problems:
        return HostCheck("database", "ok", "intact", why)
    found = "; ".join(facts.database_problems)
    if found == NO_DATABASE:
        return HostCheck("database", "info", "created by the first start", why, required=False)
    hint = "Run `cellwall db check`; make a backup before `cellwall db migrate`."
    return HostCheck("database", "missing", found, why, hint)


def _tls(facts: ServiceFacts, *, is_production: bool) -> HostCheck:
    name, why = "TLS", "passwords and tokens must not cross a network readable"
    if facts.tls_problem is not None:
        return HostCheck(name, "missing", facts.tls_problem[0], why, facts.tls_problem[1])
    days = facts.tls_days_left
    if days is None:
        if not facts.is_exposed:
            return HostCheck(name, "ok", "not needed on loopback", why)
        hint = "Set tls_certificate and tls_key in [server], or host to 127.0.0.1."
        found = "no certificate, beyond loopback"
        if facts.allows_no_tls and not is_production:
            return HostCheck(name, "weak", found, why, hint, required=False)
        return HostCheck(name, "missing", found, why, hint)
    if days <= 0:
        hint = "Renew the certificate; the service reads the new one by itself."
        return HostCheck(name, "missing", "the certificate has expired", why, hint)
    if days < _EXPIRY_DAYS:
        hint = "Renew the certificate; the service reads the new one by itself."
        found = f"the certificate expires in {days:.0f} days"
        return HostCheck(name, "weak", found, why, hint, required=False)
    return HostCheck(name, "ok", f"the certificate is valid for {days:.0f} days", why)


def _port(facts: ServiceFacts) -> HostCheck:
    name, why = "port", "the service listens there"
    if facts.port_state == "ours":
        return HostCheck(name, "ok", "the service is running", why)
    if facts.port_state == "free":
        return HostCheck(name, "ok", f"{facts.port} is free" if facts.port else "any", why)
    hint = "Choose another port in [server]; below 1024 use a socket unit of systemd."
    return HostCheck(name, "missing", f"{facts.port}: {facts.port_state}", why, hint)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _delegated(euid: int) -> frozenset[str] | None:
    place = f"/sys/fs/cgroup/user.slice/user-{euid}.slice/user@{euid}.service/cgroup.controllers"
    try:
        with open(place, encoding="ascii") as file:
            return frozenset(file.read(4096).split())
    except OSError:
        return None


def _check_home() -> str:
    """The first that exists of the state folder and the folders above it."""
    home = path = os.path.abspath(state_path(os.environ))
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    try:
        info = os.stat(path)
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    if path == home and (info.st_uid != os.geteuid() or info.st_mode & _PUBLIC):
        return "open to other users"
    return "" if os.access(path, os.W_OK | os.X_OK) else "not writable"


def _check_database(settings: Settings) -> tuple[str, ...]:
    home = os.path.realpath(state_path(os.environ))
    try:
        return inspection.check(storage_settings(home, settings)).problems
    except CellwallError as error:
        return (error.message,)


def _read_tls(settings: Settings) -> tuple[tuple[str, str] | None, float | None]:
    server = settings.server
    if server.tls_certificate is None or server.tls_key is None:
        return None, None
    files = TlsFiles(server.tls_certificate, server.tls_key)
    try:
        files.make_context()
        return None, files.read_facts().days_left()
    except CellwallError as error:
        return (error.message, error.hint), None


def _try_port(host: str, port: int) -> str:
    address = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "another program listens there"
        return os.strerror(error.errno) if error.errno else "it cannot be opened"
    return "free"
