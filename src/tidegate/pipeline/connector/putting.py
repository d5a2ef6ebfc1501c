"""Writing: the puts of a task or of the driver, in chunks and within the rate limit.

Theory of operation

1. Each task converts its rows to messages with dedup ids (`outgoing`, `identity`) and puts them in
   chunks of at most 5,000. When `put_rows` returns, the node has stored them on disk.
2. The task returns a `TaskCommit` with the digests of its rows, and with their contents unless
   these are large (`tally`).
3. When all tasks have ended, the driver compares the digests. Equal rows in several partitions have
   received the same numbers, so the node has stored some of them once only. The driver puts the
   missing ones under the remaining numbers (`put_remaining`).

A task that Spark runs again produces the same dedup ids, and the node ignores messages that it has
stored. This works while the queue remembers dedup ids. Before writing, `check_window` compares the
queue's deduplication window with the time in which Spark may retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from tidegate.client.blocking import BlockingClient
from tidegate.core.errors import InvalidValue
from tidegate.pipeline.connector.identity import Identities
from tidegate.pipeline.connector.options import Options
from tidegate.pipeline.connector.outgoing import Put, puts_of
from tidegate.pipeline.connector.pace import Pace
from tidegate.pipeline.connector.tally import Tally, Written, still_to_put

CHUNK_COUNT = 5000


def put_rows(
    options: Options, write: str, batches: Iterable[pa.RecordBatch], dedup_s: float
) -> Written:
    """Put the rows of a task; they are stored on disk when this returns.

    `write` names the write, and is the same when the write is run again.
    """
    identities = Identities(write)
    tally = Tally(identities, write)

    def identified() -> Iterator[tuple[str, Put]]:
        for batch in batches:
            for put in puts_of(batch, options.key):
                tally.add(put)
                yield identities.dedup_id(put), put

    with options.connected() as mq:
        check_window(mq, options, dedup_s)
        _put_all(mq, options, identified())
    return tally.written()


def put_rest(options: Options, messages: Iterable[object]) -> None:
    """Put, on the driver, the equal rows of several partitions that the tasks could not number."""
    rest = list(still_to_put(messages))  # type: ignore[arg-type]
    if rest:
        with options.connected() as mq:
            _put_all(mq, options, iter(rest))


def _put_all(mq: BlockingClient, options: Options, puts: Iterator[tuple[str, Put]]) -> None:
    pace = Pace(options.messages_per_second)
    while True:
        chunk = list(islice(puts, pace.allowance(CHUNK_COUNT)))
        if not chunk:
            return
        pace.spend(len(chunk))
        mq.put_each(
            options.queue, [(put.payload, put.put_options(dedup_id)) for dedup_id, put in chunk]
        )


def check_window(mq: BlockingClient, options: Options, dedup_s: float) -> None:
    """Raise `InvalidValue` if the queue forgets dedup ids before a write may be repeated.

    A repeated write would otherwise store its messages twice.
    """
    window_s = mq.queue(options.queue).policy.dedup_window_s
    needed_s = dedup_s if options.dedup_s is None else options.dedup_s
    if window_s < needed_s:
        raise InvalidValue(
            f"queue {options.queue!r} remembers dedup ids for {window_s:g} s, and a write may be "
            f"repeated for {needed_s:g} s: `tidegate policy {options.queue} --set "
            f'dedup_window={needed_s:g}s`, or say by option("dedupSeconds", "{window_s:g}") that '
            "you restart sooner"
        )
