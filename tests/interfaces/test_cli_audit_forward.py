"""`cellwall audit forward`: configured forwarding, from the command line to a real receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import audit_records
from interfaces.test_cli_process import error_code, in_process
from unit.audit.export_receivers import (
    StreamReceiver,
    listening,
    make_certificates,
    read_frames,
    read_message,
)


@pytest.mark.requirement("AUD-4", "FS-5")
def test_configured_forwarding_sends_everything_decrypted_and_tells_how_it_stands(
    state_home, tmp_path, monkeypatch
):
    certificates = make_certificates(tmp_path)
    with StreamReceiver(listening(), certificates.server()).running() as receiver:
        config = tmp_path / "cellwall.toml"
        config.write_text(
            f'[audit]\nforward = "tls://127.0.0.1:{receiver.port}"\n'
            f'forward_ca_file = "{certificates.ca_file}"\n'
        )
        config.chmod(0o600)
        monkeypatch.setenv("CELLWALL_CONFIG", str(config))
        assert in_process("run", "--", "echo", "canary").returncode == 0
        waiting = in_process("audit", "forward", "status", "--json")
        assert waiting.returncode == 1
        told = json.loads(waiting.stdout)
        assert (told["state"], told["waiting"], told["is_running"]) == ("never ran", 4, False)
        assert told["problem"] == "no process forwards the log now"
        words = [sys.executable, "-m", "cellwall.interfaces.entry", "audit", "forward", "run"]
        forwarder = subprocess.Popen(words, env=dict(os.environ), stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 90
            while json.loads(in_process("audit", "forward", "status", "--json").stdout)["waiting"]:
                assert time.monotonic() < deadline
                threading.Event().wait(0.1)
        finally:
            forwarder.send_signal(signal.SIGINT)
            forwarder.wait(60)
        assert in_process("audit", "forward", "status").returncode == 0
        texts = [read_message(frame).text for data in receiver.got for frame in read_frames(data)]
    assert [json.loads(text) for text in texts] == audit_records()
    assert b"canary" in b"".join(texts)


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("goal", ["tcp://logs:1", "tls://logs", "tls://logs:1/x", "logs:1", ""])
def test_only_tls_receivers_are_taken(tmp_path, monkeypatch, goal):
    config = tmp_path / "cellwall.toml"
    config.write_text(f'[audit]\nforward = "{goal}"\n')
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    assert error_code(in_process("audit", "forward", "run")) == "CW-CONFIG"


def test_without_a_receiver_there_is_nothing_to_forward(state_home):
    assert b"not configured" in in_process("audit", "forward", "status").stdout
    assert error_code(in_process("audit", "forward", "run")) == "CW-CONFIG"
    assert not Path(state_home, "audit-forward").exists()
