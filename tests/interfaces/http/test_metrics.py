"""`/metrics` is for scrapers with their own permission; requests continue traces (OBS-1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from interfaces.http.running_service import ROOT, RunningService, new_session, running_service
from unit.telemetry.collector import Collector, collecting

pytestmark = pytest.mark.slow
SECRET = "ghp_" + "q7Zk2" * 7 + "x"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[RunningService]:
    address = collector.url.removesuffix("/v1/traces")
    config = f'[observability]\notlp_endpoint = "{address}"\n'
    with running_service(tmp_path_factory.mktemp("cellwall-observed"), config=config) as found:
        yield found


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.requirement("OBS-1", "RBAC-1")
@pytest.mark.parametrize("path", ["/metrics", "/v1/metrics"])
def test_metrics_need_their_permission(service: RunningService, path: str) -> None:
    with service.client() as nobody:
        assert nobody.get(path).status_code == 401
        assert nobody.get(path, headers={"Authorization": "Bearer x"}).status_code == 401
        assert nobody.post(path).status_code in {401, 405}
    for name, status in (("guest", 403), ("user", 403), ("power-user", 403), ("owner", 200)):
        with service.client(name) as client:
            found = client.get(path)
            assert (found.status_code, "cellwall_actions" in found.text) == (status, status == 200)


@pytest.mark.requirement("OBS-1")
def test_the_token_of_a_scraper_reads_metrics_and_nothing_else(service: RunningService) -> None:
    create = service.accounts.directory.create_token
    owner = service.ids["owner"]
    made = create(owner, name="scraper", scopes=("metrics:read",), lives_s=60, by=ROOT)
    secret, _ = service.call(made)
    with service.client(headers={"Authorization": f"Bearer {secret}"}) as scraper:
        answer = scraper.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert values(answer.text)["cellwall_build_info", "0.1.0"] == 1
        assert scraper.get("/v1/users").status_code == 403
        body = {"code": "1"}
        session = scraper.post("/v1/sessions", json={})
        if session.status_code == 201:
            run = scraper.post(f"/v1/sessions/{session.json()['id']}/code", json=body)
            assert (run.status_code, run.json()["status"]) == (403, "denied")


@pytest.mark.requirement("OBS-1")
def test_a_run_continues_the_trace_of_its_request_and_the_cell_sees_nothing_of_it(
    service: RunningService, collector: Collector
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00", "tracestate": SECRET, "baggage": SECRET}
    with service.client("user") as user, service.client("owner") as owner:
        session = new_session(user)
        before = values(owner.get("/metrics").text)
        code = f"import os\nprint(dict(os.environ), {SECRET!r})"
        address = f"/v1/sessions/{session}/code"
        ran = user.post(address, json={"code": code}, headers=headers)
        assert ran.json()["status"] == "ok", ran.text
        assert TRACE not in ran.text
        assert user.get(f"/v1/{SECRET}").status_code == 404
        text = owner.get("/metrics").text
    counted = {name: count - before.get(name, 0) for name, count in values(text).items()}
    assert counted["cellwall_actions_total", "run-code", "ok", "allow"] == 1
    assert counted["cellwall_http_requests_total", "POST", "2xx"] == 1
    assert counted["cellwall_http_requests_total", "GET", "4xx"] == 1
    assert values(text)["cellwall_cells", "live"] >= 1
    assert service.app.telemetry._traces._provider.force_flush(60_000)
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    whole = [span for span in spans if span.name == "cellwall.action"]
    assert [span.parent_span_id.hex() for span in whole] == [PARENT]
    assert {"cellwall.step.judge", "cellwall.step.run"} <= {span.name for span in spans}
    for told in (text.encode(), *collector.bodies):
        assert SECRET.encode() not in told


@pytest.mark.requirement("OBS-1")
def test_no_header_method_or_path_makes_a_time_series(service: RunningService) -> None:
    with service.client("owner") as owner:
        first = len(values(owner.get("/metrics").text))
        # Methods that the HTTP parser lets through to the application.
        for number, method in enumerate(["PROPFIND", "LOCK", "MKCOL", "COPY", "SEARCH", "PURGE"]):
            owner.request(method, f"/{number}", headers={f"x-{number}": "y"})
            twice = [("traceparent", f"00-{TRACE}-{PARENT}-01")] * 2
            assert owner.get("/healthz", headers=twice).status_code == 200
        text = owner.get("/metrics").text
    assert values(text)["cellwall_http_requests_total", "other", "4xx"] >= 6
    # Two counters and their times of creation: `other` and the status of these requests.
    assert len(values(text)) - first <= 8
