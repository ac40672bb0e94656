from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError

Load = Callable[[str | bytes], Settings]
Refusal = Callable[[str | bytes], ConfigError]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.requirement("CFG-2")
def test_every_mistake_is_told_at_once_with_line_and_hint(refusal: Refusal) -> None:
    error = refusal(
        """\
profile = "develop"
memory_bytes = "1g"
[limits]
memory_bytes = "12q"
wall = 10
processes = 0
cpus = nan
wall_s = "10"
disk_bytes = "1k"
[sandbox]
extra_read_only_paths = [
  "/opt/x",
  "/etc",
]
uid_base = 1.5
[governor]
max_concurrent = true
[workspace]
blocked_extensions = ".lnk"
dangerously_expose_sensitive_names = "yes"
colour = 1
[audit]
max_field_bytes = 1979-05-27
[walls]
"""
    )
    assert error.code == "CW-CONFIG"
    assert error.hint == "Nothing was run. Correct the file and try again."
    assert error.message.splitlines() == [
        'config.toml:1: profile: "develop" is unknown. Did you mean development?',
        "config.toml:2: memory_bytes: unknown key. It belongs in [limits].",
        'config.toml:4: limits.memory_bytes: "12q" is not a size. Write for example 512m.',
        "config.toml:5: limits.wall: unknown key. Did you mean limits.wall_s?",
        "config.toml:6: limits.processes: 0 is too small. Write a value from 1 to 32768.",
        "config.toml:7: limits.cpus: nan is not a finite number. Write a value from 0.05 to 256.",
        'config.toml:8: limits.wall_s: "10" is not a number. Write a value from 0.01 to 86400.',
        'config.toml:9: limits.disk_bytes: "1k" is too small. Write a value from 64k to 1t.',
        (
            'config.toml:13: sandbox.extra_read_only_paths[1]: "/etc" would expose the host\'s own '
            "secrets. Name the one directory that is needed."
        ),
        (
            "config.toml:15: sandbox.uid_base: 1.5 is not a whole number. "
            "Write a value from 65536 to 2147000000."
        ),
        (
            "config.toml:17: governor.max_concurrent: true is not a whole number. "
            "Write a value from 1 to 4096."
        ),
        'config.toml:19: workspace.blocked_extensions: ".lnk" is not a list.',
        'config.toml:20: workspace.dangerously_expose_sensitive_names: "yes" is not true or false.',
        (
            "config.toml:21: workspace.colour: unknown key. Known here: blocked_extensions, "
            "max_walk_entries, extra_protected_names, build_files, keep_changes_days, keep_sessions_days, "
            "dangerously_expose_sensitive_names."
        ),
        (
            "config.toml:23: audit.max_field_bytes: 1979-05-27 is not a whole number. "
            "Write a value from 64 to 8k."
        ),
        (
            "config.toml:24: walls: unknown key. Known here: profile, limits, sandbox, governor, "
            "workspace, skills, roles, approvals, policy, hook, egress, packages, "
            "vault, guard, audit, alerts, retention, snapshots, storage, accounts, server, observability, oidc, rates, "
            "budgets, messages, mcp, fleet, kubernetes."
        ),
    ]


@pytest.mark.requirement("CFG-2")
def test_an_unknown_key_is_an_error(refusal: Refusal) -> None:
    assert refusal("[sandbox]\ndangerously_without_cgroups = true\n").message == (
        "config.toml:2: sandbox.dangerously_without_cgroups: unknown key. "
        "Did you mean sandbox.dangerously_without_cgroup?"
    )


def test_the_file_goes_on_top_of_its_profile(load_text: Load) -> None:
    settings = load_text('profile = "paranoid"\n[limits]\nmemory_bytes = "300m"\nwall_s = 5\n')
    paranoid = load_settings(profile="paranoid", environ={"HOME": "/nonexistent"})
    limits = paranoid.limits.model_copy(update={"memory_bytes": 300 * 1024**2, "wall_s": 5.0})
    assert settings == paranoid.model_copy(update={"limits": limits})


def test_a_profile_named_by_the_caller_wins_over_the_files(config_dir: Path) -> None:
    write(config_dir / "c.toml", 'profile = "development"\n[audit]\nmax_field_bytes = 100\n')
    settings = load_settings(file="c.toml", profile="paranoid", environ={})
    assert (settings.profile, settings.limits.to_limits().processes) == ("paranoid", 32)
    assert settings.audit.max_field_bytes == 100


