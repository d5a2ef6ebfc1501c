"""Which message a row is, however often and in whatever order it is written.

With a key column, its dedup id is the key. Without, it is made of

    the write (query and batch) · the content · its number among equal contents

and never of row numbers or partitions, which are others when a batch is written again. Equal rows
are interchangeable, so what counts is only how many of each there are: a content that is there n
times has the numbers 0 to n − 1. A task numbers its own; what lies in several partitions is counted
on the driver, when all tasks are done (see tally.py).
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from tidegate.core.errors import InvalidValue
from tidegate.pipeline.connector.outgoing import Put

DIGEST_BYTES = 16
KEY_LENGTH_MAX = 255


class Identities:
    """The dedup ids of one task's rows."""

    def __init__(self, write: str) -> None:
        self._write = write.encode()
        # How often each content came so far.
        self.seen: Counter[bytes] = Counter()

    def dedup_id(self, put: Put) -> str:
        if put.key is not None:
            return _checked_key(put.key)
        digest = self.digest(put)
        number = self.seen[digest]
        self.seen[digest] = number + 1
        return numbered(digest, number)

    def digest(self, put: Put) -> bytes:
        """Of a content in this write."""
        hashed = blake2b(self._write, digest_size=DIGEST_BYTES)
        hashed.update(b"\0")
        hashed.update(put.content())
        return hashed.digest()


def numbered(digest: bytes, number: int) -> str:
    """The dedup id of one of several equal contents."""
    return f"{digest.hex()}-{number}"


def _checked_key(key: str) -> str:
    if not 0 < len(key) <= KEY_LENGTH_MAX:
        raise InvalidValue(
            f"a key has from 1 to {KEY_LENGTH_MAX} characters, not {len(key)}: hash it, as in "
            "sha2(key, 256)"
        )
    return key
