"""Browsing a queue by message ids, page by page."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tidegate.client.blocking import BlockingClient, BlockingMessage
from tidegate.core.errors import TidegateError
from tidegate.core.id_ranges import Range, holds
from tidegate.pipeline.connector import ranges as r
from tidegate.pipeline.connector.options import Options

PAGE_COUNT = 5000
# How long to look for planned messages. A node that has just started reads its queues first, and a
# foreign consumer may return messages that it took.
MISSING_S = 10.0
MISSING_PAUSE_S = 0.2


class MessagesMissing(TidegateError):
    """Messages of a planned batch are no longer in the queue."""


def pages(
    mq: BlockingClient, queue: str | int, first_id: int, last_id: int, limit: int | None = None
) -> Iterator[list[BlockingMessage]]:
    """Yield the waiting messages with ids from `first_id` to `last_id`, in order of ids.

    Yield the first `limit` of them; `None` means all.
    """
    while limit is None or limit > 0:
        wanted = PAGE_COUNT if limit is None else min(PAGE_COUNT, limit)
        page = mq.browse(queue, limit=wanted, first_id=first_id, last_id=last_id)
        if page:
            yield page
            first_id = page[-1].message_id + 1
        if len(page) < wanted:
            return
        limit = None if limit is None else limit - len(page)


def planned(
    mq: BlockingClient, options: Options, queue_id: int, ranges: list[Range]
) -> Iterator[list[BlockingMessage]]:
    """Yield exactly the messages of a planned batch, in pages.

    Messages that are not in the queue are looked for again for ten seconds. After that, raise
    `MessagesMissing`, or skip them if the option `failOnDataLoss` is false.
    """
    gives_up_at = time.monotonic() + MISSING_S
    missing = ranges
    while missing:
        found: list[int] = []
        for page in pages(mq, queue_id, missing[0][0], missing[-1][1]):
            # Between the ids may be other messages: addressed to a receiver, or available only
            # since then.
            ours = [message for message in page if holds(missing, message.message_id)]
            if ours:
                found += [message.message_id for message in ours]
                yield ours
        missing = r.without(missing, found)
        if missing and time.monotonic() > gives_up_at:
            break
        if missing:
            time.sleep(MISSING_PAUSE_S)
    if missing and options.fail_on_data_loss:
        raise MessagesMissing(
            f"{r.count(missing)} of the {r.count(ranges)} messages of this batch are no longer in "
            f"queue {options.queue!r} (ids {r.written(missing[:5])}): another consumer took them, "
            "they expired, or the queue was purged. Leave the queue to this one stream; to go on "
            'without them, set option("failOnDataLoss", "false")'
        )
