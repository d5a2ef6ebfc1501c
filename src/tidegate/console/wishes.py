"""What the API is sent: the bodies of requests that change something, each with its bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.core.by_hand import REQUESTS_MAX, ByHand
from tidegate.core.model import PRIORITY_DEFAULT, PRIORITY_HIGHEST, PRIORITY_LOWEST
from tidegate.core.prefetch import PREFETCH_MAX
from tidegate.core.scaling import REPLICAS_MAX, Steering

# As nodes take them: no control characters, not blank, no # where it means a number.
_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_INK = rf"[^#\s{_CONTROL}]"
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=rf"^{_INK}([^#{_CONTROL}]*{_INK})?$"),
]
# The store keeps no NUL; nodes take 16 KiB of headers.
HeaderText = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[^\x00]*$")]
ReplicaNumber = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,4}$")]
Part = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
# `scaling_mark` or `prefetch_mark` as it was when somebody looked: 409 if it is another now; None:
# whatever it is.
Mark = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
# A test message, and not a way to move data.
PAYLOAD_CHARACTERS_MAX = 256 * 1024
DELAY_S_MAX = 86_400.0
HEADERS_MAX = 32


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body of a request."""


class Login(Wish, frozen=True, kw_only=True):
    """Who wants to come in."""

    user: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    password: Annotated[str, msgspec.Meta(max_length=1024)]

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ***)"


class NewQueue(Wish, frozen=True, kw_only=True):
    """A queue that is to be made."""

    name: Name
    durable: bool = True


class NewMessage(Wish, frozen=True, kw_only=True):
    """A message to be put."""

    text: Annotated[str, msgspec.Meta(max_length=PAYLOAD_CHARACTERS_MAX)]
    headers: Annotated[dict[HeaderText, HeaderText], msgspec.Meta(max_length=HEADERS_MAX)] = {}
    priority: Annotated[int, msgspec.Meta(ge=PRIORITY_LOWEST, le=PRIORITY_HIGHEST)] = (
        PRIORITY_DEFAULT
    )
    delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=DELAY_S_MAX)] | None = None
    group: Name | None = None


class Redrive(Wish, frozen=True, kw_only=True):
    """Dead letters that are to go back; None: all, and each to where it died."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    to: Name | None = None


class Prefetch(Wish, frozen=True, kw_only=True):
    """A prefetch by hand: of every consumer, or of one."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=PREFETCH_MAX)]
    # As in ConsumerView; the client too where two clients have a consumer of that number.
    consumer: int | None = None
    client_id: int | None = None
    # Of every consumer.
    seen: Mark | None = None


class Goal(Wish, frozen=True, kw_only=True):
    """What prefetch is steered to, as in settings: `400/s`, `keep-up`, `off`."""

    goal: Annotated[
        str,
        msgspec.Meta(pattern=r"^(keep-up|off|[1-9][0-9]{0,5}(\.[0-9]{1,3})?/[smh]|[1-9][0-9]?)$"),
    ]
    seen: Mark | None = None


class Steer(Wish, frozen=True, kw_only=True):
    """Who says how many replicas there are."""

    mode: Steering
    # For manual.
    replicas: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] | None = None
    seen: Mark | None = None


class Shares(Wish, frozen=True, kw_only=True):
    """Parts of new messages by the number of the replica; brought to a sum of 1."""

    shares: Annotated[dict[ReplicaNumber, Part], msgspec.Meta(min_length=1, max_length=1_000)]
    seen: Mark | None = None


Instances = Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=REQUESTS_MAX)]


class HoldService(Wish, frozen=True, kw_only=True):
    """What goes before the law, of an HTTP application; None: the law decides, as is agreed."""

    instances: Instances | None = None
    least: Instances | None = None
    most: Instances | None = None
    # Requests of an instance, and of all doors, at a time.
    concurrency: Requests | None = None
    in_flight_max: Requests | None = None
    # What was set by hand when it was looked at; None: whatever it is now.
    seen: ByHand | None = None


class Put(msgspec.Struct, frozen=True):
    """A message is stored."""

    message_id: int


class Moved(msgspec.Struct, frozen=True):
    """So many went."""

    moved: int


class Purged(msgspec.Struct, frozen=True):
    """So many were dropped."""

    purged: int


class Health(msgspec.Struct, frozen=True):
    """The console is there; of the nodes, see /api/overview."""

    status: str
    version: str
