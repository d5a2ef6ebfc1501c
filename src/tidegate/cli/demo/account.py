"""The leader's totals for all agreements after the same window.

The difference of two totals gives the windows between them. The lake is queried for the same
windows, so that both results must be equal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.cli.demo.story import ARCHIVE, ORDERS
from tidegate.cli.sla import Row, standings
from tidegate.cli.store_wiring import opened

_LOOK_S = 0.2
# The windows of all agreements end at the same time, but their evaluation takes a moment.
_PATIENCE_S = 12.0


@dataclass(frozen=True)
class Account:
    """The totals of every agreement after the same window."""

    # The end of that window.
    at: datetime
    rows: Mapping[str, Row]

    def since(self, before: Account) -> dict[str, tuple[int, int, int]]:
        """Return the windows met, warned and breached since then, for each agreement."""
        return {
            name: (
                row.met - before.rows[name].met,
                row.warned - before.rows[name].warned,
                row.breached - before.rows[name].breached,
            )
            for name, row in self.rows.items()
        }


async def account_of(store_urls: Sequence[str]) -> Account | None:
    """Return the next totals that include all agreements; None if none come in time."""
    late_at = time.monotonic() + _PATIENCE_S
    async with opened(store_urls) as store:
        while time.monotonic() < late_at:
            rows = {row.agreement: row for row in await standings(store, time.time())}
            ends = {row.judged_at for row in rows.values()}
            if {ORDERS, ARCHIVE} <= rows.keys() and len(ends) == 1 and (end_s := ends.pop()):
                return Account(datetime.fromtimestamp(end_s, UTC), rows)
            await asyncio.sleep(_LOOK_S)
    return None
