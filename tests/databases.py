"""Databases for tests: a fresh SQLite file, and a real PostgreSQL that the tests start themselves.

`settings` is both, one after the other; a test that uses it runs on each. PostgreSQL is Debian's,
run as an unprivileged user in a folder of its own, reachable by a socket in that folder alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import anyio
import pytest
import sqlalchemy

from cellwall.storage.engine import StorageSettings, blocking_engine
from cellwall.storage.models import StateRow
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store, open_store
from cellwall.storage.tables import TABLES
from conftest import ORDINARY_UID, need

KINDS = ("sqlite", "postgresql")
_STARTS_WITHIN_S = 120
_SERVER = (
    "-c fsync=off -c full_page_writes=off -c shared_buffers=16MB "
    "-c max_connections=60 -c autovacuum=off -c log_min_messages=fatal"
)
Result = TypeVar("Result")


def find_server_programs() -> Path | None:
    """The newest PostgreSQL of the distribution."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class PostgresServer:
    """A running server; `new_url` is an empty database in it."""

    def __init__(self, programs: Path, folder: Path, *, listens_on: str = "") -> None:
        self._programs, self._listens_on = programs, listens_on
        self.folder = folder
        self._port = 0
        self._count = 0

    def call(self, program: str, *words: str) -> None:
        who = {}
        if os.geteuid() == 0:  # which the server refuses
            who = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}
        subprocess.run(
            [self._programs / program, *words],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_STARTS_WITHIN_S,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            **who,
        )

    def start(self) -> None:
        data = str(self.folder / "data")
        self.call("initdb", "-D", data, "-U", "cellwall", "-A", "trust", "-E", "UTF8",
                  "--no-locale", "--no-sync")  # fmt: skip
        options = f"{_SERVER} -k {self.folder} -c listen_addresses='{self._listens_on}'"
        if self._listens_on:  # a fleet in network namespaces reaches it by TCP
            with socket.create_server((self._listens_on, 0)) as free:
                self._port = free.getsockname()[1]
            options += f" -p {self._port}"
            with open(self.folder / "data/pg_hba.conf", "a", encoding="ascii") as rules:
                rules.write(f"host all cellwall {self._listens_on}/24 trust\n")
        log = str(self.folder / "log")
        self.call("pg_ctl", "-D", data, "-w", "-t", str(_STARTS_WITHIN_S), "-l", log,
                  "-o", options, "start")  # fmt: skip

    def stop(self) -> None:
        self.call("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")

    def url(self, name: str) -> str:
        if self._port:
            return f"postgresql://cellwall@{self._listens_on}:{self._port}/{name}"
        return f"postgresql://cellwall@/{name}?host={quote(str(self.folder), safe='')}"

    def new_url(self) -> str:
        self._count += 1
        name = f"test{self._count}"
        place = ["-p", str(self._port)] if self._port else []
        self.call("createdb", "-h", str(self.folder), *place, "-U", "cellwall", name)
        return self.url(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a worker."""
    programs = find_server_programs()
    need(programs, "PostgreSQL (Debian: postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="cellwall-pg-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, ORDINARY_UID, ORDINARY_UID)
        server = PostgresServer(programs, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A real Redis on a Unix socket; its password is "a password"."""
    program = shutil.which("redis-server")
    need(program, "Redis (Debian: redis-server)")
    folder = tempfile.mkdtemp(prefix="cellwall-redis-")
    os.chmod(folder, 0o755)  # also for a service of an ordinary user
    path = os.path.join(folder, "redis.sock")
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", path, "--unixsocketperm", "777", "--save", "", "--appendonly", "no",
         "--dir", folder, "--requirepass", "a password"],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        for line in server.stdout:  # ends with the process
            if "ready to accept connections" in line.lower():
                break
        assert server.poll() is None
        yield f"redis+unix://{path}"
    finally:
        with server:  # closes its output, and waits
            server.terminate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with the newest schema, to be copied."""
    home = tmp_path_factory.mktemp("migrated")
    made = StorageSettings(home=str(home))
    migrate(made)
    engine = blocking_engine(made)
    with engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    engine.dispose()
    return Path(made.path)


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database in the server with the newest schema; each test finds it empty."""
    url = postgres.new_url()
    migrate(StorageSettings(home=str(tmp_path_factory.mktemp("pg")), url=url))
    return url


def empty(settings: StorageSettings) -> None:
    """Delete all rows, as after the first migration."""
    engine = blocking_engine(settings)
    with engine.begin() as connection:
        # TRUNCATE makes new files of all tables and indexes, which takes six times as long. As on a
        # replica, no foreign key is checked, so the order of the tables does not matter.
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("; ".join(f"DELETE FROM {table.name}" for table in TABLES))
        connection.execute(sqlalchemy.insert(StateRow).values(id=1, revision=1, generation=1))
    engine.dispose()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Imported by the `conftest` of a folder: tests that ask for `settings` run on both."""
    if "settings" in metafunc.fixturenames:
        each = [
            "sqlite",
            # By one worker: a server takes two seconds to make.
            pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql")),
        ]
        metafunc.parametrize("settings", each, indirect=True)


@pytest.fixture
def settings(request: pytest.FixtureRequest, state_home: str) -> StorageSettings:
    """An empty database with the newest schema."""
    if request.param == "sqlite":
        found: StorageSettings = request.getfixturevalue("sqlite_settings")
        return found
    url = request.getfixturevalue("migrated_postgres")
    found = StorageSettings(home=state_home, url=url)
    empty(found)
    return found


@pytest.fixture
def sqlite_settings(migrated_file: Path, state_home: str) -> StorageSettings:
    """For what does not depend on the database."""
    found = StorageSettings(home=state_home)
    shutil.copyfile(migrated_file, found.path)
    os.chmod(found.path, 0o600)
    return found


def in_store(settings: StorageSettings, function: Callable[[Store], Awaitable[Result]]) -> Result:
    """Run the function with an open store; everything is closed afterwards."""

    async def run() -> Result:
        async with open_store(settings) as store:
            return await function(store)

    return anyio.run(run)
