"""The OpenAPI document is true: generated requests get no 5xx and only documented answers."""

from __future__ import annotations

import warnings
from typing import Any

import httpx2 as httpx
import hypothesis
import pytest

from interfaces.http.running_service import PASSWORD, RunningService, new_session

pytestmark = pytest.mark.slow
# These end the token with which the others are tested, or everybody's.
_ENDING = {
    "DELETE /v1/users/tokens",
    "DELETE /v1/users/{user_id}/tokens",
    "PATCH /v1/users/{user_id}",
    "POST /v1/auth/revoke",
}
_STOP = "POST /v1/stop"
"""Ends the session and refuses all runs: the last one, and lifted by a person."""


def documented_answers() -> list[Any]:
    from schemathesis.checks import not_a_server_error  # noqa: PLC0415  # as below
    from schemathesis.specs.openapi import checks  # noqa: PLC0415  # as below

    return [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]


def operations(service: RunningService) -> dict[str, Any]:
    with service.client() as client:
        document = client.get("/openapi.json").json()
    import schemathesis  # noqa: PLC0415  # takes a second, in each worker

    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=service.url)
    found = [each.ok() for each in schema.get_all_operations()]
    return {each.label: each for each in found}


@pytest.mark.requirement("SRV-1")
def test_generated_requests_get_documented_answers(
    service: RunningService, pytestconfig: pytest.Config
) -> None:
    with service.client("owner") as owner:
        session = new_session(owner, keep_alive=3600)
    headers = {"Authorization": f"Bearer {service.tokens['owner']}"}
    names = []
    found, checks = operations(service), documented_answers()
    for name, operation in sorted(found.items(), key=lambda each: each[0] == _STOP):
        if name in _ENDING:
            continue
        names.append(name)

        @hypothesis.seed(7)
        @hypothesis.settings(
            max_examples=12 if pytestconfig.getoption("--long") else 3,
            database=None,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(), is_own=hypothesis.strategies.booleans())
        def ask(case: Any, is_own: bool) -> None:
            is_kept = case.operation.label != "DELETE /v1/sessions/{session_id}"
            if is_own and is_kept and "session_id" in case.path_parameters:
                case.path_parameters["session_id"] = session
            if case.path.endswith("/sessions") and case.method == "POST":
                case.body = {**case.body, "keep_alive": 0.5} if isinstance(case.body, dict) else {}
            if case.path.endswith("/packages/verify") and isinstance(case.body, dict):
                case.body["offline"] = True  # no test asks a real registry
            if case.operation.label == _STOP and isinstance(case.body, dict):
                case.body["revoke_tokens"] = False  # which would end the own token
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                case.call_and_validate(headers=headers, checks=checks, timeout=60)

        ask()
    assert names[-1] == _STOP
    assert len(names) >= 36
    service.set_password("administrator")
    with service.client() as client:
        signed_in = {"name": "administrator", "password": PASSWORD}
        person = client.post("/v1/auth/token", json=signed_in).json()["access_token"]
        lifted = client.delete("/v1/stop", headers={"Authorization": f"Bearer {person}"})
    assert lifted.json() == {"lifted": True}  # one of the generated requests has stopped


@pytest.mark.requirement("SRV-1")
def test_every_route_documents_its_errors_and_every_body_has_an_example(
    service: RunningService,
) -> None:
    with service.client() as client:
        document = client.get("/openapi.json").json()
    form = document["components"]["schemas"]["ErrorBody"]
    assert set(form["properties"]) == {"code", "message", "hint", "audit_id"}
    error = {"$ref": "#/components/schemas/ErrorResponse"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            responses = operation["responses"]
            assert responses["400"]["content"]["application/json"]["schema"] == error, path
            assert operation["description"] or operation["summary"]
            if "/healthz" not in path and "/readyz" not in path and "jwks" not in path:
                assert responses["401"]["content"]["application/json"]["schema"] == error
            body = operation.get("requestBody", {}).get("content", {})
            for kind, content in body.items():
                has_own = "example" in content
                named = str(content["schema"])
                models = [
                    model
                    for name, model in document["components"]["schemas"].items()
                    if f"schemas/{name}'" in named
                ]
                has_models = models and all("examples" in model for model in models)
                assert has_own or has_models, (method, path, kind)
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/xml", ""])
def test_unknown_addresses_and_methods_have_the_form_of_every_error(
    service: RunningService, accept: str
) -> None:
    with service.client("user", headers={"Accept": accept}) as client:
        answers: list[httpx.Response] = [
            client.get("/v1/nothing"),
            client.get("/nothing"),
            client.post("/v1/healthz"),
            client.request("PATCH", "/v1/sessions"),
            client.post("/v1/sessions", content=b"{"),
            client.post(
                "/v1/sessions", content=b"\xff\xfe", headers={"Content-Type": "text/plain"}
            ),
            client.post("/v1/sessions", content=b"[" * 100_000),
            client.post("/v1/sessions", content=b'{"\\ud800": 1}'),
            client.post("/v1/sessions", json={"limits": {"x": 1}}),
            client.post("/v1/sessions", content=b'{"keep_alive": NaN}'),
            client.post("/v1/sessions", content=b'{"timeout": 1e999}'),
            client.get("/v1/sessions", params={"limit": "x"}),
        ]
    for answer in answers:
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()["error"]) == {"code", "message", "hint", "audit_id"}
