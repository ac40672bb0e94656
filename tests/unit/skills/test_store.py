"""The approved skills on disk: whole or not there, checked at each use (SKL-1)."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.core.keys import make_key
from cellwall.skills import folders, store
from cellwall.skills.folders import SkillFolders
from cellwall.skills.store import SkillStore, own_key, signing_key, trusted_keys
from unit.skills.signing import load, sign


@pytest.fixture
def home(state_home: str) -> Path:
    return Path(state_home)


@pytest.fixture
def skills(home: Path, key) -> SkillStore:
    return SkillStore(str(home), [str(key.public)])


def code(work) -> str:
    with pytest.raises(CellwallError) as raised:
        work()
    return raised.value.code


@pytest.mark.requirement("SKL-1")
def test_what_was_added_is_loaded_and_closed_to_others(home, skills, folder, key):
    assert skills.add(load(folder, key)) is False
    assert skills.add(load(folder, key)) is True
    assert skills.load(["greeting", "greeting"]) == (load(folder, key).skill,)
    modes = {path.stat().st_mode & 0o777 for path in (home / "skills").rglob("*")}
    assert modes == {0o700, 0o600, 0o500, 0o400}
    assert os.listdir(home / "skills" / "approved") == ["greeting"]
    skills.remove("greeting")
    assert code(lambda: skills.load(["greeting"])) == "CW-SKILL-UNKNOWN"
    assert code(lambda: skills.remove("greeting")) == "CW-SKILL-UNKNOWN"
    assert skills.load([]) == ()


@pytest.mark.requirement("SKL-1")
def test_a_store_that_was_changed_behind_our_back_is_refused(home, skills, folder, key):
    skills.add(load(folder, key))
    place = home / "skills" / "approved" / "greeting"
    (place / "SKILL.md").chmod(0o600)
    (place / "SKILL.md").write_text("Say byebye\n")
    assert code(lambda: skills.load(["greeting"])) == "CW-SKILL-CHANGED"
    assert skills.survey()["greeting"].code == "CW-SKILL-CHANGED"
    skills.add(load(folder, key))
    assert len(skills.load(["greeting"])) == 1


@pytest.mark.requirement("SKL-1")
def test_what_lies_under_another_name_or_behind_a_link_is_refused(home, skills, folder, key):
    skills.add(load(folder, key))
    approved = home / "skills" / "approved"
    shutil.copytree(approved / "greeting", approved / "payments")
    assert code(lambda: skills.load(["payments"])) == "CW-SKILL-CHANGED"
    (approved / "linked").symlink_to(approved / "greeting")
    assert code(lambda: skills.load(["linked"])) == "CW-SKILL-CHANGED"
    skills.remove("linked")
    assert (approved / "greeting" / "SKILL.md").exists()
    assert len(skills.load(["greeting"])) == 1


@pytest.mark.requirement("SKL-1")
@pytest.mark.parametrize("name", ["../quarantine/x", "..", "a/b", "", "GREETING"])
def test_names_never_lead_out_of_the_store(skills, name):
    assert code(lambda: skills.load([name])) == "CW-SKILL-NAME"
    assert code(lambda: skills.remove(name)) == "CW-SKILL-NAME"


@pytest.mark.parametrize("part", ["skills", "skills/approved"])
def test_a_store_that_others_may_write_to_or_that_is_a_link_is_refused(
    home, skills, part, tmp_path
):
    assert skills.survey() == {}
    (home / part).chmod(0o770)
    assert code(lambda: skills.load(["greeting"])) == "CW-SKILL-STORE-UNSAFE"
    shutil.rmtree(home / part)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (home / part).symlink_to(tmp_path / "elsewhere")
    assert code(lambda: skills.load(["greeting"])) == "CW-SKILL-STORE-UNSAFE"


def test_skills_of_one_action_have_one_budget(skills, folder, key, monkeypatch):
    skills.add(load(folder, key))
    sign(folder, key, "second")
    skills.add(load(folder, key))
    assert [skill.name for skill in skills.load(["second", "greeting"])] == ["second", "greeting"]
    monkeypatch.setattr(store, "MAX_BYTES", 40)
    assert len(skills.load(["second"])) == 1
    assert code(lambda: skills.load(["second", "greeting"])) == "CW-SKILL-TOO-LARGE"


def test_a_key_that_is_not_trusted_any_more_takes_its_skills_with_it(home, skills, folder, key):
    skills.add(load(folder, key))
    assert code(lambda: SkillStore(str(home), []).load(["greeting"])) == "CW-SKILL-UNSIGNED"
    other = make_key(str(folder.parent / "other.pem"), "tester")
    later = SkillStore(str(home), [str(other.public)])
    assert code(lambda: later.load(["greeting"])) == "CW-SKILL-UNSIGNED"


def test_an_interrupted_change_leaves_the_old_skill_or_the_new_one(
    home, skills, folder, key, monkeypatch
):
    skills.add(load(folder, key))
    real, done = os.rename, []

    def failing(old, new, **place):
        done.append(old)
        if len(done) == 2:  # the old one is out of its place, the new one not yet in it
            raise KeyboardInterrupt
        real(old, new, **place)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        with pytest.raises(KeyboardInterrupt):
            skills.add(load(folder, key))
    assert os.listdir(home / "skills" / "approved") == ["greeting"]
    assert len(skills.load(["greeting"])) == 1


def test_what_a_killed_change_left_is_put_in_order(home, skills, folder, key):
    skills.add(load(folder, key))
    approved = home / "skills" / "approved"
    (approved / "greeting").rename(approved / ".old-greeting")
    (approved / ".new-12").mkdir()
    (approved / ".new-34").symlink_to("/etc")
    with SkillFolders(str(home)).open_exclusive("approved"):
        assert os.listdir(approved) == ["greeting"]
    assert len(skills.load(["greeting"])) == 1


@pytest.mark.requirement("SKL-1")
def test_whoever_loads_while_it_is_replaced_sees_one_version_whole(skills, folder, key):
    first = load(folder, key)
    (folder / "SKILL.md").write_text("Say hallo.\n")
    sign(folder, key)
    second = load(folder, key)
    skills.add(first)
    over = threading.Event()
    failures: list[BaseException] = []

    def change() -> None:
        try:
            for number in range(30):
                skills.add(second if number % 2 else first)
        except BaseException as error:
            failures.append(error)
        finally:
            over.set()

    changer = threading.Thread(target=change)
    changer.start()
    seen = set()
    while not over.is_set():
        seen.add(skills.load(["greeting"])[0].digest)
    changer.join()
    assert failures == []
    assert seen <= {first.skill.digest, second.skill.digest}


def test_nobody_waits_for_ever(home, skills, monkeypatch):
    monkeypatch.setattr(folders, "_LOCK_TIMEOUT_S", 0.02)
    with SkillFolders(str(home)).open_exclusive("approved"):
        assert code(lambda: skills.load(["greeting"])) == "CW-SKILL-BUSY"


def test_the_number_of_skills_is_bounded(skills, folder, key, monkeypatch):
    monkeypatch.setattr(store, "MAX_SKILLS", 1)
    skills.add(load(folder, key))
    skills.add(load(folder, key))
    sign(folder, key, "second")
    assert code(lambda: skills.add(load(folder, key))) == "CW-SKILL-TOO-MANY"


def test_the_own_key_is_made_once_and_trusted_first(state_home, tmp_path):
    assert own_key(state_home) is None
    assert trusted_keys(state_home, []) == ()
    made = signing_key(state_home).public
    assert signing_key(state_home).public == made
    other = make_key(str(tmp_path / "k.pem"), "team").public
    assert trusted_keys(state_home, [str(other), str(made)]) == (made, other)
    assert Path(state_home, "keys", "skills.pem").stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_may_read_is_not_a_key_less_but_a_refusal(state_home):
    signing_key(state_home)
    Path(state_home, "keys", "skills.pem").chmod(0o644)
    with pytest.raises(CellwallError) as raised:
        trusted_keys(state_home, [])
    assert raised.value.code == "CW-KEY-UNSAFE"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"signer": "team"}, "CW-USAGE"),
        ({"path": "/nowhere/k.pem"}, "CW-KEY"),
        ({"path": "/dev/null"}, "CW-KEY-UNSAFE"),
    ],
)
def test_what_is_no_key_is_told(state_home, options, code):
    with pytest.raises(CellwallError) as raised:
        signing_key(state_home, **options)
    assert raised.value.code == code


def test_a_name_that_no_note_can_hold_is_told(state_home, tmp_path):
    make_key(str(tmp_path / "k.pem"), "team")
    with pytest.raises(CellwallError) as raised:
        signing_key(state_home, path=str(tmp_path / "k.pem"), signer="the team")
    assert raised.value.code == "CW-USAGE"
