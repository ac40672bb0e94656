"""Values of the vault as shells, terminals and dumps print them (GRD-5)."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import subprocess

import pytest

from cellwall.guard.redact import Redactor
from conftest import need

pytestmark = pytest.mark.requirement("GRD-5", "SEC-2")

ODD = b"p4ss'w0rd$With\"odd`chars&more-Zq9"
LINES = b"first line of it 81kQ\nsecond line 20vbTR\nthird 7uYeWc54\n"
CARD = b"4929123412341234"
KNOWN = {"ODD": ODD, "LINES": LINES, "CARD": CARD}
REDACTOR = Redactor(known=lambda: KNOWN)
BLIND = Redactor(known=dict)


def printed(command: str, value: bytes) -> bytes:
    ran = subprocess.run(["bash", "-c", command], input=value, capture_output=True, check=True)
    return ran.stdout + ran.stderr


def indented(value: bytes, sign: bytes) -> bytes:
    return b"".join(sign + line for line in value.splitlines(keepends=True))


def told(name: str, data: bytes) -> bytes:
    assert b"[redacted:" not in BLIND.redact(data).data  # only the vault knows it
    whole = REDACTOR.redact(data).data
    assert b"[redacted:secret %s]" % name.encode() in whole
    assert REDACTOR.redact(whole).data == whole
    for size in (1, 7):
        stream = REDACTOR.stream()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        cut = b"".join([*map(stream.feed, pieces), stream.end()])
        assert b"[redacted:secret %s]" % name.encode() in cut
        assert len(cut) <= len(whole) + 8  # some signs may have left before it was known
    return whole


@pytest.mark.parametrize(
    "command", ['printf %q "$(cat)"', "x=$(cat); declare -p x", 'x=$(cat); set -x; true "$x"']
)
def test_what_a_shell_quotes_is_known(command: str) -> None:
    assert b"w0rd" not in told("ODD", printed(command, ODD))
    assert b"20vbTR" not in told("LINES", printed(command, LINES))


def test_other_ways_to_quote_are_known() -> None:
    for data in (shlex.quote(ODD.decode()), json.dumps(json.dumps({"a": ODD.decode()}))):
        assert b"w0rd" not in told("ODD", b"run " + data.encode() + b" now")
    twice = json.dumps(json.dumps({"a": LINES.decode()})).encode()
    assert b"20vbTR" not in told("LINES", twice)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [b"", b"    ", b"\t", b"+", b"> ", b"| ", b"# "])
def test_lines_are_known_behind_indentation_and_with_other_ends(sign: bytes) -> None:
    for data in (indented(LINES, sign), indented(LINES, sign).replace(b"\n", b"\r\n")):
        assert b"20vbTR" not in told("LINES", b"key:\n" + data + b"end")


def test_a_value_is_known_without_the_newline_at_its_end() -> None:
    assert told("LINES", LINES.rstrip(b"\n") + b";") == b"[redacted:secret LINES];"


def test_base64_is_known_wrapped_and_indented() -> None:
    encoded = base64.b64encode(LINES)
    rows = [b"    " + encoded[i : i + 20] for i in range(0, len(encoded), 20)]
    assert encoded[20:36] not in told("LINES", b"data:\n" + b"\n".join(rows) + b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["xxd", "hexdump -C", "od -c", "od -An -tx1", "od -tx1"])
def test_a_dump_shows_neither_the_bytes_nor_the_text(command: str) -> None:
    program, _, _ = command.partition(" ")
    need(shutil.which(program), f"the program {program}")
    dump = printed(command, b"before it " + ODD + b" and behind it" * 3)
    assert (
        printed(command, b"nothing in it, however long it may be")
        == REDACTOR.redact(printed(command, b"nothing in it, however long it may be")).data
    )
    clean = told("ODD", b"$ dump\n" + dump)
    for shown in (b"w0rd", b"77 30 72", b"7730", b"w   0   r", b"6864 6024"):
        assert shown not in clean


def test_a_number_in_data_is_known_as_the_text_it_is_kept_as() -> None:
    data = {"n": int(CARD), "list": [int(CARD), 12, 3.5, True, None], "other": 123456789}
    assert BLIND.redact_json(data) == data
    assert REDACTOR.redact_json(data) == {
        "n": "[redacted:secret CARD]",
        "list": ["[redacted:secret CARD]", 12, 3.5, True, None],
        "other": 123456789,
    }


def test_forms_that_are_not_searched_for_are_those_that_the_guide_names() -> None:
    # If one of these is found some day, docs/guides/guard.md has to say so.
    for data in (
        base64.b32encode(ODD),
        base64.b85encode(ODD),
        ODD.decode().encode("utf-16-le"),
        "".join(f"\\{byte:03o}" for byte in ODD).encode(),
        base64.b64encode(base64.b64encode(ODD)),
        ODD.upper(),
        repr(list(ODD)).encode(),
    ):
        assert REDACTOR.redact(data).data == data


@pytest.mark.parametrize(
    "value",
    ["tab\there-Zq81kQ", "caf\u00e9-Zq81kQ20vb", "\U0001f511-Zq81kQ20vb", "cr\rbs\b-Zq81kQ20"],
)
def test_json_within_json_hides_no_escaped_character(value):
    redactor = Redactor(known=lambda: {"NAME": value.encode()})
    data = json.dumps(json.dumps({"a": value})).encode()
    assert redactor.redact(data).data == b'"{\\"a\\": \\"[redacted:secret NAME]\\"}"'
    stream = redactor.stream()
    out = b"".join(stream.feed(data[i : i + 1]) for i in range(len(data))) + stream.end()
    assert b"[redacted:secret NAME]" in out
    assert b"Zq81kQ" not in out
    other = json.dumps(json.dumps({"a": value.replace("Zq", "Zr")})).encode()
    assert redactor.redact(other).data == other
