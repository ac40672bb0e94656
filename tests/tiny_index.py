"""A registry on loopback with one small package, and the configuration that names the registry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registries import NO_QUEUE, Registries, serve_registries

PACKAGE = "tiny"
MODULE = {"tiny/__init__.py": "ANSWER = 42\ndef main(): print(42)\n"}
PROGRAM = {"tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n"}


@contextmanager
def tiny_index(folder: Path, files: dict[str, str] | None = None) -> Iterator[Registries]:
    """The registry; the configuration is `folder/config.toml`."""
    with serve_registries() as served:
        served.add_wheel(PACKAGE, "1.0", {**MODULE, **PROGRAM, **(files or {})})
        write_config(folder / "config.toml", served.base)
        yield served


def write_config(path: Path, base: str, more: str = "") -> None:
    path.write_text(
        f'[packages]\nwithout_feed = "allow"\npypi_url = "{base}"\npypi_file_urls = []\n'
        f'npm_url = "{base}/npm"\n{more}{"" if "[approvals]" in more else NO_QUEUE}'
    )
    path.chmod(0o600)


def write_config_without_feed(path: Path, base: str) -> None:
    """As on a fresh machine, where a person is asked; only a function of the program answers."""
    write_config(path, base, '[approvals]\nchannels = ["callback"]\n')
    path.write_text(path.read_text().replace('without_feed = "allow"\n', ""))


def use_config(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """For every later call, also of other processes."""
    monkeypatch.setenv("CELLWALL_CONFIG", os.fspath(folder / "config.toml"))
