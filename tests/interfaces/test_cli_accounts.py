"""`cellwall user` and `cellwall token`: what they change, print, record and refuse."""

from __future__ import annotations

import json
import os
import re

import pytest

import terminals
from cellwall.accounts.roles import shipped_roles
from cellwall.admin.connections import ConnectionAdmin
from cellwall.config.load import load_settings
from cellwall.core.accounts import Passkey, Team
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Principal
from cellwall.storage.engine import StorageSettings
from conftest import audit_records
from databases import in_store
from interfaces.test_cli_help import completed
from interfaces.test_cli_process import error_code, in_process

pytestmark = pytest.mark.requirement("SRV-2")


def done(*words: str, stdin: bytes = b"") -> bytes:
    ran = in_process(*words, stdin=stdin)
    assert (ran.returncode, ran.stderr) == (0, b""), ran
    return ran.stdout


def told(*words: str, stdin: bytes = b"") -> dict:
    return json.loads(done(*words, "--json", stdin=stdin))


def refused(*words: str, stdin: bytes = b"") -> str:
    ran = in_process(*words, stdin=stdin)
    assert (ran.returncode, ran.stdout) == (125, b""), ran
    return error_code(ran)


def test_a_user_is_added_listed_changed_and_removed(state_home):
    added = told("user", "add", "Ann", "--role", "owner")
    assert (added["name"], added["role"], added["disabled"]) == ("ann", "owner", False)
    assert added["sign_in_code"].startswith("cwl_")
    told("user", "add", "bob", "--role", "user")
    assert told("user", "role", "bob", "power-user") == {"name": "bob", "role": "power-user"}
    told("user", "disable", "bob")
    users = told("user", "list")["users"]
    assert [(each["name"], each["role"], each["disabled"]) for each in users] == [
        ("ann", "owner", False),
        ("bob", "power-user", True),
    ]
    assert done("user", "list").decode().splitlines()[1].split() == [
        "bob",
        "power-user",
        "disabled",
    ]
    told("user", "enable", "bob")
    assert told("user", "remove", "bob") == {"removed": "bob"}
    assert [each["name"] for each in told("user", "list")["users"]] == ["ann"]
    changes = [record["body"]["change"] for record in audit_records(kind=EventKind.ACCOUNT)]
    assert changes == [
        *("add user", "sign-in link", "add user", "sign-in link", "set role", "disable user"),
        *("enable user", "remove user"),
    ]


@pytest.mark.requirement("RBAC-3")
def test_a_new_user_has_no_connected_account_of_a_removed_one_of_the_same_name(state_home):
    told("user", "add", "ann", "--role", "owner")
    connections = ConnectionAdmin(state_home, load_settings(environ=os.environ))
    root = Principal("root", "cli")
    calendar = {"url": "https://dav.example/", "username": "x", "secret": "DAV"}
    for user in ("bob", "eve"):
        told("user", "add", user, "--role", "user")
        connections.add("work", kind="caldav", **calendar, by=root, user=user)
    told("user", "remove", "Bob")
    told("user", "add", "bob", "--role", "user")
    assert connections.list(by=root, user="bob") == ()
    # Control: those of others stay.
    assert [each.name for each in connections.list(by=root, user="eve")] == ["work"]


def test_the_token_alone_is_printed_once_and_only_its_hash_is_kept(state_home):
    done("user", "add", "ann", "--role", "user")
    shown = done("token", "create", "--user", "ann", "--ttl", "2h", "--scope", "files:read")
    assert re.fullmatch(rb"cws_[\w-]{43}\n", shown)
    listed = told("token", "list", "--user", "ann")["tokens"]
    assert [(each["user"], each["name"], each["scopes"]) for each in listed] == [
        ("ann", "cli", ["files:read"])
    ]
    secret = shown.strip()
    for folder, _, files in os.walk(state_home):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                assert secret not in file.read(), name
    assert secret not in done("token", "list")
    assert told("token", "revoke", listed[0]["id"])["revoked"] == listed[0]["id"]
    assert told("token", "list")["tokens"][0]["revoked"]
    assert refused("token", "revoke", listed[0]["id"]) == "CW-NOT-FOUND"


