"""A real OpenID provider for tests: npm's oidc-provider, with a browser that signs in there."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import pytest
import trustme

from conftest import need

REDIRECT_URI = "https://cellwall.example/v1/auth/oidc/callback"
CLIENT_SECRET = "a secret: with %20 + signs"
_ROOT = Path(__file__).parent.parent
_LIBRARY = _ROOT / ".tools/oidc/node_modules/oidc-provider/lib/index.js"
_NODE = _ROOT / ".tools/inspector/node_modules/.bin/node"  # newer than Debian's
_MAX_STEPS = 12


class OpenIdProvider:
    """A running provider."""

    def __init__(self, process: subprocess.Popen[str], ca_file: str) -> None:
        self._process, self.ca_file = process, ca_file
        self.issuer = str(self._read()["issuer"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # empty when the process has ended
        assert line, "the provider has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def _tell(self, **what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        self._read()

    def set_accounts(self, accounts: Mapping[str, Mapping[str, object]]) -> None:
        """The claims by subject; anybody can sign in as any subject."""
        self._tell(accounts=accounts)

    def rotate_keys(self) -> None:
        """New keys under new ids; the old ones are gone."""
        self._tell(rotate=True)

    def register(self, redirect_uri: str) -> None:
        """One more address to which browsers are sent back."""
        self._tell(redirect=redirect_uri)

    def client(self) -> httpx2.Client:
        return httpx2.Client(
            verify=ssl.create_default_context(cafile=self.ca_file), timeout=60.0, trust_env=False
        )

    def sign_in(self, url: str, subject: str, redirect_uri: str = REDIRECT_URI) -> dict[str, str]:
        """Do what a person does in the browser; returns the query of the redirect to us."""
        with self.client() as browser:
            response = browser.get(url)
            for _ in range(_MAX_STEPS):
                if response.is_redirect:
                    target = urljoin(str(response.url), response.headers["location"])
                    if target.startswith(redirect_uri):
                        return dict(parse_qsl(urlsplit(target).query))
                    response = browser.get(target)
                    continue
                assert response.status_code == 200, response.text[:500]
                action = re.search(r'action="([^"]+)"', response.text)
                prompt = re.search(r'name="prompt" value="([^"]+)"', response.text)
                assert action, response.text[:500]
                assert prompt, response.text[:500]
                form = {"prompt": prompt[1], "login": subject, "password": "any"}
                response = browser.post(urljoin(str(response.url), action[1]), data=form)
        raise AssertionError("the provider did not send the browser back")


@pytest.fixture(scope="module")
def openid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    """One provider for the tests of a module."""
    node = str(_NODE) if _NODE.exists() else shutil.which("node")
    need(node if _LIBRARY.exists() else None, "oidc-provider (./dev test installs it with npm)")
    folder = tmp_path_factory.mktemp("openid")
    authority = trustme.CA()
    certificate, ca_file = folder / "server.pem", folder / "ca.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(ca_file)
    script = Path(__file__).with_name("oidc_provider.mjs")
    with subprocess.Popen(
        [str(node), str(script), str(_LIBRARY), str(certificate), REDIRECT_URI],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            yield OpenIdProvider(process, str(ca_file))
        finally:
            process.kill()
