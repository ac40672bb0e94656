"""A preview counts the recorded calls that a rule would have allowed, and no others (SRV-5)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cellwall.admin.rule_preview import preview_rule
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json
from cellwall.policy.engine import Policy
from cellwall.runtime.recording import open_record
from cellwall.secrets.session_keys import SessionKeys


def denied(*words: str) -> Event:
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()
    body: dict[str, Json] = {
        "verdict": "deny", "command": list(words), "command_sha256": digest, "cwd": "/workspace",
    }  # fmt: skip
    return Event(EventKind.DENIAL, "", "ann", "http", body)


@pytest.mark.requirement("SRV-5")
def test_a_preview_counts_what_a_rule_would_have_allowed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = load_settings(file=None, profile=None, environ={})
    keys = SessionKeys(str(tmp_path))
    with open_record(str(tmp_path), settings, keys) as log:
        for words in (("ls", "-l"), ("ls", "src"), ("git", "push"), ("sudo", "ls")):
            log.write(denied(*words))
        policy, home = Policy(), str(tmp_path)
        found = preview_rule("Bash(ls *)", answers="", policy=policy, home=home, keys=keys)
        assert (found.judged, found.newly, found.is_partial) == (4, 2, False)
        assert set(found.examples) == {"Bash(ls -l)", "Bash(ls src)"}
        wide = preview_rule("Bash", answers="", policy=policy, home=home, keys=keys)
        assert wide.newly == 3  # sudo stays denied by a built-in rule
        with pytest.raises(BadInput):
            preview_rule("Bash(", answers="", policy=policy, home=home, keys=keys)