def test_without_scopes_a_token_has_all_permissions_of_the_role(state_home):
    done("user", "add", "ann", "--role", "user")
    scopes = told("token", "create", "--user", "ann")["scopes"]
    assert set(scopes) == {each.value for each in shipped_roles()["user"].permissions}
    assert refused("token", "create", "--user", "ann", "--scope", "users:manage") == (
        "CW-ACCOUNT-SCOPE"
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["user", "add", "ann", "--role", "user"], "CW-ACCOUNT-NAME-TAKEN"),
        (["user", "add", "a b", "--role", "user"], "CW-ACCOUNT-NAME"),
        (["user", "add", "", "--role", "user"], "CW-ACCOUNT-NAME"),
        (["user", "add", "x" * 1000, "--role", "user"], "CW-ACCOUNT-NAME"),
        (["user", "add", "eve\x1b[2J", "--role", "user"], "CW-ACCOUNT-NAME"),
        (["user", "add", "eve", "--role", "king"], "CW-USAGE"),
        (["user", "add", "eve"], "CW-USAGE"),
        (["user", "remove", "ann"], "CW-ACCOUNT-LAST-OWNER"),
        (["user", "role", "ann", "user"], "CW-ACCOUNT-LAST-OWNER"),
        (["user", "disable", "ann"], "CW-ACCOUNT-LAST-OWNER"),
        (["user", "remove", "nobody"], "CW-NOT-FOUND"),
        (["user", "link", "nobody"], "CW-NOT-FOUND"),
        (["user", "password", "nobody"], "CW-NOT-FOUND"),
        (["token", "create", "--user", "nobody"], "CW-NOT-FOUND"),
        (["token", "create", "--user", "ann", "--ttl", "soon"], "CW-USAGE"),
        (["token", "create", "--user", "ann", "--ttl", "0"], "CW-ACCOUNT-LIFETIME"),
        (["token", "create", "--user", "ann", "--ttl", "999999999d"], "CW-ACCOUNT-LIFETIME"),
        (["token", "create", "--user", "ann", "--scope", "everything"], "CW-USAGE"),
        (["token", "revoke", "tok_missing"], "CW-NOT-FOUND"),
        (["token", "revoke"], "CW-USAGE"),
        (["token", "revoke", "tok_x", "--user", "ann"], "CW-USAGE"),
        (["token", "list", "--user", "nobody"], "CW-NOT-FOUND"),
    ],
)
@pytest.mark.sample(8)
def test_refusals_change_nothing(state_home, words, code):
    done("user", "add", "ann", "--role", "owner")
    before = told("user", "list"), told("token", "list")
    assert refused(*words) == code
    assert (told("user", "list"), told("token", "list")) == before


def test_a_password_comes_from_standard_input_or_a_prompt_and_never_an_argument(state_home):
    password = b"correct horse battery\n"
    done("user", "add", "ann", "--role", "owner", "--password-stdin", stdin=password)
    assert told("user", "password", "ann", stdin=password) == {"name": "ann", "password": "set"}
    ann = in_store(StorageSettings(home=state_home), lambda store: store.find_user_named("ann"))
    assert ann.password_hash.startswith("$argon2id$")
    assert refused("user", "password", "ann", stdin=b"short") == "CW-ACCOUNT-PASSWORD"
    assert refused("user", "password", "ann", stdin=b"\xff" * 20) == "CW-ACCOUNT-PASSWORD"
    assert refused("user", "add", "eve", "--role", "user", "--password-stdin", stdin=b"short") == (
        "CW-ACCOUNT-PASSWORD"
    )
    assert [each["name"] for each in told("user", "list")["users"]] == ["ann"]


def test_a_password_is_typed_twice_without_an_echo(state_home):
    done("user", "add", "ann", "--role", "owner")
    with terminals.cellwall_on_terminal(
        ["user", "password", "ann"], terminals.Screen, on_terminal=True
    ) as screen:
        screen.until(r"Password: $")
        screen.type("correct horse battery\n")
        screen.until(r"again: $")
        screen.type("correct horse battery\n")
        screen.until(r"is set")
        assert "correct horse" not in screen.seen


@pytest.mark.requirement("POL-13")
@pytest.mark.parametrize(
    "words",
    [
        ["user", "add", "eve", "--role", "owner"],
        ["user", "role", "ann", "owner"],
        ["user", "password", "ann"],
        ["user", "link", "ann"],
        ["user", "enable", "ann"],
        ["user", "remove", "ann"],
        ["token", "create", "--user", "ann"],
    ],
)
def test_an_agent_gives_itself_no_account_and_no_token(state_home, monkeypatch, words):
    done("user", "add", "ann", "--role", "user")
    monkeypatch.setenv("CLAUDECODE", "1")
    assert refused(*words) == "CW-AGENT-SHELL"


@pytest.mark.requirement("RBAC-1")
def test_a_role_below_owner_manages_no_accounts(state_home, tmp_path, monkeypatch):
    config = tmp_path / "cellwall.toml"
    config.write_text('[roles]\ndefault = "administrator"\n')
    config.chmod(0o600)
    for words in (["user", "list"], ["user", "add", "a", "--role", "user"], ["token", "list"]):
        assert refused(*words, "--config", str(config)) == "CW-ROLE"
    assert not os.path.exists(f"{state_home}/cellwall.db")


def test_names_and_ids_are_completed_and_no_database_is_made_for_that(state_home):
    assert completed("user", "remove", "a") - {""} == set()
    assert not os.path.exists(f"{state_home}/cellwall.db")
    done("user", "add", "ann", "--role", "user")
    done("user", "add", "bob", "--role", "user")
    made = told("token", "create", "--user", "ann")["id"]
    assert completed("user", "remove", "a") == {"ann"}
    assert completed("token", "create", "--user", "") == {"ann", "bob"}
    assert completed("token", "revoke", "tok_") == {made}
    assert completed("user", "add", "eve", "--role", "power") == {"power-user"}
    assert completed("token", "create", "--scope", "sandbox:e") == {"sandbox:execute"}


