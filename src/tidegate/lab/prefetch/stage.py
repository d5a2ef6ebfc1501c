"""Interfaces of the prefetch experiments' testbed, with real or simulated processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

import msgspec

from tidegate.core.prefetch import PrefetchGoal
from tidegate.lab.prefetch.blurred import Blur
from tidegate.lab.prefetch.track import Track

QUEUE = "orders"
# The queue's length limit, at which the oldest message is dropped. Publishers offer more than the
# consumer can handle, so the queue would grow without bound.
LENGTH_MAX = 20_000
# Messages in the queue at the start: enough to fill all but the largest prefetches at once.
WAITING_FIRST = 2_000


class Engine(StrEnum):
    """The message broker under test."""

    RABBITMQ = "rabbitmq"
    TIDEGATE = "tidegate"


class Setting(msgspec.Struct, frozen=True):
    """Publishers, network and handler; the defaults are those of the paper's table 1."""

    publishers: int = 25
    pause_s: float = 0.010
    pause_deviation_s: float = 0.001
    # The delay in each direction; the paper does not print it.
    delay_s: float = 0.006
    handler_s: float = 0.001

    @property
    def offered_per_s(self) -> float:
        return self.publishers / self.pause_s


class StagedConsumer(Protocol):
    """A consumer under test."""

    # All notes of the consumer since its start.
    track: Track

    def set_prefetch(self, prefetch: int) -> None:
        """Set a fixed prefetch and end the control loop of the consumer."""

    def set_handler(self, handler_s: float) -> None: ...
    def steer(self, goal: PrefetchGoal) -> None: ...
    def blur(self, blur: Blur) -> None: ...

    def watch(self, seconds: float) -> Track:
        """Wait for `seconds` and return what the consumer did meanwhile."""


class Network(Protocol):
    """The network between consumers and broker."""

    def set_delay(self, delay_s: float) -> None: ...


class Stage(Protocol):
    """A broker with active publishers, and a network between it and its consumers."""

    @property
    def engine(self) -> Engine: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def network(self) -> Network: ...

    def consumer(self, prefetch: int) -> AbstractContextManager[StagedConsumer]:
        """Add a consumer behind the network until the block ends."""

    def steer(self, consumer: StagedConsumer, goal: PrefetchGoal) -> None:
        """Start the control loop: in the worker on RabbitMQ, in the node on Tidegate."""

    def steer_no_more(self) -> None: ...

    def publish(self, times: float) -> int:
        """Multiply the publishers' rate by `times`, and return the messages published so far.

        `times` is relative to the setting; 0 pauses the publishers.
        """

    def waiting(self) -> int: ...
    def purge(self) -> None: ...
    def wait_for_messages(self, at_least: int = WAITING_FIRST) -> None: ...

    def now(self) -> float:
        """Return the time in seconds on the clock of all tracks."""

    def pause(self, seconds: float) -> None: ...
