"""A machine becomes a host with a token, once, and only as itself (SRV-6).

Each attack stands beside the honest machine that is admitted in the same fleet.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.ids import new_id
from cellwall.fleet.certificates import (
    CertificateRefused,
    FleetAuthority,
    open_authority,
    read_host_certificate,
)
from cellwall.fleet.enrolment import JoinToken, admit, join_request
from cellwall.fleet.enrolment_service import enrol
from cellwall.fleet.identity import fleet_folder, open_host_keys
from unit.fleet.trusting import FIRST, SECOND, THIRD, Fleet

pytestmark = pytest.mark.requirement("SRV-6")


@pytest.fixture
def fleet(tmp_path) -> Fleet:
    return Fleet(tmp_path)


async def refusal(keys, token, address) -> str:
    with pytest.raises(CellwallError) as caught:
        await enrol(keys, token, address=address)
    assert token.secret.hex() not in caught.value.message + caught.value.hint
    return caught.value.code


def test_a_machine_joins_with_its_token_and_gets_a_certificate_for_its_own_keys(fleet):
    async def go() -> None:
        keys = fleet.machine("second")
        async with fleet.listening() as port:
            token = JoinToken.parse((await fleet.token(port)).text())
            got = await enrol(keys, token, address=SECOND)
        assert (got.ray_token, got.ray_address) == ("r" * 64, f"{FIRST}:6390")
        stated = read_host_certificate(got.certificate, fleet.authority.pem)
        assert (stated.host_id, stated.address) == (keys.host_id, SECOND)
        assert (stated.identity, stated.box_key) == (keys.signing.public, keys.box_public)
        assert fleet.joined == [(keys.host_id, SECOND)]

    anyio.run(go)


def test_a_token_that_was_used_or_has_expired_admits_nobody(fleet):
    async def go() -> None:
        async with fleet.listening() as port:
            token, old = await fleet.token(port), await fleet.token(port, lifetime_s=-1)
            await enrol(fleet.machine("second"), token, address=SECOND)
            thief = fleet.machine("thief")
            assert await refusal(thief, token, THIRD) == "CW-FLEET-TOKEN"
            assert await refusal(thief, old, THIRD) == "CW-FLEET-TOKEN"
            longer = replace(old, expires_s=old.expires_s + 3600)
            assert await refusal(thief, longer, THIRD) == "CW-FLEET-TOKEN"
            guessed = replace(token, secret=os.urandom(32))
            assert await refusal(thief, guessed, THIRD) == "CW-FLEET-TOKEN"

    anyio.run(go)


def test_a_token_that_a_writer_of_the_database_has_added_admits_nobody(fleet, tmp_path):
    async def go() -> None:
        (tmp_path / "other").mkdir()
        other = open_authority(str(tmp_path / "other"), creates=True)
        async with fleet.listening() as port:
            token = await fleet.token(port)
            made = replace(token, secret=os.urandom(32))
            hashed = other.token_hash(made.secret, made.expires_s)
            await fleet.trust.add_join_token(hashed, expires_s=made.expires_s, made_by="eve")
            assert await refusal(fleet.machine("eve"), made, THIRD) == "CW-FLEET-TOKEN"
            await enrol(fleet.machine("second"), token, address=SECOND)

    anyio.run(go)


def test_a_man_in_the_middle_is_found_before_the_token_is_sent(fleet, tmp_path):
    (tmp_path / "other").mkdir()
    eve = Fleet(tmp_path / "other")

    async def go() -> None:
        async with fleet.listening() as real:
            token = await fleet.token(real)
            # She shows an authority of her own, then the true one, which is public; either way her
            # certificate is of her own authority.
            for shown in (eve.authority, fleet.authority):
                async with eve.listening(authority=shown) as port:
                    led = replace(token, port=port)
                    assert await refusal(fleet.machine("second"), led, SECOND) == "CW-FLEET-PIN"
            assert eve.joined == []  # she was never asked to admit anybody
            await enrol(fleet.machine("second"), token, address=SECOND)  # the token was not used

    anyio.run(go)


def test_a_machine_believes_the_authority_of_its_token_and_none_beside_it(fleet, tmp_path):
    """A text can hold several certificates. The fingerprint is that of the first one; TLS here and
    Ray's, which has the file that is made of it, would trust them all."""
    (tmp_path / "other").mkdir()
    eve, hers = Fleet(tmp_path / "other"), authority_of("eve")
    (Path(fleet_folder(eve.home)) / "tls.pem").write_text(eve.certify(eve.keys, FIRST, hers))
    own = fleet.authority.pem
    shown = authority_of("shown")

    async def go() -> None:
        async with fleet.listening() as real:
            token = await fleet.token(real)
            for text in (own + hers.pem, hers.pem + own, f"text\n{own}\n{hers.pem}"):
                shown.pem = text
                async with eve.listening(authority=shown) as port:
                    led = replace(token, port=port)
                    assert await refusal(fleet.machine("second"), led, SECOND) == "CW-FLEET-PIN"
            assert eve.joined == []  # she got no token
        # She changes the first answer alone, and lets the second connection through.
        led_on = open_authority(fleet.home, creates=False)
        led_on.pem = own + hers.pem
        async with fleet.listening(authority=led_on) as port:
            token = await fleet.token(port)
            got = await enrol(fleet.machine("second"), token, address=SECOND)
        assert got.authority == own

    anyio.run(go)


