"""Deduplication of messages by their dedup id.

An id is stored, under way, or unknown. A message whose id is under way has to wait, since the
commit may still fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidegate.core.errors import Unavailable
from tidegate.core.model import Attributes
from tidegate.node.dedup import DedupWindow
from tidegate.node.holding import Holding


class Deduplication:
    """The dedup ids of one replica."""

    __slots__ = ("_decided", "_holding", "stored", "under_way")

    def __init__(self, holding: Holding, decided: Callable[[], None]) -> None:
        self._holding = holding
        # Called when the result of ids under way is known.
        self._decided = decided
        self.stored = DedupWindow()
        # Ids of messages that are being stored.
        self.under_way: set[str] = set()

    async def learn(self) -> None:
        """Read the ids that were stored within the window, by this replica or by former ones."""
        holding = self._holding
        ages_s = await holding.store.dedup_ids(holding.info.queue_id, holding.policy.dedup_window_s)
        self.stored.load(ages_s, holding.clock.monotonic())

    def forget(self) -> None:
        """Remove ids that were stored before the window."""
        holding = self._holding
        self.stored.forget(holding.clock.monotonic(), holding.policy.dedup_window_s)

    def duplicates(
        self, attributes: Sequence[Attributes | None] | None, seen: set[str]
    ) -> set[int]:
        """Return the offsets of messages whose ids are stored or occur in `seen`.

        Adds all ids to `seen`. Raises `Unavailable` if an id is under way.
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
        """Note that these ids are no longer under way, and resume batches that waited for them."""
        self.under_way.difference_update(dedup_ids)
        self._decided()
