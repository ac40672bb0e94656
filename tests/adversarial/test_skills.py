"""Skills inside: seen, never written, never shared, and never what nobody has signed (SKL-1)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from cellwall.admin.skills import SigningKeyChoice, SkillAdmin
from cellwall.core.errors import CellwallError
from cellwall.runtime.home import local_principal
from cellwall.skills.manifest import MANIFEST_NAME

pytestmark = pytest.mark.requirement("SKL-1")

ME = local_principal("cli")
NAME = "greeting"

# Every way to change a file that one has: each prints a word only if it went through.
WRITES = """
import ctypes, os
place = "/skills/greeting"
libc = ctypes.CDLL(None, use_errno=True)
def mounted(flags):
    if libc.mount(None, b"/skills", None, flags, None):
        raise OSError(ctypes.get_errno(), "")
def unmounted():
    if libc.umount2(b"/skills", 2):
        raise OSError(ctypes.get_errno(), "")
def through_descriptor():
    number = os.open(f"{place}/SKILL.md", os.O_RDONLY)
    os.close(os.open(f"/proc/self/fd/{number}", os.O_WRONLY))
tries = {
    "write": lambda: open(f"{place}/SKILL.md", "w"),
    "append": lambda: open(f"{place}/SKILL.md", "a"),
    "truncate": lambda: os.truncate(f"{place}/SKILL.md", 0),
    "new": lambda: open(f"{place}/new", "x"),
    "unlink": lambda: os.unlink(f"{place}/SKILL.md"),
    "rename": lambda: os.rename(place, "/skills/other"),
    "rename over": lambda: os.rename("/tmp/mine", f"{place}/SKILL.md"),
    "link in": lambda: os.link("/tmp/mine", f"{place}/linked"),
    "symlink": lambda: os.symlink("/tmp", "/skills/link"),
    "mkdir": lambda: os.mkdir("/skills/more"),
    "chmod": lambda: os.chmod(f"{place}/SKILL.md", 0o666),
    "times": lambda: os.utime(f"{place}/SKILL.md"),
    "xattr": lambda: os.setxattr(f"{place}/SKILL.md", "user.a", b"b"),
    "descriptor": through_descriptor,
    "remount": lambda: mounted(32),
    "bind": lambda: mounted(4096),
    "unmount": unmounted,
}
open("/tmp/mine", "w").close()
for name, attempt in tries.items():
    try:
        attempt()
    except OSError:
        continue
    print("THROUGH", name)
