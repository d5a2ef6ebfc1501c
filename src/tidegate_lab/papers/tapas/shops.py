"""Instances of the bookshop as processes that can be slowed, stopped and killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tidegate.core.services import Engine, Instance, InstanceState
from tidegate.storage.embedded import running_url
from tidegate.storage.postgres.store import PostgresStore
from tidegate_lab.peers.servers import (
    ServerFailed,
    answers,
    free_loopback_ports,
    running,
    temporary_folder,
)

# Instances that start at the same time, because each uses a core while it starts.
_STARTING_MAX = 4


class ShopInstance:
    """A running instance of the bookshop on a loopback port."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.port = port
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def pace(self, times: float) -> None:
        """Multiply the service time of the instance by `times` from now on."""
        if not answers(self.port, _get(f"{PACE_PATH}{times:g}"), b"200 OK"):
            raise ServerFailed(
                f"{self.name} of the bookshop does not answer: it has no pace to change"
            )

    def kill(self) -> None:
        # Without a wait: until the process is reaped at the end, its id cannot be reused.
        self._process.kill()

    def hang(self) -> None:
        """Stop the process: it keeps its connections, accepts new ones, and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)


@contextlib.contextmanager
def shops_running(setting: ShopSetting, count: int) -> Iterator[list[ShopInstance]]:
    """Run `count` instances until the block ends; all of them answer when it begins."""
    with temporary_folder("bookshop") as folder, contextlib.ExitStack() as stack:
        starting = [
            _shop_running(f"i{number}", port, setting, folder)
            for number, port in enumerate(free_loopback_ports(count), 1)
        ]
        yield _all_entered(starting, stack)


def _all_entered(
    starting: Sequence[contextlib.AbstractContextManager[ShopInstance]], stack: contextlib.ExitStack
) -> list[ShopInstance]:
    """Start the instances in parallel, because each start waits for an answer."""
    with ThreadPoolExecutor(max_workers=_STARTING_MAX) as threads:
        entering = [threads.submit(one.__enter__) for one in starting]
    for one, entered in zip(starting, entering, strict=True):
        if entered.exception() is None:
            stack.push(one)
    return [entered.result() for entered in entering]


@contextlib.contextmanager
def _shop_running(
    name: str, port: int, setting: ShopSetting, folder: Path
) -> Iterator[ShopInstance]:
    own_folder = folder / name
    own_folder.mkdir()
    command = [sys.executable, "-m", "uvicorn", TARGET, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    command += ["--no-access-log", "--log-level", "warning"]
    # The database is in the temporary folder, so that it is deleted even after a kill.
    environment = {**os.environ, **setting.environment(), "TMPDIR": str(own_folder)}
    with running(
        command,
        folder=own_folder,
        environment=environment,
        is_ready=lambda: answers(port, _get(WELL_PATH), b"200 OK"),
    ) as process:
        shop = ShopInstance(name, port, process)
        try:
            yield shop
        finally:
            # Kill, because a stopped process does not handle SIGTERM.
            shop.kill()


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".encode()


# The bookshop, an ASGI application with the operations choose, add, remove, buy and confirm.
#
# Every instance has its own SQLite database in a temporary file. So no shared database is the
# bottleneck, and a cart exists only on the instance that created it (TAPAS §4).
#
# An instance has a configured capacity: a concurrency and a service time per operation. Further
# operations wait. The service time is a sleep, which takes no processor time. So four instances on
# one core do four times as much as one, and two cores can simulate a cluster. With a service time
# of 0 an operation takes only its own processor time.
#
# Two further paths are not part of the shop. `/well` answers health checks without waiting. After
# `/pace/3` every operation takes three times as long.


TARGET = "tidegate_lab.papers.tapas.bookshop_app:app"
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


# The bookshop under `tidegate host`, started with the command line as a user would.
#
# A thread counts the instances in the store, four times a second. Paid instances are all that have
# a slot, also spare and draining ones; serving instances take requests.


SERVICE = "shop"
_LOOK_S = 0.25
_READY_TIMEOUT_S = 120.0
_ADDRESS = re.compile(rb"^http://127\.0\.0\.1:(\d+)\s*$", re.MULTILINE)


class HostedPlan(msgspec.Struct, frozen=True):
    """The options of `tidegate host`."""

    shop: ShopSetting
    agreement: str
    spares: int = 0
    engine: Engine = Engine.GATEWAY
    balancing: str = "better-of-two"
    sticky: bool = False


class InstanceCount(msgspec.Struct, frozen=True, array_like=True):
    """The number of instances at one time of the monotonic clock."""

    at: float
    paid: int
    serving: int


class HostedShop:
    """A hosted bookshop: its door, and the counts of its instances over time."""

    def __init__(self, port: int, data: Path) -> None:
        self.port = port
        self.crews: list[InstanceCount] = []
        self._data = data
        self._over = threading.Event()
        self._watch = threading.Thread(target=lambda: asyncio.run(self._look()), daemon=True)

    def watch(self) -> None:
        self._watch.start()

    def wait_serving(self, instances: int) -> None:
        """Wait until `instances` instances serve; raise `ServerFailed` after a timeout."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self.crews or self.crews[-1].serving < instances:
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{instances} instance(s) of the bookshop do not serve after "
                    f"{_READY_TIMEOUT_S:g} s"
                )
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self._over.set()
        self._watch.join()

    async def _look(self) -> None:
        url = running_url(self._data)
        assert url is not None, "the store is there before the door is"
        store = PostgresStore(url)
        await store.open()
        try:
            while not self._over.is_set():
                crew = await store.instances(SERVICE)
                self.crews.append(_counted(crew))
                await asyncio.sleep(_LOOK_S)
        finally:
            await store.close()


