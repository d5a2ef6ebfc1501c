"""A node: listens, owns queues by lease, and answers for all of them.

    server → session → replica → storage.writer

Membership and ownership live in the store. A node renews its life at a third of its lease;
when it could not, it stops delivering at the deadline, whatever the store says later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

from tidegate.client.address import parse_address
from tidegate.client.tls import verifying_context
from tidegate.core.budget import Budget
from tidegate.core.errors import (
    InvalidValue,
    LimitReached,
    NotAuthenticated,
    StaleEpoch,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import QueueInfo
from tidegate.core.ports import Clock, Store
from tidegate.core.secrecy import without_secrets
from tidegate.node.accounts import Accounts, is_loopback
from tidegate.node.admission import Admission
from tidegate.node.dead_letters import DeadLetters
from tidegate.node.doorstep import Doorstep
from tidegate.node.guard import QueueNames
from tidegate.node.limits import Limits
from tidegate.node.meeting import Meeting
from tidegate.node.neighbours import Neighbours
from tidegate.node.ownership import Ownership
from tidegate.node.publishing import Publishing
from tidegate.node.recording import Recording
from tidegate.node.replica import Replica
from tidegate.node.session import Session
from tidegate.node.tls import NodeTls
from tidegate.node.topics import Topics
from tidegate.node.transactions import Transactions
from tidegate.storage.writer import Settler, Writer
from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.meters import PhaseMeters
from tidegate.telemetry.numbers import (
    ClusterNumbers,
    NodeNumbers,
    PhaseNumbers,
    QueueNumbers,
    durations,
)
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

ALL_ADDRESSES = ("0.0.0.0", "::", "")
# How long a client without a name is remembered after its connection has broken.
_EPHEMERAL_S = 30.0
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
        advertise: str | None = None,
        name: str | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        tls: NodeTls | None = None,
        login_always: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.store = store
        self.limits = limits or Limits()
        self.clock = clock or Clock()
        self.name = name or ""
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
        self.tls = tls
        self.accounts = Accounts(store, login_always=login_always, on_change=self._users_changed)
        self.recording = None if recorder is None else Recording(self, recorder)
        self.admission = Admission(self.limits)
        self.names = QueueNames(store, self.replicas)
        self.member_id = 0
        self.address = ""
        # Where an HTTP door shows this node, if there is one.
        self.metrics_address = ""
        self._host = host
        # Under which name others reach us; a node that listens on all addresses has none there.
        self._reached_as = advertise or (socket.gethostname() if host in ALL_ADDRESSES else host)
        self._port = port
        self._budget = Budget(self.limits.memory_bytes)
        self._commits = Histogram()
        self._committed_messages = 0
        self._writers: list[Writer] = []
        self._settler = Settler(store, linger_s=self.limits.settle_linger_s)
        self._sessions: set[Session] = set()
        self._waiting_sessions: set[Session] = set()
        self._alive_until = 0.0
        # Whether it did when the lease was to be renewed.
        self._store_answers = True
        self._started_at = 0.0
        self._server: asyncio.Server | Doorstep | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.neighbours = Neighbours(self)
        self.stopping = False
        self._refused_at = float("-inf")
        self._adopting: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        await self.store.open()
        loop = asyncio.get_running_loop()
        try:
            await self.accounts.open()
            if self.tls is not None:
                self._server = await Doorstep.bind(self, self.tls.accepting, self._host, self._port)
            else:
                self._server = await loop.create_server(
                    lambda: Session(self), self._host, self._port, backlog=1024, start_serving=False
                )
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
        self._started_at = self.clock.monotonic()
        await self._join()
        self._writers = [
            Writer(
                self.store,
                number=number,
                on_commit=self._count_commit,
                on_free=self._resume_reading,
            )
            for number in range(self.limits.writers)
        ]
        self._settler.start()
        for work in (self._renew_forever(), self._tick_forever(), self._watch_users_forever()):
            self._start(work)
        if self.recording is not None:
            self.recording.start()
            self._start(self.recording.run())

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

    async def _join(self) -> None:
        asked_at = self.clock.monotonic()
        self.member_id = await self.store.join(self.name, self.address, self.limits.lease_s)
        self._alive_until = asked_at + self.limits.lease_s

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
                for writer in self._writers:
                    await writer.stop()
                await self._settler.stop()
        except TimeoutError:
            log.warning("stopped before everything was drained")
        try:
            async with asyncio.timeout(self.limits.lease_s):
                await self.store.leave(self.member_id)
        except (TimeoutError, TidegateError) as failure:
            log.warning("left without saying so: %s", failure or "no answer")
        for session in list(self._sessions):
            session.close()
        await self._end_tasks()
        await self.neighbours.close()
        await self.store.close()
        if self.recording is not None:
            await self.recording.stop()

    async def _end_tasks(self) -> None:
        ending = [*self._tasks, *self.ownership.searches]
        if self._adopting is not None:
            ending.append(self._adopting)
        await self.dead_letters.abort()
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.publishing.close()
        await self.transactions.close()

    async def abort(self) -> None:
        """End at once, as a kill would: nothing more is written, nobody hears goodbye."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.abort()
        self._settler.abort()
        for session in list(self._sessions):
            session.abort()
        for replica in list(self.replicas.values()):
            replica.fence(Unavailable("this node has ended"))
        await self._end_tasks()
        await self.neighbours.close()
        await self.store.close()
        if self.recording is not None:
            self.recording.abort()

    def may_deliver(self) -> bool:
        """A paused owner wakes up with its lease gone: look at the clock before every socket."""
        return self.clock.monotonic() < self._alive_until and not self.stopping

    def why_not_ready(self) -> str | None:
        """Why nobody should be sent here now, or None. Renewals ask the store all the time."""
        if self.stopping:
            return "draining: the node is about to stop"
        if not self._writers:
            return "starting"
        if self.clock.monotonic() >= self._alive_until:
            return "the node's lease has lapsed: it could not be renewed in the store"
        # Strangers read this: what exactly the store said is in the log.
        return None if self._store_answers else "the store does not answer"

    def _count_commit(self, duration_s: float, messages: int) -> None:
        self._commits.add(duration_s)
        self._committed_messages += messages

    def replica_of(self, info: QueueInfo, epoch: int) -> Replica:
        """A queue that has become ours."""
        return Replica(
            info,
            epoch,
            store=self.store,
            writer=self._writers[info.queue_id % len(self._writers)],
            settler=self._settler,
            budget=self._budget,
            limits=self.limits,
            clock=self.clock,
            may_deliver=self.may_deliver,
            on_fenced=self.ownership.forget,
            give_up=self.dead_letters.give_up,
        )

    # Back-pressure

    @property
    def is_flooded(self) -> bool:
        return self._budget.is_flooded

    def resume_when_dry(self, session: Session) -> None:
        """A session that reads no more until the store has caught up."""
        self._waiting_sessions.add(session)

    def _resume_reading(self) -> None:
        if self._waiting_sessions and not self._budget.is_flooded:
            waiting, self._waiting_sessions = self._waiting_sessions, set()
            for session in waiting:
                session.resume_reading()

    # Sessions

    def admit(self, session: Session) -> bool:
        if self.stopping:
            return False
        try:
            session.place = self.admission.arrive(session.address)
        except LimitReached as full:
            now = self.clock.monotonic()
            if now - self._refused_at > 1.0:
                # Once a second: who knocks a thousand times must not fill the log.
                self._refused_at = now
                log.warning("connection refused: %s", full)
            return False
        self._sessions.add(session)
        return True

    def forget_session(self, session: Session) -> None:
        self._sessions.discard(session)
        if session.place is not None:
            self.admission.leave(session.place)
            session.place = None
        self._waiting_sessions.discard(session)

    def forget_client(self, client_id: int) -> None:
        """A client that lived as long as its connection, unless it comes back soon."""

        async def delete() -> None:
            await asyncio.sleep(_EPHEMERAL_S)
            if any(session.client_id == client_id for session in self._sessions):
                return
            with contextlib.suppress(TidegateError):
                await self.store.delete_client(client_id)

        if not self.stopping:
            self._start(delete())

    # Forever

    async def _renew_forever(self) -> None:
        """Renew at a third of the lease: two renewals may be lost before anyone takes over."""
        while True:
            await asyncio.sleep(self.limits.lease_s / 3)
            asked_at = self.clock.monotonic()
            try:
                renewed = await self.store.renew(self.member_id, self.limits.lease_s)
                self._store_answers = True
                if renewed:
                    self._alive_until = asked_at + self.limits.lease_s
                else:
                    await self._start_over()
                if self._adopting is None or self._adopting.done():
                    # Beside the renewal: a large queue takes longer to load than a lease lasts.
                    self._adopting = asyncio.create_task(self.ownership.adopt())
                await self._leave_the_dead()
            except TidegateError as failure:
                self._store_answers = False
                log.warning("could not renew the lease: %s", failure)
            except Exception:
                # Without this loop the node would go on confirming and never deliver again.
                log.exception("a bug while renewing the lease")

    async def _leave_the_dead(self) -> None:
        """What waits for the answer of a dead owner must be asked again: its socket may be open."""
        relaying = [session for session in self._sessions if session.is_relaying]
        if relaying:
            alive = {m.address for m in await self.store.members() if m.alive}
            for session in relaying:
                session.keep_relays_to(alive)

    async def _start_over(self) -> None:
        """We were declared dead: everything we owned is somebody else's now."""
        log.error("this node was declared dead and starts over")
        for replica in list(self.replicas.values()):
            replica.fence(StaleEpoch("this node lost its lease"))
        await self._join()
        if self.recording is not None:
            self.recording.event("rejoin", str(self.member_id), {"address": self.address})

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
        self._resume_reading()
        for replica in list(self.replicas.values()):
            replica.tick()
            if second:
                replica.tick_rates(now)
        if second:
            self._hang_up_on_the_silent(now)

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

    def _users_changed(self) -> None:
        for session in list(self._sessions):
            if not self.accounts.still_holds(session.guard):
                session.end(NotAuthenticated("the user was changed or removed: log in again"))

    def _hang_up_on_the_silent(self, now: float) -> None:
        for session in self._sessions - self._waiting_sessions:
            patience = (
                3 * self.limits.heartbeat_s if session.identified else self.limits.handshake_s
            )
            # Before login, bytes that drip in are no sign of life.
            since = session.last_heard if session.identified else session.connected_at
            stalled_s = session.stalled_s(now)
            if stalled_s is not None:
                # We do not hear it either, since who does not read our answers is not asked more.
                if stalled_s > self.limits.slow_reader_s:
                    log.warning("hung up on who reads nothing", extra={"user": session.guard.user})
                    session.hang_up()
            elif now - since > patience:
                session.hang_up()

    # Numbers

    async def numbers(self, queue_id: int | None, cluster: bool) -> ClusterNumbers:
        if queue_id is not None:
            # A queue that nobody has asked for since its owner went has no numbers yet.
            await self.ownership.route(queue_id)
        chosen = [
            replica.numbers()
            for number, replica in sorted(self.replicas.items())
            if queue_id is None or number == queue_id
        ]
        nodes = [self.own_numbers(chosen)]
        if cluster:
            others = [
                member.address
                for member in await self.store.members()
                if member.alive and member.member_id != self.member_id
            ]
            nodes += await self.neighbours.numbers(others, queue_id)
        return ClusterNumbers(nodes)

    @property
    def connections(self) -> int:
        return len(self._sessions)

    @property
    def committed(self) -> tuple[int, int, float]:
        """Transactions that stored messages, how many those were, and the seconds they took."""
        return self._commits.count, self._committed_messages, self._commits.sum_s

    @property
    def process_cpu_s(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    @property
    def process_memory_bytes(self) -> int:
        """Resident memory now (not its peak)."""
        with open("/proc/self/statm") as statm:  # noqa: PTH123
            return int(statm.read().split()[1]) * resource.getpagesize()

    @property
    def messages_memory_bytes(self) -> int:
        """What messages take of it."""
        return self._budget.used_bytes

    def own_numbers(self, queues: list[QueueNumbers]) -> NodeNumbers:
        """The numbers of this node, with those of some queues."""
        return NodeNumbers(
            member_id=self.member_id,
            name=self.name,
            address=self.address,
            uptime_s=self.clock.monotonic() - self._started_at,
            connections=self.connections,
            memory_bound_bytes=self._budget.bound_bytes,
            memory_resident_bytes=self.messages_memory_bytes,
            process_memory_bytes=self.process_memory_bytes,
            process_cpu_s=self.process_cpu_s,
            commits=self._commits.count,
            commit=durations(self._commits),
            messages_per_commit=self._committed_messages / max(self._commits.count, 1),
            packets_in=self.packets_in,
            packets_out=self.packets_out,
            queues=queues,
            rows_recorded=0 if self.recording is None else self.recording.recorder.rows_recorded,
            rows_dropped=0 if self.recording is None else self.recording.recorder.rows_dropped,
            lake="" if self.recording is None else without_secrets(self.recording.recorder.lake),
            metrics_address=self.metrics_address,
            phases=PhaseNumbers(
                wait_client=durations(self.phases.wait_client),
                parse=durations(self.phases.parse),
                store=durations(self.phases.store),
                respond=durations(self.phases.respond),
                total=durations(self.phases.total),
                wait_message=durations(self.phases.wait_message),
            ),
        )