print(open(f"{place}/SKILL.md").read(), end="")
"""


@pytest.fixture
def skills(state_home: str) -> Iterator[SkillAdmin]:
    found = SkillAdmin()
    yield found
    for name in found.approved():
        found.remove(name, principal=ME)
    for proposal in found.proposals():
        found.remove(proposal.id, principal=ME)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / NAME
    (place / "bin").mkdir(parents=True)
    (place / "SKILL.md").write_text("Say hello.\n")
    (place / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (place / "bin" / "hello").chmod(0o755)
    return place


def approve(skills: SkillAdmin, folder: Path) -> None:
    skills.sign(str(folder), name=None, choice=SigningKeyChoice(), principal=ME)
    skills.add(str(folder), principal=ME)


def stored(state_home: str) -> Path:
    return Path(state_home, "skills", "approved", NAME)


def refusal(**options: object) -> str:
    ran = cellwall.run_code("print(open('/skills/greeting/SKILL.md').read())", **options)
    assert (ran.status, ran.stdout) == (cellwall.Status.ERROR, "")
    assert ran.outcome.error is not None
    return ran.outcome.error.code


def test_code_and_commands_see_it_and_cannot_change_it(skills, folder, path):
    approve(skills, folder)
    ran = cellwall.run_code(WRITES, skills=[NAME])
    assert (ran.stdout, ran.stderr, ran.outcome.sandbox_path) == ("Say hello.\n", "", path)
    ran = cellwall.run_command(
        "/skills/greeting/bin/hello; echo evil > /skills/greeting/SKILL.md; ls -A /skills/greeting",
        skills=[NAME],
    )
    assert (ran.stdout, ran.exit_code) == ("hello\nSKILL.md\nbin\n", 0)
    assert "Read-only file system" in ran.stderr
    # The control: the same attempts succeed where writing is meant to.
    control = WRITES.replace("/skills/greeting", "/tmp/greeting").replace("/skills", "/tmp/s")
    control = (
        "import os\nos.makedirs('/tmp/greeting')\nopen('/tmp/greeting/SKILL.md','w').close()\n"
        + control
    )
    assert "THROUGH write" in cellwall.run_code(control).stdout


def test_a_live_sandbox_sees_it_and_cannot_change_it(skills, folder, path):
    approve(skills, folder)
    with cellwall.Sandbox.create(skills=[NAME]) as sbx:
        assert sbx.run_code(WRITES).stdout == "Say hello.\n"
        ran = sbx.commands.run("touch /skills/x; /skills/greeting/bin/hello")
        assert (ran.stdout, ran.outcome.sandbox_path) == ("hello\n", path)
        assert "Read-only file system" in ran.stderr
        assert (
            sbx.run_code("cat /skills/greeting/SKILL.md", language="bash").stdout == "Say hello.\n"
        )


def test_who_names_no_skill_sees_none(skills, folder):
    approve(skills, folder)
    assert cellwall.run_command("ls -A /skills").stdout == ""
    assert cellwall.run_command("ls -A /skills", skills=[NAME]).stdout == "greeting\n"


def test_a_given_directory_and_a_skill_go_together(skills, folder, open_folder):
    approve(skills, folder)
    (open_folder / "a").write_text("data\n")
    ran = cellwall.run_command(
        "cat a /skills/greeting/SKILL.md", workspace=f"{open_folder}:ro", skills=[NAME]
    )
    assert ran.stdout == "data\nSay hello.\n"


def test_two_sessions_share_nothing_behind_it(skills, folder):
    """Same names, two file systems: not even an inode is common, nor one of the host's."""
    approve(skills, folder)
    look = "import os; s = os.stat('/skills/greeting/SKILL.md'); print(s.st_dev, s.st_mtime_ns)"
    with (
        cellwall.Sandbox.create(skills=[NAME]) as one,
        cellwall.Sandbox.create(skills=[NAME]) as two,
    ):
        seen = {one.run_code(look).stdout, two.run_code(look).stdout}
    assert len(seen) == 2


def plant(place: Path) -> None:
    (place / "evil.md").write_text("Obey.\n")


def swap(place: Path) -> None:
    (place / "SKILL.md").unlink()
    (place / "SKILL.md").write_text("Say byebye\n")
    (place / "SKILL.md").chmod(0o400)


def link_out(place: Path) -> None:
    (place / "SKILL.md").unlink()
    (place / "SKILL.md").symlink_to("/etc/shadow")


def hard_link(place: Path) -> None:
    os.link(place / "SKILL.md", place.parent.parent / "second")


def fifo(place: Path) -> None:
    (place / "SKILL.md").unlink()
    os.mkfifo(place / "SKILL.md", 0o400)


def other_manifest(place: Path) -> None:
    swap(place)
    text = (place / MANIFEST_NAME).read_bytes()
    (place / MANIFEST_NAME).unlink()
    (place / MANIFEST_NAME).write_bytes(text.replace(b"- 11 ", b"- 12 "))


def huge_manifest(place: Path) -> None:
    (place / MANIFEST_NAME).unlink()
    with (place / MANIFEST_NAME).open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.only_on("cold", reason="the loader is before both paths, and works alike for them")
@pytest.mark.parametrize(
    "tamper", [plant, swap, link_out, hard_link, fifo, other_manifest, huge_manifest]
)
def test_a_store_changed_behind_our_back_is_refused_with_a_code(
    skills, folder, state_home, tamper, path
):
    approve(skills, folder)
    assert cellwall.run_command("true", skills=[NAME]).exit_code == 0
    tamper(stored(state_home))
    assert refusal(skills=[NAME]).startswith("CW-SKILL-")


def test_a_live_sandbox_does_not_go_on_with_what_was_removed_or_replaced(skills, folder):
    approve(skills, folder)
    with cellwall.Sandbox.create(skills=[NAME]) as sbx:
        assert sbx.run_code("1 + 1").value == 2
        (folder / "SKILL.md").write_text("Say hallo.\n")
        approve(skills, folder)
        ran = sbx.run_code("1 + 1")
        assert ran.outcome.error is not None
        assert ran.outcome.error.code == "CW-SKILL-CHANGED"
        skills.remove(NAME, principal=ME)
        ran = sbx.commands.run("true")
        assert ran.outcome.error is not None
        assert ran.outcome.error.code == "CW-SKILL-UNKNOWN"


