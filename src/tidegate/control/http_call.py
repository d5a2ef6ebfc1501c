"""One HTTP request on its own connection with a time limit, for the probe and for webhooks.

No connection is reused. A probe must find out whether a server accepts connections, and an old
connection could still work. HTTP/1.1, `Connection: close`, no redirects and no proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidegate.core.errors import InvalidValue, Unavailable

# Bytes of a response that are read at most. The rest of a longer one is not checked.
_ANSWER_BYTES_MAX = 1024 * 1024
_READ_BYTES = 64 * 1024
# Statuses of responses that never have a body.
_BODILESS = (204, 304)
_CUT_OFF = "the answer was cut off"


@dataclass(frozen=True)
class Address:
    """The parts of an http or https URL."""

    host: str
    port: int
    is_secure: bool
    path: str
    authority: str


def address_of(url: str) -> Address:
    """Parse a URL; raise `InvalidValue` with the correct form if it is not usable."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidValue(f"{url!r} has no port that can be: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValue(f"{url!r} is no address: write http://HOST:PORT/PATH")
    if any(letter <= " " or letter > "~" for letter in url):
        raise InvalidValue(f"{url!r} holds what no address may: encode it (%20)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_secure = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    return Address(parts.hostname, port or (443 if is_secure else 80), is_secure, path, authority)


async def call(
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: bytes = b"",
    content_type: str = "application/json",
    fields: Mapping[str, str] | None = None,
) -> int:
    """Send a request and return the status of the complete response.

    Raises `Unavailable` if there is no complete response within `timeout_s` seconds.
    """
    where = address_of(url)
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(method, where, body, content_type, fields or {})
    except TimeoutError as error:
        raise Unavailable(f"no answer within {timeout_s:g} s") from error
    except (OSError, EOFError) as error:
        raise Unavailable(str(error) or type(error).__name__) from error


async def _exchange(
    method: str, where: Address, body: bytes, content_type: str, fields: Mapping[str, str]
) -> int:
    context = ssl.create_default_context() if where.is_secure else None
    reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
    try:
        head = [
            f"{method} {where.path} HTTP/1.1",
            f"Host: {where.authority}",
            "User-Agent: tidegate",
            "Accept: */*",
            "Connection: close",
            *(f"{name}: {value}" for name, value in fields.items()),
        ]
        if body:
            head += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*head, "", ""]).encode("ascii") + body)
        await writer.drain()
        line = await reader.readline()
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise EOFError("the connection was closed without an answer" if not line else "no HTTP")
        status = int(words[1])
        length, is_chunked = await _read_head(reader)
        if method == "HEAD" or status in _BODILESS:
            return status
        if is_chunked:
            await _read_chunks(reader)
        else:
            await _read_body(reader, length, _ANSWER_BYTES_MAX)
        return status
    except ValueError as error:
        # A line is too long, or a length is no number.
        raise EOFError("no HTTP") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError, ssl.SSLError):
            # Do not wait until the server closes: it does so when it likes.
            writer.transport.abort()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError(_CUT_OFF)
    return line.strip()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int | None, bool]:
    """Read the fields; return the length of the body if it is named, and whether it has chunks."""
    length, is_chunked = None, False
    while line := await _read_line(reader):
        name, _, value = line.lower().partition(b":")
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            is_chunked = value.strip().endswith(b"chunked")
    return length, is_chunked


async def _read_body(reader: asyncio.StreamReader, length: int | None, bytes_max: int) -> int:
    """Read a body to its end, or to `bytes_max`; return the number of bytes."""
    left = bytes_max if length is None else min(length, bytes_max)
    count = 0
    while left > count:
        chunk = await reader.read(min(_READ_BYTES, left - count))
        if not chunk:
            if length is not None:
                raise EOFError(_CUT_OFF)
            break
        count += len(chunk)
    return count


async def _read_chunks(reader: asyncio.StreamReader) -> None:
    left = _ANSWER_BYTES_MAX
    while left > 0:
        size = int((await _read_line(reader)).partition(b";")[0], 16)
        if size == 0:
            # Trailer fields may follow.
            while await _read_line(reader):
                pass
            return
        left -= await _read_body(reader, size + len(b"\r\n"), left)
