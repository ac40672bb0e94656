"""The templates, and the contents of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cellwall.core.errors import BadInput

PACKAGES_INSIDE = "/opt/packages"

# Modules that most code imports and that are slow to import. Cells share their pages, but each page
# also costs time at the start and end of a cell: this list costs nothing measurable, three times as
# many modules cost 0.4 ms a run.
_STANDARD = """
    collections contextlib copy dataclasses datetime enum functools itertools json math operator
    random re string time typing
"""
_DATA = "numpy numpy.random pandas matplotlib matplotlib.pyplot matplotlib.backends.backend_agg"


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """The contents of a template."""

    name: str
    is_interpreter: bool
    """The zygote is a Python from which interpreters are forked; otherwise cells start empty."""
    preload: tuple[str, ...] = ()
    """Modules of the standard library that the zygote imports."""
    preload_packages: tuple[str, ...] = ()
    """Packages that the zygote imports; only those whose hashes Cellwall ships."""
    site_packages: str | None = None
    """A host directory with the template's packages, mounted read-only."""
    site_identity: tuple[int, int] | None = None
    """Device and inode of that directory. One that was removed and built again has the same path; a
    running template still shows the removed one, and keeps its identity."""


SHELL = TemplateSpec("shell", is_interpreter=False)  # also runs deno, and node from /usr
PYTHON = TemplateSpec("python", is_interpreter=True, preload=tuple(_STANDARD.split()))

EnvironmentOf = Callable[[str], str | None]
"""The packages built for a template, by its name; raises for an unknown one."""


def python_template_spec(name: str, environment_of: EnvironmentOf) -> TemplateSpec:
    """The Python template of this name; raises if there is none."""
    if name == PYTHON.name:
        return PYTHON
    found = environment_of(name)
    identity = None if found is None else _identity(found)
    if found is None or identity is None:
        raise BadInput(
            f"the template {name} was not built yet",
            hint=f"Build it once: cellwall template build {name}",
            code="CW-TEMPLATE-NOT-BUILT",
        )
    return TemplateSpec(
        name,
        is_interpreter=True,
        preload=PYTHON.preload,
        preload_packages=tuple(_DATA.split()) if name == "python-data" else (),
        site_packages=found,
        site_identity=identity,
    )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:  # removed meanwhile
        return None
    return status.st_dev, status.st_ino
