"""What a scraper does: one request on a connection of its own."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Got(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


async def send(address: str, request: bytes) -> bytes:
    """Everything that comes back until the other side hangs up."""
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(request)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


async def get(address: str, path: str, method: str = "GET") -> Got:
    return parsed(await send(address, f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()))


def parsed(answer: bytes) -> Got:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Got(int(status.split()[1]), headers, body)


def families(text: bytes) -> dict[str, Metric]:
    """Metrics by the names that one queries."""
    found = text_string_to_metric_families(text.decode())
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in found}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample that has these labels."""
    (sample,) = (one for one in found[name].samples if labels.items() <= one.labels.items())
    return sample.value
