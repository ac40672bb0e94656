"""Rates and budgets as configured (RBAC-4)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cellwall.config.quota_sections import BudgetsSection, RatesSection

pytestmark = pytest.mark.requirement("RBAC-4")


@pytest.mark.parametrize(
    "url",
    ["", "redis://127.0.0.1:6379/0", "redis://localhost", "redis+unix:///run/redis.sock", "rediss://r.example/1"],
)  # fmt: skip
def test_a_redis_is_named_by_its_url(url):
    assert RatesSection(redis_url=url).redis_url == url


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://r.example", "without TLS"),
        ("redis://10.0.0.1:6379", "without TLS"),
        ("rediss://:hunter2@r.example", "contains a password"),
        ("memcached://127.0.0.1", "is not a Redis URL"),
        ("redis://127.0.0.1:0x1", "is not a Redis URL"),
        ("redis://127.0.0.1/ 1", "is not a Redis URL"),
    ],
)
def test_another_url_is_refused_and_not_quoted(url, what):
    with pytest.raises(ValidationError) as caught:
        RatesSection(redis_url=url)
    assert what in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_redis_without_tls_needs_the_dangerous_switch():
    found = RatesSection(redis_url="redis://r.example", dangerously_without_tls=True)
    assert found.redis_url == "redis://r.example"


def test_prices_name_operations_tools_and_measures():
    prices = {"run_code": 0.5, "tool:send": 1, "cpu_s": 0.0}
    assert BudgetsSection(prices=prices).prices == prices


@pytest.mark.parametrize(
    "prices",
    [{"run": 1.0}, {"tool:": 1.0}, {"tool:a b": 1.0}, {"run_code": -1.0},
     {"run_code": float("nan")}, {"run_code": float("inf")}, {"run_code": "1"}],
)  # fmt: skip
def test_other_prices_are_refused(prices):
    with pytest.raises(ValidationError):
        BudgetsSection(prices=prices)
