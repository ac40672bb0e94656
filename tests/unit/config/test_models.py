from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from cellwall.config.models import (
    SECTIONS,
    SandboxSection,
    Settings,
    WorkspaceSection,
    bounds,
    schema_text,
    weakened,
)
from cellwall.core.limits import Limits, parse_size, size_text

ALL_FIELDS = [
    (section, key, spec)
    for section, model in SECTIONS.items()
    for key, spec in model.model_fields.items()
]


@pytest.mark.requirement("CFG-2")
def test_limits_take_defaults_bounds_and_reasons_from_core() -> None:
    fields = SECTIONS["limits"].model_fields
    told = {name: (spec.default, bounds(spec), spec.description) for name, spec in fields.items()}
    assert told == {
        spec.name: (
            spec.default,
            (spec.metadata["least"], spec.metadata["most"]),
            spec.metadata["reason"],
        )
        for spec in dataclasses.fields(Limits)
    }
    assert Settings().limits.to_limits() == Limits()


@pytest.mark.parametrize(("section", "key", "spec"), ALL_FIELDS)
def test_every_setting_has_a_reason_and_is_bounded_both_ways(
    section: str, key: str, spec: FieldInfo
) -> None:
    assert spec.description
    bounded = spec.annotation is bool or bounds(spec) is not None
    assert bounded or any(hasattr(mark, "max_length") for mark in spec.metadata), (section, key)


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(("section", "key", "spec"), ALL_FIELDS)
def test_a_switch_is_called_dangerously_and_is_off_by_default(
    section: str, key: str, spec: FieldInfo
) -> None:
    assert spec.annotation is not bool or key.startswith("dangerously_")
    if key.startswith("dangerously_"):
        assert spec.default in (False, ())  # a list names what the wall lets through


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.sandbox.dangerously_without_cgroup = True
    with pytest.raises(ValidationError):
        settings.profile = "development"


@pytest.mark.requirement("CFG-1")
def test_weakened_names_each_switch_that_is_on_and_nothing_else() -> None:
    switches = {
        section: {key: True for key in model.model_fields if key.startswith("dangerously_")}
        for section, model in SECTIONS.items()
    }
    switches["policy"]["dangerously_trusted_domains"] = ("wiki.example",)
    switches["egress"] = {"dangerously_allow_addresses": ("10.0.0.0/8",)}
    assert weakened(Settings()) == ()
    assert weakened(Settings.model_validate(switches)) == (
        "sandbox.dangerously_without_cgroup",
        "sandbox.dangerously_without_landlock",
        "sandbox.dangerously_without_user_namespace",
        "sandbox.dangerously_emulate_machines",
        "workspace.dangerously_expose_sensitive_names",
        "policy.dangerously_observe",
        "policy.dangerously_without_rule_of_two",
        "policy.dangerously_trusted_domains",
        "hook.dangerously_outside",
        "egress.dangerously_allow_addresses",
        "packages.dangerously_build_sources",
        "guard.dangerously_only_annotate",
        "alerts.dangerously_without_tls",
        "storage.dangerously_without_tls",
        "server.dangerously_without_tls",
        "observability.dangerously_without_tls",
        "rates.dangerously_without_tls",
        "fleet.dangerously_without_tls",
    )


@pytest.mark.requirement("ISO-2")
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/root", "/home", "/etc", "/proc", "/sys", "/run", "/dev", "/var", "/tmp"),
        *("/proc/1", "/proc/self/root", "/sys/kernel", "/dev/shm", "/run/user/1000"),
        *("/var/run", "/var/run/docker.sock", "/home/alice"),
        *("/tmp/x", "/workspace", "/workspace/x", "/code", "/skills/x", "/.cellwall/net"),
        *("/etc/", "//etc", "/./etc", "/opt/../etc", "/opt//x", "//", "/..", "/etc/."),
        *("", "opt", "./opt", "../etc", "~", "~/x", "$HOME"),
        *("/opt/\0", "/opt/a\nb", "/opt/\u202ex", "/" + "a" * 4096),
    ],
)
def test_host_paths_that_hold_secrets_or_hide_where_they_lead_are_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        SandboxSection(extra_read_only_paths=(path,))


@pytest.mark.parametrize("path", ["/opt/toolchain", "/usr/local/share", "/home/alice/data", "/srv"])
def test_a_plain_host_directory_can_be_shown(path: str) -> None:
    assert SandboxSection(extra_read_only_paths=(path,)).extra_read_only_paths == (path,)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a//b", "/a", "a/", "a/../b", "./a", "a\\b", "a\0", "a\nb", "é" * 128]
)
def test_a_protected_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        WorkspaceSection(extra_protected_names=(name,))


@pytest.mark.parametrize("name", [".npmrc", "*.pem", "deploy/keys", "clé?.txt"])
def test_names_patterns_and_relative_paths_can_be_protected(name: str) -> None:
    assert WorkspaceSection(extra_protected_names=(name,)).extra_protected_names == (name,)


@pytest.mark.parametrize(
    "extension", ["", ".", "lnk", ".LNK", ".a.b", ".a/b", ". ", "." + "x" * 17]
)
def test_an_extension_that_no_file_can_have_is_refused(extension: str) -> None:
    with pytest.raises(ValidationError):
        WorkspaceSection(blocked_extensions=(extension,))


@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_size_text_reads_back_as_the_same_size(number: int) -> None:
    assert parse_size(size_text(number)) == number


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "a", "300.0.0.0/8", "10.0.0.0/33", "::1/129"])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    Settings.model_validate({"egress": {"dangerously_allow_addresses": ("10.0.0.0/8", "::1/128")}})
    with pytest.raises(ValidationError, match="is not a network"):
        Settings.model_validate({"egress": {"dangerously_allow_addresses": (text,)}})


@pytest.mark.parametrize("text", ["", "dns.example", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3", "[::1"])
def test_a_name_server_is_an_address(text: str) -> None:
    Settings.model_validate({"egress": {"dns_servers": ("192.0.2.1", "[2001:db8::1]:5353")}})
    with pytest.raises(ValidationError, match="address of a server"):
        Settings.model_validate({"egress": {"dns_servers": (text,)}})


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    schema = json.loads(schema_text())
    assert set(schema["properties"]) == set(Settings.model_fields)
    assert schema["additionalProperties"] is False
    for name, model in SECTIONS.items():
        told = schema["$defs"][schema["properties"][name]["$ref"].rpartition("/")[2]]
        assert set(told["properties"]) == set(model.model_fields)
        assert told["additionalProperties"] is False


def test_the_schema_takes_a_size_as_number_or_text_within_the_same_bounds() -> None:
    schema = json.loads(schema_text())
    told = schema["$defs"]["GovernorSection"]["properties"]["max_promised_memory_bytes"]
    number, text = told["anyOf"]
    assert number == {"type": "integer", "minimum": 8 * 1024**2, "maximum": 64 * 1024**4}
    assert text["type"] == "string"
    assert "default" not in told
