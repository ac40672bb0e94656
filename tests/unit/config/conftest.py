from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError

Refusal = Callable[[str | bytes], ConfigError]


@pytest.fixture
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, so that messages show the name as a person types it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load_text(config_dir: Path) -> Callable[[str | bytes], Settings]:
    """Loads settings from a file `config.toml` with this content."""

    def load(content: str | bytes) -> Settings:
        target = config_dir / "config.toml"
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(0o600)
        return load_settings(file="config.toml", profile=None, environ={})

    return load


@pytest.fixture
def refusal(load_text: Callable[[str | bytes], Settings]) -> Refusal:
    """The error with which a file of this content is refused."""

    def load(content: str | bytes) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            load_text(content)
        return caught.value

    return load
