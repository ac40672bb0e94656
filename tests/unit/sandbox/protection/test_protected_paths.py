"""Sensitive names are found at any depth, in any spelling, before they exist (FS-4)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import ConfigError, WorkspaceError
from cellwall.core.git_names import fold
from cellwall.core.protected_names import NameTreatment, Placeholder, Protection, load
from cellwall.core.types import WorkspaceMode
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection.certificates import is_public_text
from cellwall.sandbox.protection.found_names import ProtectedPath
from cellwall.sandbox.protection.host_directory import covers_for
from cellwall.sandbox.protection.protected_paths import access_check_for, scan

HIDE, READ_ONLY = NameTreatment.HIDE, NameTreatment.READ_ONLY
ENTRIES = load().entries


def example(entry):
    return entry.pattern.replace("*", "x").replace("@git", "x.git" if entry.layout else ".git")


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.pattern)
def test_every_entry_protects_its_name_at_any_depth_and_in_any_case(entry):
    protection = load()
    name = example(entry)
    strict = [protection.treatment_of(path) for path in (name, "a/b/" + name, name.upper())]
    assert all(found in {entry.treatment, HIDE} for found in strict)
    if entry.kind != "file":
        assert protection.treatment_of(f"a/{name}/below/it") in {entry.treatment, HIDE}
    assert re.search(r"\w{3}", entry.reason)
    if "*" not in entry.pattern:
        assert Protection([entry]).treatment_of(f"a/{name}~not") is None


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize(
    ("path", "treatment"),
    [
        (".env", HIDE),
        ("app/.env.production", HIDE),
        (".env.example", None),
        (".ENV.Sample", None),
        (".ssh/known_hosts", HIDE),
        (".git/hooks/pre-commit", READ_ONLY),
        (".git/objects/ab", None),
        ("vendor/lib/.git/config", READ_ONLY),
        (".Git/HOOKS/x", READ_ONLY),
        (".g\u200cit/hooks/x", READ_ONLY),
        ("git~1/hooks/x", READ_ONLY),
        (".git./config", READ_ONLY),
        (".\uff47it/config", READ_ONLY),
        (".claude/settings.json", READ_ONLY),
        (".claude/.env", HIDE),
        ("server.key", HIDE),
        ("server.key/readme", None),
        ("keyboard.keys", None),
        ("src/main.py", None),
        ("environment", None),
        ("", None),
    ],
)
def test_treatment_of(path, treatment):
    assert load().treatment_of(path) is treatment


def test_a_kind_that_is_known_decides():
    protection = load()
    assert protection.treatment_of(".git", is_dir=False) is READ_ONLY
    assert protection.treatment_of(".git", is_dir=True) is None


@pytest.mark.requirement("FS-4")
def test_agent_settings_git_and_shell_start_up_are_protected_before_they_exist():
    placeholders = load().placeholders()
    assert {
        Placeholder(".git/hooks", "dir", READ_ONLY),
        Placeholder(".claude", "dir", READ_ONLY),
        Placeholder(".mcp.json", "file", READ_ONLY),
        Placeholder(".bashrc", "file", READ_ONLY),
        Placeholder(".envrc", "file", READ_ONLY),
    } <= set(placeholders)
    assert not [p for p in placeholders if set(p.path) & set("*?[")]


def test_names_of_the_users_own_are_added_and_nothing_is_lost():
    protection = load().with_extra(["private", "data/*.csv"])
    assert protection.treatment_of("a/private/x") is HIDE
    assert protection.treatment_of("data/people.CSV") is HIDE
    assert protection.entries[: len(ENTRIES)] == ENTRIES
    assert load().treatment_of("private") is None


@pytest.mark.parametrize("name", ["", "/etc", "../x", "a//b", "a/./b", "nul\0"])
def test_extra_names_must_be_plain_relative_paths(name):
    with pytest.raises(ConfigError) as caught:
        load().with_extra([name])
    assert caught.value.code == "CW-BAD-PROTECTED-NAME"


names = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=12)


@given(st.lists(names, max_size=5), st.sampled_from([e for e in ENTRIES if e.kind != "file"]))
def test_whatever_is_below_a_protected_directory_is_at_least_as_protected(below, entry):
    found = load().treatment_of("/".join([example(entry), *below]))
    assert found in {entry.treatment, HIDE}


@given(names)
def test_folding_twice_changes_nothing(name):
    assert fold(fold(name)) == fold(name)


# Looking.


@pytest.fixture
def ws(tmp_path):
    with FileTree.open(tmp_path) as tree:
        yield tree


def directory_id(path):
    status = os.stat(path)
    return status.st_dev, status.st_ino


@pytest.mark.requirement("FS-4")
def test_scan_finds_what_is_there_and_secrets_within_read_only_directories(tmp_path, ws):
    for directory in (".git/hooks", ".claude/deep", "sub/.ssh", "src"):
        (tmp_path / directory).mkdir(parents=True)
    for file in (
        ".git/hooks/pre-commit",
        ".claude/deep/.env",
        ".claude/.bashrc",
        "sub/.ssh/id_rsa",
    ):
        (tmp_path / file).write_bytes(b"")
    (tmp_path / "src" / "main.py").write_bytes(b"")
    (tmp_path / "sub" / ".vscode").symlink_to("/etc")
    top, sub = directory_id(tmp_path), directory_id(tmp_path / "sub")
    assert scan(ws, load(), max_entries=100) == (
        ProtectedPath(".claude", READ_ONLY, True, False, top),
        ProtectedPath(
            ".claude/deep/.env", HIDE, False, False, directory_id(tmp_path / ".claude/deep")
        ),
        ProtectedPath(".git/hooks", READ_ONLY, True, False, directory_id(tmp_path / ".git")),
        ProtectedPath("sub/.ssh", HIDE, True, False, sub),
        ProtectedPath("sub/.vscode", READ_ONLY, False, True, sub),
    )


@pytest.mark.requirement("FS-4")
def test_a_directory_too_large_to_look_through_is_refused(tmp_path, ws):
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(b"")
    assert scan(ws, load(), max_entries=5) == ()
    with pytest.raises(WorkspaceError) as caught:
        scan(ws, load(), max_entries=4)
    assert (caught.value.code, bool(caught.value.hint)) == ("CW-WORKSPACE-TOO-LARGE", True)


@pytest.mark.requirement("FS-4")
@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user: root reads everything")
def test_a_directory_that_cannot_be_read_is_hidden(tmp_path, ws):
    (tmp_path / "closed").mkdir(mode=0)
    try:
        found = scan(ws, load(), max_entries=9)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert found == (ProtectedPath("closed", HIDE, True, False, directory_id(tmp_path)),)


def block(label: str) -> str:
    return f"-----BEGIN {label}-----\nMIIB\n-----END {label}-----\n"


CERTIFICATE, KEY = block("CERTIFICATE"), block("PRIVATE KEY")


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize(
    ("text", "is_public"),
    [
        (CERTIFICATE, True),
        ("# Issuer: CN=Főtanúsítvány\n" + CERTIFICATE * 3, True),
        (CERTIFICATE + block("X509 CRL") + block("PUBLIC KEY"), True),
        (KEY, False),
        (CERTIFICATE + KEY, False),
        (CERTIFICATE + block("RSA PRIVATE KEY"), False),
        (CERTIFICATE + block("OPENSSH PRIVATE KEY"), False),
        (CERTIFICATE + block("ENCRYPTED PRIVATE KEY"), False),
        (CERTIFICATE + block("OPENVPN STATIC KEY V1").replace("STATIC", "Static"), False),
        (CERTIFICATE + "-----BEGIN PRIVATE KEY-----\ncut", False),
        (CERTIFICATE + "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nx", False),
        (CERTIFICATE + "-----begin private key-----\nx", False),
        (CERTIFICATE.replace("END", "FIN"), False),
        (block("SOMETHING ELSE"), False),
        ("password=x\n", False),
        ("", False),
    ],
)
def test_only_public_blocks_make_a_file_public(text: str, is_public: bool) -> None:
    assert is_public_text(text.encode()) is is_public


@pytest.mark.requirement("FS-4")
def test_only_files_with_keys_are_hidden_and_refused(tmp_path: Path) -> None:
    (tmp_path / "certifi").mkdir()
    (tmp_path / "certifi/cacert.pem").write_text(CERTIFICATE)
    (tmp_path / "server.pem").write_text(CERTIFICATE + KEY)
    (tmp_path / "large.pem").write_text(CERTIFICATE + " " * (5 << 20))
    (tmp_path / "link.pem").symlink_to("certifi/cacert.pem")
    (tmp_path / "id.key").write_text(CERTIFICATE)
    with FileTree.open(tmp_path) as tree:
        found = scan(tree, load(), max_entries=100)
        check_access = access_check_for(load(), Root(tree.fd))
        check_access("certifi/cacert.pem", writing=False)
        for name in ("server.pem", "none.pem"):
            with pytest.raises(Exception, match="such names hold secrets"):
                check_access(name, writing=False)
    hidden = {path for kind, path in covers_for(found, WorkspaceMode.READ_ONLY) if kind == "hide"}
    assert hidden == {"server.pem", "large.pem", "link.pem", "id.key"}
