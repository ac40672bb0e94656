"""A request names packages and versions; nothing that pip would take for something else passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.core.packages import (
    MAX_PACKAGES,
    InstallPackages,
    Package,
    package_of,
    packages_of,
    parse_install,
    parse_npm_spec,
    parse_request,
    parse_requirement,
    parse_requirements_file,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("requests", "requests"),
        ("Flask_SQLAlchemy", "flask-sqlalchemy"),
        (" Pandas >=2.0 , <3 ", "pandas<3,>=2.0"),
        ("uvicorn[Standard,a]~=0.1", "uvicorn[a,standard]~=0.1"),
        ("torch==2.1.0.post1+cu118", "torch==2.1.0.post1+cu118"),
        ("a!=1.*", "a!=1.*"),
        ("x.whl", "x-whl"),  # a name; in this spelling pip cannot take it for a file
    ],
)
def test_names_and_versions_get_one_spelling(text, parsed):
    assert parse_requirement(text) == parsed
    assert parse_requirement(parsed) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-r /etc/passwd", "--index-url=https://evil.example", "-e .", "--pre"),
        *("x @ file:///etc/passwd", "x@https://evil.example/x.whl", "git+https://e.example/x"),
        *("./x", "/etc/passwd", "..", ".", "a/b", "a\\b", "~/x", "x==1.zip", "x==1+a.whl"),
        *("a\nb", "a\n--pre", "a\r", "a\0", "a\tb", "a b", "a\u00a0", "a\u2028b", "ä", "a==\u0661"),
        *("a; python_version > '3'", "a;os_name=='posix'", "a===1", "a==1 --hash=sha256:00"),
        *("a #b", "a,b", "a[", "a[]", "a==", "a>=1,", "a=1", "$HOME", "`id`", "%APPDATA%"),
        "x" * 201,
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(BadInput) as told:
        parse_requirement(text)
    assert told.value.code == "CW-BAD-PACKAGE"
    assert told.value.hint
    assert len(told.value.message) < 300


@given(st.text(max_size=220))
def test_what_passes_can_only_be_read_in_one_way(text):
    try:
        parsed = parse_requirement(text)
    except BadInput:
        return
    assert parsed.isascii()
    assert parsed[0].isalnum()
    assert not set(parsed) & set("/\\@;: \t\r\n\0'\"$`#")
    assert not parsed.endswith((".zip", ".whl", ".tar", ".gz", ".tgz", ".bz2", ".xz"))


def test_equal_requests_are_equal_and_bounded():
    assert parse_request(["B", "a", "b"]) == parse_request(("a", "b")) == ("a", "b")
    assert parse_request([]) == ()
    unlisted = (5, None, iter(["a"]))
    for wrong in ("requests", b"requests", [1], [None], *unlisted, ["a"] * (MAX_PACKAGES + 1)):
        with pytest.raises(BadInput) as told:
            parse_request(wrong)
        assert told.value.code == "CW-BAD-PACKAGE"


def test_a_file_holds_names_comments_and_nothing_else():
    assert parse_requirements_file(b"# why\n\nrequests  # http\r\npandas<3\n") == (
        "pandas<3",
        "requests",
    )
    for wrong in (b"a\n-r other.txt", b"--pre", b"a \\\n  --hash=sha256:00", b"\xff\xfe", b"a\x00"):
        with pytest.raises(BadInput):
            parse_requirements_file(wrong)
    with pytest.raises(BadInput, match="line 2 of"):
        parse_requirements_file(b"a\n-r other.txt")


def test_the_package_of_a_requirement_is_its_name():
    assert package_of("uvicorn[standard]~=0.1") == Package("uvicorn")
    assert package_of("a!=1") == package_of("a") == Package("a")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("lodash", "lodash"),
        ("Lodash", "Lodash"),
        ("@Types/Node", "@Types/Node"),
        ("JSONStream", "JSONStream"),
        ("@scope/name@^1.2", "@scope/name@^1.2"),
        ("vite@>=6  <7 || ^8", "vite@>=6 <7 || ^8"),
        ("react@next", "react@next"),
        ("big.js", "big.js"),
    ],
)
def test_a_spec_of_npm_is_normalised(text, parsed):
    assert parse_npm_spec(text) == parsed
    assert parse_npm_spec(parsed) == parsed


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    "text",
    [
        *("", "-g", "--registry=https://evil.example", "./a", "../a", "~/a", "/a", "a/b", "a b"),
        *("git+https://a.example/b.git", "github:a/b", "a@github:b/c", "a@npm:b", "a@file:../b"),
        *("https://a.example/b.tgz", "a@https://a.example/b.tgz", "a@b/c", "a@b#c", "a#b"),
        *("a.tgz", "a@1.0.tgz", "a.tar.gz", "a@x.tar", "a@", "@a", "@a/b/c", "a\nb", "a@1\0"),
        *("\u0430bc", "a" * 201, "@/a", "a@$(id)", "a@`id`"),
    ],
)
def test_a_file_an_address_an_alias_or_an_option_is_no_spec_of_npm(text):
    with pytest.raises(BadInput) as refused:
        parse_npm_spec(text)
    assert refused.value.code == "CW-BAD-PACKAGE"
    assert refused.value.hint


@pytest.mark.requirement("PKG-2")
def test_an_installation_is_normalised_and_named_as_rules_name_it():
    found = parse_install("pypi", ["Requests[Socks]>=2", "pandas<3", "pandas<3"])
    assert found == InstallPackages("pypi", ("pandas<3", "requests[socks]>=2"))
    assert packages_of(found) == ("pypi:pandas", "pypi:requests")
    found = parse_install("npm", ("@types/node@^20", "lodash"))
    assert packages_of(found) == ("npm:@types/node", "npm:lodash")
    for wrong in (("pypi", []), ("conda", ["a"]), (None, ["a"]), ("npm", "a"), ("npm", [1])):
        with pytest.raises(BadInput):
            parse_install(*wrong)
    with pytest.raises(BadInput):
        parse_install("npm", ["a"] * (MAX_PACKAGES + 1))


@pytest.mark.requirement("PKG-2")
def test_rules_name_a_package_of_npm_whatever_its_capital_letters():
    operation = parse_install("npm", ["JSONStream@1.0.0", "@Types/Node"])
    assert operation.requirements == ("@Types/Node", "JSONStream@1.0.0")
    assert packages_of(operation) == ("npm:@types/node", "npm:jsonstream==1.0.0")
