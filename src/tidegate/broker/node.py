"""The node: one broker process, its parts, and how it starts and stops.

Theory of operation

A node accepts connections, owns queues under leases, and serves every queue of the cluster. A
request about one of its own queues goes through these objects:

    Session -> Replica -> storage.writer -> store

A request about a queue of another node goes from the session through a `Relay` to that node.

`Node` is the composition root. It creates the parts, gives each one those that it calls, and sets
the listeners of the events that the parts announce (`NodeEvents`). No part knows the node. It
starts the tasks that run as long as the node:

- `NodeLease.renew_forever` joins the membership table and renews the node's lease.
- `_tick_forever` runs every 0.25 s. It expires message leases and messages. Once a second it also
  updates rates and closes silent sessions. Once a minute it removes old producers, dedup ids and
  lost subscriptions.
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
import errno
import logging
import socket
import ssl
from pathlib import Path

from tidegate.broker.access import Accounts, QueueNames, is_loopback
from tidegate.broker.context import NodeContext, NodeEvents, NodeIdentity, NodeTasks
from tidegate.broker.dead_letters import DeadLetterMover
from tidegate.broker.listener import ConnectionSlots, Sessions, TlsListener
from tidegate.broker.ownership import NodeLease, Ownership
from tidegate.broker.recording import NodeRecorder
from tidegate.broker.relay import NodeClients
from tidegate.broker.replication import LogicalQueues, Topologies
from tidegate.broker.session import NodeParts, Session
from tidegate.broker.stats import NodeStatsCollector
from tidegate.broker.transactions import Publishing, QueueColocation, Topics, Transactions
from tidegate.broker.transfer import SegmentTransfer
from tidegate.client.address import verifying_context
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.runtime import NodeLimits, cancel_and_wait
from tidegate.core.segment import Budget
from tidegate.core.store import Clock, Store
from tidegate.storage.writer import Writers
from tidegate.telemetry.meters import NodeMeters
from tidegate.telemetry.recorder import Recorder

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
        self.limits = limits or NodeLimits()
        self.clock = clock or Clock()
        self.budget = Budget(self.limits.memory_bytes)
        self._identity = NodeIdentity(name or "", machine_id)
        self._meters = NodeMeters()
        self._work = NodeTasks()
        context = NodeContext(
            store=store,
            clock=self.clock,
            limits=self.limits,
            budget=self.budget,
            identity=self._identity,
            meters=self._meters,
            tasks=self._work,
            events=NodeEvents(),
        )
        self.tls = tls
        self.accounts = Accounts(context, login_always=login_always)
        self.admission = ConnectionSlots(self.limits)
        self.sessions = Sessions(context, self.accounts, self.admission)
        self.node_clients = NodeClients(self.accounts, None if tls is None else tls.calling)
        self._writers = Writers(
            store,
            self.limits.writers,
            on_commit=self._meters.count_commit,
            linger_s=self.limits.settle_linger_s,
        )
        self.membership = NodeLease(context)
        self.ownership = Ownership(context, self.membership, self.node_clients, self._writers)
        self.replicas = self.ownership.replicas
        self.topologies = Topologies()
        self.exchange = SegmentTransfer(context, self.ownership, self.topologies, self.node_clients)
        self.aliases = LogicalQueues(
            context, self.ownership, self.topologies, self.exchange, self.node_clients
        )
        colocation = QueueColocation(context, self.ownership)
        self.publishing = Publishing(context, colocation)
        self.transactions = Transactions(store, colocation)
        self.topics = Topics(context, self.ownership)
        self.dead_letters = DeadLetterMover(context, self.ownership)
        self.names = QueueNames(store, self.replicas)
        self.stats = NodeStatsCollector(
            context, self.sessions, self.ownership, self.aliases, self.node_clients, recorder
        )
        self.recording = (
            None
            if recorder is None
            else NodeRecorder(context, recorder, self.sessions, self.replicas)
        )
        self._parts = NodeParts(
            context=context,
            accounts=self.accounts,
            admission=self.admission,
            aliases=self.aliases,
            dead_letters=self.dead_letters,
            exchange=self.exchange,
            names=self.names,
            node_clients=self.node_clients,
            ownership=self.ownership,
            publishing=self.publishing,
            recording=self.recording,
            sessions=self.sessions,
            stats=self.stats,
            topics=self.topics,
            transactions=self.transactions,
        )
        self._set_listeners(context.events)
        self._host = host
        # The name under which other nodes reach this one. The listening address of a node that
        # listens on all addresses cannot be used for that.
        self._reached_as = advertise or (socket.gethostname() if host in ALL_ADDRESSES else host)
        self._port = port
        self._or_free = or_free
        self._server: asyncio.Server | TlsListener | None = None

    def _set_listeners(self, events: NodeEvents) -> None:
        """Set the listeners of all events, in the order in which they are called."""
        events.queue_claimed += [self.aliases.owned]
        events.queue_released += [self.aliases.disowned]
        events.policy_changed += [self.ownership.note_goal]
        events.forwarding_due += [self.aliases.wake_hand_over]
        events.messages_given_up += [self.dead_letters.dead_letter]
        events.lease_renewed += [self.ownership.lease_renewed, self.sessions.leave_the_dead]
        events.lease_lost += [self.ownership.lease_lost]
        events.session_ended += [self.aliases.forget_session]
        events.users_changed += [self.sessions.users_changed]
        if self.recording is not None:
            events.queue_served += [self.recording.owned]
            events.queue_released += [self.recording.disowned]
            events.rejoined += [self.recording.rejoined]
        # Last: the other listeners may look the replica up.
        events.queue_released += [self.ownership.remove]

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def address(self) -> str:
        return self._identity.address

    @property
    def metrics_address(self) -> str:
        """Where the HTTP pages (metrics, health) are served; empty if they are not."""
        return self._identity.metrics_address

    @property
    def member_id(self) -> int:
        """The node's number in the membership table; changes after the node was declared dead."""
        return self._identity.member_id

    @property
    def machine_id(self) -> int | None:
        """The machine that the node runs on; None: the node belongs to no machine."""
        return self._identity.machine_id

    @property
    def packets_in(self) -> int:
        return self._meters.packets_in

    @property
    def packets_out(self) -> int:
        return self._meters.packets_out

    @property
    def stopping(self) -> bool:
        return self._work.stopping

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
        identity = self._identity
        identity.address = f"{'tidegate' if self.tls is None else 'tidegates'}://{host}:{port}"
        # Named only after the port is known: nodes that bind any free port must not share a name.
        identity.name = identity.name or f"{socket.gethostname()}-{port}"
        self.stats.start()
        await self.membership.join()
        for work in (
            self.membership.renew_forever(),
            self._tick_forever(),
            self._watch_users_forever(),
            self.aliases.watch_forever(),
        ):
            self._work.start(work)
        if self.recording is not None:
            self.recording.start()
            self._work.start(self.recording.run())

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
            return await TlsListener.bind(self._parts, self.tls.accepting, self._host, port)
        return await asyncio.get_running_loop().create_server(
            lambda: Session(self._parts), self._host, port, backlog=1024, start_serving=False
        )

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

    async def stop(self) -> None:
        """Drain and stop: accept nothing new, write what was accepted, release the queues.

        Waits at most `limits.drain_s` for the writes and for the moves of dead letters.
        """
        self._work.stopping = True
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
        ending = [*self._work.running, *self.ownership.tasks]
        await self.dead_letters.abort()
        await cancel_and_wait(ending)
        await self.aliases.close()
        await self.exchange.close()
        await self.publishing.close()
        await self.transactions.close()

    async def abort(self) -> None:
        """Stop at once, as a kill would: write nothing more and notify no client."""
        self._work.stopping = True
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
        return self.membership.why_not_ready()

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
