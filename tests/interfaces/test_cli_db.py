"""`cellwall db`: migrate, check, back up, restore; recorded, and refused with a hint."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cellwall.core.outcomes import EventKind
from cellwall.storage.engine import StorageSettings
from conftest import audit_records
from databases import in_store, postgres  # noqa: F401  # a fixture
from interfaces.test_cli_process import error_code, in_process, person
from unit.storage import records

pytestmark = pytest.mark.requirement("SRV-4")


def here(*words: str) -> subprocess.CompletedProcess:
    return in_process("db", *words)


def told(*words: str, code: int = 0) -> dict:
    done = here(*words, "--json")
    assert (done.returncode, done.stderr) == (code, b""), done
    return json.loads(done.stdout)


def test_a_database_is_made_checked_backed_up_and_restored(state_home, tmp_path):
    file = str(tmp_path / "backup.db")
    missing = {
        "kind": "sqlite",
        "revision": "",
        "rows": {},
        "problems": ["there is no database yet"],
    }
    assert told("check", code=1) == missing
    assert told("migrate") == {"kind": "sqlite", "from": None, "to": "0008"}
    assert told("migrate") == {"kind": "sqlite", "from": "0008", "to": "0008"}
    made = StorageSettings(home=state_home)
    ann = records.user()
    in_store(made, lambda store: store.add_user(ann))
    assert told("backup", file) == {"kind": "sqlite", "file": file, "revision": "0008"}
    in_store(made, lambda store: store.add_user(records.user("late")))
    assert told("check")["rows"]["users"] == 2
    done = person("db", "restore", file, "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["rows"]["users"] == 1
    assert in_store(made, lambda store: store.list_users()) == (ann,)
    changes = [
        (record["body"]["change"], record["body"]["status"])
        for record in audit_records(kind=EventKind.DATABASE)
    ]
    names = ("migrate", "migrate", "backup", "restore")
    assert changes == [(name, status) for name in names for status in ("begins", "ok")]


def test_the_same_on_postgresql_by_one_setting(state_home, tmp_path, request, monkeypatch):
    url = request.getfixturevalue("postgres").new_url()
    config = Path(state_home, "cellwall.toml")
    config.write_text(f'[storage]\nurl = "{url}"\n')
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    file = str(tmp_path / "backup.db")
    assert told("migrate") == {"kind": "postgresql", "from": None, "to": "0008"}
    made = StorageSettings(home=state_home, url=url)
    in_store(made, lambda store: store.add_user(records.user()))
    assert told("backup", file)["kind"] == "postgresql"
    done = person("db", "restore", file, "--json")
    assert done.returncode == 0, done
    assert told("check")["rows"]["users"] == 1
    assert not os.path.exists(f"{state_home}/cellwall.db")


def test_text_for_people(state_home, tmp_path):
    assert here("migrate").stdout == b"the sqlite database has schema 0008\n"
    assert here("migrate").stdout.endswith(b"; there was nothing to do\n")
    assert here("check").stdout.splitlines()[-1] == b"no problems found"
    assert here("backup", str(tmp_path / "b")).stdout.endswith(b"schema 0008\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["backup", "/no/such/folder/file"], "CW-STORAGE-UNUSABLE"),
        (["backup", "{file}"], "CW-STORAGE-TARGET"),
    ],
)
def test_refusals_have_a_code_and_leave_nothing(state_home, tmp_path, words, code):
    file = tmp_path / "there"
    file.write_text("x")
    here("migrate")
    done = here(*[word.format(file=file) for word in words])
    assert (done.returncode, error_code(done)) == (125, code)
    assert os.listdir(tmp_path) == ["there"]


def test_a_file_that_is_no_backup_is_refused_and_recorded(state_home, tmp_path):
    here("migrate")
    (tmp_path / "odd").write_text("dear diary")
    done = person("db", "restore", str(tmp_path / "odd"), "--json")
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"] == "CW-STORAGE-BACKUP"
    last = audit_records(kind=EventKind.DATABASE)[-1]["body"]
    assert (last["change"], last["status"]) == ("restore", "failed")


@pytest.mark.requirement("POL-13")
def test_an_agent_cannot_restore_a_database_with_its_own_owner(state_home, tmp_path, monkeypatch):
    here("migrate")
    here("backup", str(tmp_path / "b"))
    monkeypatch.setenv("CLAUDECODE", "1")
    done = here("restore", str(tmp_path / "b"))
    assert (done.returncode, error_code(done)) == (125, "CW-AGENT-SHELL")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ('url = "mysql://x/y"', "is not a database URL"),
        ('url = "postgresql://cellwall:pass@/cellwall"', "contains a password"),
        ('url = "postgres://cellwall:pass@/cellwall"', "is not a database URL"),
        ('url = "postgresql://cellwall@/cellwall?options=x"', "unknown option"),
        ('url = "postgresql://db.example.com/cellwall"', "without verified TLS"),
        ('url = "postgresql://10.0.0.1/cellwall?sslmode=require"', "without verified TLS"),
        ('password_file = "pgpass"', "is not an absolute path"),
    ],
)
def test_a_bad_setting_is_refused_and_no_password_is_shown(
    state_home, monkeypatch, setting, problem
):
    config = Path(state_home, "cellwall.toml")
    config.write_text(f"[storage]\n{setting}\n")
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    done = here("check")
    assert done.returncode == 125
    assert problem in done.stderr.decode()
    assert b"pass@" not in done.stderr
