"""What a user says about how a queue scales; KEDA's words where they mean the same.

[queues.orders]
replicas = { min = 1, max = 8 }       KEDA: minReplicaCount, maxReplicaCount
policy = "feed-forward"
max_wait = "2s"                       what is promised; max_load follows from it
worker = "shop.jobs:app"
slots_per_machine = 2
polling_interval = "1s"               KEDA: pollingInterval
cooldown_period = "60s"               KEDA: cooldownPeriod, here before every scale-in
"""

from __future__ import annotations

import enum

import msgspec

REPLICAS_MAX = 10_000
# Who knows what is coming need not feel the way there replica by replica.
STEP_MAX_AHEAD = 4


class ScalingPolicy(enum.StrEnum):
    """Which law says how many replicas there are."""

    FIXED = "fixed"  # `replicas.min` of them, whatever happens
    LOAD = "load"  # Elastic queues: waiting messages per replica between min_load and max_load
    CLIENTS = "clients"  # Replicated queues: clients against the capacity for clients
    FEED_FORWARD = "feed-forward"  # ours: the arrival rate ahead, the oldest message's age behind
    LENGTH = "length"  # KEDA: waiting messages divided by queue_length
    AGREEMENT = "agreement"  # what its agreement promises: waits, oldest age, throughput


class Steering(enum.StrEnum):
    """Who has the say."""

    AUTO = "auto"
    RECOMMEND = "recommend-only"  # decisions are made, explained and not carried out
    MANUAL = "manual"  # `replicas_wanted` of them, as a person has said


class Provisioning(enum.StrEnum):
    """Which machine a replica comes to."""

    ENERGY = "energy"  # fewest machines, then fewest hosts
    PERFORMANCE = "performance"  # a machine each, on the least loaded host


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least and the most replicas."""

    min: int = 1
    max: int = 1


class Scaling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a logical queue scales. Loads are messages that wait per replica."""

    replicas: Range = Range()
    policy: ScalingPolicy = ScalingPolicy.LOAD
    steering: Steering = Steering.AUTO
    # For manual: how many.
    replicas_wanted: int | None = None
    min_load: float = 50.0
    max_load: float = 200.0
    # How long a message may wait; when given, max_load is this times a replica's rate.
    max_wait_s: float | None = None
    # KEDA's target of the policy "length": waiting messages per replica.
    queue_length: float = 100.0
    # Of the policy "clients": how many clients a replica is best with; None: learned, else 3.
    capacity_clients: float | None = None
    # msg/s of one replica with its workers; None: measured.
    capacity_per_s: float | None = None
    # Between two decisions.
    polling_interval_s: float = 1.0
    # After a scale-up no other one, until it has had time to show (the papers' inhibition).
    inhibition_s: float = 10.0
    # After any change no scale-in for so long.
    cooldown_period_s: float = 60.0
    # Replicas that one decision may add, or begin to remove; None: 4 of feed-forward and agreement,
    # else 1.
    step_max: int | None = None
    # Measurements that are older are not acted on.
    stale_s: float = 5.0
    # How long a scale-up that lowered throughput is remembered.
    reversal_memory_s: float = 600.0
    # User code that a replica's workers run; None: workers come by themselves.
    worker: str | None = None
    workers_per_replica: int = 1
    # Stated limit of what one replica delivers, for experiments on one computer; None: none.
    rate_max_per_s: float | None = None
    slots_per_machine: int = 1
    provisioning: Provisioning = Provisioning.ENERGY
    # Machines kept warm; None: NPP from what was learned or is said here, else 0.
    warm: int | None = None
    boot_s: float | None = None
    # The largest growth of the arrival rate that is to be kept up with, msg/s².
    sla_delta: float | None = None
    # Parts of new messages by number of the replica, as a person has said; None: the law decides.
    shares: dict[int, float] | None = None
    # Its agreement as it was written (TOML): judged under every policy, obeyed under "agreement".
    agreement: str | None = None

    @property
    def replicas_per_step(self) -> int:
        """`step_max`, or what is best for the policy (docs/simulation.md)."""
        if self.step_max is not None:
            return self.step_max
        ahead = (ScalingPolicy.FEED_FORWARD, ScalingPolicy.AGREEMENT)
        return STEP_MAX_AHEAD if self.policy in ahead else 1


DEFAULT_SCALING = Scaling()