@pytest.mark.requirement("RBAC-4")
def test_budgets_are_set_shown_and_removed(state_home):
    added = told("user", "add", "ann", "--role", "owner")
    assert told("budget", "list", "--user", "ann") == {"budgets": []}
    words = ("budget", "set", "cpu_s", "3600", "--user", "Ann", "--period", "12h")
    assert told(*words) == {
        "kind": "user", "name": "Ann", "resource": "cpu_s", "limit": 3600.0, "period_s": 43_200.0,
    }  # fmt: skip
    (shown,) = told("budget", "list", "--user", "ann")["budgets"]
    assert (shown["kind"], shown["subject"], shown["resource"]) == ("user", added["id"], "cpu_s")
    assert (shown["limit"], shown["used"], shown["period_s"]) == (3600.0, 0.0, 43_200.0)
    assert b"0 of 3600" in done("budget", "list", "--user", "ann")
    team = Team(id="team_blue", name="blue", created_s=1.0)

    async def join(store):
        await store.add_team(team)
        await store.add_member(team.id, added["id"])

    in_store(StorageSettings(home=state_home), join)
    done("budget", "set", "runs", "5", "--team", "blue")
    assert [each["resource"] for each in told("budget", "list", "--team", "blue")["budgets"]] == [
        "runs"
    ]
    bound = told("budget", "list", "--user", "ann")["budgets"]
    assert [each["kind"] for each in bound] == ["user", "team"]
    told("budget", "remove", "cpu_s", "--user", "ann")
    told("budget", "remove", "runs", "--team", "blue")
    assert told("budget", "list", "--user", "ann") == {"budgets": []}
    changes = [record["body"]["change"] for record in audit_records(kind=EventKind.ACCOUNT)]
    assert changes[-4:] == ["set budget", "set budget", "remove budget", "remove budget"]


@pytest.mark.requirement("RBAC-4")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list"], "CW-USAGE"),
        (["list", "--user", "ann", "--team", "blue"], "CW-USAGE"),
        (["list", "--user", "nobody"], "CW-NOT-FOUND"),
        (["list", "--team", "nobody"], "CW-NOT-FOUND"),
        (["set", "gold", "1", "--user", "ann"], "CW-USAGE"),
        (["set", "runs", "many", "--user", "ann"], "CW-USAGE"),
        (["set", "runs", "nan", "--user", "ann"], "CW-USAGE"),
        (["set", "runs", "1", "--user", "ann", "--period", "soon"], "CW-USAGE"),
        (["set", "runs", "1", "--user", "ann", "--period", "1s"], "CW-ACCOUNT-BUDGET"),
        (["remove", "runs", "--user", "ann"], "CW-NOT-FOUND"),
    ],
)
@pytest.mark.sample(4)
def test_a_wrong_budget_is_refused_with_a_reason(state_home, words, code):
    told("user", "add", "ann", "--role", "owner")
    assert refused("budget", *words) == code


def test_passkeys_are_listed_and_removed(state_home):
    ids = {name: told("user", "add", name, "--role", "owner")["id"] for name in ("ann", "bob")}

    def key(number: int, name: str) -> Passkey:
        return Passkey(
            id=f"pky_{number}", credential_id=b"c%d" % number, user_id=ids[name], name="laptop",
            public_key=b"k", sign_count=0, created_s=float(number), used_s=None,
        )  # fmt: skip

    async def fill(store):
        for number, name in enumerate(("ann", "ann", "bob")):
            assert await store.add_passkey(key(number, name), max_per_user=9)

    in_store(StorageSettings(home=state_home), fill)
    found = told("passkey", "list", "--user", "ann")["passkeys"]
    assert [(each["id"], each["used"]) for each in found] == [("pky_0", None), ("pky_1", None)]
    # One of another user is as absent as an unknown one.
    for passkey_id in ("pky_2", "pky_9"):
        assert refused("passkey", "remove", "--user", "ann", passkey_id) == "CW-NOT-FOUND"
    assert refused("passkey", "remove", "--user", "ann") == "CW-USAGE"
    assert refused("passkey", "remove", "--user", "ann", "pky_0", "--all") == "CW-USAGE"
    assert told("passkey", "remove", "--user", "ann", "pky_0") == {"user": "ann", "removed": 1}
    assert done("passkey", "remove", "--user", "ann", "--all") == b"1 passkey of ann removed\n"
    assert done("passkey", "list", "--user", "ann") == b"no passkeys\n"
    assert len(told("passkey", "list", "--user", "bob")["passkeys"]) == 1


def test_a_new_users_code_comes_with_the_place_where_it_is_opened(state_home):
    printed = done("user", "add", "ann", "--role", "user").decode()
    code = re.search(r"first sign-in: (\S+)", printed)
    assert code
    assert f"/#sign-in={code[1]}\n" in printed
