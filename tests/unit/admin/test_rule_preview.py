"""A preview counts the recorded calls that a rule would have allowed, and no others (SRV-5)."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import pytest

from cellwall.admin.rule_preview import preview_rule
from cellwall.config.load import load_settings
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Rule, Source
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
        preview = partial(
            preview_rule, answers="", policy=policy, layer=Layer.SESSION, home=home, keys=keys
        )
        found = preview("Bash(ls *)")
        assert (found.judged, found.newly, found.is_partial) == (4, 2, False)
        assert set(found.examples) == {"Bash(ls -l)", "Bash(ls src)"}
        wide = preview("Bash")
        assert wide.newly == 3  # sudo stays denied by a built-in rule
        with pytest.raises(BadInput):
            preview("Bash(")
        # A rule of an earlier layer than the one that denies the rest changes nothing there.
        closed = Policy.of([allowing("Bash(git *)", Layer.SESSION)])
        common = {"answers": "", "policy": closed, "home": home, "keys": keys}
        assert preview_rule("Bash(ls *)", layer=Layer.USER, **common).newly == 0
        assert preview_rule("Bash(ls *)", layer=Layer.SESSION, **common).newly == 2


def allowing(text: str, layer: Layer) -> Rule:
    return parse_rule(text, verdict=Verdict.ALLOW, source=Source("policy.toml", 1), layer=layer)
