"""A shipped list is the one that was made, or no package is judged (PKG-1)."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.packages import popular, snapshot
from cellwall.packages.names import Ecosystem
from cellwall.packages.shipped_lists import SHA256, read_list

SHIPPED = Path(str(resources.files("cellwall.packages") / "data"))


def some_lines(data: bytes) -> bytes:
    return lzma.compress(b"\n".join(lzma.decompress(data).splitlines()[:100]))


def bomb(data: bytes) -> bytes:
    return data + lzma.compress(bytes(2**20)) * 1000


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "with fewer lines": some_lines,
    "with a bomb behind it": bomb,
    "that of the other registry": lambda _: (SHIPPED / "malicious-npm.txt.xz").read_bytes(),
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped data in the place of the package's."""
    shutil.copytree(SHIPPED, tmp_path / "data")
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    return tmp_path / "data"


def refused(name: str) -> str:
    with pytest.raises(CellwallError) as error:
        read_list(name)
    return error.value.code


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["malicious-pypi", "popular-pypi"])
def test_a_damaged_or_exchanged_list_is_an_error(data: Path, name: str, damage: str) -> None:
    path = data / f"{name}.txt.xz"
    assert len(read_list(name)) > 1000  # the control
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert refused(name) == "CW-PACKAGE-LISTS"


@pytest.mark.requirement("PKG-1")
@pytest.mark.parametrize("target", [None, "/dev/null", "/dev/zero"])
def test_a_list_that_is_gone_or_a_link_is_an_error(data: Path, target: str | None) -> None:
    path = data / "malicious-npm.txt.xz"
    path.unlink()
    if target is not None:
        path.symlink_to(target)
    assert refused("malicious-npm") == "CW-PACKAGE-LISTS"
    with pytest.raises(CellwallError):
        snapshot.malicious_snapshot.__wrapped__(Ecosystem.NPM)
    # The controls: the other lists are as they were.
    assert snapshot.malicious_snapshot.__wrapped__(Ecosystem.PYPI).versions
    assert popular.popular_names.__wrapped__(Ecosystem.NPM).names


def test_every_shipped_list_is_checked() -> None:
    assert {f"{name}.txt.xz" for name in SHA256} == {each.name for each in SHIPPED.glob("*.xz")}
