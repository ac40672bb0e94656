"""A rule is added to a person's policy file, and all else in it stays as it is."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.runtime.policy_file import add_rule, draft_rules, write_draft
from cellwall.runtime.policy_places import user_policy

BEFORE = """# mine
[permissions]
allow = ["Bash(ls)"] # keep this
deny = []

[[rule]] # by hand
verdict = "deny"
rule = "Bash(rm *)"
"""


def test_the_file_is_made_with_its_folder_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "cellwall" / "policy.toml"
    assert add_rule(str(path), "Bash(git push)", reason="allowed by me", answers="Bash(git *)")
    assert path.read_text() == (
        '[[rule]]\nverdict = "allow"\nrule = "Bash(git push)"\nreason = "allowed by me"\n'
        'answers = "Bash(git *)"\n'
    )
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("before", [BEFORE, BEFORE.rstrip("\n"), "# only a comment", "\n\n"])
def test_comments_and_content_are_kept_to_the_byte(before: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(before)
    path.chmod(0o640)
    assert add_rule(str(path), 'Bash(echo "é")', reason="x", answers="Bash(git *)")
    after = path.read_text()
    assert after.startswith(before)
    rules = tomllib.loads(after)["rule"]
    assert rules[-1] == {
        "verdict": "allow",
        "rule": 'Bash(echo "é")',
        "reason": "x",
        "answers": "Bash(git *)",
    }
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.toml"]


def test_the_same_rule_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    assert add_rule(str(path), "Bash(ls)", reason="x", answers="Bash(git *)")
    before = path.read_bytes()
    assert not add_rule(str(path), "Bash(ls)", reason="y", answers="Bash(git *)")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        (b"not toml", 0o600),
        (b'rule = "x"', 0o600),
        (b"rule = [{}]", 0o600),
        (b"[rule]\nx = 1", 0o600),
        (b"\xff", 0o600),
        (b"# " + b"x" * (1 << 20), 0o600),
        (b"", 0o622),
    ],
)
def test_what_cannot_take_a_rule_is_left_alone(content: bytes, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(CellwallError) as refused:
        add_rule(str(path), "Bash(ls)", reason="x", answers="Bash(git *)")
    assert refused.value.code == "CW-RULE-UNWRITTEN"
    assert path.read_bytes() == content


def test_a_directory_or_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "policy.toml", tmp_path / "file" / "policy.toml"):
        with pytest.raises(CellwallError):
            add_rule(str(path), "Bash(ls)", reason="x", answers="Bash(git *)")


def test_a_linked_file_stays_linked(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "p.toml", tmp_path / "policy.toml"
    real.write_text("# mine\n")
    link.symlink_to(real)
    assert add_rule(str(link), "Bash(ls)", reason="x", answers="Bash(git *)")
    assert link.is_symlink()
    assert "Bash(ls)" in real.read_text()


def test_many_writers_at_once_lose_no_rule(tmp_path: Path) -> None:
    path = str(tmp_path / "policy.toml")
    threads = [
        threading.Thread(
            target=add_rule,
            args=(path, f"Bash(echo {n})"),
            kwargs={"reason": "x", "answers": "Bash(git *)"},
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rules = tomllib.loads(Path(path).read_text())["rule"]
    assert {rule["rule"] for rule in rules} == {f"Bash(echo {n})" for n in range(20)}


def test_the_users_own_file_lies_beside_the_configuration() -> None:
    assert user_policy({"XDG_CONFIG_HOME": "/x"}) == "/x/cellwall/policy.toml"
    for environ in ({"HOME": "/h"}, {"HOME": "/h", "XDG_CONFIG_HOME": "relative"}):
        assert user_policy(environ) == "/h/.config/cellwall/policy.toml"
    assert user_policy({}).endswith("/.config/cellwall/policy.toml")


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(
    ("rule", "reason", "answers"),
    [
        ("Bash(ls)", "by ceo\x1b[31m\nall fine", "Bash(git *)"),
        ("Bash(ls", "x", "Bash(git *)"),
        ("Bash(ls)", "x", "Bash(\n)"),
    ],
)
def test_a_rule_that_could_not_be_read_again_is_not_written(
    rule: str, reason: str, answers: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(BEFORE)
    with pytest.raises(CellwallError) as refused:
        add_rule(str(path), rule, reason=reason, answers=answers)
    assert (refused.value.code, path.read_text()) == ("CW-RULE-UNWRITTEN", BEFORE)
    assert add_rule(str(path), "Bash(ls)", reason="x", answers="Bash(git *)")


RULE = {"verdict": "allow", "rule": "Bash(ls)", "reason": "x"}
RULE_TEXT = '[[rule]]\nverdict = "allow"\nrule = "Bash(ls)"\nreason = "x"\n'


def test_a_draft_is_written_only_over_the_text_that_was_shown(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(BEFORE)
    path.chmod(0o664)  # a clone with a umask of 002
    draft = draft_rules(str(path), RULE_TEXT, [RULE])
    assert (path.read_text(), draft.after) == (BEFORE, f"{BEFORE}\n{RULE_TEXT}")
    path.write_text(BEFORE + "# later\n")
    with pytest.raises(CellwallError, match="has changed since it was shown"):
        write_draft(draft)
    path.write_text(BEFORE)
    write_draft(draft)
    assert path.read_text() == draft.after
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_draft_whose_text_is_not_its_rules_is_refused(tmp_path: Path) -> None:
    for text in (RULE_TEXT + '[[rule]]\nverdict = "allow"\nrule = "Bash"\n', "x = ["):
        with pytest.raises(CellwallError):
            draft_rules(str(tmp_path / "policy.toml"), text, [RULE])
    assert not any(tmp_path.iterdir())
