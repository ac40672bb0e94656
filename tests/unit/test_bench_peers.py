"""The comparison with other sandboxes: figures, reports, verdicts, and one peer that is always there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.redteam.attack import Observation

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from docs import comparison_tables
from peers import attack_choice, judging
from peers.attack_programs import read_report, run_program
from peers.bare import Bare
from peers.bubblewrap import BubblewrapStrict
from peers.deno import Deno
from peers.deno_trials import DENO_KEYS
from peers.figures import as_lines, count_verdicts, grouped, ratio, summary
from peers.job import Ended, Job, Place
from peers.limit_trials import observe, try_limit
from peers.processes import run_bounded
from peers.registry import NAMES, PRODUCTS
from peers.runc import Runsc
from peers.work import WORKS, perform

CHOICES = {choice.attack.id: choice for choice in attack_choice.chosen()}
THROUGH, REFUSED = Observation("through", "x"), Observation("refused", "EPERM")


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "scratch"), str(tmp_path))


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    folder.mkdir()
    return str(folder)


def opened(peer):
    peer.open({"PATH": "/usr/bin:/bin", "HOME": peer.place.home})
    return peer


def test_the_summary_is_the_median_and_a_measured_percentile():
    assert summary([0.001 * n for n in range(1, 21)]) == {
        "p50_ms": 10.5,
        "p95_ms": 19.0,
        "runs": 20,
    }
    assert summary([0.5]) == {"p50_ms": 500.0, "p95_ms": 500.0, "runs": 1}


def test_a_ratio_is_over_the_bare_median_of_the_same_work():
    times = {"bare": {"true": summary([0.002])}, "x": {"true": summary([0.001, 0.008, 0.009])}}
    assert (ratio(times, "x", "true"), ratio(times, "x", "true", "p95_ms")) == (4.0, 4.5)
    assert ratio(times, "x", "files") is None


def test_verdicts_are_counted_by_layer_and_those_through_are_named():
    verdicts = {
        "files/a": {"layer": "files", "verdict": "through", "reason": "why"},
        "files/b": {"layer": "files", "verdict": "held", "reason": "EPERM"},
        "isolation/c": {"layer": "system calls", "verdict": "n/a", "reason": "lacks"},
    }
    found = grouped(verdicts)
    assert found == {
        "files": {"held": {"b": ""}, "through": {"a": "why"}, "n/a": {}},
        "system calls": {"held": {}, "through": {}, "n/a": {"c": "lacks"}},
    }
    assert count_verdicts(found) == {
        "files": {"held": 1, "through": 1, "n/a": 0},
        "system calls": {"held": 0, "through": 0, "n/a": 1},
    }
    assert json.loads(as_lines({"attacks": found, "host": {}})) == {"attacks": found, "host": {}}


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"PEERS-REPORT [1]",
        b"PEERS-REPORT {",
        b'PEERS-REPORT {"a": ["through", ""]}',
        b'PEERS-REPORT {"works": ["refused", "EROFS"], "a": ["refused", "EPERM"]}',
    ],
)
def test_a_report_without_proof_that_programs_work_inside_is_none(output):
    assert read_report(output) is None


def test_a_report_is_found_between_other_output():
    text = json.dumps({"works": ["through", ""], "a": ["refused", "EPERM"], "b": ["odd"]})
    found = read_report(f"warning\nPEERS-REPORT {text}\nbye\n".encode())
    assert found == {"a": REFUSED, "b": Observation("broken", "its report is malformed")}


def test_an_attempt_without_a_control_that_succeeds_is_never_held(place):
    choice = CHOICES["files/read-by-its-path"]
    held = judging.verdict_of(Bare(place), choice, control=THROUGH, attempt=REFUSED)
    assert held["verdict"] == "held"
    for control, attempt in ((REFUSED, REFUSED), (THROUGH, Observation("broken", "?"))):
        found = judging.verdict_of(Bare(place), choice, control=control, attempt=attempt)
        assert found["verdict"] == "n/a"


def test_calls_that_an_own_kernel_answers_do_not_count_against_the_peer(place):
    call, file = CHOICES["isolation/mount-tmpfs"], CHOICES["files/read-by-its-path"]
    for choice, verdict in ((call, "n/a"), (file, "through")):
        found = judging.verdict_of(Runsc(place), choice, control=THROUGH, attempt=THROUGH)
        assert found["verdict"] == verdict


def test_deno_is_judged_by_attacks_of_the_catalog_alone(place):
    assert set(CHOICES) >= DENO_KEYS
    found = judging.verdict_of(
        Deno(place), CHOICES["isolation/bpf"], control=THROUGH, attempt=REFUSED
    )
    assert found["verdict"] == "n/a"


def test_a_run_ends_with_its_first_process_though_a_child_holds_the_pipes(tmp_path):
    words = ["/bin/sh", "-c", "sleep 60 & echo done"]
    ended = run_bounded(words, env={"PATH": "/usr/bin:/bin"}, cwd=str(tmp_path), timeout_s=30)
    assert ended == Ended(0, b"done\n", b"")


def test_a_run_without_end_is_stopped(tmp_path):
    words = ["/bin/sh", "-c", "echo on; exec sleep 60"]
    ended = run_bounded(words, env={"PATH": "/usr/bin:/bin"}, cwd=str(tmp_path), timeout_s=0.5)
    assert (ended.code, ended.stdout, ended.reason()) == (None, b"on\n", "still running")


def test_a_program_that_is_missing_is_a_reason(tmp_path):
    ended = run_bounded(["/nonexistent"], env={}, cwd=str(tmp_path), timeout_s=5)
    assert (ended.code, "No such file" in ended.reason()) == (127, True)


def test_bubblewrap_does_the_work_and_hides_a_file_that_the_bare_process_reads(
    place, workspace, tmp_path
):
    (tmp_path / "secret").write_text("a mark")
    facts = {"mark": "a mark", "secret": str(tmp_path / "secret")}
    bare, peer = opened(Bare(place)), opened(BubblewrapStrict(place))
    assert perform(peer, WORKS["files"], workspace) > 0
    for each, kind in ((bare, "through"), (peer, "refused")):
        found = run_program(each, "files", ["read-by-its-path"], facts, workspace=workspace)
        assert found["read-by-its-path"].kind == kind


def test_a_limit_holds_only_what_the_same_code_with_less_does(place, workspace):
    attack = CHOICES["limits/fill-tmp"].attack
    control, attempt = try_limit(opened(BubblewrapStrict(place)), attack, workspace)
    assert (control.kind, attempt.kind) == ("through", "refused")
    assert Job(workspace=workspace, argv=("a",)).command("/x") == ["a"]


@pytest.mark.long
@pytest.mark.parametrize("product", ["firejail", "deno", "nono-py"])
def test_a_peer_of_the_registries_is_measured_and_attacked(product):
    """Installs the peers where they are missing, into a scratch directory."""
    script = str(Path(__file__).parents[2] / "bench" / "run.py")
    words = [sys.executable, script, "peers", "--json", "--only", product, "--rounds", "1"]
    done = subprocess.run(words, capture_output=True, timeout=1200, check=True)
    found = json.loads(done.stdout)
    names = [name for name, entry in found["peers"].items() if entry["product"] == product]
    assert (bool(names), found["missing"]) == (True, {})
    for name in names:
        assert ratio(found["times"], name, "print") > 0
        counts = count_verdicts(found["attacks"][name])
        assert counts["files"]["held"] + counts["files"]["through"] > 10


@pytest.mark.parametrize(
    ("ended", "is_endless", "kind"),
    [
        (Ended(0, b"PEERS-TOOK-IT\n"), False, "through"),
        (Ended(None, b"PEERS-TOOK-IT\n"), False, "through"),  # its children run on
        (Ended(0, b"PEERS-TOOK-IT\n", b"", "output"), False, "refused"),
        (Ended(None), False, "refused"),  # threads that wait for those that could not start
        (Ended(None), True, "through"),
        (Ended(-9), True, "refused"),
        (Ended(0), False, "refused"),
    ],
)
def test_code_took_too_much_only_if_it_got_to_its_end(ended, is_endless, kind):
    assert observe(ended, is_endless=is_endless, within_s=1.0).kind == kind


def test_every_product_is_described_and_no_other():
    described = comparison_tables.products()
    assert set(described) == set(PRODUCTS) - {"bare"}
    assert all(entry["purpose"] and entry["from"] for entry in described.values())
    assert [name for name, entry in described.items() if not entry["better"]] == ["cellwall"]


def test_the_stored_run_has_times_and_verdicts_for_each_peer_or_a_reason():
    found = comparison_tables.results()
    names = set(found["peers"])
    assert names.isdisjoint(found["missing"])
    assert names | set(found["missing"]) == set(NAMES)
    assert set(found["times"]) == set(found["attacks"]) == names
    for verdicts in found["attacks"].values():
        assert set(verdicts) == set(attack_choice.LAYERS)
