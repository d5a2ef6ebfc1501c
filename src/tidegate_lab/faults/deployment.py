"""Deployments for fault runs: `tidegate up` in a temporary folder, and nodes that join a store.

`tidegate up` restarts its nodes and its own PostgreSQL when they die. No process restarts a node
that joined by itself (`tidegate node`). Process ids change with every kill, so they are looked up
at each call.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psutil
import psycopg

from tidegate.demo.evidence import stored_messages
from tidegate.demo.history import MessageKey
from tidegate.fleet.providers import MARK_VARIABLE
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate_lab.peers.servers import running, stop, temporary_folder

_ADDRESS = re.compile(r"tidegate://127\.0\.0\.1:\d+")
_ASK_AGAIN_S = 0.02
_READY_S = 60.0
_LEADER = """
select member_id, address from leader join member using (member_id)
where alive_until > clock_timestamp()
"""


@dataclass(frozen=True)
class Deployment:
    """A running `tidegate up`."""

    folder: Path
    up_pid: int
    # One per node, in the order in which `up` started them.
    addresses: list[str]
    # PostgreSQL servers passed to `up`, the catalogue first; empty means that `up` starts its own.
    servers: list[EmbeddedPostgres] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL that lists all nodes."""
        return joined_url(self.addresses)

    @property
    def store_url(self) -> str:
        """The URL of the embedded PostgreSQL, to read the store without a node."""
        return store_url(self.folder / "data")

    @property
    def catalogue_url(self) -> str:
        """The URL of the store that holds the tables of nodes and their leader."""
        return self.servers[0].url if self.servers else self.store_url

    @property
    def log_text(self) -> str:
        return _log_path(self.folder).read_text(errors="replace")

    def node_pid(self, address: str) -> int | None:
        """Return the id of the process of `up` that listens at `address`, or None."""
        port = int(address.rpartition(":")[2])
        for process in psutil.Process(self.up_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(
                    c.status == psutil.CONN_LISTEN and c.laddr.port == port
                    for c in process.net_connections("tcp")
                ):
                    return process.pid
        return None

    def leader(self) -> tuple[int, str] | None:
        """Return the id and address of the leader that the store names, or None without a leader.

        A killed node counts as alive until its lease ends.
        """
        with psycopg.connect(self.catalogue_url, connect_timeout=5) as connection:
            return connection.execute(_LEADER).fetchone()

    def member_pid(self, address: str) -> int | None:
        """Return the id of the node process of `up` or of a machine at `address`, or None.

        Machines outlive the process that started them, so they are not its children. A variable
        in their environment marks them.
        """
        port = int(address.rpartition(":")[2])
        listening = [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == port
        ]
        for pid in listening:
            # The pid is None for a process of another user.
            if pid is not None and self._is_ours(pid):
                return pid
        return None

    def _is_ours(self, pid: int) -> bool:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            mark = process.environ().get(MARK_VARIABLE, "")
            is_of_machine = mark.startswith(f"{self.folder}{os.sep}")
            return is_of_machine or self.up_pid in [one.pid for one in process.parents()]
        return False

    def postmaster_pid(self) -> int | None:
        """Return the process id of the embedded PostgreSQL's postmaster, or None."""
        return postmaster_pid(self.folder / "data")

    def stored(self) -> list[MessageKey]:
        """Return the keys of all messages that the store holds now, read with SQL."""
        urls = [server.url for server in self.servers] or [self.catalogue_url]
        return [key for url in urls for key in stored_messages(url)]


def joined_url(addresses: list[str]) -> str:
    return "tidegate://" + ",".join(address.removeprefix("tidegate://") for address in addresses)


def store_url(data: Path) -> str:
    """Return the URL of the embedded PostgreSQL in a data folder."""
    return f"postgresql://tidegate@/tidegate?host={quote(str(data / 'socket'), safe='')}&port=5432"


def postmaster_pid(data: Path) -> int | None:
    try:
        pid = int((data / "database" / "postmaster.pid").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if psutil.pid_exists(pid) else None


@contextlib.contextmanager
def deployed(
    *,
    nodes: int = 1,
    stores: int = 1,
    environment: Mapping[str, str] | None = None,
    keep_log: Path | None = None,
) -> Iterator[Deployment]:
    """Run `tidegate up` with empty stores until the block ends.

    With `stores` > 1, this process runs the PostgreSQL servers; otherwise `up` runs its own.
    """
    with temporary_folder("faults") as folder, contextlib.ExitStack() as stack:
        servers: list[EmbeddedPostgres] = []
        if stores > 1:
            folders = [folder / f"store-{number}" for number in range(stores)]
            servers = [stack.enter_context(EmbeddedPostgres(one)) for one in folders]
            urls = ",".join(server.url for server in servers)
            environment = {**(environment or {}), "TIDEGATE_STORE__URLS": urls}
        command = [
            *(sys.executable, "-m", "tidegate", "up"),
            *("--data", str(folder / "data"), "--port", "0", "--nodes", str(nodes)),
        ]
        log = _log_path(folder)

        def addresses() -> list[str]:
            return _ADDRESS.findall(log.read_text()) if log.exists() else []

        try:
            with running(
                command,
                folder=folder,
                is_ready=lambda: len(addresses()) >= nodes,
                environment={**os.environ, **(environment or {})},
            ) as process:
                yield Deployment(folder, process.pid, addresses()[:nodes], servers)
        finally:
            if keep_log is not None:
                keep_log.write_bytes(log.read_bytes())


def _log_path(folder: Path) -> Path:
    return folder / f"{Path(sys.executable).name}.out"


@dataclass(frozen=True)
class JoinedNode:
    """A node that joined a store by itself; no process restarts it."""

    process: subprocess.Popen[bytes]
    address: str

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def joined_node(
    store: str, folder: Path, *, port: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[JoinedNode]:
    """Run `tidegate node` on a store until the block ends or the node is killed."""
    number = len(list(folder.glob("node-*.out")))
    output, log = folder / f"node-{number}.out", folder / f"node-{number}.log"
    with output.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "node", "--port", str(port)],
            # Without TELEMETRY__LAKE the node would record in the current folder.
            env={
                **os.environ,
                "TIDEGATE_STORE__URL": store,
                "TIDEGATE_TELEMETRY__LAKE": str(folder / "lake"),
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _READY_S
        while not (found := _ADDRESS.search(output.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a node did not start:\n{log.read_text()[-2000:]}")
            time.sleep(_ASK_AGAIN_S)
        yield JoinedNode(process, found.group())
    finally:
        stop(process)


# Kill processes of a deployment by their process ids.


Kind = Literal["node", "leader", "postgres", "backends"]


def kill_process(pid: int) -> None:
    """Kill a process with SIGKILL: no handler runs and no buffer is flushed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_postgres(postmaster: int) -> None:
    """Kill the postmaster and all its backends with SIGKILL, so that their memory is lost."""
    try:
        parent = psutil.Process(postmaster)
        children = parent.children(recursive=True)
        # Suspend all first, so that no backend completes work while the others are killed.
        for process in (parent, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in (parent, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    except psutil.NoSuchProcess:
        return


def terminate_backends(store_url: str) -> int:
    """End all other connections of this user to PostgreSQL and return their number."""
    with psycopg.connect(store_url, autocommit=True, connect_timeout=5) as connection:
        rows = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = current_user and pid <> pg_backend_pid()"
        ).fetchall()
    return len(rows)


class FaultInjector:
    """Kills processes of one deployment, one at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._turn = 0
        # Node ids of killed leaders. The store names them as leaders until their leases end. By
        # then another node may listen at the same address and must not be killed instead.
        self.leaders_killed: list[int] = []

    def strike(self, kind: Kind, *, timeout_s: float = 60.0) -> str:
        """Kill a process of this kind as soon as one runs, and return a description of it.

        Nodes are killed in turn. "backends" ends the connections of PostgreSQL instead.
        `TimeoutError` means that no such process ran for `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (victim := self._try(kind)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"for {timeout_s:.0f} s there was no {kind} to kill")
            time.sleep(_ASK_AGAIN_S)
        return victim

    def _try(self, kind: Kind) -> str | None:
        if kind == "node":
            addresses = self._deployment.addresses
            address = addresses[self._turn % len(addresses)]
            pid = self._deployment.node_pid(address)
            if pid is None:
                return None
            self._turn += 1
            kill_process(pid)
            return f"node {address} ({pid})"
        if kind == "leader":
            return self._try_leader()
        if kind == "postgres":
            postmaster = self._deployment.postmaster_pid()
            if postmaster is None:
                return None
            kill_postgres(postmaster)
            return f"PostgreSQL ({postmaster})"
        return self._try_backends()

    def _try_leader(self) -> str | None:
        """Kill the leader that the store names, but no leader twice."""
        try:
            leader = self._deployment.leader()
        except psycopg.Error:
            return None
        if leader is None or leader[0] in self.leaders_killed:
            return None
        member_id, address = leader
        pid = self._deployment.member_pid(address)
        if pid is None:
            return None
        kill_process(pid)
        self.leaders_killed.append(member_id)
        return f"leader {member_id} at {address} ({pid})"

    def _try_backends(self) -> str | None:
        try:
            count = terminate_backends(self._deployment.store_url)
        except psycopg.Error:
            return None
        return f"{count} connections to PostgreSQL" if count else None
