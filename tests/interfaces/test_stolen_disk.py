"""A stolen disk image shows nothing of a session, while the vault's key is not on it (FS-5)."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

import cellwall
from cellwall.admin import audit_queries, package_inventory, session_data
from cellwall.admin.audit_log import AuditLogAdmin
from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.audit.text_index import list_chunks
from cellwall.audit.text_indexing import update_text_index
from cellwall.core.errors import BadInput, CellwallError, Denied, VaultError
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Principal
from cellwall.runtime.home import local_principal
from cellwall.runtime.wiring import close_shared, shared_app, sweep_state
from conftest import audit_records
from interfaces.test_cli_process import in_process

pytestmark = pytest.mark.requirement("FS-5")
ME = Principal(local_principal("sdk").name, "sdk")
PASSPHRASE = "a passphrase that is on no disk"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"
CANARIES = {
    name: f"canary{number}x{name}"
    for number, name in enumerate(
        ("command", "code", "variable", "written", "output", "filename", "kept", "removed", "host")
    )
}


def forms(text: str) -> Iterator[bytes]:
    """The text as it may lie in a file: plain, UTF-16, hex, and base64 at each of three places."""
    yield text.encode()
    yield text.encode("utf-16-le")
    yield text.encode().hex().encode()
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + text.encode())
        yield encoded[4 if shift else 0 : -4]


def found_in(home: str) -> set[str]:
    """The canaries that lie anywhere below a folder, in names and contents, compressed or not."""
    hits = set()
    for place, folders, names in os.walk(home):
        for name in [*folders, *names]:
            path = os.path.join(place, name)
            data = os.fsencode(path)
            if os.path.isfile(path) and not os.path.islink(path):
                content = Path(path).read_bytes()
                if path.endswith(".zst"):
                    with zstandard.ZstdDecompressor().stream_reader(
                        content, read_across_frames=True
                    ) as plain:
                        content += plain.read()
                data += content
            hits |= {
                canary
                for canary, text in CANARIES.items()
                if any(form in data for form in forms(text))
            }
    return hits


@pytest.fixture
def home(state_home, monkeypatch) -> str:
    """With a vault whose passphrase is on no disk."""
    config = Path(state_home, "cellwall.toml")
    config.write_text(QUICK)
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    vault = VaultAdmin.configured(ask=lambda _: bytearray(PASSPHRASE.encode()))
    vault.init(choice=VaultKeyChoice(source="passphrase"), principal=ME)
    vault.lock()
    return state_home


def work(folder: Path) -> str:
    """A session with a canary in everything; returns its id."""
    (folder / "old").write_text("before")
    with cellwall.Sandbox.create(workspace=f"{folder}:cow") as sbx:
        assert sbx.run_code(f"x = '{CANARIES['code']}'\nprint(x)").stdout
        assert sbx.commands.run(f"echo {CANARIES['command']}").exit_code == 0
        sbx.commands.run("env", envs={"V": CANARIES["variable"]})
        sbx.commands.run(f"echo {CANARIES['output']} >&2; echo {CANARIES['kept']} > kept")
        sbx.commands.run("rm old; mkdir -p d; false")
        sbx.files.write("written", CANARIES["written"])
        sbx.files.write(f"d/{CANARIES['filename']}", "x")
        sbx.commands.run(f"curl http://{CANARIES['host']}.example/")
        session_id = sbx.id
    with cellwall.Sandbox.create() as private:
        private.files.write("gone", CANARIES["removed"])
    return session_id


def index_texts(home: str) -> None:
    """Build the text index, which needs the passphrase."""
    with cellwall.Vault.open(passphrase=PASSPHRASE):
        done = update_text_index(f"{home}/audit", shared_app().keys, is_complete=True)
    assert 0 < done.indexed_bytes == done.all_bytes
    assert list_chunks(f"{home}/audit")


def test_a_stolen_disk_shows_nothing_and_the_passphrase_shows_all(home, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    session_id = work(folder)
    index_texts(home)
    close_shared(home)
    AuditLogAdmin(ME).seal()  # compressed segments and an index are part of the image
    assert found_in(home) == set()
    with pytest.raises(VaultError) as caught:
        audit_records()
    assert caught.value.code == "CW-SESSION-LOCKED"
    with pytest.raises(VaultError):
        cellwall.Changes(session_id).diff()
    for asks in (  # an answer from what can be read alone would be wrong
        lambda: list(audit_queries.newest(audit_queries.Query(text="anything"))),
        lambda: package_inventory.sbom_of_record(session_id),
    ):
        with pytest.raises(VaultError):
            asks()
    assert audit_queries.check().ok  # needs no key
    # The control: with the passphrase, everything is there.
    text = json.dumps(audit_records(passphrase=PASSPHRASE))
    logged = ("command", "code", "output", "filename", "host")
    assert [name for name in logged if CANARIES[name] not in text] == []
    with cellwall.Vault.open(passphrase=PASSPHRASE):
        diff = cellwall.Changes(session_id).diff()
    assert all(CANARIES[name] in diff for name in ("kept", "written", "filename"))
    close_shared(home)
    assert found_in(home) == set()  # nothing is left of the decrypted copy
    # The control of the search: each form is found where it lies.
    for number, form in enumerate(forms(CANARIES["kept"])):
        Path(home, f"planted{number}").write_bytes(form)
        assert found_in(home) == {"kept"}
        Path(home, f"planted{number}").unlink()


def test_an_erased_session_is_gone_and_the_others_are_not(home, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    session_id, kept_id = work(folder), work(folder)
    index_texts(home)
    erased = session_data.erase(shared_app(), session_id, principal=ME)
    assert (erased.had_workspace, erased.records_in_clear) == (True, 0)
    assert erased.records > 8
    assert list_chunks(f"{home}/audit") == {}
    index_texts(home)  # from now on without the erased session
    close_shared(home)
    assert audit_queries.check().ok
    assert not Path(home, "workspaces", session_id).exists()
    records = audit_records(passphrase=PASSPHRASE)
    bodies = [record["body"] for record in records if record["session_id"] == session_id]
    assert {body["sealed"] for body in bodies} == {"erased"}
    others = [record["body"] for record in records if record["session_id"] == kept_id]
    assert not any("sealed" in body for body in others)
    assert CANARIES["code"] in json.dumps(others)
    kinds = [record["body"]["step"] for record in records if record["kind"] == "erasure"]
    assert kinds == ["intent", "outcome"]
    with pytest.raises(CellwallError):
        cellwall.Changes(session_id).list()
    assert session_data.erase(shared_app(), kept_id, principal=ME).keys


def test_what_may_not_be_erased_is_not(state_home, tmp_path):
    app = shared_app()
    with cellwall.Sandbox.create() as sbx:
        sbx.commands.run("true")
        with pytest.raises(CellwallError) as caught:
            cellwall.erase(sbx.id)
        assert caught.value.code == "CW-WORKSPACE-BUSY"
        session_id = sbx.id
    part = audit_records(session_id=session_id, kind=EventKind.OUTCOME)[0]["action_id"]
    for subject, code in ((part, "CW-SESSION-PART"), ("sbx_" + "0" * 26, "CW-NO-RECORD")):
        with pytest.raises(BadInput) as refused:
            cellwall.erase(subject)
        assert refused.value.code == code
    for bad in ("", "../audit", "/etc", "sbx_1/../../x"):
        with pytest.raises(BadInput):
            cellwall.erase(bad)
    admin = AuditLogAdmin(ME)
    admin.hold("case", "a court asks")
    with pytest.raises(Denied) as held:
        cellwall.erase(session_id)
    assert held.value.code == "CW-SESSION-HELD"
    assert not any(r["body"].get("sealed") for r in audit_records(session_id=session_id))
    admin.release("case")
    assert session_data.erase(app, session_id, principal=ME).keys == 1
    assert all(r["body"]["sealed"] for r in audit_records(session_id=session_id))


def test_a_hold_that_comes_while_a_session_is_erased_waits(state_home):
    app = shared_app()
    with cellwall.Sandbox.create() as sbx:
        sbx.commands.run("true")
    placing = threading.Thread(target=AuditLogAdmin(ME).hold, args=("case", "a court asks"))

    def end() -> None:  # nothing is destroyed yet, and no hold was in force
        placing.start()
        assert locked_out(placing)

    assert session_data.erase(app, sbx.id, principal=ME, end=end).keys == 1
    placing.join()
    kinds = [r["kind"] for r in audit_records() if r["kind"] in {"hold", "erasure"}]
    assert kinds == ["erasure", "erasure", "hold"]
    with cellwall.Sandbox.create() as other:
        other.commands.run("true")
    with pytest.raises(Denied):  # the control; nothing is ended either
        session_data.erase(app, other.id, principal=ME, end=lambda: pytest.fail("ended"))


def locked_out(thread: threading.Thread) -> bool:
    """Whether the thread has begun and cannot go on."""
    thread.join(0.5)
    return thread.is_alive()


def test_the_command_line_erases_and_shows_what_is_erased(state_home):
    done = in_process("run", "--json", "--", "echo", CANARIES["command"])
    action_id = audit_records(id=json.loads(done.stdout)["audit_id"])[0]["action_id"]
    shown = in_process("audit", "show", action_id)
    assert CANARIES["command"].encode() in shown.stdout
    told = json.loads(in_process("erase", "--yes", "--json", action_id).stdout)
    assert (told["id"], told["keys"], told["records"]) == (action_id, 1, 2)
    shown = in_process("audit", "show", action_id, "--json")
    bodies = [record["body"] for record in json.loads(shown.stdout)["records"]]
    assert bodies == [
        {"sealed": "erased", "verdict": "allow"},
        {"sealed": "erased", "action_kind": "run-command", "status": "ok"},
    ]
    assert b"[erased] run-command ok" in in_process("audit", "tail").stdout
    assert in_process("audit", "verify").returncode == 0
    assert in_process("erase", "--yes", "sbx_" + "0" * 26).returncode == 125


def test_retention_erases_by_age_and_by_size_but_not_under_a_hold(
    state_home, tmp_path, monkeypatch
):
    config = Path(state_home, "cellwall.toml")
    config.write_text('[retention]\nsession_days = 30\nworkspaces_bytes = "1M"\n')
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    kept = []
    for number in range(2):
        folder = tmp_path / f"work{number}"
        folder.mkdir()
        words = ("run", "--workspace", f"{folder}:cow", "--", "sh", "-c", "yes | head -c 700000 >f")
        assert in_process(*words).returncode == 0
        kept += [name for name in os.listdir(Path(state_home, "workspaces")) if name not in kept]
    admin = AuditLogAdmin(ME)
    admin.hold("case", "a court asks")
    admin.seal()
    assert sorted(os.listdir(Path(state_home, "workspaces"))) == sorted(kept)
    note = Path(state_home, "workspaces", kept[0], "session.json")
    written = json.loads(note.read_text())
    note.write_text(json.dumps(written | {"made_ns": 1}))  # past `keep_changes_days`
    sweep_state(shared_app())
    assert sorted(os.listdir(Path(state_home, "workspaces"))) == sorted(kept)
    note.write_text(json.dumps(written))
    with pytest.raises(Denied) as held:
        cellwall.Changes(kept[0]).discard()
    assert held.value.code == "CW-SESSION-HELD"
    assert sorted(os.listdir(Path(state_home, "workspaces"))) == sorted(kept)
    admin.release("case")
    admin.seal()
    assert os.listdir(Path(state_home, "workspaces")) == [kept[1]]  # the oldest went
    assert CANARIES["command"] not in json.dumps(audit_records())
    assert not any(record["body"].get("sealed") for record in audit_records())
    then = time.time() + 40 * 86_400
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: then)
        admin.seal()
    intents = audit_records(kind=EventKind.INTENT)
    assert {record["body"]["sealed"] for record in intents} == {"erased"}
    reasons = [r["body"].get("reason") for r in audit_records(kind=EventKind.ERASURE)]
    assert reasons == ["retention", "age", "retention"]
    assert os.listdir(Path(state_home, "workspaces")) == []  # nothing could read the other one
    assert audit_queries.check().ok
