"""Request bodies of the API, each with its bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.core.by_hand import REQUESTS_MAX, ByHand
from tidegate.core.model import PRIORITY_DEFAULT, PRIORITY_HIGHEST, PRIORITY_LOWEST
from tidegate.core.prefetch import PREFETCH_MAX
from tidegate.core.scaling import REPLICAS_MAX, Steering

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


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body that refuses unknown fields."""


class Login(Wish, frozen=True, kw_only=True):
    """Credentials of a user."""

    user: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    password: Annotated[str, msgspec.Meta(max_length=1024)]

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ***)"


class NewQueue(Wish, frozen=True, kw_only=True):
    """A queue to create."""

    name: Name
    durable: bool = True


class NewMessage(Wish, frozen=True, kw_only=True):
    """A message to put."""

    text: Annotated[str, msgspec.Meta(max_length=PAYLOAD_CHARACTERS_MAX)]
    headers: Annotated[dict[HeaderText, HeaderText], msgspec.Meta(max_length=HEADERS_MAX)] = {}
    priority: Annotated[int, msgspec.Meta(ge=PRIORITY_LOWEST, le=PRIORITY_HIGHEST)] = (
        PRIORITY_DEFAULT
    )
    delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=DELAY_S_MAX)] | None = None
    group: Name | None = None


class Redrive(Wish, frozen=True, kw_only=True):
    """Dead letters to return: `count` None means all, `to` None each letter's original queue."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    to: Name | None = None


class Prefetch(Wish, frozen=True, kw_only=True):
    """A manual prefetch, of all consumers or of one."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=PREFETCH_MAX)]
    # As in ConsumerView. `client_id` is needed if two clients have a consumer of that number.
    consumer: int | None = None
    client_id: int | None = None
    # Only for all consumers.
    seen: Mark | None = None


class Goal(Wish, frozen=True, kw_only=True):
    """A prefetch goal as in the settings: `400/s`, `keep-up`, `off`."""

    goal: Annotated[
        str,
        msgspec.Meta(pattern=r"^(keep-up|off|[1-9][0-9]{0,5}(\.[0-9]{1,3})?/[smh]|[1-9][0-9]?)$"),
    ]
    seen: Mark | None = None


class Steer(Wish, frozen=True, kw_only=True):
    """The control mode of the number of replicas."""

    mode: Steering
    # For the mode manual only.
    replicas: Annotated[int, msgspec.Meta(ge=0, le=REPLICAS_MAX)] | None = None
    seen: Mark | None = None


class Shares(Wish, frozen=True, kw_only=True):
    """Parts of new messages by replica number, scaled to a sum of 1."""

    shares: Annotated[dict[ReplicaNumber, Part], msgspec.Meta(min_length=1, max_length=1_000)]
    seen: Mark | None = None


Instances = Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=REQUESTS_MAX)]


class HoldService(Wish, frozen=True, kw_only=True):
    """Overrides of an HTTP application; None leaves the value to the law and the agreement."""

    instances: Instances | None = None
    least: Instances | None = None
    most: Instances | None = None
    # Concurrent requests per instance, and of all doors together.
    concurrency: Requests | None = None
    in_flight_max: Requests | None = None
    # The overrides that the user saw; None skips the check.
    seen: ByHand | None = None


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
