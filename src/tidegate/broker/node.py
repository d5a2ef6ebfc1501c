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
import errno
import logging
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

from tidegate.client.address import parse_address
from tidegate.client.tls import verifying_context
from tidegate.core.budget import Budget
from tidegate.core.ending import ended
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueueInfo
from tidegate.core.ports import Clock, Store
from tidegate.node.accounts import Accounts, is_loopback
from tidegate.node.admission import Admission
from tidegate.node.aliases import Aliases
from tidegate.node.dead_letters import DeadLetters
from tidegate.node.doorstep import Doorstep
from tidegate.node.exchange import Exchange
from tidegate.node.figures import Figures
from tidegate.node.guard import QueueNames
from tidegate.node.limits import Limits
from tidegate.node.meeting import Meeting
from tidegate.node.membership import Membership
from tidegate.node.neighbours import Neighbours
from tidegate.node.ownership import Ownership
from tidegate.node.publishing import Publishing
from tidegate.node.recording import Recording
from tidegate.node.replica import Replica
from tidegate.node.session import Session
from tidegate.node.sessions import Sessions
from tidegate.node.tls import NodeTls
from tidegate.node.topics import Topics
from tidegate.node.transactions import Transactions
from tidegate.storage.writer import Writers
from tidegate.telemetry.meters import PhaseMeters
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
        limits: Limits | None = None,
        clock: Clock | None = None,
        tls: NodeTls | None = None,
        login_always: bool = False,
        recorder: Recorder | None = None,
        machine_id: int | None = None,
    ) -> None:
        self.store = store
        # The machine that the node runs on; None: the node belongs to no machine.
        self.machine_id = machine_id
        self.limits = limits or Limits()
        self.clock = clock or Clock()
        self.name = name or ""
        self.budget = Budget(self.limits.memory_bytes)
        self.figures = Figures(self)
        self.membership = Membership(self)
        self.sessions = Sessions(self)
        self.ownership = Ownership(self)
        self.replicas = self.ownership.replicas
        self.phases = PhaseMeters()
        self.packets_in = 0
        self.packets_out = 0
        meeting = Meeting(self)
        self.publishing = Publishing(self, meeting)
        self.transactions = Transactions(self, meeting)
        self.topics = Topics(self)
        self.dead_letters = DeadLetters(self)
        self.aliases = Aliases(self)
        self.exchange = Exchange(self)
        self.tls = tls
        self.accounts = Accounts(
            store, login_always=login_always, on_change=self.sessions.users_changed
        )
        self.recording = None if recorder is None else Recording(self, recorder)
        self.admission = Admission(self.limits)
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
            on_commit=self.figures.count_commit,
            on_free=self.sessions.resume_reading,
            linger_s=self.limits.settle_linger_s,
        )
        self._is_serving = False
        self._server: asyncio.Server | Doorstep | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.neighbours = Neighbours(self)
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
        self.figures.start()
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

    async def _bound(self) -> asyncio.Server | Doorstep:
        try:
            return await self._bound_to(self._port)
        except OSError as failure:
            if not self._or_free or failure.errno != errno.EADDRINUSE:
                raise
            log.warning("port %d is taken: on a free one then", self._port)
            return await self._bound_to(0)

    async def _bound_to(self, port: int) -> asyncio.Server | Doorstep:
        if self.tls is not None:
            return await Doorstep.bind(self, self.tls.accepting, self._host, port)
        return await asyncio.get_running_loop().create_server(
            lambda: Session(self), self._host, port, backlog=1024, start_serving=False
        )

    def tls_to(self, address: str) -> ssl.SSLContext | None:
        """Return the TLS context for a connection to `address`; None if that node uses no TLS."""
        if not parse_address(address).tls:
            return None
        return verifying_context() if self.tls is None else self.tls.calling

    def _check_exposure(self, server: asyncio.Server | Doorstep) -> None:
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
        await self.neighbours.close()
        await self.store.close()
        if self.recording is not None:
            await self.recording.stop()

    async def _end_tasks(self) -> None:
        ending = [*self._tasks, *self.ownership.searches, *self.membership.tasks]
        await self.dead_letters.abort()
        await ended(ending)
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
        await self.neighbours.close()
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
            on_fenced=self.ownership.forget,
            give_up=self.dead_letters.give_up,
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
