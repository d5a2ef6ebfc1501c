"""The clients of a trial, in a few child processes.

Each process connects its clients and reports their ids. When the parent knows all ids, it sends
them to all processes, and the clients begin. At the end, the clients that ask stop before the
clients that answer, so that no request remains unanswered. Messages that were put and not taken
must then be in the queues; a lost message fails the run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.lab.bench.child import Child
from tidegate.lab.telesto.mix import QUEUES, MixOptions, Role, roles_of
from tidegate.lab.telesto.tally import Sample
from tidegate.telemetry.numbers import ClusterNumbers

PROCESSES = 2
CONNECT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
LOOK_EVERY_S = 1.0

Answer = TypeVar("Answer")


class Share(msgspec.Struct, frozen=True):
    """The clients of one process."""

    urls: list[str]
    roles: list[Role]
    options: MixOptions


class MessagesLost(AssertionError):
    """Messages were put and not taken, and are not in the queues."""


class Crew:
    """The running clients, controlled by the parent process."""

    def __init__(self, children: Sequence[Child], control: BlockingClient) -> None:
        self._children = children
        self._control = control

    def sample(self) -> list[Sample]:
        """Return the counters of each process."""
        return self._ask_all("sample", Sample)

    def numbers(self) -> ClusterNumbers:
        """Return the stats of the nodes."""
        return self._control.stats()

    def work_for(self, seconds: float) -> None:
        """Wait while the clients work; raise if a child process has failed."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_EVERY_S))
            for child in self._children:
                child.check()

    def stop(self) -> int:
        """Stop the clients, and return how many messages were left in the queues.

        Raise `MessagesLost` if messages are missing.
        """
        self._ask_all("rest", bool)
        ended = self._ask_all("end", Sample)
        put = sum(sample.puts for sample in ended)
        taken = sum(sample.messages for sample in ended)
        left = sum(self._control.purge(queue) for queue in QUEUES)
        if put - taken != left:
            raise MessagesLost(f"{put} put, {taken} taken, {left} left: {put - taken - left} lost")
        return left

    def _ask_all(self, what: str, kind: type[Answer]) -> list[Answer]:
        for child in self._children:
            child.say(what)
        return [child.hear(kind, ANSWER_TIMEOUT_S) for child in self._children]


@contextlib.contextmanager
def crew_at_work(ports: Sequence[int], options: MixOptions) -> Iterator[Crew]:
    """Connect all clients to the nodes in turn, start them, and yield them."""
    urls = [f"tidegate://127.0.0.1:{port}" for port in ports]
    roles = roles_of(options.clients)
    with contextlib.ExitStack() as stack:
        controls = [stack.enter_context(tidegate.connect(url, mode="admin")) for url in urls]
        for position, queue in enumerate(QUEUES):
            # The node that creates a queue owns it, so this distributes the queues over the nodes.
            controls[position % len(controls)].create_queue(queue, durable=options.durable)
        children = [
            stack.enter_context(
                Child(
                    "tidegate.lab.telesto.crew_process",
                    [
                        msgspec.json.encode(
                            Share(urls, [r for r in roles if r.number % PROCESSES == part], options)
                        ).decode()
                    ],
                )
            )
            for part in range(PROCESSES)
        ]
        ids: dict[int, int] = {}
        for child in children:
            ids.update(child.hear(dict[int, int], CONNECT_TIMEOUT_S))
        roster = [ids[number] for number in range(options.clients)]
        for child in children:
            child.say(roster)
        yield Crew(children, controls[0])
