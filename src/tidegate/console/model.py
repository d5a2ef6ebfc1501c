"""What the page is told, in one place: the answers of the API, all of them JSON.

A service is what an agreement may govern: a queue (with all its replicas) or an HTTP application.
Times are seconds since 1970, durations seconds, rates per second, parts 0 to 1. None: not known.
"""

from __future__ import annotations

import enum

import msgspec

from tidegate.core.by_hand import ByHand


class Kind(enum.StrEnum):
    """What a service is."""

    QUEUE = "queue"
    HTTP = "http"


class Light(enum.StrEnum):
    """An agreement as a traffic light; those that need somebody come first."""

    BREACHED = "breached"
    WARNED = "warned"
    UNKNOWN = "unknown"  # there is an agreement, and nobody judges it, or nothing is measured
    MET = "met"
    NONE = "none"  # nothing was promised


class PromiseState(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of an agreement in the last window."""

    metric: str
    light: Light
    value: float | None
    # In the metric's unit; which of them is worse is the sign of their difference.
    warning: float | None
    breach: float | None
    unit: str
    evidence: str


class AgreementState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agreement of a service stands."""

    name: str
    light: Light
    # Of the error budget; 1: untouched.
    budget_left: float | None = None
    burn_rate: float | None = None
    alarm: str | None = None
    # Windows of the last hour.
    met: int = 0
    warned: int = 0
    breached: int = 0
    promises: list[PromiseState] = []
    # What is being done about it, in words.
    doing: str = ""
    judged_at: float | None = None


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the overview."""

    kind: Kind
    name: str
    light: Light
    budget_left: float | None = None
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    # Messages that wait; requests that are under way.
    waiting: int = 0
    oldest_age_s: float | None = None
    wait_p95_s: float | None = None
    # That serve, and that are wanted.
    replicas: int = 1
    replicas_wanted: int = 1
    consumers: int = 0
    paused: bool = False
    # auto, recommend-only, manual; "": nothing is steered.
    steering: str = ""
    # Dead letters of a queue, in the queue of that name.
    dead: int = 0
    dead_queue: str = ""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """The one thing that somebody should look at first."""

    light: Light
    service: str
    kind: Kind | None
    # A sentence, and what may be done about it.
    text: str
    advice: str = ""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All services at a moment; each event of /api/live is one."""

    at: float
    # None: all is well.
    attention: Attention | None
    services: list[ServiceRow]
    nodes: int = 0
    machines_up: int = 0
    machines_warm: int = 0
    machines_booting: int = 0
    # What could not be asked, in words; the rest is still true.
    complaints: list[str] = []


class ReplicaPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One replica (or instance) at a moment."""

    number: int
    state: str
    waiting: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    share: float | None = None
    machine_id: int | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a service, as the charts draw it."""

    at: float
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    waiting: int = 0
    oldest_age_s: float | None = None
    # Of what was delivered (answered) in this second.
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    wait_p99_s: float | None = None
    prefetch: float | None = None
    prefetch_wanted: float | None = None
    target_per_s: float | None = None
    replicas: list[ReplicaPoint] = []
    machines: int | None = None


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: measured, rule, action, effect."""

    # Stable, for links.
    key: str
    at: float
    loop: str
    law: str
    rule: str
    # What was done, in a few words: the mark on a chart.
    headline: str
    # Name and figure, in the order in which they were written.
    measured: list[tuple[str, float]] = []
    outputs: list[tuple[str, float]] = []
    actions: list[str] = []
    reason: str = ""
    otherwise: str = ""
    carried_out: bool = True
    outcome: str = ""
    # What the figures were a while before and after; None: it is too early to say.
    effect: str | None = None
    # Who did it, when a person has; "": a loop.
    by: str = ""


class ConsumerView(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer of a queue."""

    consumer: int
    client_id: int
    client: str
    replica: int
    prefetch: int
    unacknowledged: int
    acked_per_s: float
    # automatic, held, fallback, manual; "": not steered.
    mode: str = ""


class HostedView(msgspec.Struct, frozen=True, kw_only=True):
    """What may be set of an HTTP application by hand, and what was."""

    by_hand: ByHand
    # As it was deployed: requests of an instance at a time.
    concurrency: int
    # As is agreed; None: nobody has said how many at most.
    agreed_min: int = 1
    agreed_max: int | None = None


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A service by itself."""

    row: ServiceRow
    agreement: AgreementState | None
    # Oldest first; what the console has seen, at most 15 minutes.
    points: list[Point]
    # Newest first.
    decisions: list[DecisionView]
    consumers: list[ConsumerView] = []
    # Replicas that may be: bounds; None: nothing can be set.
    replicas_min: int | None = None
    replicas_max: int | None = None
    policy: str = ""
    # Another when somebody has changed how it scales; "": it does not.
    scaling_mark: str = ""
    # Whether somebody has said which part of new messages each replica gets.
    shares_by_hand: bool = False
    prefetch_goal: str = ""
    # Another when somebody has changed what the prefetch is steered to; "": it is no queue.
    prefetch_mark: str = ""
    # Of an HTTP application.
    hosted: HostedView | None = None
    # What whoever asks may do here: pause, prefetch, prefetch-of-one, goal, scaling, shares, put,
    # browse, redrive, purge, delete; with an HTTP application: by-hand.
    allowed: list[str] = []


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a slot of a machine."""

    service: str
    kind: Kind
    number: int
    state: str
    share: float = 0.0


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on the map."""

    machine_id: int
    state: str
    slots: int
    held: list[SlotView] = []
    host: str | None = None
    address: str | None = None
    # Since it was ordered, while it boots.
    booting_s: float | None = None
    detail: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    member_id: int
    name: str
    address: str
    uptime_s: float
    queues: int
    connections: int
    memory_bytes: int
    commit_p99_s: float | None
    is_leader: bool = False


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """Machines, their slots, and who leads."""

    at: float
    leader: int | None
    machines: list[MachineView]
    nodes: list[NodeView]
    unplaced: int = 0
    instances_waiting: int = 0
    decisions: list[DecisionView] = []


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message as one looks at it; nothing is taken."""

    message_id: int
    at: float | None
    priority: int
    size_bytes: int
    # UTF-8 text up to a bound, else None and `payload_hex`.
    text: str | None
    payload_hex: str | None
    truncated: bool
    headers: dict[str, str] = {}
    delivery_count: int = 0
    # Of a dead letter: why, and where it comes from.
    reason: str = ""
    origin: str = ""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages of a queue; `after` of the next page, None: there is no other page."""

    messages: list[MessageView]
    next_after: int | None = None
    # There may be more, and no other page: those of a logical queue have no order to go on in.
    is_cut: bool = False
    # Of these `messages` are those that match; 0: not counted, since there are pages.
    looked_at: int = 0


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """Something learned: from what, how well it fits, whether it is used and why."""

    kind: str
    version: int
    subject: str
    accepted: bool
    reason: str
    learned_at: float
    since: float | None
    until: float | None
    rows: int
    # Name and figure: R², error …
    quality: dict[str, float]
    parameters: dict[str, float]
    # The points that were fitted and the curve through them, when they are kept.
    points: list[tuple[float, float]] = []
    curve: list[tuple[float, float]] = []
    x: str = ""
    y: str = ""


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """A page that `tidegate lab`, `learn` or `report` has written."""

    name: str
    title: str
    at: float
    # Below /api/results/; the page itself, sandboxed.
    path: str
    size_bytes: int


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """Who is logged in."""

    # "": nobody needs to, on loopback without users.
    user: str
    # May only look: has no right to put, configure or administer anything.
    read_only: bool
    is_admin: bool
    # To be sent back as X-Tidegate-Token with everything that changes something.
    token: str
    version: str


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody has done by the console or its API."""

    at: float
    user: str
    what: str
    service: str
    outcome: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error, and what to do: the body of every answer from 400 on."""

    error: str
    detail: str
