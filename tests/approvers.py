"""An approver's key that is cheap to derive, for tests of what needs its passphrase."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.runtime import approver_key
from cellwall.runtime.approver_key import ApproverKey
from cellwall.runtime.policy_places import user_policy

PASSPHRASE = b"known to the person alone"


def ask() -> bytearray:
    """The person types it."""
    return bytearray(PASSPHRASE)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> ApproverKey:
    monkeypatch.setattr(approver_key, "_MEMORY_KIB", 64)
    monkeypatch.setattr(approver_key, "_PASSES", 1)
    return ApproverKey.make(ask())


@pytest.fixture
def keyless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration without a key."""
    file = tmp_path / "settings" / "config.toml"
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setenv("CELLWALL_CONFIG", str(file))
    assert os.path.dirname(user_policy(os.environ)) == str(file.parent)
    return file


@pytest.fixture
def keyed(keyless: Path, key: ApproverKey) -> Path:
    """The configuration with the key."""
    configure(keyless, key)
    return keyless


def configure(file: Path, key: ApproverKey) -> None:
    file.write_text(f'[approvals]\nkey = "{key}"\n')
