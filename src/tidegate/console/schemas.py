"""The API's response bodies, all JSON.

A service is anything that an agreement can govern: a queue with all its replicas, or an HTTP
application. Times are in seconds since 1970, durations in seconds, rates per second, fractions from
0 to 1. None means unknown, if a field does not say otherwise.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated

import msgspec

from tidegate.core.model import PRIORITY_DEFAULT, PRIORITY_HIGHEST, PRIORITY_LOWEST
from tidegate.core.prefetch import PREFETCH_MAX, PrefetchGoal
from tidegate.core.services import REQUESTS_MAX, ServiceOverride
from tidegate.core.topology import REPLICAS_MAX, ControlMode, Scaling


class Kind(enum.StrEnum):
    """The kind of a service."""

    QUEUE = "queue"
    HTTP = "http"


class Light(enum.StrEnum):
    """The status of an agreement; the most urgent first."""

    BREACHED = "breached"
    WARNED = "warned"
    UNKNOWN = "unknown"  # the agreement has no current verdict or no data
    MET = "met"
    NONE = "none"  # there is no agreement


class PromiseState(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of an agreement in the last window."""

    metric: str
    light: Light
    value: float | None
    # In the metric's unit. The sign of their difference tells which direction is worse.
    warning: float | None
    breach: float | None
    unit: str
    evidence: str


class AgreementState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a service's agreement."""

    name: str
    light: Light
    # Remaining part of the error budget; 1 means that nothing was used.
    budget_left: float | None = None
    burn_rate: float | None = None
    alarm: str | None = None
    # Windows of the last hour.
    met: int = 0
    warned: int = 0
    breached: int = 0
    promises: list[PromiseState] = []
    # The present countermeasure, as text.
    doing: str = ""
    judged_at: float | None = None


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the overview."""

    kind: Kind
    name: str
    light: Light
    budget_left: float | None = None
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    # Waiting messages of a queue, or requests under way of an application.
    waiting: int = 0
    oldest_age_s: float | None = None
    wait_p95_s: float | None = None
    # Replicas that serve, and the wanted number.
    replicas: int = 1
    replicas_wanted: int = 1
    consumers: int = 0
    paused: bool = False
    # auto, recommend-only or manual; "" means that the service does not scale.
    steering: str = ""
    # Number of dead letters, and the queue that holds them.
    dead: int = 0
    dead_queue: str = ""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """The most urgent problem."""

    light: Light
    service: str
    kind: Kind | None
    # The problem and a possible remedy.
    text: str
    advice: str = ""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All services at one moment; each overview event of /api/live is one."""

    at: float
    # None means that there is no problem.
    attention: Attention | None
    services: list[ServiceRow]
    nodes: int = 0
    machines_up: int = 0
    machines_warm: int = 0
    machines_booting: int = 0
    # Sources that could not be read; the other values are current.
    complaints: list[str] = []


class ReplicaPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One replica or instance at one moment."""

    number: int
    state: str
    waiting: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    share: float | None = None
    machine_id: int | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a service, for charts."""

    at: float
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    waiting: int = 0
    oldest_age_s: float | None = None
    # Percentiles of the deliveries or responses of this second.
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    wait_p99_s: float | None = None
    prefetch: float | None = None
    prefetch_wanted: float | None = None
    target_per_s: float | None = None
    replicas: list[ReplicaPoint] = []
    machines: int | None = None


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: measurements, rule, actions, effect."""

    # Stable, for use in links.
    key: str
    at: float
    loop: str
    law: str
    rule: str
    # A short text for the mark on a chart.
    headline: str
    # Name and value, in the order of the decision.
    measured: list[tuple[str, float]] = []
    outputs: list[tuple[str, float]] = []
    actions: list[str] = []
    reason: str = ""
    otherwise: str = ""
    carried_out: bool = True
    outcome: str = ""
    # Comparison of before and after; None means that it is too early, "" that there is no data.
    effect: str | None = None
    # The user of an override; "" for a control loop.
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
    # automatic, held, fallback or manual; "" means that no loop controls it.
    mode: str = ""


class HostedView(msgspec.Struct, frozen=True, kw_only=True):
    """The overrides of an HTTP application and the values they replace."""

    by_hand: ServiceOverride
    # The deployed number of concurrent requests per instance.
    concurrency: int
    # The agreed bounds; None means no upper bound.
    agreed_min: int = 1
    agreed_max: int | None = None


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """One service in detail."""

    row: ServiceRow
    agreement: AgreementState | None
    # Oldest first; at most 15 minutes, as the console has seen them.
    points: list[Point]
    # Newest first.
    decisions: list[DecisionView]
    consumers: list[ConsumerView] = []
    # Bounds of the number of replicas; None means that they cannot be set.
    replicas_min: int | None = None
    replicas_max: int | None = None
    policy: str = ""
    # Changes with the scaling settings; "" means that the queue does not scale.
    scaling_mark: str = ""
    # Whether an override sets the shares of the replicas.
    shares_by_hand: bool = False
    prefetch_goal: str = ""
    # Changes with the prefetch goal; "" means that the service is no queue.
    prefetch_mark: str = ""
    # Of HTTP applications only.
    hosted: HostedView | None = None
    # What the user may do: pause, prefetch, prefetch-of-one, goal, scaling, shares, put, browse,
    # redrive, purge, delete; for an HTTP application by-hand.
    allowed: list[str] = []


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one slot."""

    service: str
    kind: Kind
    number: int
    state: str
    share: float = 0.0


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """One machine on the map."""

    machine_id: int
    state: str
    slots: int
    held: list[SlotView] = []
    host: str | None = None
    address: str | None = None
    # Seconds since it was ordered, while it boots.
    booting_s: float | None = None
    detail: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

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
    """Machines, their slots, the nodes, and the leader."""

    at: float
    leader: int | None
    machines: list[MachineView]
    nodes: list[NodeView]
    unplaced: int = 0
    instances_waiting: int = 0
    decisions: list[DecisionView] = []


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was browsed, not taken."""

    message_id: int
    at: float | None
    priority: int
    size_bytes: int
    # The beginning as UTF-8 text; None if it is none, and then `payload_hex` has the bytes.
    text: str | None
    payload_hex: str | None
    truncated: bool
    headers: dict[str, str] = {}
    delivery_count: int = 0
    # Of a dead letter: the reason, and the queue where it died.
    reason: str = ""
    origin: str = ""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages of a queue; `next_after` None means that no page follows."""

    messages: list[MessageView]
    next_after: int | None = None
    # There may be more messages, but no next page: a logical queue has no common order of ids.
    is_cut: bool = False
    # Number of messages searched; 0 if it was not counted, because pages follow.
    looked_at: int = 0


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A learned model: its data, its quality, and whether and why it is used."""

    kind: str
    version: int
    subject: str
    accepted: bool
    reason: str
    learned_at: float
    since: float | None
    until: float | None
    rows: int
    # Name and value: R², error …
    quality: dict[str, float]
    parameters: dict[str, float]
    # The fitted points and the curve through them, if they are kept.
    points: list[tuple[float, float]] = []
    curve: list[tuple[float, float]] = []
    x: str = ""
    y: str = ""


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """A page that `tidegate lab`, `learn` or `report` has written."""

    name: str
    title: str
    at: float
    # Path below /api/results/; the page is served sandboxed.
    path: str
    size_bytes: int


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """The user who is logged in."""

    # "" if no login is needed: on loopback without users.
    user: str
    # Whether the user has no right to put, configure or administer anything.
    read_only: bool
    is_admin: bool
    # Clients send it as X-Tidegate-Token with every change.
    token: str
    version: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that a user made through the console or its API."""

    at: float
    user: str
    what: str
    service: str
    outcome: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error and its remedy: the body of every response from status 400 on."""

    error: str
    detail: str


# Request bodies of the API, each with its bounds.


# As nodes accept names: no control characters, no surrounding blanks, no #, which precedes a
# replica's number.
_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_INK = rf"[^#\s{_CONTROL}]"
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=rf"^{_INK}([^#{_CONTROL}]*{_INK})?$"),
]
# The store cannot hold NUL characters; nodes accept 16 KiB of headers.
HeaderText = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[^\x00]*$")]
ReplicaNumber = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,4}$")]
Part = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
# `scaling_mark` or `prefetch_mark` as the user saw it: 409 if it has changed since. None skips the
# check.
Mark = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
# For test messages, not for bulk data.
PAYLOAD_CHARACTERS_MAX = 256 * 1024
DELAY_S_MAX = 86_400.0
HEADERS_MAX = 32


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body that refuses unknown fields."""


