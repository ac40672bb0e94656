"""What is hidden on the screen does not stand in the record either (GRD-11)."""

from __future__ import annotations

import json

import pytest

import cellwall
from cellwall.guard.redact import Redactor
from cellwall.parsing.credentials.rule_set import shipped
from conftest import audit_records

pytestmark = [pytest.mark.usefixtures("path"), pytest.mark.requirement("GRD-11")]


def test_screen_and_record_agree_for_a_command_that_ran():
    redactor = Redactor()
    tokens = [rule.match[0] for rule in shipped().shapes if "\n" not in rule.match[0]]
    secrets = [
        token[hit.start : hit.end] for token in tokens for hit in redactor.redact_text(token).hits
    ]
    assert len(secrets) >= len(tokens)
    with cellwall.Sandbox.create() as sandbox:
        done = sandbox.commands.run(["printf", "%s\\n", *tokens])
        # The walls are where they always are: what was printed arrived.
        assert (done.exit_code, done.stdout.count("[redacted:") >= len(tokens)) == (0, True)
    events = json.dumps(audit_records())
    assert "printf" in events
    for secret in secrets:
        assert secret not in done.stdout
        assert json.dumps(secret)[1:-1] not in events
