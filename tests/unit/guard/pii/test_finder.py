"""Personal data is found where it stands, and what only looks like it is left alone (GRD-6)."""

from __future__ import annotations

from importlib import import_module

import pytest

from cellwall.guard.pii import UNREAD, PiiHit, find
from cellwall.guard.pii.numbers import identities, passes_luhn

FOUND = {
    "mail": [
        "Write to <alice.o'neil+x@mail.example.com>.|alice.o'neil+x@mail.example.com",
        "bob@münchen.de!|bob@münchen.de",
        "'carol@example.org'|carol@example.org",
        "mailto:dan@a.co.uk?subject=x|dan@a.co.uk",
    ],
    "phone": [
        "or (415) 555-2671 now|(415) 555-2671",
        "415-555-2672|415-555-2672",
        "+1 415 555 2673.|+1 415 555 2673",
        "+49 (0)30 901820|+49 (0)30 901820",
        "0171/1234567|0171/1234567",
        "tel: 02079460018|02079460018",
        "06 12 34 56 78|06 12 34 56 78",
        "(020 7946 0018)|020 7946 0018",
        "fax\u00a0+44\u00a020\u00a07946\u00a00018|+44\u00a020\u00a07946\u00a00018",
        "(11) 98765-4321|(11) 98765-4321",
        "+33 1 42 68 53 00|+33 1 42 68 53 00",
    ],
    "card": [
        "4111 1111 1111 1111 12/27|4111 1111 1111 1111",
        "4111111111111111,|4111111111111111",
        "3782-822463-10005|3782-822463-10005",
        "2024 5555 5555 5555 4444|5555 5555 5555 4444",
    ],
    "iban": [
        "DE89 3704 0044 0532 0130 00 BIC COBADEFF|DE89 3704 0044 0532 0130 00",
        "GB29NWBK60161331926819|GB29NWBK60161331926819",
    ],
    "ip": ["from 8.8.8.8:53|8.8.8.8", "to 2001:4860:4860::8888.|2001:4860:4860::8888"],
    "mac": ["00:1b:44:11:3a:b7|00:1b:44:11:3a:b7"],
    "address": [
        "221B Baker Street, London NW1 6XE.|221B Baker Street, London NW1 6XE",
        "1600 Pennsylvania Avenue NW, Washington, DC 20500|1600 Pennsylvania Avenue NW, Washington, DC 20500",
        "Hauptstraße 5a\n10115 Berlin|Hauptstraße 5a\n10115 Berlin",
        "12 bis, rue de la Paix, 75002 Paris|12 bis, rue de la Paix, 75002 Paris",
        "Calle Mayor 10, 28013 Madrid|Calle Mayor 10, 28013 Madrid",
    ],
    "birth": [
        "born on 3 March 1980|3 March 1980",
        "DOB: 1980-03-04|1980-03-04",
        "geboren am 04.03.1980|04.03.1980",
        '"birth_date": "1980-01-02"|1980-01-02',
        "生年月日 1980年1月2日|1980年1月2日",
    ],
    "ssn": ["536-90-4399|536-90-4399", "ssn 536904399|536904399"],
    "itin": ["ITIN 912-90-3456|912-90-3456"],
    "idnr": ["Steuer-ID 36 574 261 809|36 574 261 809"],
    "stnr": ["Steuernummer 181/815/08155|181/815/08155"],
    "nir": ["2 95 10 99 126 111 93|2 95 10 99 126 111 93"],
    "nif": ["DNI 54362315K|54362315K"],
    "nie": ["X-2482300-W|X-2482300-W"],
    "codice": ["RCCMNL83S18D969H|RCCMNL83S18D969H"],
    "nhs": ["NHS number 943 476 5870|943 476 5870"],
    "nino": ["JG 10 37 59 A|JG 10 37 59 A"],
    "cpf": ["390.533.447-05|390.533.447-05", "CPF 39053344705|39053344705"],
    "cnpj": ["16.727.230/0001-97|16.727.230/0001-97"],
    "nifpt": ["contribuinte 501964843|501964843"],
    "bsn": ["BSN 111222333|111222333"],
    "aadhaar": ["Aadhaar 2341 2341 2346|2341 2341 2346"],
    "pan": ["ACUPA7085R|ACUPA7085R"],
    "pesel": ["PESEL 44051401359|44051401359"],
    "ahv": ["756.9217.0769.85|756.9217.0769.85"],
    "passport": ["Passport No. C01X00T47|C01X00T47", "passeport: 123456789|123456789"],
}  # fmt: skip
CASES = [(kind, case) for kind, cases in FOUND.items() for case in cases]


