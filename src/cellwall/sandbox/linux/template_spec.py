"""Which templates there are, and what each is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cellwall.core.errors import BadInput

PACKAGES_INSIDE = "/opt/packages"

# What most code imports, and is slow to import. Cells share its pages, but each of them is work at
# a cell's birth and end as well: this list costs nothing that can be measured, three times as much
# costs 0.4 ms a run.
_STANDARD = """
    collections contextlib copy dataclasses datetime enum functools itertools json math operator
    random re string time typing
"""
_DATA = "numpy numpy.random pandas matplotlib matplotlib.pyplot matplotlib.backends.backend_agg"


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """What a template is made of."""

    name: str
    is_interpreter: bool
    """A Python that waits, from which interpreters are forked; else cells start empty."""
    preload: tuple[str, ...] = ()
    """Modules of the standard library that it imports before anybody needs them."""
    preload_packages: tuple[str, ...] = ()
    """The same of its packages; only of those whose hashes we ship."""
    site_packages: str | None = None
    """A directory of the host's with packages of its own, shown read-only."""
    site_identity: tuple[int, int] | None = None
    """Which directory that is, by the kernel's numbers. One that was removed and built again has
    the same name; a template that is warm still shows the removed one, and keeps its number."""


SHELL = TemplateSpec(
    "shell", is_interpreter=False
)  # node, where it is in /usr, and deno run in it, too
PYTHON = TemplateSpec("python", is_interpreter=True, preload=tuple(_STANDARD.split()))

EnvironmentOf = Callable[[str], str | None]
"""The packages that were built for a template, by its name; raises for one that nobody knows."""


def python_template_spec(name: str, environment_of: EnvironmentOf) -> TemplateSpec:
    """The Python template of this name, or why there is none."""
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
