"""What all tests share: a state folder of their own, and skips that CI forbids."""

from __future__ import annotations

import ast
import functools
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from cellwall.admin import audit_queries
from cellwall.audit import log as audit_log
from cellwall.runtime import wiring
from first_collection import FirstCollection, is_first_collection
from promise_report import PromiseReport
from scheduling import FilesInTurn
from tables import Tables

_ENDS_WITHIN_S = 30.0
_MAX_NAMED = 200
# Nearly all tests of the others start cells, servers or programs.
_QUICK_FOLDERS = ("tests/unit/", "tests/contract/")


# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "any-load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# With --long, all draw what they say, and those that say `N * settings.default.max_examples` more.
hypothesis.settings.register_profile(
    "long", hypothesis.settings.get_profile("any-load"), max_examples=400
)
_SHARE_OF_EXAMPLES = 5
_MIN_EXAMPLES = 20
hypothesis.settings.load_profile("any-load")


def need(condition: object, feature: str) -> None:
    """Skip for a missing kernel feature, by name; where everything must work, fail instead."""
    if condition:
        return
    if os.environ.get("CELLWALL_MUST_WORK") == "1":
        pytest.fail(f"CELLWALL_MUST_WORK=1, but this host lacks: {feature}")
    pytest.skip(f"this host lacks: {feature}")


ORDINARY_UID = 65534


def ordinary_user() -> dict[str, Any]:
    """For `subprocess`: somebody without any right; whoever is no root is that already."""
    if os.geteuid() != 0:
        return {}
    need(_can_start_us(), "a clone that other users can read; this one lies in a closed folder")
    return _ORDINARY


_ORDINARY: dict[str, Any] = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}


@functools.cache
def _can_start_us() -> bool:
    try:
        words = [sys.executable, "-c", "import cellwall"]
        done = subprocess.run(words, cwd="/", capture_output=True, check=False, **_ORDINARY)
    except PermissionError:  # below a home with mode 0700, such as /root
        return False
    return done.returncode == 0


def audit_records(*, passphrase: str = "", **wanted: Any) -> list[dict[str, Any]]:
    """What the record of this test holds, the oldest first."""
    query = audit_queries.Query(**wanted)
    ask = (lambda _: bytearray(passphrase.encode())) if passphrase else None
    return [found.record for found in audit_queries.everything(query, ask=ask)]


def growing_segment(home: str | os.PathLike[str]) -> Path:
    """The file of records that is being written."""
    return max(Path(home, "audit").glob("*.jsonl"))


def end_supervisors(place: str | os.PathLike[str]) -> None:
    """End those whose state folder is this one, or lies below it; returns when they are gone.

    A hook, or a second run, has one started for the next, and it would wait for that for long.
    """
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while found := [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _serves(pid, place)
    ]:
        is_late = time.monotonic() > deadline
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(0.02)


def _serves(pid: int, place: str | os.PathLike[str]) -> bool:
    try:
        is_one = b"\0cellwall.interfaces.supervisor\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if is_one else []
    except OSError:  # gone, or of another user
        return False
    homes = [each.partition(b"=")[2] for each in given if each.startswith(b"CELLWALL_HOME=")]
    return any(Path(os.fsdecode(home)).is_relative_to(place) for home in homes)


def _parse_again(parse: Any) -> Any:
    """Before Python 3.11.5, `ast.parse` raises SystemError while another thread parses."""

    def parsed(*arguments: Any, **named: Any) -> Any:
        for _ in range(20):
            with suppress(SystemError):
                return parse(*arguments, **named)
        return parse(*arguments, **named)

    return parsed


