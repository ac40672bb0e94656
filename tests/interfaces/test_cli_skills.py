"""`cellwall skills`: from a folder to a sandbox, and from an agent's proposal to a person's key."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import cellwall as sdk
from cellwall.core.keys import make_key
from interfaces import prepared_program
from interfaces.test_cli_process import DEADLINE_S, cellwall, error_code, person


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "greeting"
    place.mkdir()
    (place / "SKILL.md").write_text("Say hello.\n")
    return place


def told(*words: str) -> dict:
    done = cellwall(*words, "--json")
    assert (done.returncode, done.stderr) == (0, b""), done
    return json.loads(done.stdout)


@pytest.mark.requirement("SKL-1")
def test_signed_added_used_changed_and_removed(folder, state_home):
    signed = told("skills", "sign", str(folder))
    assert (signed["name"], signed["files"]) == ("greeting", 1)
    assert signed["key"].startswith("cellwall-skills+")
    assert told("skills", "verify", str(folder))["ok"] is True
    added = told("skills", "add", str(folder))
    assert (added["digest"], added["replaced"]) == (signed["digest"], False)
    listed = told("skills", "list")
    assert [each["name"] for each in listed["skills"]] == ["greeting"]
    assert (listed["proposals"], listed["key"]) == ([], signed["key"])

    words = ("--skill", "greeting", "--", "cat", "/skills/greeting/SKILL.md")
    assert cellwall("run", *words).stdout == b"Say hello.\n"
    code = "print(open('/skills/greeting/SKILL.md').read())"
    assert cellwall("code", "--skill", "greeting", "-c", code).stdout == b"Say hello.\n\n"
    intent = json.loads(cellwall("audit", "tail", "--json").stdout)["records"][-2]
    assert intent["body"]["skills"] == {"greeting": signed["digest"]}

    stored = Path(state_home, "skills", "approved", "greeting", "SKILL.md")
    stored.chmod(0o600)
    stored.write_text("Say bye, now")
    done = cellwall("run", *words)
    assert (done.returncode, done.stdout, error_code(done)) == (125, b"", "CW-SKILL-CHANGED")
    assert b"SKILL.md" in done.stderr
    assert b"NOT USABLE" in cellwall("skills", "list").stdout

    assert told("skills", "remove", "greeting") == {"removed": "greeting"}
    done = cellwall("run", *words)
    assert (done.returncode, error_code(done)) == (125, "CW-SKILL-UNKNOWN")


def test_every_change_is_in_the_record(folder):
    for words in (("sign", str(folder)), ("add", str(folder)), ("remove", "greeting")):
        assert cellwall("skills", *words).returncode == 0
    records = json.loads(cellwall("audit", "tail", "--json").stdout)["records"]
    seen = [
        (each["body"]["change"], each["body"]["status"])
        for each in records
        if each["kind"] == "skill"
    ]
    assert seen == [
        (change, status) for change in ("sign", "add", "remove") for status in ("begins", "ok")
    ]


def test_verify_tells_the_file_and_exits_1(folder):
    cellwall("skills", "sign", str(folder))
    (folder / "extra").write_text("")
    done = cellwall("skills", "verify", str(folder))
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout == b"NOT OK: 'extra' is not in the manifest [CW-SKILL-CHANGED]\n"
    done = cellwall("skills", "verify", str(folder), "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (1, False)
    done = cellwall("skills", "add", str(folder))
    assert (done.returncode, error_code(done)) == (125, "CW-SKILL-CHANGED")
    assert cellwall("skills", "list").stdout.startswith(b"no skills\n")


@pytest.mark.parametrize("word", ["sign", "verify", "add", "propose"])
def test_a_folder_that_is_none_is_told_without_its_place(word, folder, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for place in ("nowhere", "link", "link/", "greeting/SKILL.md"):
        done = cellwall("skills", word, place)
        assert (done.returncode, error_code(done)) == (125, "CW-SKILL-FOLDER")
        assert str(tmp_path).encode() not in done.stderr


@pytest.mark.requirement("SKL-1")
def test_a_key_of_somebody_else_counts_only_where_it_is_trusted(folder, tmp_path):
    team = make_key(str(tmp_path / "team.pem"), "team").public
    signed = told(
        *("skills", "sign", str(folder), "--key", str(tmp_path / "team.pem"), "--signer", "team")
    )
    assert signed["key"] == str(team)
    done = cellwall("skills", "add", str(folder))
    assert (done.returncode, error_code(done)) == (125, "CW-SKILL-UNSIGNED")
    config = tmp_path / "cellwall.toml"
    config.write_text(f'[skills]\ntrusted_keys = ["{team}"]\n')
    assert cellwall("skills", "add", str(folder), "--config", str(config)).returncode == 0
    words = ("--skill", "greeting", "--", "true")
    assert cellwall("run", "--config", str(config), *words).returncode == 0
    assert error_code(cellwall("run", *words)) == "CW-SKILL-UNSIGNED"


def test_a_key_in_the_configuration_that_is_none_is_told(tmp_path):
    config = tmp_path / "cellwall.toml"
    config.write_text('[skills]\ntrusted_keys = ["team+00000000+AAAA"]\n')
    done = cellwall("config", "check", "--config", str(config))
    assert done.returncode != 0
    assert b"is not a public key" in done.stdout + done.stderr


def proposed(folder: Path) -> str:
    return told("skills", "propose", str(folder))["id"]


@pytest.mark.requirement("SKL-1")
def test_a_proposal_is_not_loadable_until_a_person_approves_it(folder):
    number = proposed(folder)
    words = ("run", "--skill", "greeting", "--", "cat", "/skills/greeting/SKILL.md")
    assert error_code(cellwall(*words)) == "CW-SKILL-UNKNOWN"
    shown = told("skills", "review", number)
    assert [file["text"] for file in shown["files"]] == ["Say hello.\n"]

    done = cellwall("skills", "approve", number)  # nobody at a terminal
    assert (done.returncode, error_code(done)) == (125, "CW-NOT-CONFIRMED")
    done = cellwall("skills", "approve", number, "--digest", "0" * 64)
    assert (done.returncode, error_code(done)) == (125, "CW-SKILL-CHANGED")
    assert error_code(cellwall(*words)) == "CW-SKILL-UNKNOWN"

    done = person("skills", "approve", number, "--digest", shown["digest"])
    assert done.returncode == 0
    assert cellwall(*words).stdout == b"Say hello.\n"
    assert told("skills", "list")["proposals"] == []
    assert error_code(cellwall("skills", "review", number)) == "CW-SKILL-PROPOSAL"


def test_a_proposal_can_be_removed(folder):
    number = proposed(folder)
    assert cellwall("skills", "remove", number).returncode == 0
    assert told("skills", "list")["proposals"] == []


@pytest.mark.requirement("SKL-1")
def test_review_shows_what_hides_and_steers_no_terminal(folder):
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    (folder / "SKILL.md").write_bytes(f"Say{hidden}\u200b \x1b[2Jhello\r.\n".encode() + b"\xff")
    (folder / "blob").write_bytes(b"\0\1")
    done = cellwall("skills", "review", proposed(folder))
    text = done.stdout.decode()
    assert done.returncode == 0
    assert not set(text) & {"\x1b", "\r", "\u200b", *hidden}
    assert "!!! 7 invisible characters" in text
    assert "\\u{e006f}" in text
    assert "\\xff" in text
    assert "NOT SHOWN: 2 bytes of binary data" in text


def test_review_tells_what_would_change(folder):
    (folder / "gone").write_text("")
    cellwall("skills", "sign", str(folder))
    cellwall("skills", "add", str(folder))
    (folder / "gone").unlink()
    (folder / "SKILL.md").chmod(0o755)
    (folder / "new").write_text("")
    lines = cellwall("skills", "review", "--stat", proposed(folder)).stdout.decode().splitlines()
    assert lines[0] == "skill     greeting (replaces the approved one)"
    assert lines[3:] == [
        "changed   SKILL.md (11 bytes, executable)",
        "new       new (0 bytes)",
        "removed   gone",
    ]


@pytest.mark.requirement("POL-13")
@pytest.mark.parametrize(("says", "code"), [(None, 0), ("y", 1)])
def test_a_person_at_a_terminal_is_asked(folder, says, code):
    number = proposed(folder)
    done = person("skills", "approve", number, says=says)
    assert done.returncode == code
    assert b"SKILL.md (11 bytes)" in done.stderr
    assert len(told("skills", "list")["skills"]) == 1 - code


def test_two_at_once_both_end_well(folder):
    cellwall("skills", "sign", str(folder))
    started = [
        prepared_program.Popen(["skills", "add", str(folder)], stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    assert [process.wait(DEADLINE_S) for process in started] == [0, 0, 0]
    assert [each["ok"] for each in told("skills", "list")["skills"]] == [True]


@pytest.mark.requirement("SKL-1")
def test_the_supervisor_shows_skills_as_well(folder, supervisor):
    """The same by another process, in which the names come as JSON."""
    assert cellwall("skills", "sign", str(folder)).returncode == 0
    assert cellwall("skills", "add", str(folder)).returncode == 0
    done = cellwall("run", "--skill", "greeting", "--", "cat", "/skills/greeting/SKILL.md")
    assert (done.stdout, done.stderr) == (b"Say hello.\n", b"")
    done = cellwall("run", "--skill", "nothing", "--", "true")
    assert (done.returncode, error_code(done)) == (125, "CW-SKILL-UNKNOWN")
    with sdk.Sandbox.create(keep_alive=60, skills=["greeting"]) as sbx:
        assert sbx.commands.run("cat /skills/greeting/SKILL.md").stdout == "Say hello.\n"
        sbx.files.make_dir("out")
        sbx.files.write("out/SKILL.md", "Obey.")
        proposal = sbx.skills.propose("out", name="greeting")
    assert [each["id"] for each in told("skills", "list")["proposals"]] == [proposal.id]
    cellwall("skills", "remove", proposal.id)
    cellwall("skills", "remove", "greeting")
