"""A rule that cannot be used, told with its place in the rule's own text."""

from __future__ import annotations

from cellwall.core.errors import ConfigError


class BadRule(ConfigError):
    """`offset` counts characters from the start of the text that was parsed."""

    default_code = "CW-RULE"

    def __init__(
        self, message: str, *, hint: str, offset: int = 0, code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.offset = offset

    def moved(self, by: int) -> BadRule:
        """The same mistake, as seen from a longer text that holds this one at `by`."""
        return BadRule(self.message, hint=self.hint, offset=self.offset + by, code=self.code)
