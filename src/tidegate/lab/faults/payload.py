"""Payloads that carry the name of their producer and the number of their put."""

from __future__ import annotations

import hashlib

PAYLOAD_BYTES = 256


def numbered_payload(producer: str, seq: int) -> bytes:
    """Return the payload for one put; it is a function of the producer and the number."""
    head = f"{producer}:{seq}:".encode()
    filler = hashlib.blake2b(head, digest_size=32).hexdigest().encode()
    return (head + filler * (PAYLOAD_BYTES // len(filler) + 1))[:PAYLOAD_BYTES]


def numbered(payload: bytes) -> tuple[str, int]:
    """Return the producer and the number of a payload, or ("?", 0) for any other payload."""
    producer, _, rest = payload.partition(b":")
    seq, _, _ = rest.partition(b":")
    if not seq.isdigit():
        return ("?", 0)
    return producer.decode(errors="replace"), int(seq)
