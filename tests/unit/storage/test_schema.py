"""Migrations: the same schema on both databases, once, by whichever process is first (SRV-4)."""

from __future__ import annotations

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anyio
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from cellwall.core.errors import StorageError
from cellwall.storage.engine import StorageSettings, blocking_engine
from cellwall.storage.schema import (
    HEAD,
    REVISIONS,
    SchemaState,
    migrate,
    migrate_engine,
    schema_state,
)
from cellwall.storage.store import open_store
from cellwall.storage.tables import METADATA


@pytest.fixture
def unmade(settings, request) -> StorageSettings:
    """An empty database without a schema."""
    if settings.is_sqlite:
        os.unlink(settings.path)
        return settings
    return replace(settings, url=request.getfixturevalue("postgres").new_url())


def execute(settings: StorageSettings, *statements: str) -> None:
    engine = blocking_engine(settings)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def code_of(settings: StorageSettings) -> str:
    """The code with which a store refuses to open."""

    async def go() -> None:
        async with open_store(settings):
            pass

    with pytest.raises(StorageError) as caught:
        anyio.run(go)
    return caught.value.code


@pytest.mark.requirement("SRV-4")
def test_the_migrations_make_exactly_the_tables_of_the_models(settings):
    engine = blocking_engine(settings)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_the_known_revisions_are_those_of_the_migrations():
    config = Config()
    config.set_main_option("script_location", "cellwall.storage:migrations")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripts = ScriptDirectory.from_config(config)
    found = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(found)) == REVISIONS
    assert scripts.get_current_head() == HEAD


@pytest.mark.requirement("SRV-4")
def test_two_processes_that_migrate_at_once_make_one_schema(unmade):
    start = threading.Barrier(2)

    def go(_: int) -> tuple[str | None, str]:
        start.wait()
        return migrate(unmade)

    with ThreadPoolExecutor(2) as pool:
        found = sorted(pool.map(go, range(2)), key=str)
    assert found == [(HEAD, HEAD), (None, HEAD)]
    assert migrate(unmade) == (HEAD, HEAD)


@pytest.mark.slow
@pytest.mark.requirement("SRV-4")
def test_a_store_opens_only_with_the_newest_schema(unmade):
    assert code_of(unmade) == "CW-STORAGE-MISSING"
    migrate(unmade)
    execute(unmade, "UPDATE alembic_version SET version_num = '9999'")
    assert code_of(unmade) == "CW-STORAGE-NEWER"
    with pytest.raises(StorageError, match="does not know"):
        migrate(unmade)


@pytest.mark.slow
@pytest.mark.requirement("SRV-4")
@pytest.mark.parametrize("old", REVISIONS[:-1])
def test_an_older_schema_is_migrated_with_its_rows(unmade, old):
    engine = blocking_engine(unmade)
    migrate_engine(engine, to=old)
    row = "('usr_1', 'ann', 'user', NULL, false, 1, 0.0)"
    execute(unmade, f"INSERT INTO users VALUES {row}")
    assert code_of(unmade) == "CW-STORAGE-OLD"
    assert migrate_engine(engine) == (old, HEAD)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        assert connection.execute(text("SELECT name FROM users")).scalars().all() == ["ann"]
    engine.dispose()


def test_tables_of_another_program_are_left_alone(unmade):
    execute(unmade, "CREATE TABLE theirs (a INTEGER)", "INSERT INTO theirs VALUES (1)")
    assert code_of(unmade) == "CW-STORAGE-NEWER"
    with pytest.raises(StorageError) as caught:
        migrate(unmade)
    assert caught.value.code == "CW-STORAGE-NEWER"
    execute(unmade, "DROP TABLE theirs")


@pytest.mark.parametrize(
    ("revision", "state"),
    [
        (None, SchemaState.EMPTY),
        (HEAD, SchemaState.CURRENT),
        ("", SchemaState.UNKNOWN),
        ("9999", SchemaState.UNKNOWN),
    ],
)
def test_how_a_schema_relates_to_this_version(revision, state):
    assert schema_state(revision) is state
    assert (state.refusal() is None) == (state is SchemaState.CURRENT)


def test_an_older_schema_is_refused_with_the_command_that_migrates_it():
    refusal = SchemaState.OLD.refusal()
    assert refusal is not None
    assert "cellwall db migrate" in refusal.hint
