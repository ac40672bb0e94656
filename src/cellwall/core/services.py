"""Port of the services that share one database."""

from __future__ import annotations

from typing import Protocol


class ServicesPort(Protocol):
    """Which services use the database. A service is the process of one state folder."""

    @property
    def service_id(self) -> str:
        """Of this service; it marks the sessions and questions that the service adds."""

    async def note_service(self, *, now_s: float) -> None:
        """Record that this service is alive."""

    async def forget_service(self) -> None:
        """This service has ended."""

    async def count_other_services(self, *, seen_since_s: float) -> int:
        """How many other services were alive since then."""

    async def end_for_unseen_services(
        self, *, unseen_since_s: float, answer: str, now_s: float
    ) -> int:
        """End sessions and questions of services that were not seen since then; returns how many.

        A machine that is gone for good would otherwise count against its users forever.
        """
