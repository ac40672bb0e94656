"""The hosts of a fleet over HTTP and in the dashboard, from rows as hosts write them (SRV-5, SRV-6)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete, insert

from cellwall import __version__
from cellwall.admin.database import storage_settings
from cellwall.core.ids import new_id
from cellwall.interfaces.http.dashboard.templating import size
from cellwall.storage.engine import blocking_engine
from cellwall.storage.fleet_models import HostRow
from interfaces.http.browser import PageClient, add_person, page_client
from interfaces.http.running_service import RunningService, new_session, running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6")]
GIB = 1024**3
SEEN_S = 4_000_000_000.0
"""Later than now: the lease is valid during the test."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("cellwall-hosts")) as found:
        add_person(found, "ann", "owner")
        add_person(found, "eve", "user")
        yield found


@pytest.fixture
def ann(service: RunningService) -> Iterator[PageClient]:
    with page_client(service, "ann") as client:
        yield client


def host(**about: Any) -> dict[str, Any]:
    return {
        "id": new_id("svc"), "incarnation": new_id("inc"), "about": about, "seen_s": SEEN_S,
        "is_draining": False, "lost_s": None,
    }  # fmt: skip


@pytest.fixture
def rows(service: RunningService) -> Iterator[list[dict[str, Any]]]:
    """One host that serves, one that drains, one that is lost, one that refuses, one that writes
    whatever it likes."""
    hostile = "<script>alert(1)</script>\u202e"
    found = [
        host(version="9.9.1", policy_version=4, memory_bytes=32 * GIB, memory_free_bytes=8 * GIB,
             sessions=1200, busy=7, labels={"region": "eu-1"}, templates=["python"],
             address="192.0.2.7"),
        {**host(version="9.9.1", policy_version=4), "is_draining": True},
        {**host(version="9.9.0", policy_version=3), "lost_s": 1.0, "seen_s": 1.0},
        host(version="9.9.1", policy_version=3, problem="CW-FLEET-OLD"),
        host(version=hostile, policy_version="many", sessions=-3, labels=[1], templates={"a": 1},
             memory_free_bytes="all", problem=hostile),
    ]  # fmt: skip
    engine = blocking_engine(storage_settings(str(service.home), service.app.settings))
    with engine.begin() as connection:
        connection.execute(insert(HostRow), found)
    yield found
    with engine.begin() as connection:
        connection.execute(delete(HostRow))
    engine.dispose()


def test_a_service_without_a_fleet_says_so_and_shows_itself(
    service: RunningService, ann: PageClient
):
    with service.client("ann") as client:
        new_session(client)
        shown = client.get("/v1/fleet/hosts").json()
    (alone,) = shown["hosts"]
    assert shown["is_fleet"] is False
    assert (alone["id"], alone["state"], alone["is_this"]) == (
        service.store.service_id,
        "serves",
        True,
    )
    assert (alone["version"], alone["sessions"], alone["policy_version"]) == (__version__, 1, None)
    assert 0 < alone["memory_free_bytes"] <= alone["memory_bytes"]
    page = ann.open("/ui/fleet").text
    assert "this service has one host" in page
    assert service.store.service_id in page


def test_each_host_is_shown_with_state_load_and_versions(
    service: RunningService, ann: PageClient, rows: list[dict[str, Any]]
):
    with service.client("ann") as client:
        shown = client.get("/v1/fleet/hosts").json()
    assert shown["is_fleet"] is True
    by_id = {each["id"]: each for each in shown["hosts"]}
    serving, draining, lost, refusing, hostile = (by_id[row["id"]] for row in rows)
    assert serving == {
        "id": rows[0]["id"], "state": "serves", "is_this": False, "version": "9.9.1",
        "policy_version": 4, "problem": "", "address": "192.0.2.7", "labels": {"region": "eu-1"},
        "memory_free_bytes": 8 * GIB, "memory_bytes": 32 * GIB, "sessions": 1200, "busy": 7,
        "templates": ["python"], "unseen_s": 0.0,
    }  # fmt: skip
    assert (draining["state"], lost["state"]) == ("drains", "lost")
    assert (refusing["state"], refusing["problem"]) == ("serves", "CW-FLEET-OLD")
    # What has another type counts as unknown.
    assert (hostile["policy_version"], hostile["sessions"], hostile["labels"]) == (None, 0, {})
    assert (hostile["memory_free_bytes"], hostile["templates"]) == (0, [])

    page = ann.open("/ui/fleet").text
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))
    ids = [text.index(row["id"]) for row in rows]
    assert min(ids) == ids[2], "the lost host comes first"
    for words in ("serves", "drains", "lost", "refuses", "CW-FLEET-OLD", size(8 * GIB), "eu-1"):
        assert words in text, words
    assert "Hosts run different versions" in text
    assert "different versions of the policy" in text
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_only_who_may_read_the_record_sees_the_hosts(
    service: RunningService, rows: list[dict[str, Any]]
):
    with page_client(service, "eve") as eve:
        refused = eve.open("/ui/fleet")
        assert refused.status_code == 403
        assert not any(row["id"] in refused.text for row in rows)
        assert "/ui/fleet" not in eve.open("/").text.partition("<main")[0]
    with service.client("eve") as client:
        assert client.get("/v1/fleet/hosts").status_code == 403
    with page_client(service, "ann") as ann:  # the control
        assert ann.open("/ui/fleet").status_code == 200