def pytest_addoption(parser: pytest.Parser) -> None:
    how_much = parser.getgroup("cellwall", "how much is tested")
    how_much.addoption("--fast", action="store_true", help="only what is quick, and a few cells")
    how_much.addoption("--long", action="store_true", help="the tests marked `long` as well")
    how_much.addoption("--report", action="store_true", help="a table of all promises at the end")
    how_much.addoption("--each-case", action="store_true", help="each case of a table is a test")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast`, what has nothing for it is not imported, nor is the `conftest` of such a
    folder; some import half the world."""
    if not config.getoption("--fast"):
        return None
    place = os.path.relpath(collection_path, config.rootpath)
    if f"{place}/".startswith(_QUICK_FOLDERS):
        return None
    is_folder = collection_path.is_dir()
    if is_folder and any(folder.startswith(f"{place}/") for folder in _QUICK_FOLDERS):
        return None
    found = collection_path.rglob("test_*.py") if is_folder else (collection_path,)
    is_read = any(b"mark.smoke" in each.read_bytes() for each in found if each.suffix == ".py")
    return None if is_read else True


@pytest.hookimpl(tryfirst=True)  # hypothesis reads all sources where one of its tests is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_fast, is_long = config.getoption("--fast"), config.getoption("--long")

    def is_wanted(item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        if is_fast and "smoke" not in marks:
            is_generated = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            is_quick = marks.isdisjoint({"slow", "long"}) and not is_generated
            return is_quick and item.nodeid.startswith(_QUICK_FOLDERS)
        return is_long or "long" not in marks

    kept: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        kept[is_wanted(item)].append(item)
    if kept[False]:
        config.hook.pytest_deselected(items=kept[False])
        items[:] = kept[True]
    if not is_long:
        draw_fewer_examples(items)
    for item in items if is_fast else ():
        if item.get_closest_marker("smoke"):  # by one worker: a template and a server for all
            item.add_marker(pytest.mark.xdist_group("smoke"))


def draw_fewer_examples(items: Sequence[pytest.Item]) -> None:
    """Generated cases: one in five of what a test says. They are others in each run."""
    tests = {item.function for item in items if isinstance(item, pytest.Function)}
    for test in filter(hypothesis.is_hypothesis_test, tests):
        said = test._hypothesis_internal_use_settings
        examples = min(
            said.max_examples, max(said.max_examples // _SHARE_OF_EXAMPLES, _MIN_EXAMPLES)
        )
        test._hypothesis_internal_use_settings = hypothesis.settings(said, max_examples=examples)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected modules and tests are no garbage: looking for some takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The tests live as long as the process: no later collection of garbage looks at them again.

    Of the others, one collection in ten is made: they took a twentieth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(7000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInTurn | None:
    return FilesInTurn(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_configure(config: pytest.Config) -> None:
    """pytest parses sources to show a failure, while threads of the product may parse as well."""
    config.pluginmanager.register(Tables(config), "tables")
    if is_first_collection(config):
        config.pluginmanager.register(FirstCollection(config, config.workerinput))
    if config.getoption("--report"):
        config.pluginmanager.register(PromiseReport(), "promises")
    if config.getoption("--long"):
        hypothesis.settings.load_profile("long")
    if not config.getoption("--long"):
        # What a power failure leaves is seen by no test, and to wait for the disk thousands of times
        # takes a third of the time. All other processes, and `--long`, flush their files.
        os.fsync = os.fdatasync = _check_descriptor
    if sys.version_info < (3, 11, 5):
        ast.parse = _parse_again(ast.parse)
    _take_interrupts()
    # With 002, as Debian 13 has it for users, every policy and configuration that a test writes
    # would be refused: its group could change the file. Tests about modes set their own.
    os.umask(0o022)


def _check_descriptor(file: int | Any) -> None:
    os.fstat(file if isinstance(file, int) else file.fileno())


def _take_interrupts() -> None:
    """A shell ignores SIGINT and SIGQUIT for a background job, and nohup SIGHUP; children inherit."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Names of tests are told to each process they start, and a variable has its limit."""
    is_long = isinstance(val, str | bytes) and len(val) > _MAX_NAMED
    return f"{len(val)}-long" if is_long else None


@pytest.fixture(scope="session", autouse=True)
def no_supervisor_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """None outlives the tests, whoever had it started."""
    yield
    end_supervisors(tmp_path_factory.getbasetemp())


_UNUSED_HOMES: list[Path] = []


def new_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder. Not numbered by pytest, which would read the names of all there are."""
    if _UNUSED_HOMES:
        return _UNUSED_HOMES.pop()
    homes = tmp_path_factory.getbasetemp() / "homes"
    homes.mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=homes))


def leave_home(home: Path) -> None:
    """A process that a test leaves behind may still write there; the session's end deletes that.

    Most tests are no users of theirs: the next one has it, since to make and to delete 20,000 of
    them takes a minute of waiting for the disk.
    """
    wiring.close_shared(str(home))
    with suppress(OSError):
        about = home.lstat()
        is_as_made = (about.st_mode, about.st_uid) == (stat.S_IFDIR | 0o700, os.geteuid())
        if is_as_made and not os.listdir(home):
            _UNUSED_HOMES.append(home)
            return
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_log_is_left_open(state_home: str | None) -> Iterator[None]:
    """It would be signed half a minute later, in the midst of another test.

    Closed before the state folder is deleted.
    """
    were_open = set(audit_log._LOGS)
    yield
    shared = {house.audit for house in wiring._SHARED.values()}
    for log in set(audit_log._LOGS) - were_open - shared:
        log.close()


@pytest.fixture(autouse=True)
def state_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Every test has its own CELLWALL_HOME and no configuration of the developer's.

    It is deleted at once: to delete those of all tests at the end, from the disk, takes minutes.
    """
    home = new_home(tmp_path_factory)
    monkeypatch.setenv("CELLWALL_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "no-config"))
    monkeypatch.delenv("CELLWALL_CONFIG", raising=False)
    monkeypatch.setenv("CELLWALL_SUPERVISOR", "off")
    # Most tests are not about warmth, and a template for each of them would cost minutes.
    monkeypatch.setenv("CELLWALL_PATH", os.environ.get("CELLWALL_PATH", "cold"))
    yield str(home)
    leave_home(home)
