"""An agreement as people write it: one TOML document per service.

    name = "orders"
    queue = "orders.*"              # or: http = "shop"
    window = "10s"
    objective = 0.99                # of the windows must be met, over
    period = "28d"                  # the error budget's period

    [metrics.wait_p99]
    breach = "6s"
    warning = "20%"                 # 4.8 s; or an absolute point, or "learned"

    [metrics.throughput]
    breach = 100                    # messages per second; worse when smaller

Every complaint comes at once, with file, line, key, reason and the nearest valid key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate.core.errors import TidegateError

DEFAULT_MARGIN = 0.2


class Worse(StrEnum):
    """In which direction a metric gets worse."""

    LARGER = "larger"
    SMALLER = "smaller"


@dataclass(frozen=True)
class Metric:
    """One promise: the breaching point, and the warning point before it."""

    name: str
    worse: Worse
    unit: str  # s, per_s, bytes, fraction
    breach: float
    # The margin until one is learned, when `learned`.
    warning: float
    learned: bool
    # 0.99 for wait_p99; None for metrics that are no percentile.
    percentile: float | None


@dataclass(frozen=True)
class Agreement:
    """What one service promises."""

    name: str
    # Which of the two it governs; a queue by name or pattern (`orders.*`).
    queue: str | None
    http: str | None
    metrics: tuple[Metric, ...]
    window_s: float
    objective: float
    period_s: float
    source: str = ""

    def governs_queue(self, queue: str) -> bool:
        raise NotImplementedError


class AgreementInvalid(TidegateError):
    """An agreement that cannot be used; each line says where, which key, and why."""

    def __init__(self, complaints: list[str]) -> None:
        self.complaints = complaints
        super().__init__("\n".join(complaints))


def parse_agreement(text: str, source: str) -> Agreement:
    """The agreement that a text writes down; `source` names it in complaints."""
    raise NotImplementedError


def read_agreements(places: Sequence[Path]) -> list[Agreement]:
    """The agreements of files, and of every *.toml in folders."""
    raise NotImplementedError
