"""Bars: what must hold, the figure that decides it, and whether it does."""

from __future__ import annotations

from typing import Any

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """One promise of the issue, and whether the figures keep it."""

    bar: str
    figure: float | None
    limit: float | None
    unit: str
    at_most: bool = False
    # A stricter or a like-for-like reading that the issue does not ask for.
    beyond_the_issue: bool = False

    @property
    def met(self) -> bool | None:
        """Whether it holds; None when it was not measured."""
        if self.figure is None or self.limit is None:
            return None
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit


class BarredReport(msgspec.Struct, frozen=True):
    """What a benchmark found, as far as it is judged."""

    bars: list[Bar]

    @property
    def met(self) -> bool:
        return all(bar.met for bar in self.bars)

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for bar, struct in zip(plain["bars"], self.bars, strict=True):
            bar["met"] = struct.met
        return plain
