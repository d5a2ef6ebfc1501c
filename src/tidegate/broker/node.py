"""The node: one broker process, its parts, and how it starts and stops.

Theory of operation

A node accepts connections, owns queues under leases, and serves every queue of the cluster. A
request about one of its own queues goes through these objects:

    Session -> Replica -> storage.writer -> store

A request about a queue of another node goes from the session through a `Relay` to that node.

`Node` is the composition root. It creates the parts and passes itself to them, and it owns the
tasks that run as long as the node:

- `NodeLease.renew_forever` joins the membership table and renews the node's lease.
- `_tick_forever` runs every 0.25 s. It expires message leases and messages, and resumes sessions
  that were paused for back-pressure. Once a second it also updates rates and closes silent
  sessions. Once a minute it removes old producers, dedup ids and lost subscriptions.
- `_watch_users_forever` reads changed users every second.
- `LogicalQueues.watch_forever` follows the topologies of logical queues.

Invariants:

- A replica is in `replicas` only after the node has claimed its queue and loaded it. Its epoch
  fences every write: the store refuses a write with an old epoch.
- A node delivers messages only until its lease ends. See `NodeLease.may_deliver`.
- The node listens on a non-loopback address only with TLS and users.

Start: open the store, bind the socket, check TLS and users, accept connections, then join. If any
step before the join fails, `start` closes the store and raises.

Stop: refuse new connections and new puts, write what was accepted, release the queues by leaving,
close the sessions, and end the tasks. `stop` waits at most `drain_s` for the writes. `abort` skips
all of this, as a kill would. Another node then claims the queues after the lease has expired.

Failures: when the store does not answer, the parts retry and the node stays up. When the store
refuses an epoch, the node drops that replica. When the node loses its lease, it drops all its
replicas and joins again under a new member id.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tidegate.broker.access import NODE_USER, Accounts, QueueNames, is_loopback
from tidegate.broker.dead_letters import DeadLetterMover
from tidegate.broker.listener import ConnectionSlots, Sessions, TlsListener
from tidegate.broker.ownership import NodeLease, Ownership
from tidegate.broker.recording import NodeRecorder
from tidegate.broker.replica import Replica
from tidegate.broker.replication import LogicalQueues
from tidegate.broker.session import Session
from tidegate.broker.stats import NodeStatsCollector
from tidegate.broker.transactions import Publishing, QueueColocation, Topics, Transactions
from tidegate.broker.transfer import SegmentTransfer
from tidegate.client.address import Credentials, parse_address, verifying_context
from tidegate.client.client import Client
from tidegate.client.connection import Response
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueueInfo
from tidegate.core.runtime import NodeLimits, cancel_and_wait
from tidegate.core.segment import Budget
from tidegate.core.store import Clock, Store
from tidegate.protocol.cluster import SetOwner
from tidegate.protocol.packet import Packet, Request
from tidegate.storage.writer import Writers
from tidegate.telemetry.meters import PhaseMeters
from tidegate.telemetry.recorder import Recorder
from tidegate.telemetry.stats import NodeStats

log = logging.getLogger(__name__)

ALL_ADDRESSES = ("0.0.0.0", "::", "")
_TICK_S = 0.25
_TICKS_PER_S = 4
# How often the node checks whether users have changed.
_USERS_S = 1.0


class Node:
    """A node: one broker process that listens, owns queues and answers for all queues."""

    def __init__(
        self,
        store: Store,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        # Fall back to a free port if `port` is in use. Set only if the user did not choose the
        # port.
        or_free: bool = False,
        advertise: str | None = None,
        name: str | None = None,
        limits: NodeLimits | None = None,
        clock: Clock | None = None,
        tls: NodeTls | None = None,
        login_always: bool = False,
        recorder: Recorder | None = None,
        machine_id: int | None = None,
    ) -> None:
        self.store = store
        # The machine that the node runs on; None: the node belongs to no machine.
        self.machine_id = machine_id
        self.limits = limits or NodeLimits()
        self.clock = clock or Clock()
        self.name = name or ""
        self.budget = Budget(self.limits.memory_bytes)
        self.stats = NodeStatsCollector(self)
        self.membership = NodeLease(self)
        self.sessions = Sessions(self)
        self.ownership = Ownership(self)
        self.replicas = self.ownership.replicas
        self.phases = PhaseMeters()
        self.packets_in = 0
        self.packets_out = 0
        meeting = QueueColocation(self)
        self.publishing = Publishing(self, meeting)
        self.transactions = Transactions(self, meeting)
        self.topics = Topics(self)
        self.dead_letters = DeadLetterMover(self)
        self.aliases = LogicalQueues(self)
        self.exchange = SegmentTransfer(self)
        self.tls = tls
        self.accounts = Accounts(
            store, login_always=login_always, on_change=self.sessions.users_changed
        )
        self.recording = None if recorder is None else NodeRecorder(self, recorder)
        self.admission = ConnectionSlots(self.limits)
        self.names = QueueNames(store, self.replicas)
        self.address = ""
        # Where the HTTP pages (metrics, health) are served; empty if they are not.
        self.metrics_address = ""
        self._host = host
        # The name under which other nodes reach this one. The listening address of a node that
        # listens on all addresses cannot be used for that.
        self._reached_as = advertise or (socket.gethostname() if host in ALL_ADDRESSES else host)
        self._port = port
        self._or_free = or_free
        self._writers = Writers(
            store,
            self.limits.writers,
            on_commit=self.stats.count_commit,
            on_free=self.sessions.resume_reading,
            linger_s=self.limits.settle_linger_s,
        )
        self._is_serving = False
        self._server: asyncio.Server | TlsListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.node_clients = NodeClients(self)
        self.stopping = False

    @property
    def member_id(self) -> int:
        """The node's number in the membership table; changes after the node was declared dead."""
        return self.membership.member_id

    # Lifecycle

    async def start(self) -> None:
        await self.store.open()
        try:
            await self.accounts.open()
            self._server = await self._bound()
            self._check_exposure(self._server)
            await self._server.start_serving()
        except OSError as failure:
            await self.store.close()
            raise Unavailable(
                f"cannot listen on {self._host}:{self._port}: {failure.strerror or failure}"
            ) from None
        except TidegateError:
            if self._server is not None:
                self._server.close()
            await self.store.close()
            raise
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._reached_as}]" if ":" in self._reached_as else self._reached_as
        self.address = f"{'tidegate' if self.tls is None else 'tidegates'}://{host}:{port}"
        # Named only after the port is known: nodes that bind any free port must not share a name.
        self.name = self.name or f"{socket.gethostname()}-{port}"
        self.stats.start()
        await self.membership.join()
        self._is_serving = True
        for work in (
            self.membership.renew_forever(),
            self._tick_forever(),
            self._watch_users_forever(),
            self.aliases.watch_forever(),
        ):
            self._start(work)
        if self.recording is not None:
            self.recording.start()
            self._start(self.recording.run())

    async def _bound(self) -> asyncio.Server | TlsListener:
        try:
            return await self._bound_to(self._port)
        except OSError as failure:
            if not self._or_free or failure.errno != errno.EADDRINUSE:
                raise
            log.warning("port %d is taken: on a free one then", self._port)
            return await self._bound_to(0)

    async def _bound_to(self, port: int) -> asyncio.Server | TlsListener:
        if self.tls is not None:
            return await TlsListener.bind(self, self.tls.accepting, self._host, port)
        return await asyncio.get_running_loop().create_server(
            lambda: Session(self), self._host, port, backlog=1024, start_serving=False
        )

    def tls_to(self, address: str) -> ssl.SSLContext | None:
        """Return the TLS context for a connection to `address`; None if that node uses no TLS."""
        if not parse_address(address).tls:
            return None
        return verifying_context() if self.tls is None else self.tls.calling

    def _check_exposure(self, server: asyncio.Server | TlsListener) -> None:
        """Raise `InvalidValue` if the node is reachable from other machines without TLS or users.

        Every address other than a loopback address counts as reachable. Such a node requires a
        login from local clients too.
        """
        addresses = [str(listening.getsockname()[0]) for listening in server.sockets]
        if all(is_loopback(address) for address in addresses):
            return
        self.accounts.require_login()
        missing = []
        if self.tls is None:
            missing.append("TLS: set tls.certificate and tls.key to PEM files")
        if not self.accounts.exist:
            missing.append("users: make the first with `tidegate user add NAME --admin`")
        if missing:
            raise InvalidValue(
                f"a node that listens on {', '.join(addresses)} can be reached from other "
                f"machines and needs {'; '.join(missing)}. Or listen on 127.0.0.1"
            )

    def _start(self, work) -> None:  # type: ignore[no-untyped-def]
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def do_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task that no caller waits for; a stopping node does not run it."""
        if self.stopping:
            work.close()
        else:
            self._start(work)

    async def stop(self) -> None:
        """Drain and stop: accept nothing new, write what was accepted, release the queues.

        Waits at most `limits.drain_s` for the writes and for the moves of dead letters.
        """
        self.stopping = True
        if self._server is not None:
            self._server.close()
        try:
            async with asyncio.timeout(self.limits.drain_s):
                await self.dead_letters.drain()
                for replica in list(self.replicas.values()):
                    await replica.quiesce()
                await self._writers.stop()
        except TimeoutError:
            log.warning("stopped before everything was drained")
        await self.membership.leave()
        self.sessions.close()
        await self._end_tasks()
        await self.node_clients.close()
        await self.store.close()
        if self.recording is not None:
            await self.recording.stop()

    async def _end_tasks(self) -> None:
        ending = [*self._tasks, *self.ownership.searches, *self.membership.tasks]
        await self.dead_letters.abort()
        await cancel_and_wait(ending)
        await self.aliases.close()
        await self.exchange.close()
        await self.publishing.close()
        await self.transactions.close()

    async def abort(self) -> None:
        """Stop at once, as a kill would: write nothing more and notify no client."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        self._writers.abort()
        self.sessions.abort()
        for replica in list(self.replicas.values()):
            replica.fence(Unavailable("this node has ended"))
        await self._end_tasks()
        await self.node_clients.close()
        await self.store.close()
        if self.recording is not None:
            self.recording.abort()

    def why_not_ready(self) -> str | None:
        """Return why the node is not ready to serve clients, or None if it is ready."""
        if self.stopping:
            return "draining: the node is about to stop"
        if not self._is_serving:
            return "starting"
        return self.membership.why_not_ready()

    def replica_of(self, info: QueueInfo, epoch: int) -> Replica:
        """Create the replica of a queue that this node has claimed under `epoch`."""
        return Replica(
            info,
            epoch,
            store=self.store,
            writer=self._writers.writer(info.queue_id),
            settler=self._writers.settler(info.queue_id),
            budget=self.budget,
            limits=self.limits,
            clock=self.clock,
            may_deliver=self.membership.may_deliver_from(info.queue_id),
            on_fenced=self.ownership.remove,
            give_up=self.dead_letters.dead_letter,
        )

    # Background tasks

    async def _tick_forever(self) -> None:
        ticks = 0
        forget_every = int(60 / _TICK_S)
        while True:
            await asyncio.sleep(_TICK_S)
            ticks += 1
            try:
                self._tick(second=ticks % _TICKS_PER_S == 0)
                if ticks % forget_every == 0:
                    await self._forget_producers()
            except TidegateError as failure:
                log.warning("could not forget old producers: %s", failure)
            except Exception:
                # If this loop ended, no message lease would ever expire.
                log.exception("a bug in the node's tick")

    def _tick(self, *, second: bool) -> None:
        now = self.clock.monotonic()
        self.sessions.resume_reading()
        for replica in list(self.replicas.values()):
            replica.tick()
            if second:
                replica.tick_rates(now)
        if second:
            self.sessions.hang_up_on_the_silent(now)

    async def _forget_producers(self) -> None:
        before = self.clock.monotonic() - self.limits.dedup_window_s
        for replica in list(self.replicas.values()):
            replica.intake.forget_producers(before)
        await self.store.forget_marks(self.limits.dedup_window_s)
        await self.store.forget_dedup()
        await self.topics.sweep()

    async def _watch_users_forever(self) -> None:
        """Close the sessions of changed and removed users within about a second."""
        while True:
            await asyncio.sleep(_USERS_S)
            try:
                await self.accounts.refresh()
            except TidegateError as failure:
                log.warning("could not look for changes of users: %s", failure)
            except Exception:
                log.exception("a bug while looking for changes of users")


