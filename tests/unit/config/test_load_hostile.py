"""Files that somebody else planted, that are no files, or that are made to hang the reader."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.config.settings_file import MAX_BYTES
from cellwall.core.errors import ConfigError

Load = Callable[[str | bytes], Settings]
Refusal = Callable[[str | bytes], ConfigError]


def refused(file: str) -> tuple[str, str, str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(file=file, environ={})
    return caught.value.code, caught.value.message, caught.value.hint


def plant(path: Path, *, mode: int = 0o600, text: str = "") -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_can_write_is_refused(config_dir: Path, mode: int) -> None:
    plant(config_dir / "my config.toml", mode=mode)
    assert refused("my config.toml") == (
        "CW-CONFIG-UNSAFE",
        "my config.toml: can be written by other users, who could disable isolation layers",
        "Check its content, then: chmod go-w 'my config.toml'",
    )


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644, 0o755])
def test_a_file_that_others_can_only_read_is_taken(config_dir: Path, mode: int) -> None:
    plant(config_dir / "c.toml", mode=mode)
    assert load_settings(file="c.toml", environ={}) == Settings()


@pytest.mark.requirement("CFG-2")
def test_a_file_of_another_user_is_refused(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(config_dir / "c.toml", text="[sandbox]\ndangerously_without_landlock = true\n")
    if os.geteuid() == 0:
        os.chown(planted, 12345, 12345)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    assert refused("c.toml") == (
        "CW-CONFIG-UNSAFE",
        "c.toml: belongs to another user, who could disable isolation layers",
        f"Check its content, then: chown {os.geteuid()} c.toml",
    )


def test_the_file_behind_a_link_is_judged_not_the_link(config_dir: Path) -> None:
    plant(config_dir / "open.toml", mode=0o666)
    (config_dir / "link.toml").symlink_to("open.toml")
    assert refused("link.toml")[0] == "CW-CONFIG-UNSAFE"


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device"])
def test_what_is_not_a_regular_file_is_refused_without_waiting(config_dir: Path, kind: str) -> None:
    file = "thing"
    match kind:
        case "fifo":
            os.mkfifo(file, 0o600)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(file)
        case "directory":
            (config_dir / file).mkdir()
        case "device":
            file = "/dev/zero"
    problems = {
        "fifo": "is not a regular file",
        "socket": "cannot be read",
        "directory": "is a directory",
        "device": "is not a regular file",
    }
    code, message, _ = refused(file)
    assert (code, message) == ("CW-CONFIG-FILE", f"{file}: {problems[kind]}")


def test_names_that_lead_to_no_file_are_refused(config_dir: Path) -> None:
    (config_dir / "a").symlink_to("b")
    (config_dir / "b").symlink_to("a")
    plant(config_dir / "file")
    told = {file: refused(file)[:2] for file in ("missing", "a", "", "file/x", "x" * 300, "x\0y")}
    assert told == {
        "missing": ("CW-CONFIG-FILE", "missing: no such file"),
        "a": ("CW-CONFIG-FILE", "a: its symbolic links form a loop"),
        "": ("CW-CONFIG-FILE", ": no such file"),
        "file/x": ("CW-CONFIG-FILE", "file/x: no such file"),
        "x" * 300: ("CW-CONFIG-FILE", "x" * 300 + ": the name is too long"),
        "x\0y": ("CW-CONFIG-FILE", "x?y: cannot be read"),
    }


def test_a_missing_file_in_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: no such file") as caught:
        load_settings(environ={"CELLWALL_CONFIG": "gone.toml", "HOME": "/nonexistent"})
    assert "CELLWALL_CONFIG names it" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        load_settings(file="gone.toml", environ={"HOME": "/nonexistent"})
    assert "leave the option out" in caught.value.hint


def test_a_link_that_leads_nowhere_is_not_taken_for_no_file(tmp_path: Path) -> None:
    place = tmp_path / ".config/cellwall"
    place.mkdir(parents=True)
    (place / "config.toml").symlink_to("gone.toml")
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(environ={"HOME": str(tmp_path)})


def test_a_file_that_may_not_be_read_is_refused(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*args: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    told = refused("c.toml")
    monkeypatch.undo()
    assert told == (
        "CW-CONFIG-FILE",
        "c.toml: may not be read",
        "Let the user who runs Cellwall read it.",
    )


def test_a_file_over_the_size_limit_is_refused_and_one_at_it_is_read(
    load_text: Load, refusal: Refusal
) -> None:
    assert load_text("#" * MAX_BYTES) == Settings()
    assert refusal("#" * (MAX_BYTES + 1)).message == "config.toml: is larger than 1 MiB"


def test_bytes_that_are_no_text_are_told_with_their_line(refusal: Refusal) -> None:
    assert refusal(b"[limits]\n\xff\xfe\x00").message == "config.toml:2: not UTF-8 text"
    assert refusal(b"\x7fELF\x02\x01\x01\x00").message.startswith("config.toml:1: not valid TOML")


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[limits]\nwall_s 3\n", "2: not valid TOML at column 8: Expected '=' after a key"),
        ("[limits]\nwall_s = 3\nwall_s = 4\n", "3: not valid TOML at column 11: Cannot overwrite"),
        ("[limits]\n[limits]\n", "2: not valid TOML at column 8: Cannot declare"),
        ("[limits]\nwall_s =", "2: not valid TOML"),
        ('a = "x', "1: not valid TOML"),
        ("a = \x1b", "1: not valid TOML"),
        ("\n\na = " + "1" * 5000, "3: not valid TOML: Exceeds the limit"),
    ],
)
def test_wrong_syntax_is_told_with_line_and_column(refusal: Refusal, text: str, told: str) -> None:
    assert refusal(text).message.startswith(f"config.toml:{told}")


@pytest.mark.parametrize(
    "text",
    [
        "\na = " + "[" * 200_000,
        "\na = " + "[" * 40 + "]" * 40,
        "\na = " + "{a = " * 100_000,
        "\n" + "a." * 200_000 + "a = 1",
        "\n[" + "a." * 200_000 + "a]",
        "\n" + '"a" . ' * 100_000 + "a = 1",
    ],
    ids=["arrays", "closed", "tables", "dotted", "header", "quoted"],
)
def test_deep_nesting_is_refused_at_once(refusal: Refusal, text: str) -> None:
    assert refusal(text).message == "config.toml:2: nested more than 32 deep"


@pytest.mark.slow
def test_a_flood_of_mistakes_is_told_in_part_and_counted(refusal: Refusal) -> None:
    lines = refusal("".join(f"k{number} = 1\n" for number in range(20_000))).message.splitlines()
    assert len(lines) == 101
    assert lines[-1] == "config.toml: and 19900 more"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0x" + "f" * 9000, "this number is too large. Write a value from 8m to 1t."),
        ("-1", "-1 is too small. Write a value from 8m to 1t."),
        ("inf", "inf is not a whole number. Write a value from 8m to 1t."),
        ("[1]", "a list is not a whole number. Write a value from 8m to 1t."),
        ("{}", "a table is not a whole number. Write a value from 8m to 1t."),
        ("07:32:00", "07:32:00 is not a whole number. Write a value from 8m to 1t."),
        (r'"\u001b[2J\u202e"', r'"\u001b[2J\u202e" is not a size. Write for example 512m.'),
        (f'"{"9" * 90}"', f'"{"9" * 60}"… is not a size. Write for example 512m.'),
        ('"999999999999999t"', '"999999999999999t" is too large. Write a value from 8m to 1t.'),
    ],
)
def test_a_wild_value_is_told_in_few_printable_characters(
    refusal: Refusal, value: str, told: str
) -> None:
    message = refusal(f"[limits]\nmemory_bytes = {value}\n").message
    assert message == f"config.toml:2: limits.memory_bytes: {told}"


def test_a_number_too_large_for_a_float_is_refused(refusal: Refusal) -> None:
    assert refusal(f"[limits]\nwall_s = 1{'0' * 400}\n").message == (
        "config.toml:2: limits.wall_s: this number is not a number. "
        "Write a value from 0.01 to 86400."
    )


def test_a_wild_key_is_told_in_few_printable_characters(refusal: Refusal) -> None:
    message = refusal(f'"\\u001b[2J" = 1\n{"k" * 5000} = 2\n[limits]\n"a.b" = 3\n').message
    told = [line.split(" unknown key.")[0] for line in message.splitlines()]
    assert told == [
        r'config.toml:1: "\u001b[2J":',
        f'config.toml:2: "{"k" * 60}"…:',
        'config.toml:4: limits."a.b":',
    ]


def test_a_list_with_too_many_entries_is_refused(refusal: Refusal) -> None:
    names = ", ".join(['"x"'] * 257)
    assert refusal(f"[workspace]\nextra_protected_names = [{names}]\n").message == (
        "config.toml:2: workspace.extra_protected_names: a list has more than 256 entries."
    )


@pytest.mark.parametrize("text", ["limits = 5", "[[limits]]\nwall_s = 1", 'limits = "x"'])
def test_a_section_that_is_no_table_is_refused(refusal: Refusal, text: str) -> None:
    assert "is not a table. Write a header such as [limits]" in refusal(text).message


@pytest.mark.requirement("RED-2")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(st.binary(max_size=200), st.text(alphabet="[]{}=,.\"'#\\\nalimts_ 0xe-", max_size=80))
)
def test_whatever_the_file_holds_there_are_settings_or_a_configuration_error(
    load_text: Load, content: str | bytes
) -> None:
    try:
        message = f"config.toml: {load_text(content).profile}"
    except ConfigError as error:
        message = error.message
    assert message.startswith("config.toml:")
    assert message.replace("\n", "").isprintable()
