"""A real service on a loopback port: uvicorn in a thread, real accounts, a real database."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
import uvicorn
from fastapi import FastAPI

from cellwall.admin.accounts import Accounts, open_accounts
from cellwall.admin.database import storage_settings
from cellwall.core.telemetry import Lifetime
from cellwall.core.types import ROLE_NAMES, Principal
from cellwall.interfaces.http.application import ServiceSettings, make_application
from cellwall.interfaces.http.bounded_websocket import BoundedWebSocket
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from cellwall.storage.engine import StorageSettings, blocking_engine
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store
from plain_http import NO_AUTHORITIES

DEADLINE_S = 60.0
ROOT = Principal("root", "cli")
PASSWORD = "correct horse battery"
# A hash in a millisecond; no test here is about its parameters.
CONFIG = "[accounts]\nargon2_memory_kib = 64\nargon2_passes = 1\n"
UNANSWERED = "[approvals]\ntimeout_s = 1.0\n"
Result = TypeVar("Result")


@dataclass
class RunningService:
    """A started service, and how tests reach it."""

    home: Path
    url: str
    app: App
    settings: ServiceSettings
    accounts: Accounts = field(init=False)
    store: Store = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)
    server: uvicorn.Server = field(init=False)
    api: FastAPI = field(init=False)
    tokens: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run on the service's own event loop, to which its database belongs."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def add_user(self, name: str, role: str = "user") -> str:
        """A user with a token of all that the role permits; returns the token."""
        directory = self.accounts.directory
        user = self.call(directory.add_user(name, role=role, by=ROOT))
        secret, _ = self.call(
            directory.create_token(user.id, name="test", scopes=(), lives_s=3600, by=ROOT)
        )
        self.ids[name], self.tokens[name] = user.id, secret
        return secret

    def set_password(self, name: str, password: str = PASSWORD) -> None:
        link = self.call(self.accounts.sign_in.make_link(self.ids[name], by=ROOT))
        sign_in = self.accounts.sign_in.by_link
        self.call(sign_in(link, password, address="192.0.2.1", audience=self.settings.audience))

    def client(self, name: str | None = None, **options: Any) -> httpx.Client:
        """A client of a user; one for each role exists from the start. None: without a token."""
        headers = dict(options.pop("headers", {}))
        if name is not None:
            headers["Authorization"] = f"Bearer {self.tokens[name]}"
        options = {"verify": NO_AUTHORITIES, "trust_env": False, **options}
        return httpx.Client(base_url=self.url, headers=headers, timeout=DEADLINE_S, **options)


@functools.cache
def empty_database() -> bytes:
    """A SQLite file with the newest schema: to migrate for each service would take a second."""
    with tempfile.TemporaryDirectory() as folder:
        made = StorageSettings(home=folder)
        migrate(made)
        engine = blocking_engine(made)
        with engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.exec_driver_sql("BEGIN")
        engine.dispose()
        return Path(made.path).read_bytes()


def put_database(settings: StorageSettings) -> None:
    if not settings.is_sqlite:
        migrate(settings)
        return
    place = Path(settings.path)
    if not place.exists():
        place.write_bytes(empty_database())
        place.chmod(0o600)


def new_session(client: httpx.Client, **body: Any) -> str:
    made = client.post("/v1/sessions", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


@dataclass(frozen=True)
class ReadEvent:
    """One server-sent event."""

    id: int
    name: str
    data: Any


def read_events(response: httpx.Response) -> list[ReadEvent]:
    """All events until the end of the stream."""
    found = []
    for part in "".join(response.iter_text()).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append(ReadEvent(int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


@contextmanager
def running_service(
    home: Path, *, config: str = "", may_exist: bool = False, port: int = 0, **changes: Any
) -> Iterator[RunningService]:
    """Start a service; its sandboxes end with the block. `may_exist`: its users are there."""
    home.chmod(0o700)
    file = home / "cellwall.toml"
    file.write_text(CONFIG + (config or UNANSWERED))
    environ = {**os.environ, "CELLWALL_HOME": str(home)}
    app = wiring.open_app(config=str(file), environ=environ, lifetime=Lifetime.SERVICE)
    put_database(storage_settings(str(home), app.settings))
    listener = socket.create_server(("127.0.0.1", port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as in `open_listening`
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = replace(ServiceSettings(hosts=("127.0.0.1", "localhost"), public_url=url), **changes)
    service = RunningService(home, url, app, settings)
    started = threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        service.loop = asyncio.get_running_loop()
        opened = open_accounts(str(home), app.settings, issuer=url, audit=app.audit)
        async with opened as (service.accounts, service.store):
            service.api = api = make_application(
                app, service.accounts, settings, store=service.store
            )
            options = uvicorn.Config(
                api,
                log_level=os.environ.get("HTTP_TEST_LOG", "critical"),
                ws=BoundedWebSocket,
                timeout_graceful_shutdown=30,
                proxy_headers=False,  # as in `ServiceProcess`: uvicorn would believe any client
            )
            service.server = uvicorn.Server(options)
            started.set()
            await service.server.serve(sockets=[listener])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="service")
    thread.start()
    try:
        assert started.wait(DEADLINE_S)
        assert not failures, failures
        with service.client() as client:  # the listener queues it until the application is up
            client.get("/healthz").raise_for_status()
        for role in ROLE_NAMES if not may_exist else ():
            service.add_user(role, role)
        yield service
    finally:
        if hasattr(service, "server"):
            if (state := getattr(service.api.state, "service", None)) is not None:
                state.live.is_draining = True  # as by a signal, see `ServiceProcess`
            service.server.should_exit = True
        thread.join(DEADLINE_S)
        app.close()
    assert not thread.is_alive()
    assert not failures, failures
