"""What is bounded before any server is asked: heads however they are cut, bytes that come early."""

from __future__ import annotations

import asyncio

import pytest
from plain_server import HANDSHAKE, SWITCH, plain_server
from waiting import eventually_async

from tidegate.gateway.gateway import Gateway, GatewayLimits
from tidegate.gateway.http1 import (
    END,
    BadResponse,
    Refusal,
    RequestHead,
    RequestReader,
    ResponseHead,
    ResponseReader,
)

MOST_BYTES = 15 * 1024
STEPS = (1, 7, 1460, 1 << 20)


def fields(size_bytes: int, in_one: bool) -> bytes:
    if in_one:
        return b"Cookie: " + b"x" * size_bytes + b"\r\n"
    return b"".join(b"Cookie: c%04d=%b\r\n" % (i, b"x" * 983) for i in range(size_bytes // 1000))


def requests_in(data: bytes, step: int) -> list[object]:
    reader = RequestReader(MOST_BYTES, None)
    for i in range(0, len(data), step):
        reader.receive(data[i : i + step])
    return list(reader.events)


def answers_in(data: bytes, step: int) -> list[object]:
    reader = ResponseReader(MOST_BYTES)
    reader.expect(b"GET")
    for i in range(0, len(data), step):
        reader.receive(data[i : i + step])
    return list(reader.events)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("in_one", [True, False])
def test_a_head_within_its_bound_is_taken_however_it_is_cut(step: int, in_one: bool) -> None:
    many = fields(MOST_BYTES * 9 // 10, in_one)
    head, end = requests_in(b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n", step)
    assert isinstance(head, RequestHead)
    assert end is END
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + many + b"\r\n"
    answer_head, end = answers_in(answer, step)
    assert isinstance(answer_head, ResponseHead)
    assert len(answer_head.fields) == many.count(b"\r\n")
    assert end is END


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("in_one", [True, False])
def test_a_head_beyond_its_bound_is_refused_however_it_is_cut(step: int, in_one: bool) -> None:
    many = fields(MOST_BYTES * 3, in_one)
    (refusal,) = requests_in(b"GET / HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n", step)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 431
    with pytest.raises(BadResponse, match=r"fields that do not end|longer than"):
        answers_in(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + many + b"\r\n", step)


@pytest.mark.parametrize("step", STEPS)
def test_a_chunked_answer_with_a_trailer_is_whole_however_it_is_cut(step: int) -> None:
    body = b"y" * 40_000
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    data = head + b"%x\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(body), body)
    answer_head, *parts, end = answers_in(data, step)
    assert isinstance(answer_head, ResponseHead)
    assert b"".join(part for part in parts if isinstance(part, bytes)) == body
    assert end is END
    # One that never ends is none.
    with pytest.raises(BadResponse, match="fields that do not end"):
        answers_in(data[:-4] + b"1" * MOST_BYTES * 3, min(step, 1460))


def test_head_limit_does_not_count_an_earlier_body() -> None:
    body = b"y" * MOST_BYTES * 10
    reader = RequestReader(MOST_BYTES, None)
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    reader.receive(post + b"GET / HTTP/1.1\r\nHos")
    reader.receive(b"t: a\r\n\r\n")
    heads = [event for event in reader.events if isinstance(event, RequestHead)]
    assert [head.method for head in heads] == [b"POST", b"GET"]
    assert reader.events[-1] is END


def test_of_upgrades_that_are_not_offered_any_number_may_come_at_once() -> None:
    one = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    events = requests_in(one * 2000, 1 << 20)
    assert len(events) == 4000
    assert events.count(END) == 2000
    # What is wrong behind them is refused as it would be alone.
    refusal = requests_in(one * 2 + b"nonsense\r\n\r\n", 1 << 20)[-1]
    assert isinstance(refusal, Refusal)
    assert refusal.status == 400


async def test_early_websocket_data_is_held_until_the_switch() -> None:
    early = bytes(range(256)) * 20_000
    switch = asyncio.Event()
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def dawdles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await switch.wait()
        writer.write(SWITCH)
        heard.set_result(await reader.readexactly(len(early)))

    limits = GatewayLimits()
    async with plain_server(dawdles) as address, Gateway([address], limits=limits) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(HANDSHAKE + early)
        assert gateway._front is not None
        clients = gateway._front.clients

        async def held() -> bool:
            transports = [one._transport for one in clients]
            return bool(transports) and not any(one and one.is_reading() for one in transports)

        await eventually_async(held, "it is not read")
        (client,) = clients
        # One read of the event loop's may come on top.
        assert len(client._reader.rest) <= limits.header_bytes_max + 256 * 1024
        switch.set()
        async with asyncio.timeout(60):
            assert await heard == early
        writer.close()