@pytest.mark.only_on("cold", reason="the loader is before both paths, and works alike for them")
def test_signed_by_an_unknown_key_is_refused_even_inside_the_store(
    skills, folder, state_home, path
):
    approve(skills, folder)
    Path(state_home, "keys", "skills.pem").unlink()
    assert refusal(skills=[NAME]) == "CW-SKILL-UNSIGNED"
    skills.sign(
        str(folder), name=None, choice=SigningKeyChoice(), principal=ME
    )  # another key is made
    assert refusal(skills=[NAME]) == "CW-SKILL-UNSIGNED"


@pytest.mark.only_on("cold", reason="the loader is before both paths, and works alike for them")
@pytest.mark.parametrize("name", ["../quarantine", "..", "/etc", "a/b", "GREETING", "a\0b", ""])
def test_names_of_skills_never_lead_elsewhere(name, path):
    assert refusal(skills=[name]) == "CW-SKILL-NAME"


def test_a_name_alone_is_not_taken_for_a_list():
    with pytest.raises(CellwallError, match="list of names"):
        cellwall.run_code("1", skills="greeting")


def test_what_an_agent_writes_goes_to_quarantine_and_no_further(skills):
    with cellwall.Sandbox.create() as sbx:
        sbx.run_code(
            "import os\nos.makedirs('out/bin')\nopen('out/SKILL.md','w').write('Obey.')\n"
            "open('out/bin/x','w').write('#!/bin/sh')\nos.chmod('out/bin/x', 0o755)"
        ).raise_for_status()
        proposal = sbx.skills.propose("out", name=NAME)
    assert refusal(skills=[NAME]) == "CW-SKILL-UNKNOWN"
    review = skills.review(proposal.id)
    assert dict(review.draft.files) == {"SKILL.md": b"Obey.", "bin/x": b"#!/bin/sh"}
    assert review.draft.executables == {"bin/x"}
    skills.approve(review, choice=SigningKeyChoice(), principal=ME)
    assert cellwall.run_command("cat /skills/greeting/SKILL.md", skills=[NAME]).stdout == "Obey."


@pytest.mark.parametrize(
    ("make", "code"),
    [
        ("os.symlink('/etc/passwd', 'out/a')", "CW-LINK-IN-TREE"),
        ("os.mkfifo('out/a')", "CW-LINK-IN-TREE"),
        ("open('out/a\\x1b[2J', 'w')", "CW-SKILL-PATH"),
        ("open('out/.cellwall-skill', 'w').write('name x')", "CW-SKILL-PATH"),
        ("open('out/A', 'w'); open('out/a', 'w')", "CW-SKILL-PATH"),
        ("[open(f'out/{n}', 'w').write('a' * 3_000_000) for n in range(5)]", "CW-SKILL-TOO-LARGE"),
        ("pass", "CW-SKILL-EMPTY"),
    ],
)
def test_a_workspace_cannot_trick_whoever_proposes_from_it(skills, make, code):
    with cellwall.Sandbox.create() as sbx:
        sbx.run_code(f"import os\nos.mkdir('out')\n{make}").raise_for_status()
        with pytest.raises(CellwallError) as raised:
            sbx.skills.propose("out", name=NAME)
        assert raised.value.code == code
        with pytest.raises(CellwallError):
            sbx.skills.propose("../..", name=NAME)
    assert skills.proposals() == []


@pytest.mark.only_on("cold", reason="the loader is before both paths, and works alike for them")
def test_whatever_happens_at_once_nobody_sees_half_a_skill(skills, folder, path):
    """One adds and removes, others load: each run sees the whole skill or is refused."""
    approve(skills, folder)
    over = threading.Event()

    def change() -> None:
        for _ in range(4):
            skills.remove(NAME, principal=ME)
            skills.add(str(folder), principal=ME)
        over.set()

    changer = threading.Thread(target=change)
    changer.start()
    seen = set()
    while not over.is_set():
        ran = cellwall.run_command("cat $(find /skills -type f | sort)", skills=[NAME])
        seen.add(ran.outcome.error.code if ran.outcome.error else ran.stdout)
    changer.join()
    assert seen <= {"Say hello.\n#!/bin/sh\necho hello\n", "CW-SKILL-UNKNOWN"}


def test_the_state_folder_with_the_key_cannot_be_given_to_code(state_home):
    ran = cellwall.run_command("ls", workspace=f"{state_home}:ro")
    assert ran.outcome.error is not None
