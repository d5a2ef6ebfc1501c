"""What nodes stand on in tests: one of three stores, and ways to make it forget a node."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psycopg
from free_ports import free_ports
from missing_peer import skip_or_fail
from waiting import LIMIT_S, eventually

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.store import Clock, Store
from tidegate.storage.memory import MemoryStore
from tidegate.storage.postgres.store import PostgresStore, migration_files
from tidegate.storage.sharded import ShardedStore

StartNode = Callable[..., Awaitable[Node]]
Connect = Callable[..., Awaitable[Client]]

SQL_STORES = [
    "embedded",
    "external",
]
STORES = ["memory", *SQL_STORES]
SEVERAL_STORES = ["several"]

# As it was when it had been made, but for the rows of defaults that migrations leave.
EMPTIED = b"""
do $$
declare
    one regclass;
begin
    for one in select c.oid from pg_class c
        where c.relnamespace = current_schema::regnamespace and c.relkind = 'r'
        and c.relname <> 'migration'
    loop
        -- What refers to it goes with it.
        execute format('delete from %s', one);
    end loop;
    perform setval(s.seqrelid, s.seqstart, false) from pg_sequence s join pg_class c
        on c.oid = s.seqrelid where c.relnamespace = current_schema::regnamespace;
end $$
"""
SEED = re.compile(r"^insert into \w+ default values;", re.MULTILINE)


class TurnedClock(Clock):
    """A clock that tests turn; it also runs by itself, so nothing waits for ever."""

    def __init__(self) -> None:
        self.turned_s = self.jumped_s = 0.0
        super().__init__(
            lambda: time.time() + self.turned_s + self.jumped_s,
            lambda: time.monotonic() + self.turned_s,
        )

    def turn(self, seconds: float) -> None:
        self.turned_s += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock alone, as when somebody sets it."""
        self.jumped_s += seconds


class StoppedClock(Clock):
    """Time stands still until the test turns it."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now, lambda: self.now)

    def turn(self, seconds: float) -> None:
        self.now += seconds


class Backing:
    """A store's contents; every node gets a store object onto them."""

    name = ""

    def store(self) -> Store:
        raise NotImplementedError

    async def declare_dead(self, member_id: int) -> None:
        """As if the member's lease had run out just now."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Nobody needs it any more."""


class MemoryBacking(Backing):
    """All nodes share one object."""

    name = "memory"

    def __init__(self) -> None:
        self._store = MemoryStore()

    def store(self) -> Store:
        return self._store

    async def declare_dead(self, member_id: int) -> None:
        await self._store.renew(member_id, 0.0)


class PostgresBacking(Backing):
    """A schema of its own in a running PostgreSQL.

    Making one takes as long as most tests do, so those that were given back are emptied and used
    again, without anybody who may still be connected.
    """

    _made = 0
    # By server.
    _empty: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, name: str, server_url: str) -> None:
        self.name = name
        self._server_url = server_url
        empty = PostgresBacking._empty.get(server_url)
        self.schema = empty.pop() if empty else self._made_schema()
        # The application's name tells whose connections are whose.
        options = f"options={quote(f'-csearch_path={self.schema}')}&application_name={self.schema}"
        self.url = f"{server_url}{'&' if '?' in server_url else '?'}{options}"

    def _made_schema(self) -> str:
        PostgresBacking._made += 1
        schema = f"test_{PostgresBacking._made}"
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(f"create schema {schema}".encode())
        return schema

    def give_back(self) -> None:
        with psycopg.connect(self._server_url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where application_name = %s",
                (self.schema,),
            )
            connection.execute(f"set search_path to {self.schema}".encode())
            # One that was never opened, or that a test has made of another version, stays away.
            found = connection.execute("select to_regclass('migration')").fetchone()
            if found is None or found[0] is None:
                return
            applied = connection.execute("select number, name from migration order by number")
            if applied.fetchall() != [(number, name) for number, name, _ in migration_files()]:
                return
            connection.execute(EMPTIED)
            for _, _, text in migration_files():
                for seed in SEED.findall(text):
                    connection.execute(seed.encode())
        PostgresBacking._empty.setdefault(self._server_url, []).append(self.schema)

    def store(self) -> Store:
        return PostgresStore(self.url)

    async def declare_dead(self, member_id: int) -> None:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            await connection.execute(
                "update member set alive_until = clock_timestamp() where member_id = %s",
                (member_id,),
            )


class SeveralBacking(Backing):
    """Several schemas, each of them a store."""

    def __init__(self, name: str, server_url: str, count: int = 3) -> None:
        self.name = name
        self.stores = [PostgresBacking(name, server_url) for _ in range(count)]
        self.urls = [store.url for store in self.stores]

    def store(self) -> ShardedStore:
        return ShardedStore(self.urls)

    async def declare_dead(self, member_id: int) -> None:
        for store in self.stores:
            await store.declare_dead(member_id)

    def give_back(self) -> None:
        for store in self.stores:
            store.give_back()


class ExternalPostgres:
    """Debian's PostgreSQL, started fresh in a temporary folder on a free port."""

    def __init__(self) -> None:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version)
        if not folders:
            reason = "no external PostgreSQL on this machine: apt-get install postgresql"
            skip_or_fail(reason)
        self._binaries = folders[-1]
        self._account = _account()
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-external-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        user_id, group_id = self._account
        os.chown(self._folder, user_id, group_id)
        data = self._folder / "data"
        subprocess.run(
            [self._binaries / "initdb", "-D", data, "-U", "tidegate", "--auth=trust", "-N"],
            check=True,
            capture_output=True,
            cwd=self._folder,
            user=user_id,
            group=group_id,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
        port = free_ports()
        command: list[str | Path] = [self._binaries / "postgres", "-D", data, "-p", str(port), "-F"]
        for setting in ("listen_addresses=127.0.0.1", "unix_socket_directories="):
            command += ["-c", setting]
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "log").open("wb"),
            preexec_fn=_die_with_us,
            user=user_id,
            group=group_id,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
        self.url = f"postgresql://tidegate@127.0.0.1:{port}/postgres"
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        process = self._process

        def answers() -> bool:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                log = (self._folder / "log").read_text(errors="replace")
                assert process.poll() is None, log
                return False
            return True

        eventually(answers, "PostgreSQL accepts connections")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(LIMIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)


def _die_with_us() -> None:
    """A killed pytest stops nothing: the kernel does it, with PostgreSQL's fast shutdown."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)


def _version(binaries: Path) -> int:
    return int(binaries.parent.name) if binaries.parent.name.isdigit() else 0


def _account() -> tuple[int, int]:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return skip_or_fail("no account to run PostgreSQL under: apt-get install postgresql")


async def crash(node: Node) -> None:
    """End a node as a kill would: no goodbye to anybody, nothing written any more."""
    await node.abort()
