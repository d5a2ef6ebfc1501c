"""Where the puts of a replica are at home, and whether it is here."""

from __future__ import annotations

from tidegate.core.replication import HOMES, home_index
from tidegate.node.batch import Batch
from tidegate.node.deduplication import Deduplication
from tidegate.node.holding import Holding
from tidegate.node.message_ids import MessageIds


class PutHomes:
    """Those of one replica, by every batch that was accepted and is not on disk yet."""

    __slots__ = ("_accepted", "_dedup", "_holding", "_ids", "_put_before", "_put_before_id")

    def __init__(
        self,
        holding: Holding,
        accepted: dict[tuple[int, int], list[Batch]],
        ids: MessageIds,
        dedup: Deduplication,
    ) -> None:
        self._holding = holding
        self._accepted = accepted
        self._ids = ids
        self._dedup = dedup
        # Of an alias: batches that came before its homes changed, and the first id behind them.
        self._put_before: set[tuple[int, int]] = set()
        self._put_before_id: int | None = None

    def are_elsewhere(self, batch: Batch) -> bool:
        """Whether any of its messages has its home at another replica."""
        homes, number = self._holding.homes, self._holding.info.number
        if not number:
            # An alias takes what is only addressed, and everything while there are no homes.
            return bool(homes) and batch.has_order_or_dedup_id
        keys = batch.home_keys()
        return bool(keys) and (not homes or any(homes[home_index(key)] != number for key in keys))

    def changed(self) -> None:
        """Of an alias: from here on others take what has a home."""
        self._put_before = set(self._accepted)
        self._put_before_id = None

    def ordered_below(self) -> int | None:
        """Ids below are of what was put before homes changed; None: some of that has no id yet.

        What comes to an alias after that comes from transactions and topics.
        """
        if self._put_before_id is None:
            self._put_before &= self._accepted.keys()
            if self._put_before:
                return None
            self._put_before_id = self._ids.next_id
        return self._put_before_id

    def taken(self) -> set[int]:
        """The homes of which it takes what is put."""
        homes, number = self._holding.homes, self._holding.info.number
        if number:
            return {index for index, home in enumerate(homes or ()) if home == number}
        return set() if homes else set(range(HOMES))

    def held(self) -> set[int]:
        """Where messages are at home that wait to be stored, or whose dedup ids are remembered."""
        held = self.accepted()
        if self._holding.spans_stores:
            # Which ids were stored is known in one store; a home in another would store them again.
            self._dedup.forget()
            held |= {home_index(key) for key in self._dedup.stored}
        return held

    def accepted(self) -> set[int]:
        """Where messages are at home that wait to be stored."""
        batches = [batch for twins in self._accepted.values() for batch in twins]
        keys = {key for batch in batches for key in batch.home_keys()}
        return {home_index(key) for key in (*keys, *self._dedup.under_way)}
