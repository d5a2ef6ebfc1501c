"""A payload that says who put it and as the how manieth, so that any reader can tell."""

from __future__ import annotations

import hashlib

PAYLOAD_BYTES = 256


def numbered_payload(producer: str, seq: int) -> bytes:
    """The same bytes for the same number, and different ones for every other."""
    head = f"{producer}:{seq}:".encode()
    filler = hashlib.blake2b(head, digest_size=32).hexdigest().encode()
    return (head + filler * (PAYLOAD_BYTES // len(filler) + 1))[:PAYLOAD_BYTES]


def numbered(payload: bytes) -> tuple[str, int]:
    """Who put it, and its number; a payload that is not ours belongs to nobody."""
    producer, _, rest = payload.partition(b":")
    seq, _, _ = rest.partition(b":")
    if not seq.isdigit():
        return ("?", 0)
    return producer.decode(errors="replace"), int(seq)
