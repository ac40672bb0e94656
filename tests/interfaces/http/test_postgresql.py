"""The service on PostgreSQL, by one setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from databases import PostgresServer, postgres  # noqa: F401  # a fixture
from interfaces.http.running_service import PASSWORD, new_session, running_service

pytestmark = pytest.mark.slow


@pytest.mark.requirement("SRV-4")
def test_sessions_and_sign_in_survive_a_restart_on_postgresql(
    postgres: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    config = f'[storage]\nurl = "{postgres.new_url()}"\n'
    with running_service(tmp_path, config=config) as service, service.client("user") as client:
        service.add_user("kim")
        service.set_password("kim")
        body = {"name": "kim", "password": PASSWORD}
        access = client.post("/v1/auth/token", json=body).json()["access_token"]
        client.headers["Authorization"] = f"Bearer {access}"
        session = new_session(client)
        ran = client.post(f"/v1/sessions/{session}/commands", json={"command": "echo hi"})
        assert ran.json()["stdout"] == "hi\n"
        # What only this database fails on.
        bad = {"name": "a\0b", "password": PASSWORD}
        assert client.post("/v1/auth/token", json=bad).status_code == 400
        for path in ("/v1/sessions/a%00b", "/v1/sessions?state=all&after=%00"):
            assert client.get(path).status_code == 400
        for name in ("\U0001f600" * 20, "x" * 5000, "'; DROP TABLE users; --"):
            assert client.get(f"/v1/sessions/{name}").status_code == 404
    again = running_service(tmp_path, config=config, may_exist=True)
    with again as service, service.client() as client:
        # The issuer and audience of the old token name another port.
        assert client.get("/v1/sessions", headers=[("Authorization", access)]).status_code == 401
        access = client.post("/v1/auth/token", json=body).json()["access_token"]
        client.headers["Authorization"] = f"Bearer {access}"
        assert client.get(f"/v1/sessions/{session}").json()["state"] == "ended"
        assert client.get("/v1/readyz").json()["database"] is True
