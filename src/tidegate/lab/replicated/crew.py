"""Producers and consumers in child processes, and samples of their queue.

A `ClientGroup` starts two child processes, one for producers and one for consumers. It connects
clients, starts and stops them, and samples their progress and the queue's stats, by default every
second. Clients work until they have handled their messages or are stopped. At the end the messages
put are compared with the messages taken and waiting, by number and by sum; a lost message fails the
run.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from tidegate.client.blocking import BlockingClient
from tidegate.core.replication import Role, logical_name
from tidegate.lab.bench.child import Child
from tidegate.lab.replicated.crew_process import (
    Account,
    Balance,
    Come,
    Go,
    Leave,
    Look,
    Order,
    Seat,
    Standing,
)
from tidegate.lab.report.experiments import ExperimentFailed
from tidegate.telemetry.numbers import QueueNumbers

ANSWER_TIMEOUT_S = 60.0
# The node's stats lag behind the last acknowledgement.
EMPTY_TIMEOUT_S = 10.0

Answer = TypeVar("Answer")


class ReplicaRow(msgspec.Struct, frozen=True):
    """Stats of one replica at one time; totals count from its creation."""

    name: str
    put: int
    acked: int
    waiting: int
    unacknowledged: int


class Row(msgspec.Struct, frozen=True):
    """A sample of the queue and its clients; totals count from the start of the group."""

    # Seconds since `begin`.
    at_s: float
    # Messages confirmed to producers, and messages acknowledged by consumers.
    produced: int
    consumed: int
    waiting: int
    unacknowledged: int
    clients: int
    replicas: list[ReplicaRow] = []
    # Producers and consumers at work, by number of the replica they use.
    producers_at: dict[int, int] = {}
    consumers_at: dict[int, int] = {}


class Crew:
    """The clients of one queue, controlled by the parent process."""

    def __init__(self, children: dict[Role, Child], control: BlockingClient, queue: str) -> None:
        self._children = children
        self._control = control
        self._queue = queue
        self._seats: dict[int, Seat] = {}
        self._began_s = time.monotonic()
        self.rows: list[Row] = []

    # Clients

    def come(self, seats: Iterable[Seat]) -> None:
        """Connect clients, one after another."""
        for seat in seats:
            self._seats[seat.number] = seat
            self._ask(seat.role, Come(seat), bool)

    def go(self, numbers: Iterable[int] | None = None) -> None:
        """Start clients; `None` starts all."""
        chosen = list(self._seats if numbers is None else numbers)
        for role in Role:
            mine = [number for number in chosen if self._seats[number].role is role]
            if mine:
                self._ask(role, Go(mine), bool)

    def leave(self, numbers: Iterable[int] | None = None) -> None:
        """Stop clients, producers first; `None` stops all.

        Each client finishes the message that it is handling.
        """
        chosen = list(self._seats if numbers is None else numbers)
        seats = [self._seats.pop(number) for number in chosen]
        for role in (Role.PRODUCER, Role.CONSUMER):
            mine = [seat.number for seat in seats if seat.role is role]
            if mine:
                self._ask(role, Leave(mine), list[Standing])

    def standings(self) -> list[Standing]:
        return [standing for role in Role for standing in self._ask(role, Look(), list[Standing])]

    def _ask(self, role: Role, order: Order, kind: type[Answer]) -> Answer:
        child = self._children[role]
        child.say(order)
        return child.hear(kind, ANSWER_TIMEOUT_S)

    # Sampling

    def begin(self) -> None:
        """Discard all samples, and take the first one at second 0."""
        self.rows = []
        self._began_s = time.monotonic()
        self.look()

    def watch(self, seconds: float, every_s: float = 1.0) -> None:
        """Take a sample every `every_s` for `seconds`."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 1e-3:
            time.sleep(min(every_s, left_s))
            self.look()

    def watch_until_done(self, seconds_max: float, every_s: float = 1.0) -> bool:
        """Take samples until every client has handled its messages; return false on timeout."""
        end_s = time.monotonic() + seconds_max
        while time.monotonic() < end_s:
            time.sleep(every_s)
            self.look()
            if all(standing.ended_s is not None for standing in self.standings()):
                return True
        return False

    def look(self) -> Row:
        """Take a sample and append it to `rows`; raise if a child process has failed."""
        for child in self._children.values():
            child.check()
        replicas = self.replicas()
        # Take both totals from the clients, which know the messages that are committed.
        standings = self.standings()
        row = Row(
            at_s=time.monotonic() - self._began_s,
            produced=_done(standings, Role.PRODUCER),
            consumed=_done(standings, Role.CONSUMER),
            waiting=sum(numbers.waiting for numbers in replicas),
            unacknowledged=sum(numbers.unacknowledged for numbers in replicas),
            clients=sum(
                standing.begun_s is not None and standing.ended_s is None for standing in standings
            ),
            replicas=[
                ReplicaRow(one.name, one.put, one.acked, one.waiting, one.unacknowledged)
                for one in replicas
            ],
            producers_at=_places(standings, Role.PRODUCER),
            consumers_at=_places(standings, Role.CONSUMER),
        )
        self.rows.append(row)
        return row

    def replicas(self) -> list[QueueNumbers]:
        """Return the stats of the queue, or of a logical queue's alias and replicas."""
        return sorted(
            (
                one
                for node in self._control.stats().nodes
                for one in node.queues
                if logical_name(one.name) == self._queue
            ),
            key=lambda one: one.name,
        )

    # Accounting

    def settle(self) -> Balance:
        """Compare messages put with messages taken and waiting, after all clients have left.

        Raise `ExperimentFailed` if a message was lost, or was delivered twice without the
        redelivered flag.
        """
        put = self._ask(Role.PRODUCER, Account(), Balance)
        taken = self._ask(Role.CONSUMER, Account(), Balance)
        left = self._left_over(put.distinct - taken.distinct)
        if put.distinct != taken.distinct + left or (left == 0 and put.total != taken.total):
            raise ExperimentFailed(
                f"{put.distinct} messages were put, {taken.distinct} different ones taken and "
                f"{left} are left in {self._queue!r}: {put.distinct - taken.distinct - left} lost"
            )
        if taken.unflagged:
            raise ExperimentFailed(f"{taken.unflagged} messages came twice and did not say so")
        return taken

    def _left_over(self, expected: int) -> int:
        end_s = time.monotonic() + EMPTY_TIMEOUT_S
        while True:
            left = sum(one.waiting + one.unacknowledged for one in self.replicas())
            if left == expected or time.monotonic() > end_s:
                return left
            time.sleep(0.05)


def _done(standings: Sequence[Standing], role: Role) -> int:
    return sum(standing.done for standing in standings if standing.role is role)


def _places(standings: Sequence[Standing], role: Role) -> dict[int, int]:
    return dict(
        Counter(
            standing.replica
            for standing in standings
            if standing.role is role and standing.replica is not None
        )
    )


@contextlib.contextmanager
def crew_at(control: BlockingClient, queue: str) -> Iterator[Crew]:
    """Yield a group of two processes without clients."""
    with contextlib.ExitStack() as stack:
        children = {
            role: stack.enter_context(Child("tidegate.lab.replicated.crew_process"))
            for role in Role
        }
        for child in children.values():
            child.hear(str, ANSWER_TIMEOUT_S)
        yield Crew(children, control, queue)


def seats_for(
    producers: int,
    consumers: int,
    *,
    url: str,
    queue: str,
    put_each: int | None = None,
    take_each: int | None = None,
) -> list[Seat]:
    """Return clients of a plain queue, consumers first, so that they wait for the messages."""
    roles = [Role.CONSUMER] * consumers + [Role.PRODUCER] * producers
    return [
        Seat(number, role, url, queue, put_each if role is Role.PRODUCER else take_each)
        for number, role in enumerate(roles)
    ]