class Login(RequestBody, frozen=True, kw_only=True):
    """Credentials of a user."""

    user: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    password: Annotated[str, msgspec.Meta(max_length=1024)]

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ***)"


class NewQueue(RequestBody, frozen=True, kw_only=True):
    """A queue to create."""

    name: Name
    durable: bool = True


class NewMessage(RequestBody, frozen=True, kw_only=True):
    """A message to put."""

    text: Annotated[str, msgspec.Meta(max_length=PAYLOAD_CHARACTERS_MAX)]
    headers: Annotated[dict[HeaderText, HeaderText], msgspec.Meta(max_length=HEADERS_MAX)] = {}
    priority: Annotated[int, msgspec.Meta(ge=PRIORITY_LOWEST, le=PRIORITY_HIGHEST)] = (
        PRIORITY_DEFAULT
    )
    delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=DELAY_S_MAX)] | None = None
    group: Name | None = None


class RedriveBody(RequestBody, frozen=True, kw_only=True):
    """Dead letters to return: `count` None means all, `to` None each letter's original queue."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    to: Name | None = None


class Prefetch(RequestBody, frozen=True, kw_only=True):
    """A manual prefetch, of all consumers or of one."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=PREFETCH_MAX)]
    # As in ConsumerView. `client_id` is needed if two clients have a consumer of that number.
    consumer: int | None = None
    client_id: int | None = None
    # Only for all consumers.
    seen: Mark | None = None


class Goal(RequestBody, frozen=True, kw_only=True):
    """A prefetch goal as in the settings: `400/s`, `keep-up`, `off`."""

    goal: Annotated[
        str,
        msgspec.Meta(pattern=r"^(keep-up|off|[1-9][0-9]{0,5}(\.[0-9]{1,3})?/[smh]|[1-9][0-9]?)$"),
    ]
    seen: Mark | None = None


class Steer(RequestBody, frozen=True, kw_only=True):
    """The control mode of the number of replicas."""

    mode: ControlMode
    # For the mode manual only.
    replicas: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] | None = None
    seen: Mark | None = None


class Shares(RequestBody, frozen=True, kw_only=True):
    """Parts of new messages by replica number, scaled to a sum of 1."""

    shares: Annotated[dict[ReplicaNumber, Part], msgspec.Meta(min_length=1, max_length=1_000)]
    seen: Mark | None = None


Instances = Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=REQUESTS_MAX)]


class HoldService(RequestBody, frozen=True, kw_only=True):
    """Overrides of an HTTP application; None leaves the value to the law and the agreement."""

    instances: Instances | None = None
    least: Instances | None = None
    most: Instances | None = None
    # Concurrent requests per instance, and of all doors together.
    concurrency: Requests | None = None
    in_flight_max: Requests | None = None
    # The overrides that the user saw; None skips the check.
    seen: ServiceOverride | None = None


class Put(msgspec.Struct, frozen=True):
    """A stored message."""

    message_id: int


class Moved(msgspec.Struct, frozen=True):
    """The number of messages returned."""

    moved: int


class Purged(msgspec.Struct, frozen=True):
    """The number of messages removed."""

    purged: int


class Health(msgspec.Struct, frozen=True):
    """The health of the console itself; see /api/overview for the nodes."""

    status: str
    version: str


# Marks of settings: a client sends back the mark that it saw, to detect other changes.


def scaling_mark(scaling: Scaling) -> str:
    """Return the mark of the settings that users have made; control loops do not change it."""
    return _mark(scaling)


def prefetch_mark(goal: PrefetchGoal | None) -> str:
    """Return the mark of a prefetch goal or a manual prefetch."""
    return _mark(goal)


def _mark(said: object) -> str:
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]
