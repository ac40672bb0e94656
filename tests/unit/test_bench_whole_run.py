"""The whole run of the benches: passes, failures, the stored file, comparison, tables and plots."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import whole_run
from catalogue import Figure, read_catalogue, show
from changes import Direction, compare, report
from docs.benchmark_tables import figures_table, hosts_text, steps_table
from docs.plots import Curve, Plot, draw
from host import describe_run
from plan import PLAN, PlannedBench, choose
from run import BENCHES
from stored_run import FIGURES, BenchFigures, StoredRun, split_figures
from whole_run import BenchFailed, OneBench, run_all, run_bench

RATIO = Figure("a", "ratio", "a ratio", "x", aim=1.5)
TIME = Figure("a", "time", "a time", "ms", beside="ratio", beside_unit="x")
RATE = Figure("a", "rate", "a rate", "MB/s", is_higher_better=True, aim=40.0)
HOST = describe_run()


def run_of(key="first", host=HOST, failed=None, **figures):
    benches = {"a": BenchFigures(key, 5, 1.0, {name: tuple(v) for name, v in figures.items()})}
    return StoredRun({key: host}, benches, failed or {})


def fake_bench(monkeypatch, answers):
    """Answers by the name of the bench; the real process is tried by other tests."""
    calls = []

    def answer(bench, limit_s):
        calls.append((bench.name, limit_s > 0))
        if isinstance(answers[bench.name], BenchFailed):
            raise answers[bench.name]
        return answers[bench.name]

    monkeypatch.setattr(whole_run, "run_bench", answer)
    return calls


def test_one_bench_is_kept_in_the_place_of_its_older_figures():
    older = run_of("first", ratio=(2.0,))
    newer = OneBench("a", 7).stored({"ratio": 1.5, "series": {"points": [1, 2]}})
    kept = older.merged(newer)
    assert kept.benches["a"].figures == {"ratio": (1.5,)}
    assert (kept.benches["a"].rounds, kept.benches["a"].series) == (7, {"points": [1, 2]})
    assert list(kept.hosts) == [kept.benches["a"].run]  # the host of the older run is gone
    assert run_of("other").merged(OneBench("b", 1).stored({})).benches.keys() == {"a", "b"}


def test_every_bench_of_the_plan_and_of_the_catalogue_exists():
    planned = {bench.name for bench in PLAN}
    assert planned == set(BENCHES) - {"peers", "fleet-sim"}
    assert {figure.bench for figure in read_catalogue()} <= planned
    assert all(
        bench.name not in {"search", "families", "providers", "fleet", "soak"}
        for bench in choose(None)
    )
    assert [bench.name for bench in choose("policy,cells")] == ["cells", "policy"]
    with pytest.raises(SystemExit, match="no bench speed"):
        choose("speed")


def test_a_bench_that_fails_is_named_and_the_others_are_kept(monkeypatch):
    answers = {"bad": BenchFailed("exit status 1: no disk"), "good": {"x_ms": 2.0, "text": "1/2"}}
    calls = fake_bench(monkeypatch, answers)
    kept = []
    benches = [PlannedBench("bad", 1, 60), PlannedBench("good", 7, 60)]
    found = run_all(benches, minutes=1, on_progress=lambda _: None, on_bench=kept.append)
    assert [name for name, _ in calls] == ["bad", "good", "good", "good"]
    assert found.failed == {"bad": "exit status 1: no disk"}
    assert found.benches["good"].figures == {"x_ms": (2.0, 2.0, 2.0)}
    assert len(kept) == 3  # after each one, so that an interrupted run keeps what it has
    assert found.host_of("good")["processors"] == HOST["processors"]


def test_without_time_a_bench_is_not_run_and_said_so(monkeypatch):
    calls = fake_bench(monkeypatch, {})
    found = run_all(
        [PlannedBench("late", 1, 60)], minutes=0, on_progress=lambda _: None, on_bench=print
    )
    assert (calls, found.failed) == ([], {"late": "not run: no time was left"})


def test_a_real_bench_that_cannot_start_or_takes_too_long_is_a_failure():
    # The end of a long message, which names every bench.
    with pytest.raises(BenchFailed, match=r"exit status 2: .*'no_such_bench' \(choose from"):
        run_bench(PlannedBench("no_such_bench", 1, 60), 60)
    with pytest.raises(BenchFailed, match="took longer than 0 s"):
        run_bench(PlannedBench("flow", 1, 60), 0.05)


def test_nested_figures_are_named_by_their_path_and_series_are_apart():
    found = {"a": 1, "b": {"c d": 2.5, "e": "3/4"}, "f": [7, 8], "is_x": True, "series": {"s": [1]}}
    assert split_figures(found) == ({"a": 1, "b.c d": 2.5, "f.0": 7, "f.1": 8}, {"s": [1]})


def test_the_file_is_read_as_it_was_written_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "run.json"
    stored = run_of(failed={"b": "why"}, ratio=[1.0, 1.5])
    stored.write(path)
    assert StoredRun.read(path) == stored
    path.write_text(path.read_text()[:-20])
    with pytest.raises(SystemExit, match="holds no figures"):
        StoredRun.read(path)


def test_a_partial_run_replaces_its_own_benches_alone():
    old = run_of("old", failed={"b": "why", "c": "why"}, time=[1.0])
    old.benches["z"] = BenchFigures("old", 5, 1.0, {"time": (9.0,)})
    newer = run_of("new", time=[2.0])
    newer.benches["b"] = BenchFigures("new", 5, 1.0, {"time": (3.0,)})
    merged = old.merged(newer)
    assert {name: bench.run for name, bench in merged.benches.items()} == {
        "a": "new",
        "z": "old",
        "b": "new",
    }
    assert (sorted(merged.hosts), merged.failed) == (["new", "old"], {"c": "why"})
    both = run_of("new", time=[2.0])
    assert list(run_of("old", time=[1.0]).merged(both).hosts) == ["new"]


@pytest.mark.parametrize(
    ("figure", "old", "new", "direction"),
    [
        (RATIO, [1.0, 1.0], [1.2, 1.2], Direction.WORSE),
        (RATIO, [1.0, 1.3], [1.2, 1.2], Direction.SAME),  # the spread of the old run is wider
        (RATIO, [1.0, 1.0], [0.9, 0.9], Direction.BETTER),
        (RATIO, [1.0], [1.2], Direction.SAME),  # one pass: its spread is not known
        (RATE, [40.0, 40.0], [30.0, 30.0], Direction.WORSE),
        (RATE, [40.0, 40.0], [50.0, 50.0], Direction.BETTER),
        (TIME, [2.0, 2.0], [2.08, 2.08], Direction.SAME),
    ],
)
def test_a_figure_has_changed_beyond_the_spread_of_its_passes(figure, old, new, direction):
    before, after = (run_of(**{figure.name: values}) for values in (old, new))
    (change,), left_out = compare(before, after, [figure])
    assert (change.direction, left_out) == (direction, [])
    assert (f"{figure.name} " in report([change], [])) == (direction is not Direction.SAME)


def test_absolute_figures_of_another_kind_of_host_are_not_compared():
    other = {**HOST, "processors": HOST["processors"] + 1}
    old, new = run_of(ratio=[1.0], time=[1.0]), run_of("new", other, ratio=[1.0], time=[5.0])
    changes, left_out = compare(old, new, [RATIO, TIME])
    assert [change.figure for change in changes] == [RATIO]
    assert left_out == ["a time"]
    assert "a time" in report(changes, left_out)


def test_tables_show_the_median_the_range_and_whether_the_aim_is_reached():
    stored = run_of(ratio=[1.0, 2.0, 1.75], time=[3.0], rate=[41.0])
    table = figures_table([RATIO, TIME, RATE], stored, "a")
    assert table.splitlines()[2:] == [
        "| a ratio | **1.75x** | 1.00x to 2.00x | at most 1.50x, **not reached** |",
        "| a time | **3.00 ms** (1.75x) |  |  |",
        "| a rate | **41.0 MB/s** |  | at least 40.0 MB/s |",
    ]
    assert "./dev bench b --record" in figures_table([replace(RATIO, bench="b")], stored, "b")
    assert (show(12345.6, "events/s"), show(0.0123, "x")) == ("12,346 events/s", "0.012x")


def test_the_parts_of_each_call_are_a_table_with_a_row_for_each_step():
    whole = replace(TIME, name="whole", says="the whole", step_of="live")
    figures = [whole, replace(whole, name="part", says="a part", step_of="cold")]
    table = steps_table(figures, run_of(whole=[2.0, 4.0, 3.0], part=[0.5]), "a")
    assert table.splitlines() == [
        "| step | live | cold |",
        "|---|---|---|",
        "| the whole | 3.00 ms |  |",
        "| a part |  | 0.50 ms |",
    ]


def test_a_busy_host_is_named_as_such():
    quiet = {**HOST, "load_before": 0.2, "processors": 2}
    assert "only the ratios count" not in hosts_text(run_of(host=quiet, time=[1.0]))
    busy = {**quiet, "load_before": 7.0}
    assert "only the ratios count" in hosts_text(run_of(host=busy, time=[1.0]))


@pytest.mark.parametrize("is_x_logarithmic", [False, True])
def test_a_plot_is_well_formed_and_has_every_curve(is_x_logarithmic):
    curves = (Curve("a < b", ((1.0, 5.0), (100.0, 7.0))), Curve("c", ((2.0, 0.0), (50.0, 7.0))))
    plot = Plot("title & more", "x", "y", curves, is_x_logarithmic=is_x_logarithmic)
    drawn = ET.fromstring(draw(plot))
    texts = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert {"title & more", "a < b", "c"} <= set(texts)
    assert sum(each.tag.endswith("polyline") for each in drawn.iter()) == 2
    assert "no stored figures" in draw(replace(plot, curves=()))


def test_the_stored_run_has_the_judged_figures():
    stored = StoredRun.read(FIGURES)
    known = {(bench, name) for bench, each in stored.benches.items() for name in each.figures}
    missing = [
        f"{each.bench} {each.name}"
        for each in read_catalogue()
        if each.bench in stored.benches and (each.bench, each.name) not in known
    ]
    # Left out where the template cannot be built: its packages are downloaded.
    assert set(missing) <= {"cells warm_pandas_over_bare_pandas"}