def authority_of(name: str) -> FleetAuthority:
    """One that is not of the fleet; OpenSSL looks for authorities by their names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return FleetAuthority(key, made.public_bytes(serialization.Encoding.PEM).decode())


def test_a_machine_gets_no_certificate_for_the_name_or_address_of_another(fleet):
    async def go() -> None:
        async with fleet.listening() as port:
            token = await fleet.token(port)
            liar = fleet.machine("liar", fleet.keys.host_id)
            assert await refusal(liar, token, SECOND) == "CW-FLEET-NAME"
            # It comes from its own address and states the one of the first host.
            asked = join_request(fleet.machine("second"), token, address=FIRST)
            with pytest.raises(CellwallError) as caught:
                await admit(asked, peer=SECOND, authority=fleet.authority, trust=fleet.trust)
            assert caught.value.code == "CW-FLEET-ADDRESS"
            assert await refusal(fleet.machine("second"), token, FIRST) == "CW-FLEET-ADDRESS"
            await enrol(fleet.machine("second"), token, address=SECOND)

    anyio.run(go)


@pytest.mark.parametrize("name", ["host", "address", "identity", "box", "csr", "secret", "note"])
def test_a_request_with_a_part_of_another_machine_is_refused(fleet, name):
    async def go() -> None:
        token = await fleet.token(1)
        own = join_request(fleet.machine("second"), token, address=SECOND)
        other = join_request(
            fleet.machine("third"), replace(token, secret=b"s" * 32), address=THIRD
        )
        for asked in ({**own, name: other[name]}, {**own, name: None}):
            with pytest.raises(BadInput) as caught:
                await admit(asked, peer=SECOND, authority=fleet.authority, trust=fleet.trust)
            assert caught.value.code == "CW-FLEET-JOIN"
        assert await admit(own, peer=SECOND, authority=fleet.authority, trust=fleet.trust)

    anyio.run(go)


@pytest.mark.parametrize(
    "part", ["06082a8648ce3d030107", "06072a8648ce3d0201", "06082a8648ce3d040302"]
)
def test_a_request_with_an_algorithm_that_is_unknown_is_refused(fleet, part):
    """Curve, key and signature of the request for a certificate, each of a kind that there is not."""

    async def go() -> None:
        own = join_request(fleet.machine("second"), await fleet.token(1), address=SECOND)
        der = ssl.PEM_cert_to_DER_cert(str(own["csr"]).replace(" REQUEST-", "-"))
        known = bytes.fromhex(part)
        assert known in der
        pem = ssl.DER_cert_to_PEM_cert(der.replace(known, known[:-1] + b"\x7f"))
        asked = {**own, "csr": pem.replace("CERTIFICATE-", "CERTIFICATE REQUEST-")}
        with pytest.raises(BadInput) as caught:
            await admit(asked, peer=SECOND, authority=fleet.authority, trust=fleet.trust)
        assert caught.value.code == "CW-FLEET-JOIN"
        assert await admit(own, peer=SECOND, authority=fleet.authority, trust=fleet.trust)

    anyio.run(go)


def test_a_machine_without_a_token_cannot_fill_the_record(fleet, monkeypatch):
    monkeypatch.setattr("cellwall.fleet.enrolment_service._MAX_TRIES", 3)

    async def go() -> None:
        async with fleet.listening() as port:
            token = await fleet.token(port)
            guessed = replace(token, secret=os.urandom(32))
            codes = [await refusal(fleet.machine("eve"), guessed, THIRD) for _ in range(5)]
        assert codes == ["CW-FLEET-TOKEN"] * 3 + ["CW-FLEET-BUSY"] * 2
        assert len(fleet.joined) == 3  # recorded attempts

    anyio.run(go)


def test_a_machine_without_a_token_cannot_keep_the_others_out(fleet):
    async def go() -> None:
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        async with fleet.listening() as port, AsyncExitStack() as held:
            token = await fleet.token(port)
            guessed = replace(token, secret=os.urandom(32))
            codes = [await refusal(fleet.machine("eve"), guessed, THIRD) for _ in range(12)]
            assert codes == ["CW-FLEET-TOKEN"] * 10 + ["CW-FLEET-BUSY"] * 2
            for _ in range(40):  # and says nothing on them
                _, writer = await asyncio.open_connection(
                    FIRST, port, ssl=unverified, local_addr=(THIRD, 0)
                )
                held.callback(writer.close)
            await enrol(fleet.machine("second"), token, address=SECOND)

    anyio.run(go)


def test_a_certificate_of_another_authority_or_time_is_refused(fleet, tmp_path):
    (tmp_path / "other").mkdir()
    forged = open_authority(str(tmp_path / "other"), creates=True)
    pem = fleet.certify(fleet.keys, FIRST)
    assert read_host_certificate(pem, fleet.authority.pem).host_id == fleet.keys.host_id
    late = datetime.now(UTC) + timedelta(days=398)
    for bad, now in (
        (fleet.certify(fleet.keys, FIRST, forged), None),
        (fleet.authority.pem, None),  # the authority itself is no host
        ("", None),
        (pem, late),
        (pem, datetime.now(UTC) - timedelta(hours=2)),
    ):
        with pytest.raises(CertificateRefused):
            read_host_certificate(bad, fleet.authority.pem, now=now)


def test_keys_are_made_once_and_are_readable_by_their_owner_alone(fleet, tmp_path):
    home = str(tmp_path / "second")
    keys = fleet.machine("second", new_id("svc"))
    again = open_host_keys(home, keys.host_id)
    assert again.signing.public == keys.signing.public
    assert again.box_public == keys.box_public
    for name in os.listdir(folder := fleet_folder(home)):
        path = os.path.join(folder, name)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert Path(path).read_bytes().hex() not in repr(keys)
    os.chmod(os.path.join(folder, "box.key"), 0o644)
    with pytest.raises(CellwallError) as caught:
        open_host_keys(home, keys.host_id)
    assert caught.value.code == "CW-KEY-UNSAFE"


def test_only_the_first_host_has_the_authority(tmp_path):
    with pytest.raises(BadInput) as caught:
        open_authority(str(tmp_path), creates=False)
    assert caught.value.code == "CW-FLEET-AUTHORITY"
    made = open_authority(str(tmp_path), creates=True)
    assert open_authority(str(tmp_path), creates=False).fingerprint == made.fingerprint


def test_a_text_that_is_no_token_is_refused(fleet):
    whole = anyio.run(fleet.token, 6391).text()
    assert JoinToken.parse(whole + "\n").text() == whole
    for text in ("", "cwj_", whole[:-6], whole.replace("@", ""), whole.replace(FIRST, "a.b")):
        with pytest.raises(BadInput):
            JoinToken.parse(text)
