"""A host of a fleet that is reserved for a team: the label of a request is a claim, the membership
is a fact (SRV-6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.admin.accounts import Identity
from cellwall.core.errors import Denied
from cellwall.interfaces.mcp.http_records import StoredSandboxes
from interfaces.http.running_service import running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6")]
CLAIM = {"Cellwall-Labels": "tenant=acme"}


def test_a_reserved_host_takes_sessions_of_the_members_of_its_team_alone(tmp_path: Path):
    with running_service(tmp_path) as service, service.client("owner") as client:
        tokens = dict(service.tokens)
        team = client.post("/v1/teams", json={"name": "acme"}).json()["id"]
        member = service.ids["user"]
        assert client.put(f"/v1/teams/{team}/members/{member}").status_code == 204
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/sessions", {}),
        ("/e2b/sandboxes", {"templateID": "base"}),
    ]
    with running_service(tmp_path, may_exist=True, tenant=team) as service:
        service.tokens = tokens
        for name, codes in {"user": [201, 201], "administrator": [403, 403]}.items():
            headers = {**CLAIM, "X-API-Key": tokens[name]}
            with service.client(name, headers=headers) as client:
                answers = [client.post(path, json=body) for path, body in asked]
                assert [each.status_code for each in answers] == codes, answers
        assert answers[0].json()["error"]["code"] == "CW-FLEET-TENANT"


def test_a_session_over_mcp_is_judged_in_the_same_way():
    who = Identity(user_id="usr_1", name="ann", role="user", credential="tok_1", expires_s=0.0)
    store: Any = None  # it is not asked
    with pytest.raises(Denied, match="reserved for a team"):
        anyio.run(StoredSandboxes(store, who, 5, "tm_1").add, "sbx_1")
