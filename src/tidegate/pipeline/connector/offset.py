"""The offset of a stream: the ids of the messages of its last batch, per replica of the queue.

An offset cannot be a highest id. Ids are assigned when messages are put. A message with a delay, a
retried message, or one that was stored in a transaction becomes available after messages with
higher ids. An offset therefore names exactly the messages of its batch. It implies that the
messages of all earlier offsets are finished as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.core.errors import InvalidValue
from tidegate.core.id_ranges import Range
from tidegate.pipeline.connector.ranges import read, written

# The connector treats a queue as having a single replica, under this key.
ONLY_REPLICA = "0"


@dataclass(frozen=True)
class Offset:
    """The messages of one batch."""

    # The id, not the name: a queue that was deleted and created again assigns the same message ids.
    queue_id: int
    batch: dict[str, list[Range]]

    def to_json(self) -> dict[str, Any]:
        """Return the offset in types that Spark's checkpoint can hold."""
        return {
            "queue_id": self.queue_id,
            "batch": {replica: written(ranges) for replica, ranges in self.batch.items()},
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any], queue: str, queue_id: int) -> Offset:
        """Parse an offset from the checkpoint; raise `InvalidValue` if it is of another queue."""
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
