"""Which assignment slots the waiting puts of a replica belong to."""

from __future__ import annotations

from tidegate.core.replication import HOMES, home_index
from tidegate.node.batch import Batch
from tidegate.node.deduplication import Deduplication
from tidegate.node.holding import Holding
from tidegate.node.message_ids import MessageIds


class PutHomes:
    """Slots of all batches of one replica that are accepted and not on disk yet."""

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
        # Of a logical queue: batches accepted before its slots changed last, and the id behind
        # them.
        self._put_before: set[tuple[int, int]] = set()
        self._put_before_id: int | None = None

    def are_elsewhere(self, batch: Batch) -> bool:
        """Return whether a message of the batch is assigned to another replica."""
        homes, number = self._holding.homes, self._holding.info.number
        if not number:
            # With slots assigned, a logical queue itself takes no message that has a group or a
            # dedup id. Without, it takes everything.
            return bool(homes) and batch.has_order_or_dedup_id
        keys = batch.home_keys()
        return bool(keys) and (not homes or any(homes[home_index(key)] != number for key in keys))

    def changed(self) -> None:
        """Note that the slots of the logical queue have changed.

        From now on replicas store what has a group or a dedup id.
        """
        self._put_before = set(self._accepted)
        self._put_before_id = None

    def ordered_below(self) -> int | None:
        """Return the id below which messages were put before the slots changed last.

        None if some of these have no id yet. Messages with higher ids come from transactions and
        topics.
        """
        if self._put_before_id is None:
            self._put_before &= self._accepted.keys()
            if self._put_before:
                return None
            self._put_before_id = self._ids.next_id
        return self._put_before_id

    def taken(self) -> set[int]:
        """Return the slots of which the replica accepts puts."""
        homes, number = self._holding.homes, self._holding.info.number
        if number:
            return {index for index, home in enumerate(homes or ()) if home == number}
        return set() if homes else set(range(HOMES))

    def held(self) -> set[int]:
        """Return the slots of puts that are not stored yet, and of remembered dedup ids."""
        held = self.accepted()
        if self._holding.spans_stores:
            # Dedup ids are known within one store. Another store would store the same id again.
            self._dedup.forget()
            held |= {home_index(key) for key in self._dedup.stored}
        return held

    def accepted(self) -> set[int]:
        """Return the slots of puts that are not stored yet."""
        batches = [batch for twins in self._accepted.values() for batch in twins]
        keys = {key for batch in batches for key in batch.home_keys()}
        return {home_index(key) for key in (*keys, *self._dedup.under_way)}
