"""Dedup ids of rows: equal for the same row, however often and in whatever order it is written.

With a key column, the dedup id is the key. Without one it consists of

    the write (query and batch) · the content · the row's number among equal contents

Row numbers and partitions are not part of it, because they differ when a batch is written again.
Rows with equal content are interchangeable, so only their number matters. A content that occurs n
times gets the numbers 0 to n − 1. A task numbers its own rows. Contents that occur in several
partitions are counted on the driver when all tasks have ended (see tally.py).
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from tidegate.core.errors import InvalidValue
from tidegate.pipeline.connector.outgoing import Put

DIGEST_BYTES = 16
KEY_LENGTH_MAX = 255


class Identities:
    """Assigns the dedup ids of one task's rows."""

    def __init__(self, write: str) -> None:
        self._write = write.encode()
        # How often each content has occurred so far.
        self.seen: Counter[bytes] = Counter()

    def dedup_id(self, put: Put) -> str:
        """Return the dedup id of the next row; rows without a key are numbered."""
        if put.key is not None:
            return _checked_key(put.key)
        digest = self.digest(put)
        number = self.seen[digest]
        self.seen[digest] = number + 1
        return numbered(digest, number)

    def digest(self, put: Put) -> bytes:
        """Return the digest of a content within this write."""
        hashed = blake2b(self._write, digest_size=DIGEST_BYTES)
        hashed.update(b"\0")
        hashed.update(put.content())
        return hashed.digest()


def numbered(digest: bytes, number: int) -> str:
    """Return the dedup id of the `number`-th row among rows of equal content."""
    return f"{digest.hex()}-{number}"


def _checked_key(key: str) -> str:
    if not 0 < len(key) <= KEY_LENGTH_MAX:
        raise InvalidValue(
            f"a key has from 1 to {KEY_LENGTH_MAX} characters, not {len(key)}: hash it, as in "
            "sha2(key, 256)"
        )
    return key
