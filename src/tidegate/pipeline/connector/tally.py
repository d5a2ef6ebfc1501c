"""Counting on the driver of equal rows in several partitions.

Each task numbers its equal rows from 0. If a content occurs 3 times in one partition and 2 times in
another, the node has therefore stored 3 messages. The driver puts the other 2 under the remaining
numbers. For that, a task with up to 8 MiB of rows returns their contents. A larger task returns the
digests only. The driver then finds out that rows are missing, and raises an error with the remedy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from tidegate.core.errors import InvalidValue
from tidegate.pipeline.connector.identity import Identities, numbered
from tidegate.pipeline.connector.outgoing import Put

# A task returns its contents up to this size.
CONTENT_BYTES_MAX = 8 * 1024 * 1024


@dataclass
class Written(WriterCommitMessage):
    """The commit message of a task."""

    write: str
    # Digest → number of rows; empty for rows with keys.
    counts: dict[bytes, int] = field(default_factory=dict)
    # The rows; `None` if they were too large.
    contents: list[Put] | None = None


class Tally:
    """Collects the commit message of a task while it puts rows."""

    def __init__(self, identities: Identities, write: str) -> None:
        self._identities = identities
        self._write = write
        self._contents: list[Put] | None = []
        self._bytes = 0

    def add(self, put: Put) -> None:
        if put.key is not None or self._contents is None:
            return
        self._bytes += len(put.payload) + 100
        if self._bytes > CONTENT_BYTES_MAX:
            self._contents = None
        else:
            self._contents.append(put)

    def written(self) -> Written:
        return Written(self._write, dict(self._identities.seen), self._contents)


def still_to_put(messages: Iterable[WriterCommitMessage | None]) -> Iterator[tuple[str, Put]]:
    """Yield dedup id and message of the equal rows that no task could number.

    Raise `InvalidValue` if the content of such a row is not known.
    """
    written = [message for message in messages if isinstance(message, Written)]
    if len(written) < 2:
        return
    total: Counter[bytes] = Counter()
    most: defaultdict[bytes, int] = defaultdict(int)
    for message in written:
        total.update(message.counts)
        for digest, count in message.counts.items():
            most[digest] = max(most[digest], count)
    missing = {digest for digest, count in total.items() if count > most[digest]}
    if not missing:
        return
    contents = _contents(written, missing)
    for digest in missing:
        for number in range(most[digest], total[digest]):
            yield numbered(digest, number), contents[digest]


def _contents(written: list[Written], wanted: set[bytes]) -> dict[bytes, Put]:
    found: dict[bytes, Put] = {}
    for message in written:
        identities = Identities(message.write)
        for put in message.contents or ():
            digest = identities.digest(put)
            if digest in wanted:
                found[digest] = put
    if len(found) < len(wanted):
        raise InvalidValue(
            f"{len(wanted) - len(found)} messages are equal to others in other partitions, in a "
            "write too large to be counted: write connector.prepared(df), or name a key column by "
            f'option("key"); a batch write that is run again so with option("writeId", '
            f'"{written[0].write}") does not store again what is stored'
        )
    return found