def test_an_unknown_profile_of_the_caller_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(profile="../production", environ={"HOME": "/nonexistent"})
    assert (caught.value.code, caught.value.message, caught.value.hint) == (
        "CW-CONFIG-PROFILE",
        'profile: "../production" is unknown',
        "Did you mean production?",
    )


def test_a_wrong_profile_in_the_file_is_told_even_if_the_caller_names_another(
    config_dir: Path,
) -> None:
    write(config_dir / "c.toml", "profile = 3\n")
    with pytest.raises(ConfigError, match=r"c\.toml:1: profile: 3 is unknown"):
        load_settings(file="c.toml", profile="paranoid", environ={})


def test_the_file_is_the_callers_then_the_environments_then_the_users(tmp_path: Path) -> None:
    places = {
        "caller": write(tmp_path / "caller.toml", "[audit]\nmax_field_bytes = 101\n"),
        "named": write(tmp_path / "named.toml", "[audit]\nmax_field_bytes = 102\n"),
        "xdg": write(tmp_path / "xdg/cellwall/config.toml", "[audit]\nmax_field_bytes = 103\n"),
        "home": write(
            tmp_path / "home/.config/cellwall/config.toml", "[audit]\nmax_field_bytes = 104\n"
        ),
    }
    everything = {
        "CELLWALL_CONFIG": str(places["named"]),
        "XDG_CONFIG_HOME": str(tmp_path / "xdg"),
        "HOME": str(tmp_path / "home"),
    }

    def found(file: str | None, *leave_out: str) -> int:
        environ = {key: value for key, value in everything.items() if key not in leave_out}
        return load_settings(file=file, environ=environ).audit.max_field_bytes

    assert found(str(places["caller"])) == 101
    assert found(None) == 102
    assert found(None, "CELLWALL_CONFIG") == 103
    assert found(None, "CELLWALL_CONFIG", "XDG_CONFIG_HOME") == 104


def test_empty_and_relative_variables_count_as_not_set(tmp_path: Path) -> None:
    write(tmp_path / ".config/cellwall/config.toml", "[audit]\nmax_field_bytes = 104\n")
    environ = {"CELLWALL_CONFIG": "", "XDG_CONFIG_HOME": "relative", "HOME": str(tmp_path)}
    assert load_settings(environ=environ).audit.max_field_bytes == 104


def test_the_default_place_is_shown_without_the_hosts_path(tmp_path: Path) -> None:
    write(tmp_path / ".config/cellwall/config.toml", "x = 1\n")
    with pytest.raises(ConfigError) as at_home:
        load_settings(environ={"HOME": str(tmp_path)})
    with pytest.raises(ConfigError) as at_xdg:
        load_settings(environ={"XDG_CONFIG_HOME": str(tmp_path / ".config")})
    assert at_home.value.message.startswith("~/.config/cellwall/config.toml:1: x: unknown key.")
    assert at_xdg.value.message.startswith("$XDG_CONFIG_HOME/cellwall/config.toml:1: x: unknown")
    assert str(tmp_path) not in str(at_home.value) + str(at_xdg.value)


def test_no_home_at_all_still_finds_the_users_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / ".config/cellwall/config.toml", 'profile = "paranoid"\n')

    class Entry:
        pw_dir = str(tmp_path)

    monkeypatch.setattr("pwd.getpwuid", lambda uid: Entry)
    assert load_settings(environ={}).profile == "paranoid"


@pytest.mark.parametrize("content", ["", "\n\n# nothing\n", "\ufeff# from another editor\n"])
def test_an_empty_file_is_the_profile_itself(load_text: Load, content: str) -> None:
    assert load_text(content) == Settings()


@pytest.mark.parametrize("written", ['"1.5g"', '"1536M"', '"1536 MiB"', "1610612736"])
def test_a_size_may_be_a_number_or_a_text(load_text: Load, written: str) -> None:
    settings = load_text(f"[limits]\nmemory_bytes = {written}\n")
    assert settings.limits.to_limits().memory_bytes == 1536 * 1024**2
