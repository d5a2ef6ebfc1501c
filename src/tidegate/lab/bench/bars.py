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
    # Half the width of the figure's 95 % interval, where chance is to be told from an effect.
    half_width: float | None = None
    # Equal to the limit is not enough.
    strict: bool = False

    @property
    def distinguishable(self) -> bool:
        """Whether the limit lies outside the figure's interval; without one, it is as it is."""
        if self.figure is None or self.limit is None or self.half_width is None:
            return True
        return abs(self.figure - self.limit) > self.half_width

    @property
    def met(self) -> bool | None:
        """Whether it holds, and not by chance; None when it was not measured."""
        if self.figure is None or self.limit is None:
            return None
        holds = self.figure <= self.limit if self.at_most else self.figure >= self.limit
        if self.strict and self.figure == self.limit:
            return False
        return holds and self.distinguishable

    @property
    def sign(self) -> str:
        """How the figure has to stand to the limit; one with an interval has to be clear of it."""
        if self.strict or self.half_width is not None:
            return "<" if self.at_most else ">"
        return "≤" if self.at_most else "≥"

    @property
    def verdict(self) -> str:
        """In words."""
        if self.met is None:
            return "not measured"
        if not self.distinguishable:
            return "not distinguishable"
        return "met" if self.met else "not met"


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
            bar["verdict"] = struct.verdict
        return plain
