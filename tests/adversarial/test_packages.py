"""Attacks by packages that somebody named: on the host that builds a template of them, and on the
template whose zygote all sandboxes with the same packages are forked from (ISO-5, LANG-2, PKG-3).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import enter_home
from cellwall.admin import package_cells as cells
from cellwall.admin.templates import Templates
from cellwall.core.errors import CellwallError
from cellwall.core.types import Principal
from cellwall.runtime import wiring
from cellwall.sandbox import languages
from cellwall.sandbox.linux import pool
from cellwall.sandbox.templates import definitions
from conftest import need
from registries import Registries, build_sdist
from tiny_index import tiny_index, use_config

ANN = Principal("ann", "cli")

# What the standard library, the interpreter and our own code look for by name.
_LOOKED_FOR = (
    *("org/__init__.py", "org/python/__init__.py", "org/python/core.py"),  # `copy`, up to 3.12
    *("_cellwall_show.py", "_cellwall_runner.py", "_cellwall_channel.py", "_cellwall_zygote.py"),
    *("setup.py", "conftest.py"),
)
_LOADED = """
import sys
[name for name, module in sys.modules.items()
 if str(getattr(module, "__file__", "")).startswith("/opt/packages/")]
"""


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mark that each attack would leave on a host."""
    return tmp_path_factory.mktemp("marks") / "executed"


def attack_on(mark: Path) -> str:
    return f"try:\n    open({str(mark)!r}, 'a').write(__name__)\nexcept OSError:\n    pass\n"


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, marks: Path
) -> Iterator[tuple[Path, Registries]]:
    """An index whose one allowed package holds all that the inspection of artifacts lets pass."""
    need(shutil.which("bwrap"), "bubblewrap")
    folder = tmp_path_factory.mktemp("index")
    files = dict.fromkeys(_LOOKED_FOR, attack_on(marks))
    with tiny_index(folder, files) as registries:
        yield folder, registries


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, served: tuple[Path, Registries], marks: Path
) -> Iterator[tuple[Path, Path]]:
    """A state folder with the template of that package, built by the first test."""
    home = tmp_path_factory.mktemp("home")
    yield home, marks
    wiring.close_shared(str(home))
    pool.close_all()


@pytest.fixture
def hostile(
    built: tuple[Path, Path],
    served: tuple[Path, Registries],
    path: str,
    state_home: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    home, mark = built
    mark.unlink(missing_ok=True)
    enter_home(home, path, monkeypatch)
    use_config(monkeypatch, served[0])
    return mark


@pytest.mark.requirement("ISO-5", "PKG-3")
def test_no_module_of_a_package_runs_before_code_asks_for_it(
    hostile: Path, built: tuple[Path, Path], path: str
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
    template = built[0] / "templates" / definitions.name_of(("tiny",))
    (site,) = template.glob("*/site-packages")
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
    with cellwall.Sandbox.create(packages=["tiny"]) as sandbox:
        assert sandbox.run_code(attack).value == 18
    assert cellwall.run_code("import tiny; tiny.ANSWER", packages=["tiny"]).value == 42


def build(*packages: str) -> str:
    """The code of the refusal."""
    with pytest.raises(CellwallError) as told:
        Templates().build("web", principal=ANN, on_progress=lambda _: None, packages=packages)
    assert not Path(os.environ["CELLWALL_HOME"], "templates/web").exists()
    return told.value.code


@pytest.mark.requirement("PKG-3", "PKG-4")
def test_nothing_of_a_hostile_package_runs_on_the_host_while_it_is_refused(
    served: tuple[Path, Registries], marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, registries = served
    use_config(monkeypatch, folder)
    marks.unlink(missing_ok=True)
    attack = attack_on(marks)
    registries.add_file("zoo-source", *build_sdist("zoo-source", "1.0", {"setup.py": attack}))
    registries.add_wheel("zoo-start", "1.0", {"zoo.pth": f"import sys; exec({attack!r})\n"})
    registries.add_wheel("zoo-module", "1.0", {"numpy/__init__.py": attack})
    registries.add_wheel("zoo-needs", "1.0", requires=["zoo-source"])
    registries.add_wheel("zoo-far", "1.0", requires=[f"x @ {registries.base}/packages/x.tar.gz"])
    registries.files["/packages/x.tar.gz"] = build_sdist("x", "1.0", {"setup.py": attack})[1]
    # What a person's own settings would lead an installer to.
    for name in ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, f"{registries.base}/simple")
    names = ("source", "start", "module", "needs", "far")
    codes = {name: build(f"zoo-{name}") for name in names}
    assert codes == dict.fromkeys(names, "CW-PACKAGE-REFUSED")
    assert ("GET", "/packages/x.tar.gz") not in registries.seen
    assert not marks.exists()
    # The control: built on the host, it would.
    subprocess.run([sys.executable, "-c", attack], cwd=tmp_path, check=True)
    assert marks.exists()


@pytest.mark.requirement("PKG-3")
def test_a_tree_that_a_cell_left_is_copied_as_plain_files_or_not_at_all(
    served: tuple[Path, Registries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if uv itself were in the hands of an attacker: the cell writes what it likes."""
    use_config(monkeypatch, served[0])
    app = wiring.open_app()
    plants = {
        "a link to a file of the host": "ln -s /etc/passwd site/x",
        "a link to a folder of the host": "ln -s / site/x",
        "a FIFO": "mkfifo site/x",
        "nothing": "true",
    }
    left = {}
    try:
        for what, plant in plants.items():
            target = tmp_path / what.replace(" ", "-")
            target.mkdir()

            async def copy(plant: str = plant, target: Path = target) -> None:
                with cells.package_cell(app, ANN, registries=(), env={}) as cell:
                    script = f"mkdir site; echo 1 > site/a; chmod 777 site/a; {plant}"
                    await cell.run(["sh", "-c", script], cwd="/workspace", on_line=lambda _: None)
                    await cell.copy_out("site", str(target))

            try:
                cells.run_cancellable(copy)
                left[what] = [(p.name, oct(p.stat().st_mode)) for p in target.rglob("*")]
            except CellwallError as error:
                left[what] = (error.code, list(target.iterdir()))
    finally:
        app.close()
    refused = ("CW-LINK-IN-TREE", [])
    assert left == {
        **dict.fromkeys(list(plants)[:3], refused),
        "nothing": [("site", "0o40755"), ("a", "0o100755")],
    }
