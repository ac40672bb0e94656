from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from cellwall.config.load import load_settings, profile_data
from cellwall.config.models import PROFILE_NAMES, SECTIONS, Settings, weakened
from cellwall.core.errors import ConfigError

NOWHERE = {"HOME": "/nonexistent"}


def settings_of(profile: str) -> Settings:
    return load_settings(file=None, profile=profile, environ=NOWHERE)


def values_of(settings: Settings) -> dict[str, Any]:
    return {
        f"{section}.{key}": getattr(getattr(settings, section), key)
        for section, model in SECTIONS.items()
        for key in model.model_fields
    }


def test_the_shipped_files_are_the_named_profiles() -> None:
    shipped = resources.files("cellwall.config").joinpath("profiles").iterdir()
    assert {entry.name for entry in shipped} == {f"{name}.toml" for name in PROFILE_NAMES}


@pytest.mark.requirement("CFG-1")
def test_without_file_and_profile_the_code_defaults_are_production() -> None:
    assert load_settings(file=None, profile=None, environ=NOWHERE) == Settings()
    assert settings_of("production") == Settings()


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("name", PROFILE_NAMES)
def test_no_profile_takes_a_wall_away(name: str) -> None:
    data = profile_data(name)
    keys = [key for table in data.values() for key in table]
    assert set(data) <= set(SECTIONS)
    assert not [key for key in keys if key.startswith("dangerously_")]
    assert weakened(settings_of(name)) == ()
    assert settings_of(name).profile == name


@pytest.mark.requirement("CFG-1")
def test_paranoid_gives_nowhere_more_room_than_production() -> None:
    production, paranoid = values_of(Settings()), values_of(settings_of("paranoid"))
    higher_is_stricter = {"governor.min_available_memory_bytes", "packages.min_age_days"}
    looser = {
        key
        for key, value in paranoid.items()
        if isinstance(value, int | float)
        and (value < production[key] if key in higher_is_stricter else value > production[key])
    }
    changed = {key for key in production if paranoid[key] != production[key]}
    assert looser == set()
    assert {"limits.memory_bytes", "limits.processes", "governor.max_concurrent"} <= changed


@pytest.mark.requirement("CFG-1")
def test_development_changes_the_room_of_a_run_questions_about_labels_and_the_second_user() -> None:
    production, development = values_of(Settings()), values_of(settings_of("development"))
    changed = {key for key in production if development[key] != production[key]}
    assert (production["policy.rule_of_two"], development["policy.rule_of_two"]) == ("ask", "show")
    users = (production["sandbox.second_user"], development["sandbox.second_user"])
    assert users == ("refuse", "allow")
    changed -= {"policy.rule_of_two", "sandbox.second_user"}
    assert {key for key in changed if not key.startswith("limits.")} == {
        "sandbox.tmp_bytes",
        "sandbox.shm_bytes",
    }
    assert all(development[key] > production[key] for key in changed)


@pytest.mark.requirement("POL-9", "CFG-1")
@pytest.mark.parametrize("profile", ["production", "paranoid"])
def test_a_profile_that_asks_about_labels_is_weakened_only_in_so_many_words(
    tmp_path: Path, profile: str
) -> None:
    file = tmp_path / "cellwall.toml"
    file.write_text('[policy]\nrule_of_two = "show"\n')
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="weakens the profile") as refused:
        load_settings(file=str(file), profile=profile, environ={})
    assert "dangerously_without_rule_of_two" in refused.value.hint
    assert load_settings(file=str(file), profile="development", environ={}).policy.rule_of_two
    file.write_text("[policy]\ndangerously_without_rule_of_two = true\n")
    found = load_settings(file=str(file), profile=profile, environ={})
    assert weakened(found) == ("policy.dangerously_without_rule_of_two",)