@pytest.mark.requirement("GRD-6")
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_personal_data_is_found_with_its_exact_place(kind: str, case: str) -> None:
    text, _, value = case.partition("|")
    start = text.index(value)
    assert find(text) == (PiiHit(kind, start, start + len(value)),)


@pytest.mark.requirement("GRD-6", "GRD-8")
@pytest.mark.parametrize(
    "text",
    [
        "a@b, logo@2x.png, getty@tty1.service, git@github.com:org/repo, lodash@4.17.21",
        "2024-01-15 10:22:33,123 1700000000 1700000000123 3.141592653589793",
        "0.4111111111111111 and 4111111111111112 and x4111111111111111",  # a fraction, no check
        "12345678-1234-1234-1234-123456789012",
        "127.0.0.1 10.0.0.1 192.168.1.1 203.0.113.5 version 1.2.3.4 v8.8.8.8 1.3.6.1.4.1",
        "::1 fe80::1 2001:db8::1 std::dec 10:20:30",
        "ff:ff:ff:ff:ff:ff 02:00:00:00:00:01 16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48",
        "nine digits 536904399 of nobody, and 501964843, 123 456 789",
        "666-12-3456 and 000-12-3456 are never given",
        "DE89 3704 0044 0532 0130 01",
        "released on 2020-01-01, 12 Main Street without a code",
        "0x4111111111111111 deadbeef ABCD1234 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]",
        "",
    ],
)
def test_what_only_looks_like_it_is_not_found(text: str) -> None:
    assert find(text) == ()


def test_a_number_of_another_region_is_found_where_that_region_is_asked_for() -> None:
    assert find("138 0013 8000", regions=("CN",)) == (PiiHit("phone", 0, 13),)
    assert find("138 0013 8000", regions=("US",)) == ()


def test_two_numbers_side_by_side_are_two() -> None:
    text = "020 7946 0018 / 020 7946 0019"
    assert find(text) == (PiiHit("phone", 0, 13), PiiHit("phone", 16, 29))


def test_places_are_characters_also_behind_signs_of_several_bytes() -> None:
    text = "Grüße 😀 \ud800 an eva@example.com und 8.8.8.8"
    assert [(hit.kind, text[hit.start : hit.end]) for hit in find(text)] == [
        ("mail", "eva@example.com"),
        ("ip", "8.8.8.8"),
    ]


@pytest.mark.requirement("GRD-6")
def test_what_is_too_much_is_one_last_hit_up_to_the_end() -> None:
    text = " ".join(f"u{number}@example.com" for number in range(10))
    found = find(text, max_hits=3)
    assert [hit.kind for hit in found] == ["mail", "mail", "mail", UNREAD]
    assert found[-1].end == len(text)
    assert found[-1].start == text.index("u3@")
    assert len(find(text, max_hits=10)) == 10  # the control: as many as allowed are no flood


def test_numbers_beyond_the_budget_of_checks_count_as_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "415-555-2671\n" * 4 + "12 345 6789 01"
    assert [hit.kind for hit in find(text)] == ["phone"] * 4
    monkeypatch.setattr("cellwall.guard.pii.finder._CHECKS", 2)
    assert [hit.kind for hit in find(text)] == ["phone"] * 2 + ["number"] * 3


def test_every_identity_has_a_form_and_a_check_that_exists() -> None:
    for identity in identities():
        assert identity.alone or (identity.near and identity.words), identity.kind
        assert identity.kind.isalpha(), identity.kind
        if identity.check:
            assert import_module(f"stdnum.{identity.check}").is_valid("") is False


def test_luhn() -> None:
    assert passes_luhn("79927398713")
    assert not passes_luhn("79927398710")
