"""Malformed requests: refused and closed, and no server ever sees a request that nobody sent."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from bookshop import bookshops
from corpus import BAD_BODIES, BAD_HEADS, GOOD
from http_client import Connection, raw
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from tidegate.gateway.gateway import Gateway
from tidegate.gateway.http1 import END, Refusal, RequestHead, RequestReader

_NOT_400 = {
    "a version that is none": (400, 505),
    "a version without a number": (400,),
}


def _statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def _read(*chunks: bytes) -> list[object]:
    reader = RequestReader(header_bytes_max=32 * 1024, body_bytes_max=None)
    for chunk in chunks:
        reader.receive(chunk)
    return list(reader.events)


async def test_every_malformed_head_is_refused_and_no_server_hears_of_it() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        for name, request in BAD_HEADS.items():
            answer = await raw(gateway.port, request)
            (status,) = _statuses(answer)
            assert status in _NOT_400.get(name, (400,)), (name, answer)
            assert b"Connection: close" in answer, name
        assert shop.app.requests == []
        assert sum(gateway.refusals.values()) == len(BAD_HEADS)


async def test_a_malformed_body_never_becomes_a_request() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        for name, request in BAD_BODIES.items():
            answer = await raw(gateway.port, request)
            assert _statuses(answer) == [400], (name, answer)
        # A head may have reached it; its body broke off there, and what was hidden never came.
        assert shop.app.requests == []


async def test_odd_but_valid_request_is_served_once() -> None:
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        for name, (request, count) in GOOD.items():
            before = len(shop.app.requests)
            answer = await raw(gateway.port, request)
            assert _statuses(answer) == [200] * count, (name, answer)
            assert len(shop.app.requests) - before == count, name


async def test_a_client_beside_the_attackers_gets_its_own_answers_only() -> None:
    """The count of what servers saw equals what honest clients sent, whatever came between."""
    async with bookshops("a") as (shop,), Gateway([shop.address]) as gateway:
        async with await Connection.to(gateway.port) as honest:
            for number, request in enumerate((*BAD_HEADS.values(), *BAD_BODIES.values())):
                attack = asyncio.create_task(raw(gateway.port, request))
                answer = await honest.ask(f"/honest/{number}")
                assert answer.body == b"a"
                await attack
        paths = [path for _, path, _ in shop.app.requests]
        assert paths == [f"/honest/{n}" for n in range(len(BAD_HEADS) + len(BAD_BODIES))]


@pytest.mark.parametrize("name", [*BAD_HEADS, *BAD_BODIES])
def test_refusal_is_the_same_for_single_bytes(name: str) -> None:
    request = (BAD_HEADS | BAD_BODIES)[name]
    whole = _read(request)
    piecemeal = _read(*(request[i : i + 1] for i in range(len(request))))
    assert isinstance(whole[-1], Refusal)
    assert isinstance(piecemeal[-1], Refusal)
    assert whole[-1].status == piecemeal[-1].status


@settings(max_examples=examples(300))
@given(
    methods=st.lists(st.sampled_from([b"GET", b"POST", b"PUT"]), min_size=1, max_size=5),
    bodies=st.lists(st.binary(max_size=60), min_size=5, max_size=5),
    chunked=st.lists(st.booleans(), min_size=5, max_size=5),
    cuts=st.lists(st.integers(0, 800), max_size=12),
)
def test_requests_are_read_as_they_were_written(
    methods: list[bytes], bodies: list[bytes], chunked: list[bool], cuts: list[int]
) -> None:
    sent = []
    data = b""
    for number, method in enumerate(methods):
        body = bodies[number]
        data += b"%b /%d HTTP/1.1\r\nHost: shop\r\n" % (method, number)
        if chunked[number]:
            data += b"Transfer-Encoding: chunked\r\n\r\n"
            data += b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            data += b"0\r\n\r\n"
        else:
            data += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        sent.append((method, b"/%d" % number, body))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    events = _read(*(data[a:b] for a, b in itertools.pairwise(edges)))
    read: list[tuple[bytes, bytes, bytes]] = []
    for event in events:
        if isinstance(event, RequestHead):
            read.append((event.method, event.target, b""))
        elif isinstance(event, bytes):
            read[-1] = (*read[-1][:2], read[-1][2] + event)
        else:
            assert event is END
    assert read == sent


@settings(max_examples=examples(300))
@given(st.binary(max_size=400))
def test_any_bytes_are_requests_or_refused_and_nothing_else_happens(noise: bytes) -> None:
    for event in _read(noise, b"GET / HTTP/1.1\r\n", noise):
        assert isinstance(event, RequestHead | bytes | Refusal) or event is END
