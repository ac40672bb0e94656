"""Sections of rates and budgets (RBAC-4)."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, absolute_path, danger, number, size
from cellwall.config.service_sections import is_remote_host

_PRICED = ("run_command", "run_code", "install_packages", "fetch_url", "cpu_s", "sent_gib")
_TOOL = re.compile(r"tool:[\x21-\x7e]{1,200}")
_MAX_COUNT = 10**15


def _check_redis(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        parts, has_port = urlsplit(""), False
    is_plain = text.isprintable() and " " not in text and not parts.fragment
    if parts.scheme not in {"redis", "rediss", "redis+unix"} or not has_port or not is_plain:
        raise PydanticCustomError(
            "secret", 'is not a Redis URL. Write for example "rediss://redis.example.com/0".'
        )
    if parts.password is not None:
        raise PydanticCustomError(
            "secret", "contains a password. Put it into a file, and name it in redis_password_file."
        )
    return text


def _check_prices(prices: dict[str, float]) -> dict[str, float]:
    for name, price in prices.items():
        if name not in _PRICED and _TOOL.fullmatch(name) is None:
            known = ", ".join(_PRICED)
            raise PydanticCustomError(
                "price", f"names something without a price. Known: {known}, and tool:NAME."
            )
        if not 0 <= price <= _MAX_COUNT:
            raise PydanticCustomError("price", "has a price below 0 or far too high.")
    return prices


class RatesSection(Section):
    """How often users of the service may act (RBAC-4)."""

    actions_per_minute_per_user: int = number(
        6000, "actions of one user; 0: no limit", least=0, most=_MAX_COUNT
    )
    actions_per_minute_per_token: int = number(
        6000, "actions by one sign-in or service token; 0: no limit", least=0, most=_MAX_COUNT
    )
    actions_per_minute_per_address: int = number(
        12_000,
        "actions from one address or IPv6 /64 network; 0: no limit",
        least=0,
        most=_MAX_COUNT,
    )
    requests_per_minute_per_address: int = number(
        30_000, "requests from one address, also unauthenticated ones; 0: no limit",
        least=0, most=_MAX_COUNT,
    )  # fmt: skip
    sign_ins_per_minute_per_address: int = number(
        120,
        "begun sign-ins at a provider or by passkey; 0: no limit",
        least=0,
        most=_MAX_COUNT,
    )
    redis_url: Annotated[str, AfterValidator(_check_redis)] = Field(
        default="",
        description="count in this Redis, for several processes of one service; left out, each "
        "process counts by itself",
        max_length=2048,
    )
    redis_password_file: Annotated[str, absolute_path("/etc/cellwall/redis")] | None = Field(
        default=None, description="its password, in a file of mode 0600", max_length=4096
    )
    dangerously_without_tls: bool = danger("reach a Redis on another machine without TLS")

    @model_validator(mode="after")
    def _check_tls(self) -> RatesSection:
        parts = urlsplit(self.redis_url)
        is_remote = parts.scheme == "redis" and is_remote_host(parts.hostname or "")
        if is_remote and not self.dangerously_without_tls:
            raise PydanticCustomError(
                "redis_url", "names another machine without TLS. Write rediss:// instead."
            )
        return self


class BudgetsSection(Section):
    """What each user and team of the service may use per period (RBAC-4). 0: no limit."""

    period_hours: float = number(
        24.0, "a budget begins anew after this time", least=1 / 60, most=8784.0
    )
    user_runs: int = number(0, "commands, pieces of code and installs", least=0, most=_MAX_COUNT)
    user_cpu_s: float = number(0.0, "processor seconds", least=0.0, most=1e15)
    user_sent_bytes: int = size(0, "bytes that sandboxes send to servers", least=0, most=_MAX_COUNT)
    user_money: float = number(0.0, "money, in the unit of the prices", least=0.0, most=1e15)
    team_runs: int = number(0, "as user_runs, for all members together", least=0, most=_MAX_COUNT)
    team_cpu_s: float = number(0.0, "as user_cpu_s, for all members", least=0.0, most=1e15)
    team_sent_bytes: int = size(0, "as user_sent_bytes, for all members", least=0, most=_MAX_COUNT)
    team_money: float = number(0.0, "as user_money, for all members", least=0.0, most=1e15)
    prices: Annotated[dict[str, float], AfterValidator(_check_prices)] = Field(
        default={},
        description="what a call costs: `run_command`, `run_code`, `install_packages`, "
        "`fetch_url`, `tool:NAME`; and `cpu_s` by the second, `sent_gib` by the GiB",
        max_length=1000,
    )