# Client connections from this node to the other nodes.
#
# A connection is opened once, however many callers ask for it. The opening continues when a caller
# times out, so that the next caller finds it open. On a slow machine a login may take longer than
# any caller waits for an answer.


_ANSWER_TIMEOUT_S = 2.0
_HAND_OVER_S = 5.0


class NodeClients:
    """Connections to other nodes, opened on first use and reused while they are alive.

    Every call logs in as a node. A call raises `Unavailable` if the other node does not answer in
    time.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[str, Client] = {}
        self._opening: dict[str, asyncio.Task[Client]] = {}
        self._closed = False

    async def _client(self, address: str) -> Client:
        client = self._clients.get(address)
        if client is not None and client.transport is not None and client.transport.alive:
            return client
        if self._closed:
            raise Unavailable("this node is going away")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open(address))
            opening.add_done_callback(lambda done: self._opened(address, done))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # `close` has cancelled the opening, not this caller.
                raise Unavailable("this node is going away") from None
            raise

    async def _open(self, address: str) -> Client:
        before = self._clients.pop(address, None)
        if before is not None:
            await before.close()
        tls = self._node.tls_to(address)
        login = Credentials(NODE_USER, self._node.accounts.node_password)
        client = Client(
            address, mode="admin", reconnect_s=_ANSWER_TIMEOUT_S, credentials=login, tls=tls
        )
        await client.open()
        self._clients[address] = client
        return client

    def _opened(self, address: str, opening: asyncio.Task[Client]) -> None:
        del self._opening[address]
        if not opening.cancelled():
            # Whoever has asked may be gone.
            opening.exception()

    async def ask_for(self, address: str, queue_id: int, member_id: int) -> None:
        """Ask the queue's owner to transfer the queue to node `member_id`."""
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                client = await self._client(address)
                link = await client.connected()
                await link.request(SetOwner(queue_id, member_id))
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not let go of the queue") from None

    async def delete_queue(self, address: str, queue_id: int) -> None:
        """Ask the queue's owner to delete it."""
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                await (await self._client(address)).delete_queue(queue_id)
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not answer") from None

    async def request(self, address: str, request: Request, within_s: float) -> Packet:
        """Send a request to a node, which may be this one, and return the answer."""
        return (await self.request_with_body(address, request, within_s)).packet

    async def request_with_body(self, address: str, request: Request, within_s: float) -> Response:
        """Send a request to a node and return the answer with its body."""
        try:
            async with asyncio.timeout(within_s):
                link = await (await self._client(address)).connected()
                return await link.request(request)
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not answer") from None

    async def numbers(
        self,
        addresses: list[str],
        queue_id: int | None,
        steps: int | None,
        with_durations: bool = True,
    ) -> list[NodeStats]:
        """Return the stats of all nodes that answer in time.

        With `queue_id`, only the stats of that queue and of its replicas. `steps` is the number of
        control steps of each consumer; None: no consumers.
        """

        async def ask(address: str) -> list[NodeStats]:
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    client = await self._client(address)
                    nodes = (await client.node_stats(steps=steps, durations=with_durations)).nodes
            except (TidegateError, TimeoutError):
                return []
            for node in nodes:
                node.queues = [q for q in node.queues if queue_id in (None, q.queue_id, q.alias_id)]
            return nodes

        answers = await asyncio.gather(*map(ask, addresses))
        return [node for nodes in answers for node in nodes]

    async def close(self) -> None:
        self._closed = True
        await cancel_and_wait(self._opening.values())
        for client in self._clients.values():
            with contextlib.suppress(TidegateError):
                await client.close()
        self._clients.clear()


# TLS between nodes and clients and among nodes: at least 1.2, certificates always verified.


class NodeTls:
    """The node's certificate, and the context that verifies the certificates of other nodes.

    Raises `InvalidValue` if a file is missing or does not hold what it should.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path | None = None) -> None:
        self.accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.accepting.minimum_version = ssl.TLSVersion.TLSv1_2
        for file in (certificate, key):
            if not file.is_file():
                raise InvalidValue(f"{file}: there is no such file; it is needed for TLS")
        try:
            # An empty password, or OpenSSL would prompt for one and block a node that restarts.
            self.accepting.load_cert_chain(certificate, key, password=b"")
        except (OSError, ValueError) as failure:
            raise InvalidValue(
                f"{certificate} and {key} are no certificate with its key, in PEM and without "
                f"password: {getattr(failure, 'reason', None) or failure}"
            ) from None
        self.calling = verifying_context(authority)
