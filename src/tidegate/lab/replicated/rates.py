"""Production and consumption rates per second, and their means over the stable part of a run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import msgspec

from tidegate.lab.replicated.crew import Row

# The paper leaves out the first and last 5 s; in a shorter run, a fifth at either end.
EDGE_S = 5.0
EDGE_SHARE_MAX = 0.2


class Rates(msgspec.Struct, frozen=True):
    """The mean rates of a run over its stable part."""

    produced_per_s: float
    consumed_per_s: float
    # The length of that part, and what was left out at either end.
    seconds: float
    edge_s: float
    waiting_max: int

    @property
    def throughput_per_s(self) -> float:
        """The smaller of the two rates: growth or decline of the backlog cannot last."""
        return min(self.produced_per_s, self.consumed_per_s)

    @property
    def imbalance(self) -> float:
        """The difference of the two rates, as a fraction of the larger."""
        larger = max(self.produced_per_s, self.consumed_per_s)
        return abs(self.produced_per_s - self.consumed_per_s) / larger if larger else 0.0


class Series(msgspec.Struct, frozen=True):
    """The rates and stats between successive samples, as lists."""

    at_s: list[float]
    produced_per_s: list[float]
    consumed_per_s: list[float]
    waiting: list[int]
    clients: list[int]


def series_of(rows: Sequence[Row]) -> Series:
    """Return the rates between successive samples."""
    steps = [
        (before, after) for before, after in itertools.pairwise(rows) if after.at_s > before.at_s
    ]
    return Series(
        at_s=[after.at_s for _, after in steps],
        produced_per_s=[(b.produced - a.produced) / (b.at_s - a.at_s) for a, b in steps],
        consumed_per_s=[(b.consumed - a.consumed) / (b.at_s - a.at_s) for a, b in steps],
        waiting=[after.waiting for _, after in steps],
        clients=[after.clients for _, after in steps],
    )


def rates_of(rows: Sequence[Row], *, while_clients: int | None = None) -> Rates:
    """Return the mean rates while at least `while_clients` clients are at work.

    `None` means the highest number of clients that the run had.
    """
    wanted = max(row.clients for row in rows) if while_clients is None else while_clients
    busy = [row for row in rows if row.clients >= wanted]
    if len(busy) < 2:
        busy = list(rows)
    whole_s = busy[-1].at_s - busy[0].at_s
    edge_s = min(EDGE_S, EDGE_SHARE_MAX * whole_s)
    inner = [row for row in busy if busy[0].at_s + edge_s <= row.at_s <= busy[-1].at_s - edge_s]
    if len(inner) < 2:
        inner = busy
    seconds = inner[-1].at_s - inner[0].at_s
    return Rates(
        produced_per_s=(inner[-1].produced - inner[0].produced) / max(seconds, 1e-9),
        consumed_per_s=(inner[-1].consumed - inner[0].consumed) / max(seconds, 1e-9),
        seconds=seconds,
        edge_s=edge_s,
        waiting_max=max(row.waiting for row in rows),
    )


def average(runs: Sequence[Rates]) -> Rates:
    """Return the mean over several runs, as the paper's charts show."""
    return Rates(
        produced_per_s=statistics.fmean(one.produced_per_s for one in runs),
        consumed_per_s=statistics.fmean(one.consumed_per_s for one in runs),
        seconds=sum(one.seconds for one in runs),
        edge_s=min(one.edge_s for one in runs),
        waiting_max=max(one.waiting_max for one in runs),
    )
