"""A hosted service in virtual time: clients, a door, instances and a machine, around the real loop.

What is simulated is the plant only. The store is the memory store, the loop is HostingLoop with all
that it consists of. Requests are events of a heap: a door with one queue before its instances
(least outstanding first), each instance with so many requests at a time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidegate.control.alerts import Alert, Alerts
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.services.loop import HostingLoop
from tidegate.control.services.measurement import HttpProbe, ProbeSample
from tidegate.core.decisions import Decision
from tidegate.core.services import (
    DoorSample,
    Instance,
    InstanceSample,
    InstanceState,
    Service,
    ServiceSpec,
    decision_subject,
)
from tidegate.core.store import Clock
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.meters import Histogram

EPOCH_S = 1_000_000.0
STEP_S = 0.05
AGREEMENT = """
name = "shop"
http = "shop"
window = "5s"
objective = 0.9
period = "10m"
replicas = {{ min = {least}, max = {most} }}
{more}
[metrics.response_p95]
breach = "1s"
warning = "20%"
"""


def agreed(most: int = 8, more: str = "", least: int = 1) -> str:
    return AGREEMENT.format(least=least, most=most, more=more)


@dataclass
class Request:
    came_at: float
    client: int | None


@dataclass
class Server:
    """One instance as it runs."""

    instance_id: int
    ready_at: float
    version: int
    # How many times slower than it should be.
    slowness: float = 1.0
    is_dead: bool = False
    hangs: bool = False
    in_service: int = 0
    inside: deque[tuple[Request, float]] = field(default_factory=deque)
    working: int = 0
    sent: int = 0
    answered: int = 0
    failed: int = 0
    response: Histogram = field(default_factory=Histogram)
    ejected: str | None = None


class Heard(Alerts):
    """Alerts that are only kept."""

    def __init__(self) -> None:
        super().__init__()
        self.alerts: list[Alert] = []

    def send(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def kinds(self) -> list[str]:
        return [one.kind for one in self.alerts]


class Plant:
    """A service under load, and what is told about it."""

    def __init__(
        self,
        agreement: str | None = None,
        *,
        concurrency: int = 4,
        service_s: float = 0.25,
        spread: float = 0.3,
        parallel: int | None = None,
        start_s: float = 1.5,
        slots: int = 32,
        spares: int = 0,
        seed: int = 1,
        starts: Callable[[int], bool] = lambda version: True,
    ) -> None:
        self.now = 0.0
        self.clock = Clock(wall=lambda: EPOCH_S + self.now, monotonic=lambda: self.now)
        self.store = MemoryStore(clock=self.clock)
        self.spec = ServiceSpec(
            name="shop",
            target="shop:app",
            agreement=agreement or agreed(),
            concurrency=concurrency,
            spares=spares,
        )
        self.service_s = service_s
        self.spread = spread
        # What an instance does at a time; what it has beyond that waits inside it.
        self.parallel = parallel
        self.start_s = start_s
        self.slots = slots
        # Whether instances of a version start.
        self.starts = starts
        # What each may still take of memory.
        self.free_bytes: Callable[[int], float] = lambda instance_id: 1e9
        self.random = random.Random(seed)
        self.alerts = Heard()
        self.learned = AcceptedModels(None)
        self.loop = self._new_loop()
        self._member = 0
        self._machine = 0
        # The plant
        self.servers: dict[int, Server] = {}
        self._starting: dict[int, float] = {}
        self._backends: list[Instance] = []
        self._admission: int | None = None
        self._queue: deque[Request] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self.clients: Callable[[float], int] = lambda now: 0
        self.rate: Callable[[float], float] = lambda now: 0.0
        self._active = 0
        self._born = 0
        self._next_arrival = 0.0
        # The door
        self.door = "door-1"
        self.accepted = self.answered = self.refused = 0
        self.response = Histogram()
        self.door_is_silent = False
        # Whether the door refuses all that come.
        self.closed = False
        self.probe_failure = ""
        # What came of it
        self.finished: list[tuple[float, float]] = []
        self.failures: list[float] = []
        self.replica_seconds = 0.0
        self.ready_history: list[tuple[float, int]] = []

    def _new_loop(self) -> HostingLoop:
        journal = Journal(self.store, None, self.clock.wall)
        return HostingLoop(
            self.store,
            journal,
            self.alerts,
            learned=self.learned,
            clock=self.clock,
            new_probe=lambda: HttpProbe(self._probed, self.clock),
        )

    async def _probed(self, address: str, path: str, mark: str) -> ProbeSample:
        status = None if self.probe_failure else 200
        return ProbeSample(self.clock.wall(), address, 0.01, status, self.probe_failure)

    # The world

    async def begin(self) -> None:
        self._member = await self.store.join("node", "tidegate://127.0.0.1:1", 1e9)
        epoch = await self.epoch()
        machine = await self.store.add_machine("here", self.slots, None, epoch)
        await self.store.machine_joined(machine.machine_id, self._member)
        self._machine = machine.machine_id
        await self.store.deploy(self.spec)

    async def epoch(self) -> int:
        epoch = await self.store.lead(self._member)
        assert epoch is not None
        return epoch

    async def change_leader(self) -> None:
        """The node that led dies; another begins with what the store knows."""
        await self.store.leave(self._member)
        self._member = await self.store.join("next", "tidegate://127.0.0.1:2", 1e9)
        self.loop = self._new_loop()

    async def deploy(self, **changes: object) -> None:
        self.spec = msgspec.structs.replace(self.spec, **changes)
        await self.store.deploy(self.spec)

    async def service(self) -> Service:
        [service] = await self.store.services()
        return service

    async def instances(self, *states: InstanceState) -> list[Instance]:
        found = await self.store.instances("shop")
        return [one for one in found if not states or one.state in states]

    async def decisions(self) -> list[Decision]:
        documents = await self.store.decisions(decision_subject("shop"), 500)
        return [msgspec.json.decode(one, type=Decision) for one in reversed(documents)]

    async def run(self, seconds: float) -> None:
        """So much time passes."""
        steps = round(seconds / STEP_S)
        for _ in range(steps):
            step = round(self.now / STEP_S)
            if step % 2 == 0:
                await self._machine_turn()
                await self.loop.run_once(self.now, await self.epoch())
            if step % 5 == 0:
                await self._door_follows()
            if step % 20 == 7 and not self.door_is_silent:
                await self.store.report_door(self._sample())
            self._load()
            self._until(self.now + STEP_S)
            self.now = (step + 1) * STEP_S
            ready = len(self._able())
            # Paid for is whoever has a slot, those that start and drain included.
            self.replica_seconds += (len(self.servers) + len(self._starting)) * STEP_S
            if not self.ready_history or self.ready_history[-1][1] != ready:
                self.ready_history.append((self.now, ready))

    def kill(self, instance_id: int) -> None:
        server = self.servers[instance_id]
        server.is_dead = True
        lost, server.in_service = server.in_service, 0
        server.failed += lost
        for _ in range(lost):
            self._failed(Request(self.now, None))

    def restart(self, instance_id: int) -> None:
        """Its machine starts one that has died again, as machines do."""
        del self.servers[instance_id]
        self._starting[instance_id] = self.now + self.start_s

    def stall(self) -> None:
        """All that they begin with waits for something else, as for a lock; they seem well."""
        for server in self.servers.values():
            server.hangs = True

    def go_on(self) -> None:
        """What they all waited for is there again."""
        for server in self.servers.values():
            server.hangs = False
            self._work(server)

    # Machine

    async def _machine_turn(self) -> None:
        epoch = await self.epoch()
        known = {one.instance_id: one for one in await self.store.instances("shop")}
        for gone in [one for one in self.servers if one not in known]:
            server = self.servers.pop(gone)
            for _ in range(server.in_service):
                self._failed(Request(self.now, None))
        self._starting = {k: v for k, v in self._starting.items() if k in known}
        used = len(self.servers) + len(self._starting)
        for one in known.values():
            number = one.instance_id
            if one.machine_id is None and used < self.slots:
                if await self.store.assign_instance(number, self._machine, epoch):
                    self._starting[number] = self.now + self.start_s
                    used += 1
            elif number in self._starting and self.now >= self._starting[number]:
                if self.starts(one.version):
                    del self._starting[number]
                    self.servers[number] = Server(number, self.now, one.version)
                else:
                    self._starting[number] = self.now + self.start_s
                    await self._report(number, InstanceState.FAILED, "no module named shop")
            elif number in self.servers:
                state = InstanceState.FAILED if self.servers[number].is_dead else None
                await self._report(number, state or InstanceState.READY, "")

    async def _report(self, number: int, state: InstanceState, detail: str) -> None:
        address = f"127.0.0.1:{9000 + number}" if state is InstanceState.READY else None
        free = self.free_bytes(number)
        await self.store.report_instance(number, self._machine, state, address, free, detail)

    # Door

    async def _door_follows(self) -> None:
        service = await self.service()
        self._backends = list(service.held(await self.store.instances("shop")))
        self._admission = service.by_hand.in_flight_max or await self.store.admission("shop")
        self._give()

    def _able(self) -> list[Server]:
        """Those that get something."""
        return [
            self.servers[one.instance_id]
            for one in self._backends
            if one.state is InstanceState.READY
            and not one.is_spare
            and one.instance_id in self.servers
            and not self.servers[one.instance_id].is_dead
            and self.servers[one.instance_id].ejected is None
        ]

    def _limit(self, server: Server) -> int:
        [one] = [one for one in self._backends if one.instance_id == server.instance_id]
        return one.concurrency or self.spec.concurrency

    def _weight(self, server: Server) -> float:
        [one] = [one for one in self._backends if one.instance_id == server.instance_id]
        return max(one.weight, 0.01)

    @property
    def in_hand(self) -> int:
        return len(self._queue) + sum(one.in_service for one in self.servers.values())

    def _arrive(self, client: int | None) -> None:
        self.accepted += 1
        is_bounded = self._admission is not None and self.in_hand >= self._admission
        if self.closed or is_bounded:
            self.refused += 1
            self._failed(Request(self.now, client), is_refused=True)
            return
        self._queue.append(Request(self.now, client))
        self._give()

    def _give(self) -> None:
        while self._queue:
            free = [one for one in self._able() if one.in_service < self._limit(one)]
            if not free:
                return
            server = min(free, key=lambda one: (one.in_service + 1) / self._weight(one))
            server.in_service += 1
            server.sent += 1
            server.inside.append((self._queue.popleft(), self.now))
            self._work(server)

    def _work(self, server: Server) -> None:
        while server.inside and not server.hangs:
            if self.parallel is not None and server.working >= self.parallel:
                return
            server.working += 1
            luck = self.random.uniform(1.0 - self.spread, 1.0 + self.spread)
            took_s = self.service_s * server.slowness * luck
            self._at(self.now + took_s, self._answer(server, *server.inside.popleft()))

    def _answer(self, server: Server, request: Request, sent_at: float) -> Callable[[], None]:
        def answer() -> None:
            if server.is_dead:
                return
            server.in_service -= 1
            server.working -= 1
            server.answered += 1
            server.response.add(self.now - sent_at)
            self.answered += 1
            self.response.add(self.now - request.came_at)
            self.finished.append((self.now, self.now - request.came_at))
            self._work(server)
            self._give()
            self._ask_again(request.client)

        return answer

    def _failed(self, request: Request, *, is_refused: bool = False) -> None:
        self.failures.append(self.now)
        if request.client is not None:
            # Whoever is refused waits a moment.
            self._at(self.now + 0.5, lambda: self._ask_again(request.client))
        elif not is_refused and self._active:
            self._at(self.now + 0.5, lambda: self._ask_again(0))

    def _ask_again(self, client: int | None) -> None:
        if client is None:
            return
        if self._active > self.clients(self.now):
            self._active -= 1
            return
        self._arrive(client)

    def _unanswered(self) -> list[Request]:
        """Those that a door has in line, or that an instance has not begun with."""
        alive = [one for one in self.servers.values() if not one.is_dead]
        return [*self._queue, *(request for one in alive for request, _ in one.inside)]

    def _sample(self) -> DoorSample:
        return DoorSample(
            service="shop",
            door=self.door,
            at=self.clock.wall(),
            address="127.0.0.1:8080",
            accepted=self.accepted,
            answered=self.answered,
            refused=self.refused,
            waiting=len(self._queue),
            in_flight=self.in_hand,
            unanswered=[(self.now - one.came_at, 1) for one in self._unanswered()],
            response=self.response.sparse(),
            instances=[
                InstanceSample(
                    instance_id=one.instance_id,
                    outstanding=one.in_service,
                    sent=one.sent,
                    answered=one.answered,
                    failed=one.failed,
                    response=one.response.sparse(),
                    ejected=one.ejected,
                )
                for one in self.servers.values()
            ],
        )

    # Time

    def _load(self) -> None:
        while self._active < self.clients(self.now):
            self._active += 1
            self._born += 1
            self._arrive(self._born)
        rate = self.rate(self.now)
        if rate <= 0.0:
            self._next_arrival = self.now
            return
        while self._next_arrival < self.now + STEP_S:
            at = max(self._next_arrival, self.now)
            self._at(at, lambda: self._arrive(None))
            self._next_arrival = at + self.random.expovariate(rate)

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), what))

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            when, _, what = heapq.heappop(self._events)
            self.now = max(when, self.now)
            what()

    # What came of it

    def windows(self, width_s: float = 5.0, percentile: float = 0.95) -> list[tuple[float, float]]:
        """The percentile of responses in each window, by where it begins."""
        by_window: dict[int, list[float]] = {}
        for at, response_s in self.finished:
            by_window.setdefault(int(at // width_s), []).append(response_s)
        return [
            (number * width_s, sorted(found)[min(int(percentile * len(found)), len(found) - 1)])
            for number, found in sorted(by_window.items())
        ]
