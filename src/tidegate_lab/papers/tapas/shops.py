"""The bookshop, an ASGI application with the operations choose, add, remove, buy and confirm.

Every instance has its own SQLite database in a temporary file. So no shared database is the
bottleneck, and a cart exists only on the instance that created it (TAPAS §4).

An instance has a configured capacity: a concurrency and a service time per operation. Further
operations wait. The service time is a sleep, which takes no processor time. So four instances on
one core do four times as much as one, and two cores can simulate a cluster. With a service time of
0 an operation takes only its own processor time.

Two further paths are not part of the shop. `/well` answers health checks without waiting. After
`/pace/3` every operation takes three times as long.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

TARGET = "tidegate.lab.tapas.bookshop_app:app"
BOOKS = 1000
WELL_PATH = "/well"
PACE_PATH = "/pace/"
CART = "cart"

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ENVIRONMENT = "TIDEGATE_LAB_BOOKSHOP"
_TABLES = """
create table book (book integer primary key, title text not null, stock integer not null);
create table item (cart text not null, book integer not null, primary key (cart, book));
create table purchase (cart text primary key, books integer not null, confirmed integer not null);
"""


class ShopSetting(msgspec.Struct, frozen=True):
    """The capacity of one instance."""

    # Operations at the same time, and the seconds that each takes after its start.
    concurrency: int = 1000
    service_s: float = 0.0
    # The service time varies uniformly by this fraction in both directions.
    spread: float = 0.05

    @property
    def seconds_per_operation(self) -> float:
        """The time per operation of an instance that is never idle."""
        return self.service_s / self.concurrency

    def environment(self) -> dict[str, str]:
        """Return environment variables that pass the setting to another process."""
        return {_ENVIRONMENT: msgspec.json.encode(self).decode()}

    @classmethod
    def of_environment(cls) -> ShopSetting:
        stated = os.environ.get(_ENVIRONMENT)
        return cls() if stated is None else msgspec.json.decode(stated, type=cls)


class Database:
    """The books, carts and purchases of one instance, deleted when it ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-bookshop-")
        self._connection = sqlite3.connect(
            Path(self._folder.name) / "shop.sqlite", isolation_level=None, check_same_thread=False
        )
        # Without syncs, because the data need not survive a crash.
        self._connection.execute("pragma synchronous = off")
        self._connection.execute("pragma journal_mode = memory")
        self._connection.executescript(_TABLES)
        books = [(book, f"Volume {book}", 1_000_000) for book in range(BOOKS)]
        self._connection.execute("begin")
        self._connection.executemany("insert into book values (?, ?, ?)", books)
        self._connection.execute("commit")

    def close(self) -> None:
        self._connection.close()
        self._folder.cleanup()

    def do(self, operation: str, cart: str, book: int) -> str | None:
        """Do an operation and return the text of its answer, or None if it does not exist."""
        ask = self._connection.execute
        match operation:
            case "choose":
                found = ask("select title, stock from book where book = ?", (book,)).fetchone()
                return f"{found[0]}, {found[1]} left"
            case "add":
                ask("insert or ignore into item values (?, ?)", (cart, book))
                return "added"
            case "remove":
                ask("delete from item where cart = ? and book = ?", (cart, book))
                return "removed"
            case "buy":
                (count,) = ask("select count(*) from item where cart = ?", (cart,)).fetchone()
                ask("insert or replace into purchase values (?, ?, 0)", (cart, count))
                return f"{count} book(s)"
            case "confirm":
                ask("begin")
                ask(
                    "update book set stock = stock - 1 where book in "
                    "(select book from item where cart = ?)",
                    (cart,),
                )
                ask("update purchase set confirmed = 1 where cart = ?", (cart,))
                ask("delete from item where cart = ?", (cart,))
                ask("commit")
                return "confirmed"
        return None


class Bookshop:
    """One instance of the bookshop."""

    def __init__(self, setting: ShopSetting) -> None:
        self._setting = setting
        self._turns = asyncio.Semaphore(setting.concurrency)
        self._random = random.Random(7)
        self._database = Database()
        self._pace = 1.0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path: str = scope["path"]
        if path == WELL_PATH:
            await _answer(send, 200, "well")
            return
        if path.startswith(PACE_PATH):
            self._pace = float(path.removeprefix(PACE_PATH))
            await _answer(send, 200, f"× {self._pace:g}")
            return
        cart = _cookie(scope, CART)
        given = None if cart is not None else secrets.token_hex(8)
        book = int(parse_qs(scope["query_string"].decode()).get("book", ["0"])[0]) % BOOKS
        async with self._turns:
            if self._setting.service_s > 0.0:
                spread = self._random.uniform(-1.0, 1.0) * self._setting.spread
                await asyncio.sleep(self._setting.service_s * self._pace * (1.0 + spread))
            # On the event loop: it takes tens of microseconds, less than a thread would.
            said = self._database.do(path.removeprefix("/"), cart or given or "", book)
        if said is None:
            await _answer(send, 404, "choose, add, remove, buy or confirm")
        else:
            await _answer(send, 200, said, given)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                self._database.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _cookie(scope: Message, name: str) -> str | None:
    for field, value in scope["headers"]:
        if field == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, _, said = pair.strip().partition("=")
                if key == name:
                    return str(said)
    return None


async def _answer(send: Send, status: int, text: str, cart: str | None = None) -> None:
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    if cart is not None:
        headers.append((b"set-cookie", f"{CART}={cart}; Path=/; HttpOnly".encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
