"""One message per dedup id and window: what was stored of late, and what is on its way to the disk.

Who comes with an id that is on its way waits until its fate is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidegate.core.errors import Unavailable
from tidegate.core.model import Attributes
from tidegate.node.dedup import DedupWindow
from tidegate.node.holding import Holding


class Deduplication:
    """That of one replica."""

    __slots__ = ("_decided", "_holding", "stored", "under_way")

    def __init__(self, holding: Holding, decided: Callable[[], None]) -> None:
        self._holding = holding
        # Told when the fate of some is known.
        self._decided = decided
        self.stored = DedupWindow()
        # On their way to the disk.
        self.under_way: set[str] = set()

    async def learn(self) -> None:
        """Which ids were stored of late, here or by who was the home of some before."""
        holding = self._holding
        ages_s = await holding.store.dedup_ids(holding.info.queue_id, holding.policy.dedup_window_s)
        self.stored.load(ages_s, holding.clock.monotonic())

    def forget(self) -> None:
        """What was stored longer ago than the window."""
        holding = self._holding
        self.stored.forget(holding.clock.monotonic(), holding.policy.dedup_window_s)

    def duplicates(
        self, attributes: Sequence[Attributes | None] | None, seen: set[str]
    ) -> set[int]:
        """The offsets of messages whose dedup ids are stored, or were seen before in this line.

        Unavailable while one is on its way: its fate is not known yet.
        """
        holding = self._holding
        monotonic, window_s = holding.clock.monotonic(), holding.policy.dedup_window_s
        found: set[int] = set()
        for offset, each in enumerate(attributes or ()):
            dedup_id = None if each is None else each.dedup_id
            if dedup_id is None:
                continue
            if dedup_id in self.under_way:
                raise Unavailable(f"a message with dedup id {dedup_id!r} is on its way: try again")
            if dedup_id in seen or self.stored.has(dedup_id, monotonic, window_s):
                found.add(offset)
            seen.add(dedup_id)
        holding.meters.deduplicated.add(len(found))
        return found

    def settled(self, dedup_ids: Iterable[str]) -> None:
        """The fate of these is known: whoever waited for it may go on."""
        self.under_way.difference_update(dedup_ids)
        self._decided()
