"""How a learnt rule spells a path, by the file that the rule is for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.policy.rules import Layer
from cellwall.policy.subjects import Subject


@dataclass(frozen=True, slots=True)
class Place:
    """The file that the proposals are for."""

    layer: Layer = Layer.SESSION
    folder: str = ""
    """What a path with one slash in front is relative to in it; empty: nothing is."""

    def spelled(self, path: str, subject: Subject, beneath: str) -> str:
        """A path as a rule of that file means no other one.

        `./path` is another file for each working directory that the rule counts in: in the file of
        a user or a project that is every folder, or every folder of the project.
        """
        if self.layer not in {Layer.USER, Layer.PROJECT}:
            inside = below(subject.cwd, path)
            return f"/{path}" if inside is None else "/".join([".", *inside])
        inside = below(self.folder, path) if self.folder else None
        return "/".join(["", *inside]) if inside or (inside == () and beneath) else f"/{path}"


ANY_FOLDER = Place()
"""A file that is named for one session: its rules follow the working directory."""


def below(folder: str, path: str) -> tuple[str, ...] | None:
    """The names from the folder on; None if it lies elsewhere."""
    names, start = names_of(path), names_of(folder)
    return names[len(start) :] if names[: len(start)] == start else None


def names_of(path: str) -> tuple[str, ...]:
    """Of the folders on the way, and its own."""
    return tuple(name for name in path.split("/") if name)
