"""The certificate and the private key of the service, as files.

Errors name the settings, not the files, since messages may be shown to anybody.
"""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from cryptography import x509

from cellwall.core.errors import ConfigError

_MAX_BYTES = 1 << 20
_OTHERS = 0o007


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate says about itself."""

    names: tuple[str, ...]
    """Host names and addresses, without wildcards; an IPv6 address in brackets."""
    expires: datetime

    def days_left(self, now: datetime | None = None) -> float:
        return (self.expires - (now or datetime.now(UTC))).total_seconds() / 86_400


class TlsFiles:
    """A certificate with its chain, and its key."""

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate, self._key = certificate, key
        self._seen: tuple[object, ...] = ()

    def read_facts(self) -> CertificateFacts:
        """Of the first certificate in the file, which is the service's own."""
        try:
            found = x509.load_pem_x509_certificates(_read(self._certificate))[0]
        except OSError as error:
            raise _unreadable("tls_certificate", error) from None
        except ValueError:
            raise _bad("tls_certificate", "is no certificate in PEM format") from None
        return CertificateFacts(_names_of(found), found.not_valid_after_utc)

    def make_context(self) -> ssl.SSLContext:
        """A context of TLS 1.2 and 1.3 with these files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        self._seen = self._state()
        self._load_into(context)
        return context

    def reload_into(self, context: ssl.SSLContext) -> bool:
        """Use changed files for new connections; whether they have changed. A bad pair raises, and
        the old one stays in use."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a bad pair fails here
        self._load_into(context)
        return True

    def _load_into(self, context: ssl.SSLContext) -> None:
        self.check_key()
        self.read_facts()
        try:
            context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        except _EncryptedKey:
            raise _bad("tls_key", "is encrypted") from None
        except ssl.SSLError:
            raise _bad("tls_key", "is no key, or not that of tls_certificate") from None
        except OSError as error:
            raise _unreadable("tls_key", error) from None

    def check_key(self) -> None:
        """Refuse a key that other users can read."""
        try:
            info = os.stat(self._key)
            _read(self._key)
        except OSError as error:
            raise _unreadable("tls_key", error) from None
        if stat.S_IMODE(info.st_mode) & _OTHERS or info.st_uid not in {0, os.geteuid()}:
            raise ConfigError(
                "the file of tls_key is open to other users",
                hint="Run chmod 600 on it, and make sure that you or root own it.",
                code="CW-TLS-KEY-OPEN",
            )

    def _state(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in (self._certificate, self._key):
            try:
                info = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size))
        return tuple(found)


class _EncryptedKey(Exception):
    """The key needs a password; OpenSSL would ask for it at the terminal."""


def _refuse_password() -> NoReturn:
    raise _EncryptedKey


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES)


def _names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    names = [name.lower() for name in found.get_values_for_type(x509.DNSName) if "*" not in name]
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return (*names, *(f"[{each}]" if ":" in each else each for each in addresses))


def _unreadable(setting: str, error: OSError) -> ConfigError:
    reason = os.strerror(error.errno) if error.errno else "it failed"
    return ConfigError(
        f"the file of {setting} cannot be read: {reason}",
        hint=f"Check {setting} in [server], and the permissions of the file.",
        code="CW-TLS-FILE",
    )


def _bad(setting: str, problem: str) -> ConfigError:
    return ConfigError(
        f"the file of {setting} {problem}",
        hint="Name a certificate with its chain and its unencrypted key, both in PEM format.",
        code="CW-TLS-FILE",
    )
