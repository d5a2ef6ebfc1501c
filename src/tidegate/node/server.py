"""A node: listens, owns queues by lease, and answers for all of them.

    server → session → replica → storage.writer

Here it starts, ticks and ends. Who is connected is in `sessions`, its lease in `membership`, what
it owns in `ownership`, what it tells about itself in `figures`.
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
# How often a node looks whether users have changed.
_USERS_S = 1.0


class Node:
    """One broker process."""

    def __init__(
        self,
        store: Store,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        # Nobody asked for that port: if it is taken, any other will do.
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
        # The machine of the fleet that it is on; None: it is on none.
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
        # Where an HTTP door shows this node, if there is one.
        self.metrics_address = ""
        self._host = host
        # Under which name others reach us; a node that listens on all addresses has none there.
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
        """Its number among the members; another one after it was declared dead."""
        return self.membership.member_id

    # Life

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
        # The port only now: nodes that were given any free one must not share a name.
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
        """How to speak to another node, by its address; None: without TLS."""
        if not parse_address(address).tls:
            return None
        return verifying_context() if self.tls is None else self.tls.calling

    def _check_exposure(self, server: asyncio.Server | Doorstep) -> None:
        """Whoever can be reached from other machines has TLS and users, or does not start."""
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
        """Something that nobody waits for; a node that is going away leaves it to others."""
        if self.stopping:
            work.close()
        else:
            self._start(work)

    async def stop(self) -> None:
        """Drain: no new work, what was accepted reaches the disk, queues are let go."""
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
        """End at once, as a kill would: nothing more is written, nobody hears goodbye."""
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
        """Why nobody should be sent here now, or None."""
        if self.stopping:
            return "draining: the node is about to stop"
        if not self._is_serving:
            return "starting"
        return self.membership.why_not_ready()

    def replica_of(self, info: QueueInfo, epoch: int) -> Replica:
        """A queue that has become ours."""
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

    # Forever

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
                # Without this loop no lease would ever lapse.
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
        """A user that was changed or removed is hung up on within a second or so."""
        while True:
            await asyncio.sleep(_USERS_S)
            try:
                await self.accounts.refresh()
            except TidegateError as failure:
                log.warning("could not look for changes of users: %s", failure)
            except Exception:
                log.exception("a bug while looking for changes of users")
