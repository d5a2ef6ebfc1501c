"""How far a stream is: the ids of the messages of its last batch, per replica of the queue.

Not a highest id. Ids are given out when messages are put, and what has a delay, is tried again, or
was stored together with other queues is there later than higher ids. So an offset names exactly the
messages of its batch, and means by that: they, and all that earlier offsets have named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.core.errors import InvalidValue
from tidegate.core.id_ranges import Range
from tidegate.pipeline.connector.ranges import read, written

# A queue has one replica today.
ONLY_REPLICA = "0"


@dataclass(frozen=True)
class Offset:
    """The messages of one batch."""

    # Not the name: a queue that was deleted and made anew gives out the same ids again.
    queue_id: int
    batch: dict[str, list[Range]]

    def to_json(self) -> dict[str, Any]:
        """In types that Spark's checkpoint can hold."""
        return {
            "queue_id": self.queue_id,
            "batch": {replica: written(ranges) for replica, ranges in self.batch.items()},
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any], queue: str, queue_id: int) -> Offset:
        """An offset of the checkpoint, if it is this queue's."""
        try:
            batch = {replica: read(ranges) for replica, ranges in stored["batch"].items()}
            offset = cls(int(stored["queue_id"]), batch)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidValue(
                f"the checkpoint was not made by a stream from a queue: {stored!r}; use a new one"
            ) from None
        if offset.queue_id != queue_id:
            raise InvalidValue(
                f"queue {queue!r} is not the one that the checkpoint knows: it was deleted and "
                "made anew, or another one was read; use a new checkpoint"
            )
        return offset
