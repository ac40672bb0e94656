"""Metadata, link-local and private addresses, in every spelling, for fetches and commands alike."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.verdict import Verdict
from cellwall.policy.addresses import forbidden_in_code, kind_of
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source

pytestmark = pytest.mark.requirement("NET-3", "POL-4")

METADATA = [
    *("169.254.169.254", "2852039166", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376"),
    *("169.254.43518", "169.16689662", "0xA9.254.0251.254", "169.254.169.254.", "[fd00:ec2::254]"),
    *("[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "100.100.100.200"),
    *("[::169.254.169.254]", "[2002:a9fe:a9fe::1]", "metadata.google.internal", "METADATA.google.internal."),
    *("169.254.169.254.nip.io", "169-254-169-254.sslip.io", "x.169.254.169.254.nip.io"),
]  # fmt: skip
PRIVATE = ["10.0.0.1", "10.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "192.168.257",
           "100.64.0.1", "[fc00::1]", "[fd12:3456::1]", "3232235777", "0xC0A80101", "167772161",
           "[::ffff:10.0.0.1]", "10.0.0.1.nip.io"]  # fmt: skip
LINK_LOCAL = ["169.254.1.1", "[fe80::1]", "[fe80::1%eth0]"]
LOOPBACK = ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost", "LOCALHOST.", "a.localhost",
            "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"]  # fmt: skip
PUBLIC = ["example.com", "8.8.8.8", "1.1", "172.32.0.1", "11.0.0.1", "[2606:4700::1111]", "8080",
          "30", "v1.2.3", "10.example.com", "metadata.example.com", "134744072"]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [
        ("metadata", METADATA),
        ("private", PRIVATE),
        ("link-local", LINK_LOCAL),
        ("loopback", LOOPBACK),
        (None, PUBLIC),
    ],
)
def test_every_spelling_is_known(kind, hosts):
    assert {host: kind_of(host) for host in hosts} == dict.fromkeys(hosts, kind)


@cache
def everything() -> Policy:
    source = Source("p.toml", 1)
    return Policy.of(
        [
            parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=Layer.ADMINISTRATOR)
            for text in ("Bash", "Read", "Write", "WebFetch", "WebFetch(domain:10.0.0.1)")
        ]
    )


def verdict(call: str) -> str:
    return everything().check(call, cwd="/home/me/project", home="/home/me").verdict.word


@pytest.mark.parametrize("host", METADATA + PRIVATE + LINK_LOCAL)
def test_no_fetch_and_no_command_reaches_it(host):
    assert verdict(f"WebFetch(http://{host}/)") == "deny"
    plain = host.strip("[]")
    for command in (
        *(
            f"curl http://{host}/latest",
            f"curl -s 'http://{host}:80/x'",
            f"wget -qO- 'http://{host}/'",
        ),
        *(f"curl --url='http://{host}/'", f"curl -x 'http://{host}:3128' https://example.com"),
        *(f"bash -c \"curl 'http://{host}/'\"", f"timeout 5 curl 'https://u:p@{host}/'"),
    ):
        assert (command, verdict(f"Bash({command})")) == (command, "deny")
    if ":" not in plain:
        for command in (f"nc {plain} 80", f"ssh root@{plain}", f"ssh {plain} ls", f"curl {plain}"):
            assert (command, verdict(f"Bash({command})")) == (command, "deny")


@pytest.mark.parametrize(
    "command",
    [
        "curl --resolve example.com:80:10.0.0.1 http://example.com/",
        "curl --connect-to ::10.0.0.1:80 http://example.com/",
        "socat - TCP:192.168.0.1:80",
        "scp file 10.0.0.1:/tmp/x",
        "rsync -a src/ u@192.168.1.1:x",
        "ssh -L 8080:10.0.0.1:80 example.com",
        "ssh -J 10.0.0.1 example.com",
        "cat < /dev/tcp/169.254.169.254/80",
        "exec 3<>/dev/tcp/10.0.0.1/80",
        "python3 -c 'import urllib.request as u; u.urlopen(\"http://169.254.169.254/\")'",
        "node -e 'fetch(\"http://10.0.0.1/\")'",
        "python3 <<'E'\nimport requests\nrequests.get('http://metadata.google.internal/')\nE",
    ],
)
def test_addresses_behind_options_and_in_code_are_found(command):
    assert verdict(f"Bash({command})") == "deny"


@pytest.mark.parametrize(
    "command",
    [
        *("curl https://example.com/?ip=10.0.0.1", "curl -m 30 --retry 5 https://example.com/"),
        *("echo 10.0.0.1", "grep 192.168 README.md", "curl -s http://localhost:3000/"),
        *("nc -z example.com 8080", "wget https://example.com/v10.0.0.1.tar.gz"),
        'curl -d \'{"ip": "10.0.0.1"}\' https://example.com/',
    ],
)
def test_what_only_looks_like_one_passes(command):
    assert verdict(f"Bash({command})") == "allow"


def test_this_machine_is_asked_about_unless_a_rule_names_it():
    source = Source("p.toml", 1)
    for text, wanted in (("WebFetch", "ask"), ("WebFetch(domain:localhost)", "allow")):
        rule = parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=Layer.USER)
        assert Policy.of([rule]).check("WebFetch(http://localhost:3000/)").verdict.word == wanted


@pytest.mark.parametrize(
    "host",
    [
        *("%31%36%39.254.169.254", "%2531%2536%2539.254.169.254", "169%2e254%2e169%2e254"),
        *(
            "①⑥⑨.254.169.254",
            "169。254。169。254",
            "169\uff0e254\uff61169.254",
            "169.254.169.254...",
        ),
        *(
            "\uff11\uff16\uff19.254.169.254",
            "169.254\u200b.169.254",
            "[::ffff:169.254.169.254%25eth0]",
        ),
    ],
)
def test_a_host_is_read_as_resolvers_read_it(host):
    assert kind_of(host) == "metadata"


@pytest.mark.parametrize(
    "command",
    [
        *(
            "pip install foo==10.0.0.1",
            "git checkout 10.1",
            "npm run metadata",
            "cmake -DV=10.1.2 .",
        ),
        *("git commit -m 'handle http://10.0.0.1/ well'", "timeout 5 grep 10.0.0.1 f"),
        *(
            "bash -c 'echo http://10.0.0.1'",
            "awk '$1==\"10.0.0.1\"' log",
            "docker run -p 8080:80 x",
        ),
        *("curl -w '%{http_code}' https://example.com", "curl -d '[1,2,3]' https://example.com"),
        *("curl 'https://example.com/{a,b}[1-3]'", "curl 'http://[::1]:8080/'"),
        'python3 -c \'print(dict()["metadata"], "10.1")\'',
    ],
)
def test_versions_messages_and_patterns_are_no_addresses(command):
    assert verdict(f"Bash({command})") == "allow"


@given(st.ip_addresses(v=4, network="10.0.0.0/8"), st.sampled_from("doxm"))
def test_any_private_address_in_any_base_is_known(address, form):
    parts = [int(part) for part in str(address).split(".")]
    spelled = {
        "d": str(int(address)),
        "o": ".".join(f"0{part:o}" for part in parts),
        "x": hex(int(address)),
        "m": f"{parts[0]}.{int(address) & 0xFFFFFF}",
    }[form]
    assert kind_of(spelled) == "private"


@given(st.text(max_size=60))
def test_any_text_is_looked_at_without_an_error(text):
    kind_of(text)
    forbidden_in_code(text)
