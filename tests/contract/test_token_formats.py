"""Token formats of today, made at random: what one user of the rules finds, all of them find.

Made and not written down: a rule that knows one example by heart finds no other of its kind.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string

import pytest

from cellwall.audit.encoding import RecordDraft
from cellwall.core.files import FileEntry, FileOperation
from cellwall.core.outcomes import Event, EventKind, RunResult
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakScan, Patterns
from cellwall.guard.redact import Redactor
from cellwall.guard.service import GuardService

pytestmark = pytest.mark.requirement("GRD-5", "GRD-11")

_LETTERS = string.ascii_letters + string.digits
_KINDS = {
    "A": _LETTERS,
    "u": _LETTERS + "-_",
    "b": _LETTERS + "+/",
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "l": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "K": string.ascii_uppercase + "234567",
    "d": "123456789",
    "B": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
}
FORMATS = """
ghp_{A36} gho_{A36} ghu_{A36} ghs_{A36} ghr_{A76} github_pat_{A22}_{A59} glpat-{u20}
glpat-{u27}.01.{l9} gldt-{u20} glrt-{u20} glptt-{h40} xoxb-{d12}-{d13}-{A24}
xoxp-{d12}-{d12}-{d12}-{h32} xapp-1-A{U10}-{d13}-{h64} sk_live_{A24} rk_live_{A24} whsec_{A32}
sk-proj-{A40}T3BlbkFJ{A40} sk-{A20}T3BlbkFJ{A20} sk-ant-api03-{u93}AA sk-or-v1-{h64} gsk_{A52}
hf_{A34} npm_{A36} pypi-AgEIcHlwaS5vcmc{u160} AKIA{K16} ASIA{K16} AIza{u35} GOCSPX-{u28}
dop_v1_{h64} SG.{u22}.{u43} key-{h32} {d9}:AA{u33} shpat_{h32} shpss_{h32} dapi{h32} hvs.{A24}
{A14}.atlasv1.{u67} lin_api_{A40} ntn_{A46} figd_{u40} sbp_{h40} sb_secret_{u31} dp.pt.{A43}
glsa_{A32}_{h8} NRAK-{U27} cfut_{A40}{h8} fo1_{u43} HRKU-AA{u58} PMAK-{h24}-{h34}
pat{A14}.{h64} ATATT3xFfGF0{u180}={H8} ATBB{A32}{H8} AGE-SECRET-KEY-1{B58} dckr_pat_{u27}
r8_{A37} pplx-{A48} xai-{A80} nvapi-{u64} lsv2_pt_{h32}_{h10} tvly-{A32} pcsk_{A5}_{A63}
e2b_{h40} jina_{A60} re_{A8}_{A24} sntryu_{h64} phx_{A43} tskey-auth-{A17}-{A32} sqp_{h40}
cws_{u43} cwr_{u43} cwl_{u43} rubygems_{h48} pscale_tkn_{u43} nfp_{A36} dt0c01.{U24}.{U64} CCIPAT_{A22}_{h40}
https://hooks.slack.com/services/T{U8}/B{U10}/{A24}
https://discord.com/api/webhooks/{d19}/{u68} AccountKey={b86}==
""".split()  # noqa: SIM905  # a line for each would be a hundred lines
OFF_THE_WIRE = """
ya29.a0{u160} eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI{A20}.{u43} https://user:{A14}@host.example/x
postgres://app:{A14}@db:5432/x //registry.npmjs.org/:_authToken={h36} DD_API_KEY={h32}
TWILIO_AUTH_TOKEN={h32} CLOUDFLARE_API_TOKEN={u40} VERCEL_TOKEN={A24} AZURE_OPENAI_API_KEY={h32}
sessionid={A32} "token":"{u60}"
""".split()  # noqa: SIM905  # a line for each would be a hundred lines
"""Programs sign in with these, or any data may hold them; the packs say why for each rule."""


def made(form: str, seed: int = 0) -> tuple[str, str]:
    """A token of the format, and its last random part: what must not be seen anywhere."""
    chance = random.Random(f"{form}{seed}")
    parts: list[str] = []

    def part(found: re.Match[str]) -> str:
        kind, length = _KINDS[found[1]], int(found[2])
        letters = [chance.choice(kind) for _ in range(length)]
        if length > 7:  # as chance nearly always has it: a digit, and no mark at the ends
            letters[1], letters[-1] = chance.choice("23456789"), chance.choice("23456789")
        parts.append("".join(letters))
        return parts[-1]

    text = re.sub(r"\{(\w)(\d+)\}", part, form)
    return text, max(parts, key=len)[4:]


EVERY = [*FORMATS, *OFF_THE_WIRE]
REDACTOR = Redactor()


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("seed", range(3))
def test_screen_record_and_wire_agree(form: str, seed: int) -> None:
    text, secret = made(form, seed)
    for told in (text, f"the value is {text}\n", f"x = '{text}'"):
        assert secret not in REDACTOR.redact_text(told).text
        event = Event(EventKind.INTENT, "act_1", "ann", "cli", {"command": ["echo", told]})
        assert secret not in RecordDraft(event).body
        if form in FORMATS:
            scan = LeakScan(KnownIndex({}), Patterns.shipped())
            assert scan.feed(told.encode()) is not None


@pytest.mark.parametrize("form", EVERY)
def test_it_is_taken_out_wherever_a_stream_is_cut(form: str) -> None:
    text, secret = made(form)
    data = f"$ env\n{text}\n".encode()
    whole = REDACTOR.redact(data).data
    assert secret.encode() not in whole
    for cut in range(1, len(data)):
        stream = REDACTOR.stream()
        assert stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.end() == whole


@pytest.mark.parametrize("form", FORMATS)
def test_it_is_refused_wherever_a_request_is_cut(form: str) -> None:
    data = f"a=1&b={made(form)[0]}&c=2".encode()
    for cut in range(1, len(data), 3):
        scan = LeakScan(KnownIndex({}), Patterns.shipped())
        scan.feed(data[:cut])
        assert scan.feed(data[cut:]) is not None


def test_no_part_of_a_result_holds_one() -> None:
    tokens = [made(form) for form in EVERY]
    lines = "\n".join(["begin", *(text for text, _ in tokens), "end"])
    values = [{f"entry {text}": [text, {"note": text}]} for text, _ in tokens]
    result = RunResult(
        1,
        stdout=lines.encode(),
        stderr=lines.encode(),
        value=values,
        text=lines,
        results=({"text": lines}, {"html": f"<p>{lines}</p>"}),
        code_error={"type": "E", "message": lines, "traceback": lines},
    )
    action = Action(principal=Principal("ann", "mcp"), operation=RunCommand(()), audience="model")
    cleaned = GuardService().clean(action, result)
    seen = [cleaned.stdout.decode(), cleaned.stderr.decode(), str(cleaned.text), cleaned.shown]
    seen += [json.dumps(part) for part in (cleaned.value, cleaned.results, cleaned.code_error)]
    for text in seen:
        assert [secret for _, secret in tokens if secret in text] == []
    assert "begin" in cleaned.shown, "the rest is there"
    assert cleaned.stdout.endswith(b"\nend")


def test_no_name_of_a_file_that_a_model_sees_holds_one() -> None:
    tokens = [made(form) for form in EVERY if "/" not in form]
    names = [f"notes {text}" for text, _ in tokens]
    entries = [FileEntry(name, name, "file", 1, 0o644, 0.0) for name in names]
    operation = FileOperation("list", ".")
    action = Action(principal=Principal("ann", "mcp"), operation=operation, audience="model")
    shown = GuardService().clean(action, RunResult(None, payload=entries)).shown
    assert [secret for _, secret in tokens if secret in shown] == []
    assert shown.count("notes ") == len(entries)


def test_what_only_looks_like_one_is_left_alone() -> None:
    harmless = (
        "ghp_example xoxb-your-token-goes-here sk-learn AKIA hf_hub_download npm_config_cache "
        "commit 9df595e266666245dc71416faf9f8a878b4333bd sha256:" + "0f" * 32
    )
    assert REDACTOR.redact_text(harmless).text == harmless
    assert (
        base64.b64encode(b"plain words only").decode()
        in REDACTOR.redact_text(base64.b64encode(b"plain words only").decode()).text
    )
