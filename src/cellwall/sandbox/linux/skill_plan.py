"""The steps that put approved skills into a cell, read-only (SKL-1). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellwall.core.skills import SKILLS_INSIDE, Skill
from cellwall.sandbox.linux.plan import PAGE_ROOM, Plan


def plan_skills(plan: Plan, skills: Sequence[Skill]) -> None:
    """Verified bytes in a tmpfs of this cell: it shares no file with another cell or the host, and
    is read-only before any program runs. Landlock allows no writing there either (SKL-1)."""
    if not skills:
        return
    folders, files = skill_files(skills)
    room = sum(map(len, (content for content, _ in files.values())))
    room += PAGE_ROOM * (len(files) + len(folders))
    plan.step("tmpfs", SKILLS_INSIDE, f"size={room},mode=0755")
    plan_skill_files(plan, skills)
    plan.step("seal", SKILLS_INSIDE)


def plan_skill_files(plan: Plan, skills: Sequence[Skill]) -> None:
    """The files alone; the caller has mounted the file system for them."""
    folders, files = skill_files(skills)
    for folder in folders:
        plan.step("dir", folder)
    for path, (content, executable) in files.items():
        plan.step("file", path, 0o555 if executable else 0o444, len(content))
        plan.blob(content)


def skill_files(skills: Sequence[Skill]) -> tuple[list[str], dict[str, tuple[bytes, bool]]]:
    """The folders, parents first, and path -> (content, whether it is a program)."""
    paths = {
        f"{SKILLS_INSIDE}/{skill.name}/{path}": (content, path in skill.executables)
        for skill in skills
        for path, content in skill.files.items()
    }
    return sorted({path[:end] for path in paths for end in _slashes(path)}), paths


def _slashes(path: str) -> Iterator[int]:
    """The ends of the directory names below the skills directory."""
    end = path.find("/", len(SKILLS_INSIDE) + 1)
    while end != -1:
        yield end
        end = path.find("/", end + 1)
