"""Attacks by packages that somebody named: on the host that unpacks them, and on the template whose
zygote all sandboxes with the same packages are forked from (ISO-5, LANG-2).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import cellwall
from cellwall.sandbox import languages
from cellwall.sandbox.templates import definitions
from conftest import need
from unit.sandbox import tiny_template

# What the standard library, the interpreter and our own code look for by name.
_LOOKED_FOR = (
    *("org/__init__.py", "org/python/__init__.py", "org/python/core.py"),  # `copy`, up to 3.12
    *("_cellwall_show.py", "_cellwall_runner.py", "_cellwall_zygote.py"),
    *("sitecustomize.py", "usercustomize.py", "json.py", "copy.py", "ctypes.py", "atexit.py"),
)
_LOADED = """
import sys
[name for name, module in sys.modules.items()
 if str(getattr(module, "__file__", "")).startswith("/opt/packages/")]
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index whose one package holds all of them, and a mark that each would leave on a host."""
    need(shutil.which("bwrap"), "bubblewrap")
    shelf, mark = tmp_path / "shelf", tmp_path / "executed"
    shelf.mkdir()
    attack = f"open({str(mark)!r}, 'a').write(__name__)\n"
    files = dict.fromkeys(_LOOKED_FOR, f"try:\n    {attack}except OSError:\n    pass\n")
    files["evil.pth"] = f"import sys; {attack}"
    tiny_template.wheel(shelf, files=files)
    tiny_template.offline(monkeypatch, shelf, b"")
    return mark


@pytest.mark.requirement("ISO-5")
def test_no_module_of_a_package_runs_before_code_asks_for_it(
    hostile: Path, state_home: str, path: str
) -> None:
    loaded = cellwall.run_code(_LOADED, packages=["tiny"])
    assert (loaded.value, loaded.outcome.sandbox_path) == ([], path)
    # The control: they are in reach, and a module that is asked for is one of them.
    found = cellwall.run_code("import org.python as o; o.__file__", packages=["tiny"])
    assert found.value == "/opt/packages/org/python/__init__.py"
    # A value that needs the module of ours gets it.
    assert cellwall.run_code("[1, {'a': None}]", packages=["tiny"]).value == [1, {"a": None}]
    assert not hostile.exists()
    # The control: on the host one of them leaves a mark.
    built = Path(state_home, "templates", definitions.name_of(("tiny",)))
    (site,) = built.glob("*/site-packages")
    words = [languages.python_outside(), "-c", "import _cellwall_show"]
    subprocess.run(words, env={"PYTHONPATH": str(site)}, check=True)
    assert hostile.exists()


@pytest.mark.requirement("ISO-5")
@pytest.mark.usefixtures("hostile")
def test_the_template_stays_as_it_was_built_for_the_next_sandbox() -> None:
    attack = """
import os, pathlib
failed = []
for path in ("/opt/packages/tiny/__init__.py", "/opt/packages/new.py", "/opt/packages/tiny"):
    for act in (lambda p: open(p, "a"), os.unlink, lambda p: os.chmod(p, 0o777),
                lambda p: os.rename(p, p + "x"), lambda p: os.symlink("/tmp", p + ".l"),
                lambda p: os.link(p, "/workspace/linked")):
        try:
            act(path)
        except OSError:
            failed.append(path)
len(failed)
"""
    with cellwall.Sandbox.create(packages=["tiny==1.0"]) as sandbox:
        assert sandbox.run_code(attack).value == 18
    assert cellwall.run_code("import tiny; tiny.ANSWER", packages=["tiny==1.0"]).value == 42
