"""What somebody tries who means no good: guesses at once, held connections, other sites."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from people import PASSWORD, add_user
from serving_console import Console, console_of

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.console import actions, application, security
from tidegate.console import sessions as bounds

_PATIENCE_S = 60.0


async def test_guesses_that_come_at_once_are_no_more_than_those_that_come_one_by_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "GUESSES_MAX", 3)
    await add_user(node, "ann", admin="*")
    async with console_of(node) as console:

        async def guess(number: int) -> int:
            wish = {"user": "ann", "password": f"guess {number}"}
            return (await console.http.post("/api/session", json=wish)).status_code

        statuses = await asyncio.gather(*(guess(number) for number in range(40)))

    assert set(statuses) == {401, 429}
    # Those that were being checked when the last one that may be wrong was.
    assert statuses.count(401) < 3 + bounds._LOGINS_AT_A_TIME


async def test_connection_without_a_request_is_closed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "REQUEST_S_MAX", 0.2)
    async with console_of(node) as console:
        for begun in (b"", b"GET / HTTP/1.1\r\nHost: x", _request(console) + b"GET /"):
            reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
            writer.write(begun)
            async with asyncio.timeout(_PATIENCE_S):
                await reader.read()  # to its end
            writer.close()
        # Who asks is not to be taken for one of them on a busy machine.
        monkeypatch.setattr(application, "REQUEST_S_MAX", 20.0)
        assert (await console.http.get("/api/healthz")).status_code == 200


def _request(console: Console) -> bytes:
    return f"GET /api/healthz HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\n\r\n".encode()


async def test_a_body_that_does_not_end_is_broken_off(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "BODY_S_MAX", 0.2)
    head = f"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nContent-Length: 99\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n{")
    async with asyncio.timeout(_PATIENCE_S):
        answer = await reader.readline()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("path", ["/api/live", "/api/overview", "/api/session", "/api/results"])
async def test_an_image_of_another_site_has_nothing_looked_at(console: Console, path: str) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}

    answer = await console.http.get(path, headers=foreign)

    assert (answer.status_code, answer.json()["error"]) == (403, "FOREIGN_ORIGIN")


async def test_a_link_within_a_sandboxed_result_leads_on(node: Node, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<title>Other</title>")
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with console_of(node, results=(tmp_path,)) as console:
        page = await console.http.get("/api/results/0/other.html", headers=linked)
        assert page.status_code == 200
        # However it is spelt, what is served of it is in the sandbox.
        for path in (b"//api/results/0/other.html", b"/api//results//0/other.html"):
            spelt = await console.http.get(httpx.URL(console.address, raw_path=path))
            is_served = spelt.status_code == 200
            assert not is_served or spelt.headers["content-security-policy"].startswith("sandbox")
        (tmp_path / "other.html").unlink()
        assert await console.json("/results") == []


@pytest.mark.parametrize("path", ["//api/queues", "/api//queues", "/%61pi/queues"])
async def test_another_spelling_of_a_path_is_no_way_around_the_doorkeeper(
    console: Console, path: str
) -> None:
    token = (await console.json("/session"))["token"]
    address = httpx.URL(console.address, raw_path=path.encode())
    headers = {"origin": "http://evil.example", "x-tidegate-token": token}

    answer = await console.http.post(address, json={"name": "orders"}, headers=headers)

    assert answer.status_code in (403, 404, 405), answer.text
    assert (await console.json("/overview"))["services"] == []


@pytest.mark.parametrize("number", ["9" * 5000, "²", "-1", "00", " 0"])
async def test_a_folder_of_results_that_is_none_is_not_there(node: Node, number: str) -> None:
    async with console_of(node, results=(Path(__file__).parent,)) as console:
        answer = await console.http.get(f"/api/results/{number}/x.html")

    assert answer.status_code == 404


async def test_large_messages_are_searched_some_megabytes_at_a_time(
    console: Console, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "_SEARCHED_BYTES_MAX", 3_000_000)
    monkeypatch.setattr(actions, "_LOT_BYTES", 1_000_000)
    await mq.create_queue("orders")
    for number in range(20):
        await mq.put("orders", f"message {number};".encode() + bytes(b"x" * 500_000))

    found, after, pages = [], 0, 0
    while after is not None:
        page = await console.json("/queues/orders/messages", filter="message 1", after=after)
        found += [one["text"].partition(";")[0] for one in page["messages"]]
        after, pages = page["next_after"], pages + 1

    assert found == ["message 1", *(f"message {number}" for number in range(10, 20))]
    assert pages > 2


async def test_a_session_is_of_one_user_whatever_another_sends(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    await add_user(node, "eve", read="*")
    async with console_of(node) as console, console.browser() as browser:
        chosen = f"tidegate_session_{console.port}=chosen-by-eve"
        login = {"user": "ann", "password": PASSWORD}
        answer = await browser.post("/api/session", json=login, headers={"cookie": chosen})
        # A cookie that somebody has planted is not the one that is good afterwards.
        assert "chosen-by-eve" not in answer.headers["set-cookie"]
        planted = await console.http.get("/api/session", headers={"cookie": chosen})
        assert planted.status_code == 401
        # Who changes something is who has logged in, not who a header says.
        token = answer.json()["token"]
        forged = {"x-tidegate-token": token, "x-forwarded-user": "root", "remote-user": "root"}
        assert (
            await browser.post("/api/queues", json={"name": "a"}, headers=forged)
        ).status_code == 204
        (deed, *_) = (await browser.get("/api/deeds")).json()
        assert deed["user"] == "ann"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "10.0.0.7"])
@pytest.mark.parametrize("names", [[], ["queues.example.org"]])
def test_the_address_that_is_printed_is_one_that_is_let_in(host: str, names: list[str]) -> None:
    shown = security.url_host(host, names)

    assert f"{shown}:8911" in security.allowed_hosts(host, 8911, names, tls=True)
    # Neither of these is the name of anything.
    assert shown not in ("0.0.0.0", "[::]")


@pytest.mark.parametrize(
    "host",
    ["localhost.:8911", "127.0.0.1.:8911", "[::ffff:127.0.0.1]:8911", "127.1:8911"],
)
def test_no_other_spelling_of_a_host_is_let_in(host: str) -> None:
    assert host not in security.allowed_hosts("127.0.0.1", 8911, [], tls=False)
