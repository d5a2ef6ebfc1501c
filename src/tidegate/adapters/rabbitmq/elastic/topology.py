"""Elastic queues on RabbitMQ: their names, their topology, and shares as binding weights.

Theory of operation.

An elastic queue `orders` consists of these objects of one vhost:

    orders             an x-consistent-hash exchange that producers publish to
    orders             a queue: replica 0, for direct publishes and messages without a replica
    orders#rest        a fanout exchange to that queue, the alternate exchange: a message that
                       finds no replica is kept
    orders#1 orders#2  the replicas: queues bound to the exchange, with shares as weights
    orders#1#holders   a queue without messages; its consumers may hold messages of orders#1
    orders#topology    a queue of one message: the stored topology, which needs no database
    orders#steerer     an exclusive queue: its owner is the controller and holds the lock
    tidegate.news      a direct exchange: every change of a topology, to the clients that listen

The controller changes the topology; clients only read it. A replica passes through these states:

    STARTING    its queues are being created; no binding, no consumers
    SERVING     bound with its weight; consumed
    DRAINING    its weight goes down to 0; consumed
    is_leaving  empty; its consumers stop when they hold none of its messages
    gone        no longer in the topology, and its queue is deleted

Invariants:

- The topology is stored before a step is taken. `weight_before` and the state say what may be left
  of the previous topology. The next controller repeats the step, and every step can be repeated.
- The version grows with each write; clients ignore lower versions.
- A replica's number is never used twice, so a late client cannot mistake a new replica for an old
  one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.core.replication import ReplicaState, replica_name

# The sum of all weights. Each unit is a bucket of the exchange's ring.
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
    # Weight of its binding; 0 means no binding.
    weight: int = 0
    # Weight that it may still be bound with, if a controller was stopped during the change.
    weight_before: int = 0
    # Empty and about to be deleted: consumers stop as soon as they hold none of its messages.
    is_leaving: bool = False


class ElasticTopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole topology of one elastic queue."""

    queue: str
    # Grows with every write; the highest is valid.
    version: int
    # False if the queues are quorum queues, or may be.
    is_classic: bool = True
    # Arguments of the replicas: those of the queue when it became elastic.
    arguments: dict[str, Any] = {}
    replicas: list[ElasticReplica] = []
    # No number is used twice, so that a late client never takes a new replica for an old one.
    next_number: int = 1
    # The queue is plain again, or about to be.
    is_over: bool = False

    def replica(self, number: int) -> ElasticReplica | None:
        return next((one for one in self.replicas if one.number == number), None)

    @property
    def shares(self) -> dict[int, float]:
        """Parts of new messages by replica; all 0 if the queue itself keeps all messages."""
        total = sum(one.weight for one in self.replicas)
        return {one.number: one.weight / total if total else 0.0 for one in self.replicas}

    def with_replica(self, replica: ElasticReplica) -> ElasticTopology:
        """Return a copy in which one replica is replaced or added."""
        others = [one for one in self.replicas if one.number != replica.number]
        return self._with(sorted([*others, replica], key=lambda one: one.number))

    def without(self, number: int) -> ElasticTopology:
        return self._with([one for one in self.replicas if one.number != number])

    def _with(self, replicas: list[ElasticReplica]) -> ElasticTopology:
        return msgspec.structs.replace(self, replicas=replicas)

    def weighted(self, weights: Mapping[int, int]) -> ElasticTopology:
        """Return a copy with these weights; replicas not named get weight 0.

        Each replica's present weight becomes its `weight_before`.
        """
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
    """Decode a topology; None if the document is something else."""
    try:
        return msgspec.json.decode(document, type=ElasticTopology)
    except msgspec.DecodeError:
        return None


def weights_of(shares: Mapping[int, float]) -> dict[int, int]:
    """Return integer weights that are nearest to the shares and add up to WEIGHTS.

    A share above 0 gets at least weight 1. No share above 0 gives no weights.
    """
    wanted = {number: share for number, share in shares.items() if share > 0.0}
    total = sum(wanted.values())
    if not wanted or not math.isfinite(total):
        return {}
    # With more than 25 replicas the sum is larger, so that each can have a part.
    parts = max(WEIGHTS, 4 * len(wanted))
    exact = {number: share / total * parts for number, share in wanted.items()}
    weights = {number: max(int(part), 1) for number, part in exact.items()}
    missing = parts - sum(weights.values())
    by_loss = sorted(exact, key=lambda number: (weights[number] - exact[number], number))
    for number in by_loss[: max(missing, 0)]:
        weights[number] += 1
    for _ in range(-missing):
        # The replicas that were raised to one part took it from the largest ones.
        weights[max(weights, key=lambda number: (weights[number], number))] -= 1
    return weights
