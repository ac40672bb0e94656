"""`cellwall connection`, `calendar`, `canary`, `pair` and `vault set --project` for people."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from cellwall.admin.database import DatabaseAdmin
from cellwall.core.types import Principal
from cellwall.storage.engine import StorageSettings
from cellwall.storage.store import open_store
from interfaces.test_cli_process import in_process
from unit.storage import records

ADDING = ["--url", "https://cal.example.com/ann/", "--username", "ann", "--secret", "CAL"]
PERIOD = ["--from", "2026-01-01T00:00:00Z", "--to", "2026-02-01T00:00:00Z"]


def call(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = in_process(*words, stdin=stdin)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.requirement("RBAC-3")
def test_accounts_are_connected_listed_and_removed(state_home: str) -> None:
    assert call("connection", "add", "work", *ADDING)[0] == 0
    code, _, told = call("connection", "add", "work", *ADDING)
    assert (code, "already" in told) == (125, True)
    assert call("connection", "add", "other", *ADDING, "--user", "bob")[0] == 0
    listed = json.loads(call("connection", "list", "--json")[1])["connections"]
    assert [(each["name"], each["owner"].partition(":")[0]) for each in listed] == [
        ("work", "local")
    ]
    code, out, told = call("calendar", "list", "other", *PERIOD)
    assert (code, out, "CW-NOT-FOUND" in told) == (125, "", True)
    assert call("calendar", "list", "work", *PERIOD)[0] == 125  # there is no vault
    assert call("connection", "remove", "work")[0] == 0
    assert call("connection", "remove", "work")[0] == 125


@pytest.mark.requirement("SEC-2")
def test_texts_are_registered_listed_and_forgotten(state_home: str) -> None:
    prompt = b"You are Harbour and never tell a customer which containers are delayed. " * 3
    assert call("canary", "add", "bot", stdin=prompt)[0] == 0
    assert call("canary", "add", "short", stdin=b"too short")[0] == 125
    assert json.loads(call("canary", "list", "--json")[1]) == {"names": ["bot"]}
    code, out, _ = call("run", "--", "printf", prompt.decode().upper())
    assert (code, "CONTAINERS" in out, "withheld" in out) == (0, False, True)
    assert call("canary", "remove", "bot")[0] == 0
    assert "CONTAINERS" in call("run", "--", "printf", prompt.decode().upper())[1]


@pytest.mark.requirement("RBAC-3")
def test_code_is_printed_alone_for_a_user_who_exists(state_home: str) -> None:
    DatabaseAdmin.configured(config=None, profile=None).migrate(Principal("me", "cli"))

    async def add() -> None:
        async with open_store(StorageSettings(home=state_home)) as store:
            await store.add_user(records.user("ann"))

    anyio.run(add)
    code, out, _ = call("pair", "code", "ann")
    assert (code, len(out), out[5]) == (0, 12, "-")
    assert json.loads(call("pair", "list", "ann", "--json")[1]) == {"pairings": []}
    code, _, told = call("pair", "code", "nobody")
    assert (code, "CW-NOT-FOUND" in told) == (125, True)


@pytest.mark.requirement("SEC-3")
def test_project_of_a_secret_is_set_shown_and_ended(state_home: str, tmp_path: Path) -> None:
    file = ["--key-file", str(tmp_path / "key")]
    config = tmp_path / "cellwall.toml"
    config.write_text(f'[vault]\nkey = "file"\nkey_file = "{tmp_path}/key"\n')
    where = ["--config", str(config)]
    assert call("vault", "init", *file, *where)[0] == 0
    setting = ["vault", "set", "TOKEN", *where]

    def project() -> str:
        listed = json.loads(call("vault", "list", "--json", *where)[1])["secrets"]
        return str(listed[0]["project"])

    assert call(*setting, "--project", str(tmp_path), stdin=b"some-long-value")[0] == 0
    assert project() == str(tmp_path)
    assert call(*setting, stdin=b"another-long-value")[0] == 0
    assert project() == str(tmp_path)
    assert call(*setting, "--project", f"{tmp_path}/nothing", stdin=b"x-long-value")[0] == 125
    assert call(*setting, "--project", "", stdin=b"a-third-long-value")[0] == 0
    assert project() == ""
