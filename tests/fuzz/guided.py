"""One Python target under atheris: `guided.py TARGET COVERS [OPTIONS OF LIBFUZZER] FOLDER`.

Only the modules that the target names are instrumented: branches of all else would guide the search
to what is not the parser's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import atheris
from atheris.import_hook import AtherisMetaPathFinder

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


class CoveredModules(AtherisMetaPathFinder):
    """Instruments modules whose names begin with one of these."""

    def __init__(self, covers: tuple[str, ...]) -> None:
        super().__init__({"cellwall"}, set(), False, True)  # the library's own signature
        self._covers = covers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._covers):
            return None
        return super().find_spec(fullname, path, target)


def main() -> None:
    """Reads the arguments and runs until libFuzzer ends the process."""
    name, covers, *options = sys.argv[1:]
    silence = sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as sys.stderr:  # a line for each module
        sys.meta_path.insert(0, CoveredModules(tuple(covers.split(","))))
        from fuzz.targets import load  # noqa: PLC0415  # imports what is instrumented

        target = load(name)
    sys.stderr = silence
    sys.meta_path.pop(0)
    atheris.Setup([sys.argv[0], *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
