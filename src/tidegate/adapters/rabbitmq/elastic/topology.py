"""An elastic queue on RabbitMQ: what it is called, which replicas it has, how shares are weights.

    orders             an x-consistent-hash exchange: where producers publish to
    orders             a queue too: replica 0, for who publishes to the queue and for the homeless
    orders#rest        a fanout exchange to it: what finds no replica is kept there, never lost
    orders#1 orders#2  queues, bound to the exchange with their shares as weights
    orders#1#holders   never has a message: who may hold one of orders#1 is a consumer of this
    orders#topology    a queue of one message, this document: the truth, without a database
    orders#steerer     exclusive: who has it steers
    tidegate.news      a direct exchange: the same document to everybody who listens for the queue

The document is written before anything is done, and says what may still be so from before. Whoever
finds it does the same again: every step of ours can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.core.replication import ReplicaState, replica_name

# The parts that shares are measured in. Every part is a bucket of the exchange's ring.
WEIGHTS = 100
NEWS = "tidegate.news"


def rest_name(queue: str) -> str:
    return f"{queue}#rest"


def ledger_name(queue: str) -> str:
    return f"{queue}#topology"


def steerer_name(queue: str) -> str:
    return f"{queue}#steerer"


def holders_name(queue: str, number: int) -> str:
    return f"{replica_name(queue, number)}#holders"


class ElasticReplica(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue behind the exchange."""

    number: int
    state: ReplicaState = ReplicaState.STARTING
    # What it is bound with; 0: it is not.
    weight: int = 0
    # What it may still be bound with, if whoever changed it was stopped in the middle.
    weight_before: int = 0
    # It is empty and about to go: consumers let go of it as soon as they hold nothing of it.
    is_leaving: bool = False


class ElasticTopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole document."""

    queue: str
    # Grows with every change; the highest is right.
    version: int
    # What its queues are: all classic ones, or taken for quorum ones.
    is_classic: bool = True
    # What replicas are declared with, as the queue itself was when it became elastic.
    arguments: dict[str, Any] = {}
    replicas: list[ElasticReplica] = []
    # No number is used twice: who is late never takes a new replica for an old one.
    next_number: int = 1
    # It is to be a plain queue again, or is one already.
    is_over: bool = False

    def replica(self, number: int) -> ElasticReplica | None:
        return next((one for one in self.replicas if one.number == number), None)

    @property
    def shares(self) -> dict[int, float]:
        """Parts of new messages, by number; all 0: the queue itself keeps them."""
        total = sum(one.weight for one in self.replicas)
        return {one.number: one.weight / total if total else 0.0 for one in self.replicas}

    def with_replica(self, replica: ElasticReplica) -> ElasticTopology:
        """The same with one replica as given, or with it as well."""
        others = [one for one in self.replicas if one.number != replica.number]
        return self._with(sorted([*others, replica], key=lambda one: one.number))

    def without(self, number: int) -> ElasticTopology:
        return self._with([one for one in self.replicas if one.number != number])

    def _with(self, replicas: list[ElasticReplica]) -> ElasticTopology:
        return msgspec.structs.replace(self, replicas=replicas)

    def weighted(self, weights: Mapping[int, int]) -> ElasticTopology:
        """The same with these weights, and what they were; who is not named gets nothing."""
        return self._with(
            [
                msgspec.structs.replace(
                    one, weight=weights.get(one.number, 0), weight_before=one.weight
                )
                for one in self.replicas
            ]
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decoded(document: bytes) -> ElasticTopology | None:
    """A document; None: it is none of ours."""
    try:
        return msgspec.json.decode(document, type=ElasticTopology)
    except msgspec.DecodeError:
        return None


def weights_of(shares: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers that add up to WEIGHTS and are nearest to the shares.

    Who has any share has at least one part; nobody has any: no weights at all.
    """
    wanted = {number: share for number, share in shares.items() if share > 0.0}
    total = sum(wanted.values())
    if not wanted or not math.isfinite(total):
        return {}
    # With very many replicas there are as many parts more, so that each can have one.
    parts = max(WEIGHTS, 4 * len(wanted))
    exact = {number: share / total * parts for number, share in wanted.items()}
    weights = {number: max(int(part), 1) for number, part in exact.items()}
    missing = parts - sum(weights.values())
    by_loss = sorted(exact, key=lambda number: (weights[number] - exact[number], number))
    for number in by_loss[: max(missing, 0)]:
        weights[number] += 1
    for _ in range(-missing):
        # Who was raised to one part took it from somebody: the richest have it to give.
        weights[max(weights, key=lambda number: (weights[number], number))] -= 1
    return weights
