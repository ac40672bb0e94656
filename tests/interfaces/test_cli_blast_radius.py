"""`cellwall policy blast-radius` as people and programs call it (CFG-3)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import need
from interfaces.test_cli_process import cellwall, in_process

# Small, so that limits are reached at once.
SMALL = """
[limits]
wall_s = 4
cpu_s = 1
memory_bytes = "96m"
processes = 24
open_files = 128
file_size_bytes = "2m"
disk_bytes = "4m"
file_count = 200
output_bytes = "64k"

[sandbox]
tmp_bytes = "2m"
shm_bytes = "1m"

[egress]
max_upload_bytes = "4m"
max_download_bytes = "4m"

[governor]
max_concurrent = 8
"""
# Where this machine has no registry, route or name, or no processor to spare.
MAYBE = {"reach.registries", "reach.other-hosts", "spend.cpus"}


def config(folder: Path, text: str, name: str = "config.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.requirement("CFG-3")
def test_it_is_printed_in_words_and_as_json(tmp_path: Path) -> None:
    file = config(tmp_path, '[egress]\nallow_domains = ["api.example.com"]\n')
    shown = cellwall("policy", "blast-radius", "--config", file)
    assert shown.returncode == 0
    text = shown.stdout.decode()
    assert "\n  can     hosts, for every sandbox: api.example.com [egress.allow_domains]\n" in text
    assert "\n  cannot  other files of the host: " in text
    object_ = json.loads(in_process("policy", "blast-radius", "--config", file, "--json").stdout)
    [hosts] = [each for each in object_["abilities"] if each["id"] == "reach.hosts"]
    assert (hosts["is_possible"], hosts["members"]) == (True, ["api.example.com"])
    assert object_["weakened"] == []


class Probed(NamedTuple):
    code: int
    lines: dict[str, dict[str, Any]]
    said: bytes


def probed(folder: Path, second_user: str) -> Probed:
    text = SMALL.replace("[sandbox]", f'[sandbox]\nsecond_user = "{second_user}"')
    done = cellwall("policy", "blast-radius", "--probe", "--json", "--config", config(folder, text))
    lines = {each["id"]: each for each in json.loads(done.stdout)["abilities"]}
    return Probed(done.returncode, lines, done.stderr)


def second_user_of(found: Probed) -> tuple[bool, str, str]:
    line = found.lines["execute.second-user"]
    return line["is_possible"], line["probe"]["state"], line["probe"]["found"]


@pytest.mark.requirement("CFG-3", "ISO-10")
def test_probes_confirm_what_is_true_both_ways(tmp_path: Path) -> None:
    home = set(os.listdir(os.path.expanduser("~")))
    found = probed(tmp_path, "refuse")
    lines = found.lines.values()
    wrong = [each for each in lines if each["probe"]["state"] == "contradicted"]
    assert (wrong, found.code) == ([], 0), found.said
    unprobed = {
        name for name, each in found.lines.items() if each["probe"]["state"] == "not-probed"
    }
    assert unprobed <= MAYBE, [found.lines[name] for name in unprobed - MAYBE]
    assert all(each["probe"]["found"] for each in lines)
    assert set(os.listdir(os.path.expanduser("~"))) - home == set()
    refused = (False, "confirmed", "a run that asked for one: CW-SECOND-USER-OFF")
    assert second_user_of(found) == refused


@pytest.mark.requirement("CFG-3", "ISO-10")
@pytest.mark.long  # a whole probe for one line; runs of a second user have their tests
def test_the_second_user_is_tried(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "root: an ordinary user maps one uid")
    told = "a program ran with uid 0 and no capability"
    assert second_user_of(probed(tmp_path, "allow")) == (True, "confirmed", told)


@pytest.mark.requirement("CFG-3")
def test_a_difference_that_opens_something_is_exit_code_1(tmp_path: Path) -> None:
    narrow = config(tmp_path, "", "narrow.toml")
    wide = config(tmp_path, '[egress]\nallow_domains = ["api.example.com"]\n', "wide.toml")
    opened = cellwall("policy", "blast-radius", "--diff", narrow, wide)
    assert opened.returncode == 1
    assert b"opens:\n  hosts, for every sandbox: cannot" in opened.stdout
    closed = in_process("policy", "blast-radius", "--diff", wide, narrow, "--json")
    assert (closed.returncode, json.loads(closed.stdout)["opens"]) == (0, False)
    assert in_process("policy", "blast-radius", "--diff", "paranoid", "production").returncode == 1
    assert in_process("policy", "blast-radius", "--diff", "production", "paranoid").returncode == 0


def test_bad_input_is_refused_with_a_hint(tmp_path: Path) -> None:
    broken = config(tmp_path, "[limits\n", "broken.toml")
    unsafe = config(tmp_path, "", "unsafe.toml")
    os.chmod(unsafe, 0o666)
    good = config(tmp_path, "", "good.toml")
    for words, found in (
        (("--config", str(tmp_path / "none.toml")), b"CW-CONFIG-FILE"),
        (("--config", broken), b"broken.toml:1: not valid TOML"),
        (("--config", unsafe), b"CW-CONFIG-UNSAFE"),
        (("--profile", "lax"), b"CW-CONFIG-PROFILE"),
        (("--diff", good, "prodution"), b"CW-CONFIG-FILE"),
        (("--diff", good, broken), b"not valid TOML"),
        (("--diff", good, str(tmp_path)), b"CW-CONFIG-FILE"),
        (("--diff", good, good, "--probe"), b"--diff stands alone"),
        (("--diff", good, good, "--profile", "paranoid"), b"--diff stands alone"),
        (("--config", ""), b"CW-CONFIG-FILE"),
    ):
        done = in_process("policy", "blast-radius", *words)
        assert done.returncode == 125, words
        assert found in done.stderr, done.stderr
        assert b"Traceback" not in done.stderr
