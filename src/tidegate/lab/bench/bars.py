"""Bars: requirements on measurements, and whether they are met."""

from __future__ import annotations

from typing import Any

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """A requirement of the issue: a measured figure and its limit.

    By default the figure must be at least `limit`, with `at_most` at most. None for `figure` or
    `limit` means that it was not measured.
    """

    bar: str
    figure: float | None
    limit: float | None
    unit: str
    at_most: bool = False
    # True for a stricter or like-for-like requirement that the issue does not have.
    beyond_the_issue: bool = False
    # Half the width of the figure's 95 % interval; the limit must lie outside of the interval.
    half_width: float | None = None
    # True if a figure equal to the limit does not meet the bar.
    strict: bool = False

    @property
    def distinguishable(self) -> bool:
        """Whether the limit lies outside the figure's interval; True without an interval."""
        if self.figure is None or self.limit is None or self.half_width is None:
            return True
        return abs(self.figure - self.limit) > self.half_width

    @property
    def met(self) -> bool | None:
        """Whether the bar is met, and not by chance; None if it was not measured."""
        if self.figure is None or self.limit is None:
            return None
        holds = self.figure <= self.limit if self.at_most else self.figure >= self.limit
        if self.strict and self.figure == self.limit:
            return False
        return holds and self.distinguishable

    @property
    def sign(self) -> str:
        """The required relation of the figure to the limit; strict if there is an interval."""
        if self.strict or self.half_width is not None:
            return "<" if self.at_most else ">"
        return "≤" if self.at_most else "≥"

    @property
    def verdict(self) -> str:
        """The result as text."""
        if self.met is None:
            return "not measured"
        if not self.distinguishable:
            return "not distinguishable"
        return "met" if self.met else "not met"


class BarredReport(msgspec.Struct, frozen=True):
    """A benchmark's report with bars."""

    bars: list[Bar]

    @property
    def met(self) -> bool:
        return all(bar.met for bar in self.bars)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with the result of each bar."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for bar, struct in zip(plain["bars"], self.bars, strict=True):
            bar["met"] = struct.met
            bar["verdict"] = struct.verdict
        return plain
