"""Where links lead, as the kernel would follow them; nothing on the disk makes it fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.policy.links import targets


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


@pytest.mark.requirement("POL-1")
def test_every_step_of_a_chain_is_told(place: Path) -> None:
    (place / "secret").write_text("x")
    (place / "second").symlink_to("secret")
    (place / "first").symlink_to(place / "second")
    assert targets("first", str(place)) == {
        str(place / name) for name in ("first", "second", "secret")
    }


def test_a_folder_on_the_way_may_be_the_link(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    assert targets(str(place / "link/new/file")) == {
        str(place / "link/new/file"),
        str(place / "real/new/file"),
    }


@pytest.mark.requirement("POL-1")
def test_the_way_up_from_a_link_is_taken_from_where_it_leads(place: Path) -> None:
    (place / "a/deep").mkdir(parents=True)
    (place / "a/secret").write_text("x")
    (place / "app").mkdir()
    (place / "app/link").symlink_to(place / "a/deep")
    assert str(place / "a/secret") in targets("link/../secret", str(place / "app"))


def test_a_path_without_links_is_itself(place: Path) -> None:
    assert targets(f"{place}/./x//y/..") == {f"{place}/x"}
    assert targets("/") == {"/"}


@pytest.mark.parametrize("path", ["a", "a/x", "x\0y", "x" * 10_000, "x/" * 10_000, "../" * 50, ""])
@pytest.mark.slow
def test_what_leads_nowhere_is_told_without_raising(place: Path, path: str) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert os.path.normpath(f"{place}/{path}") in targets(path, str(place))


def test_proc_leads_to_the_same_files_under_another_name() -> None:
    assert "/etc/passwd" in targets("/proc/self/root/etc/passwd")


@pytest.mark.requirement("POL-1", "POL-12")
@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/cwd/../.netrc",
        "/proc/self/../self/cwd/x",
        "/proc/thread-self/root/x",
        "/proc/1/task/1/cwd/..",
        "/proc/self/exe/../x",
        "/dev/fd/../cwd/../x",
        "/dev/fd/3/x",
    ],
)
def test_a_path_through_a_link_of_a_process_could_be_any_file(path: str) -> None:
    assert "/proc/self/root" in targets(path)
    assert "/proc/self/root" not in targets("/dev/fd/3") | targets("/proc/self/status")


@pytest.mark.requirement("POL-1", "POL-12")
def test_wildcards_are_followed_through_the_links_they_find(place: Path) -> None:
    (place / "secret").mkdir()
    (place / "secret/key").write_text("x")
    (place / "app").mkdir()
    (place / "app/link").symlink_to("../secret")
    (place / "app/.hidden").symlink_to("../secret")
    assert str(place / "secret/key") in targets("l*/key", str(place / "app"))
    assert str(place / "secret") in targets("[l]ink", str(place / "app"))
    assert str(place / "secret") not in targets("[a-k]*", str(place / "app"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(["d", "l", "m", "f", "..", ".", "x"]), max_size=8))
def test_the_last_of_them_is_what_the_kernel_opens(place: Path, names: list[str]) -> None:
    if not (place / "d").exists():
        (place / "d/d").mkdir(parents=True)
        (place / "d/f").write_text("x")
        (place / "l").symlink_to("d/d")
        (place / "d/m").symlink_to("..")
        (place / "d/d/l").symlink_to(place / "d")
    path = "/".join([str(place), *names])
    if os.path.exists(path):
        assert os.path.realpath(path) in targets(path)
