"""What an experiment needs of a scene: the same of real processes and of simulated ones."""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

import msgspec

from tidegate.core.prefetch import PrefetchGoal
from tidegate.lab.prefetch.blurred import Blur
from tidegate.lab.prefetch.track import Track

QUEUE = "orders"
# At it the oldest is dropped: publishers offer more than the consumer can do.
LENGTH_MAX = 20_000
# Enough for all but the greediest to be filled at once.
WAITING_FIRST = 2_000


class Engine(StrEnum):
    """Whose queue."""

    RABBITMQ = "rabbitmq"
    TIDEGATE = "tidegate"


class Setting(msgspec.Struct, frozen=True):
    """Publishers, network and handler, as in the paper's table 1."""

    publishers: int = 25
    pause_s: float = 0.010
    pause_deviation_s: float = 0.001
    # Each way; the paper does not say.
    delay_s: float = 0.006
    handler_s: float = 0.001

    @property
    def offered_per_s(self) -> float:
        return self.publishers / self.pause_s


class StagedConsumer(Protocol):
    """A consumer under test."""

    # All that it ever did.
    track: Track

    def set_prefetch(self, prefetch: int) -> None:
        """A fixed one, steered by nobody."""

    def set_handler(self, handler_s: float) -> None: ...
    def steer(self, goal: PrefetchGoal) -> None: ...
    def blur(self, blur: Blur) -> None: ...

    def watch(self, seconds: float) -> Track:
        """What it does from now on for so long."""


class Network(Protocol):
    """The way between consumers and broker."""

    def set_delay(self, delay_s: float) -> None: ...


class Stage(Protocol):
    """A broker with publishers at work and a network in front of it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def setting(self) -> Setting: ...
    @property
    def network(self) -> Network: ...

    def consumer(self, prefetch: int) -> AbstractContextManager[StagedConsumer]:
        """One more, behind the network."""

    def steer(self, consumer: StagedConsumer, goal: PrefetchGoal) -> None:
        """By whoever steers on this engine."""

    def steer_no_more(self) -> None: ...

    def publish(self, times: float) -> int:
        """So many times as fast from now on; how many were published so far."""

    def waiting(self) -> int: ...
    def purge(self) -> None: ...
    def wait_for_messages(self, at_least: int = WAITING_FIRST) -> None: ...

    def now(self) -> float:
        """The clock of all tracks."""

    def pause(self, seconds: float) -> None: ...
