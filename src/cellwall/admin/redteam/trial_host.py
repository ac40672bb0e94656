"""The place of one run: the user's settings, with a state folder that is removed afterwards.

Every setting that protects is the user's own. Settings that name files, services or people of the
user are left out: an attack must not reach the user's log, vault, database, receivers or backups.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from platform import machine
from typing import Any

from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.scratch import scratch_folder
from cellwall.core.types import Principal
from cellwall.policy.lessons import quote_toml
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal
from cellwall.runtime.wiring import open_app
from cellwall.sandbox.files.descriptors import closing_fd

_ASK_WITHIN_S = 1.0
_PLACE, _PREFIX = "/var/tmp", "cellwall-redteam-"
_NEW_S = 60.0
_DROPPED_SECTIONS = frozenset({"alerts", "oidc", "storage", "retention", "observability"})
_DROPPED = {
    "audit": frozenset(
        {
            "signing_key",
            "witness_directory",
            "witness_command",
            "forward",
            "forward_ca_file",
            "forward_client_cert",
            "forward_client_key",
            "forward_bodies",
            "keep_days",
        }
    ),
    "accounts": frozenset({"key_file"}),
    "server": frozenset(
        {
            "host",
            "port",
            "public_url",
            "hosts",
            "origins",
            "trusted_proxies",
            "tls_certificate",
            "tls_key",
        }
    ),
    "vault": frozenset({"key", "key_file", "key_command"}),
    "approvals": frozenset({"key", "timeout_s"}),
}


@dataclass(frozen=True, slots=True)
class TrialHost:
    """A runtime with the user's settings in a folder of its own."""

    folder: str
    config: str
    environ: Mapping[str, str]
    app: App
    who: Principal = field(default_factory=lambda: local_principal("cli"))

    def write_policy(self, name: str, text: str) -> str:
        """A policy file beside the configuration."""
        path = os.path.join(os.path.dirname(self.config), name)
        with open(path, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
        return path

    def new_folder(self, name: str) -> str:
        """An empty folder that other users of the host can enter, as a cell must."""
        path = tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)
        os.chmod(path, 0o755)  # noqa: S103  # holds targets of attacks, no data of the user
        return path

    @contextmanager
    def changed(self, **sections: Mapping[str, Any]) -> Iterator[TrialHost]:
        """The same host, with other values in these sections of the configuration."""
        settings = changed_settings(self.app.settings, **sections)
        text = effective_toml(settings, vault_key=os.path.join(self.folder, "vault.key"))
        config = self.write_policy(f"changed-{secrets.token_hex(8)}.toml", text)
        app = open_app(config=config, environ={**self.environ, "CELLWALL_CONFIG": config})
        try:
            yield replace(self, app=app, config=config)
        finally:
            app.close()


def changed_settings(settings: Settings, **sections: Mapping[str, Any]) -> Settings:
    """Other values in these sections; they are checked when the settings are read again."""
    changes = {
        name: getattr(settings, name).model_copy(update=dict(values))
        for name, values in sections.items()
    }
    return settings.model_copy(update=changes)


@contextmanager
def trial_host(*, config: str | None, profile: str | None) -> Iterator[TrialHost]:
    """The runtime for the attacks of one run."""
    with trial_of(load_settings(file=config, profile=profile, environ=os.environ)) as host:
        yield host


@contextmanager
def trial_of(settings: Settings) -> Iterator[TrialHost]:
    """A runtime with these settings of the user."""
    remove_abandoned(_PLACE)
    with (
        scratch_folder(_PREFIX, below=_PLACE, ignore_cleanup_errors=True) as folder,
        closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.chmod(folder, 0o755)  # noqa: S103  # a cell of another uid enters folders below
        home = os.path.join(folder, "state")
        os.mkdir(home, 0o700)
        settings_folder = os.path.join(folder, "settings")  # no other folder is a policy's own
        os.mkdir(settings_folder, 0o700)
        path = os.path.join(settings_folder, "config.toml")
        with open(path, "x", encoding="utf-8", opener=_private) as file:
            file.write(effective_toml(settings, vault_key=os.path.join(folder, "vault.key")))
        environ = {**os.environ, "CELLWALL_HOME": home, "CELLWALL_CONFIG": path}
        app = open_app(config=path, environ=environ)
        try:
            yield TrialHost(folder, path, environ, app)
        finally:
            app.close()


def remove_abandoned(place: str) -> None:
    """Remove the folders of runs that were killed: each run holds a lock on its own."""
    for entry in os.scandir(place):
        with suppress(OSError):
            info = entry.stat(follow_symlinks=False)
            is_ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
            # A new run has not locked its folder yet.
            is_old = time.time() - info.st_mtime > _NEW_S
            if not (entry.name.startswith(_PREFIX) and is_ours and is_old):
                continue
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing_fd(os.open(entry.path, flags)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)


def effective_toml(settings: Settings, *, vault_key: str) -> str:
    """The settings of the user as a file, without what belongs to the user alone."""
    data = settings.model_dump(mode="json", exclude_none=True)
    kept = {
        name: _without(value, _DROPPED.get(name, frozenset()))
        for name, value in data.items()
        if name not in _DROPPED_SECTIONS
    }
    kept["vault"] = {"key": "file", "key_file": vault_key}
    kept["approvals"] |= {"timeout_s": _ASK_WITHIN_S}  # no person answers during an attack
    kept["server"] |= {"port": 0}
    kept["alerts"] = {"watch": "off"}
    return "".join(_table((), kept))


def _without(value: Any, names: frozenset[str]) -> Any:  # noqa: ANN401  # parsed settings
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if name not in names}


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(quote_toml(part) for part in path)}]\n"
    for name, value in table.items():
        if not isinstance(value, dict):
            yield f"{quote_toml(name)} = {_value(value)}\n"
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _table((*path, name), value)


def _value(value: Any) -> str:  # noqa: ANN401  # parsed settings
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return quote_toml(value)
        case list():
            return f"[{', '.join(_value(each) for each in value)}]"
        case dict():
            pairs = (f"{quote_toml(name)} = {_value(each)}" for name, each in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            raise TypeError(type(value).__name__)


@cache
def system_calls() -> Mapping[str, int]:
    """The numbers of all system calls on this machine, by name."""
    table = resources.files("cellwall.sandbox.linux").joinpath("syscall_numbers.toml")
    numbers: Mapping[str, int] = tomllib.loads(table.read_text("utf-8"))[machine()]
    return numbers


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