def _counted(instances: list[Instance]) -> InstanceCount:
    paid = [
        one
        for one in instances
        if one.machine_id is not None and one.state is not InstanceState.FAILED
    ]
    serving = [one for one in paid if one.state is InstanceState.READY and not one.is_spare]
    return InstanceCount(time.monotonic(), len(paid), len(serving))


@contextlib.contextmanager
def hosted_shop(plan: HostedPlan) -> Iterator[HostedShop]:
    """Run `tidegate host` until the block ends; the block begins when it prints its address."""
    (port,) = free_loopback_ports(1)
    with temporary_folder("hosted") as folder:
        # If this process is root, PostgreSQL runs under another account, which must reach the
        # folder.
        folder.chmod(0o755)
        file = folder / "shop.toml"
        file.write_text(plan.agreement)
        command = [sys.executable, "-m", "tidegate", "host", TARGET, "--agreement", str(file)]
        command += ["--port", str(port), "--data", str(folder / "data")]
        command += ["--concurrency", str(plan.shop.concurrency), "--spares", str(plan.spares)]
        command += ["--engine", plan.engine, "--balancing", plan.balancing]
        command += ["--health-path", WELL_PATH]
        if plan.sticky:
            command.append("--sticky")
        scratch = folder / "scratch"
        scratch.mkdir()
        # The databases are in the temporary folder, so that they are deleted even after a kill.
        for name, value in {**plan.shop.environment(), "TMPDIR": str(scratch)}.items():
            command += ["--env", f"{name}={value}"]
        output = folder / f"{Path(sys.executable).name}.out"

        def is_ready() -> bool:
            return output.exists() and _ADDRESS.search(output.read_bytes()) is not None

        with running(
            command,
            folder=folder,
            is_ready=is_ready,
            environment=_environment(),
            ready_timeout_s=_READY_TIMEOUT_S,
        ):
            shop = HostedShop(port, folder / "data")
            shop.watch()
            try:
                yield shop
            finally:
                shop.stop()


def _environment() -> dict[str, str]:
    """Return the environment without settings of another Tidegate."""
    return {name: text for name, text in os.environ.items() if not name.startswith("TIDEGATE_")}


# The sizes of the TAPAS experiments: those of the report if two cores allow it, and quick ones.


class PairCase(msgspec.Struct, frozen=True):
    """A comparison in pairs of plain HAProxy and Tidegate, for several numbers of instances."""

    clients: int
    instances: Sequence[int]
    # The service time of an operation; 0 means only its processor time.
    service_s: float
    # True if the bars of the issue apply to this case.
    is_barred: bool = True

    @property
    def title(self) -> str:
        pace = f"{self.service_s * 1000:g} ms each" if self.service_s else "never idle"
        fewest, most = min(self.instances), max(self.instances)
        instances = str(most) if fewest == most else f"{fewest} to {most}"
        return f"{self.clients} clients, {instances} instances, {pace}"


# The report's operations took hundreds of milliseconds. With 20 ms, the share of a door is larger.
# The last case has no service time and shows the highest relative cost of a door.
PAIR_CASES = (
    PairCase(15, (1, 2, 3, 4), 0.02),
    PairCase(50, (1, 2, 3, 4), 0.02),
    PairCase(15, (3,), 0.0, is_barred=False),
)


class PairLength(msgspec.Struct, frozen=True):
    """The number of pairs of a case, for all numbers of instances together, and their length."""

    pairs: int = 12
    seconds: float = 5.0
    # Seconds before the measurement that do not count.
    warm_s: float = 1.0


class OverheadPlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `overhead`, which measures doors at full speed."""

    shop: ShopSetting = ShopSetting()
    clients: Sequence[int] = (15, 50)
    instances: Sequence[int] = (1, 2, 3, 4)
    # Seconds of each run that count, and seconds before them that do not.
    seconds: float = 4.0
    warm_s: float = 1.0
    paired: Sequence[PairCase] = PAIR_CASES
    length: PairLength = PairLength()


class WholePlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `whole`: all of `tidegate host` beside plain HAProxy."""

    shop: ShopSetting = ShopSetting()
    paired: Sequence[PairCase] = tuple(case for case in PAIR_CASES if case.is_barred)
    length: PairLength = PairLength()


class Case(msgspec.Struct, frozen=True):
    """A number of clients and of first instances, with the report's figure and result."""

    start: int
    clients: int
    figure: str
    # The report's result: response time of the static server over that of TAPAS, minus 1.
    paper_slower: float | None = None
    spares: int = 0

    @property
    def name(self) -> str:
        spares = f", {self.spares} spares" if self.spares else ""
        return f"{self.clients} clients from {self.start}{spares}"


CASES = (
    Case(1, 10, "figure 21", 0.0),
    Case(1, 20, "figure 21", 1.24),
    Case(1, 30, "figure 21", 3.62),
    Case(2, 10, "figure 22", 0.0),
    Case(2, 20, "figure 22", 0.0),
    # The report's response times are 39, 48 and 50 % lower than those of the static server.
    Case(2, 30, "figure 22", 0.64),
    Case(2, 40, "figure 22", 0.92),
    Case(2, 50, "figure 22", 1.0),
    Case(1, 50, "figures 17 and 18", 0.18, spares=2),
)


class AgreementPlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `agreement`, whose clients arrive one by one."""

    # One instance answers 20 clients in 1.35 s and 10 clients in 0.68 s, as in the report.
    shop: ShopSetting = ShopSetting(concurrency=4, service_s=0.27)
    cases: Sequence[Case] = CASES
    replicas_max: int = 4
    # The time between two arrivals, and the time for which all clients stay. In it the last client
    # completes about ten sessions of ten operations.
    ramp_s: float = 1.5
    hold_s: float = 60.0
    # The door of our instances.
    engine: Engine = Engine.GATEWAY


POLICIES = (
    *("random", "round-robin", "first-available", "first-available-shared", "workload"),
    *("workload-drawn", "least-outstanding", "better-of-two"),
)


class SkewPlan(msgspec.Struct, frozen=True):
    """The sizes of the experiment `skew`, in which one of four instances has a fault."""

    # With 24 clients each instance has six, a little more than its concurrency.
    shop: ShopSetting = ShopSetting(concurrency=4, service_s=0.1)
    instances: int = 4
    clients: int = 24
    policies: Sequence[str] = POLICIES
    # Seconds before and after the fault; multiples of a window.
    calm_s: float = 10.0
    after_s: float = 20.0
    answer_timeout_s: float = 5.0
    client_timeout_s: float = 10.0


class TapasPlan(msgspec.Struct, frozen=True):
    """The sizes of all experiments."""

    overhead: OverheadPlan = OverheadPlan()
    whole: WholePlan = WholePlan()
    keeping: AgreementPlan = AgreementPlan()
    skew: SkewPlan = SkewPlan()

    @classmethod
    def quick(cls) -> TapasPlan:
        paired = (PairCase(15, (1, 2), 0.02),)
        return cls(
            overhead=OverheadPlan(
                clients=(15,),
                instances=(2,),
                seconds=0.6,
                warm_s=0.2,
                paired=paired,
                length=PairLength(pairs=4, seconds=0.6, warm_s=0.2),
            ),
            whole=WholePlan(paired=paired, length=PairLength(pairs=2, seconds=0.6, warm_s=0.2)),
            keeping=AgreementPlan(cases=(Case(1, 20, "figure 21", 1.24),), ramp_s=1.0, hold_s=5.0),
            skew=SkewPlan(policies=("workload", "better-of-two"), calm_s=5.0, after_s=10.0),
        )

    def of_pairs(self, pairs: int) -> TapasPlan:
        """Return this plan with another number of pairs for each case."""
        replace = msgspec.structs.replace
        overhead, whole = (
            replace(part, length=replace(part.length, pairs=pairs))
            for part in (self.overhead, self.whole)
        )
        return replace(self, overhead=overhead, whole=whole)
