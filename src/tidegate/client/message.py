"""Messages as the application puts and gets them: options, delivered messages, payload types.

Options are checked at the call, so that a bad value fails only that call. A node sends messages in
runs, as columns. `Message` objects are made only when the application iterates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, get_args

import msgspec

from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.core.model import (
    PRIORITY_DEFAULT,
    PRIORITY_HIGHEST,
    PRIORITY_LOWEST,
    Attributes,
    Death,
)
from tidegate.protocol.connection import MESSAGE_BYTES_MAX
from tidegate.protocol.packet import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.client.connection import Transport


# The longest wait, lease or delay that a node accepts: 24 days.
SECONDS_MAX = 2_147_483
# The end of the year 9999, which is the limit of the stores' calendars.
WALL_S_MAX = 253_402_300_000
KEY_LENGTH_MAX = 255
ERROR_LENGTH_MAX = 2000
_NO_ATTRIBUTES = Attributes()


# What is put: options and payload, checked at the call.


class PutOptions(TypedDict, total=False):
    """Keywords of `put`.

    - `receiver`: the id of the only client that may get the message.
    - `context`: a number by which the sender finds the reply, see `Client.request`.
    - `priority`: 1 (lowest) to 10; the default is 5.
    - `content_type`, `headers`: text for the application that reads the message.
    - `delay` (seconds) or `deliver_at` (seconds since 1970): no delivery before that time.
    - `ttl` (seconds) or `expires_at` (seconds since 1970): no delivery after that time.
    - `dedup_id`: only the first message with this id within the queue's window is stored. The
      others are confirmed with id 0.
    - `group`: messages of a group are delivered in order, one at a time.
    - `tenant`: the queue shares its capacity evenly among tenants.
    """

    receiver: int | None
    context: int | None
    priority: int
    content_type: str | None
    headers: dict[str, str] | None
    delay: float | None
    deliver_at: float | None
    ttl: float | None
    expires_at: float | None
    dedup_id: str | None
    group: str | None
    tenant: str | None


class MessageOptions(NamedTuple):
    """The options of one message in the form in which they are sent."""

    receiver: int | None = None
    context: int | None = None
    priority: int = PRIORITY_DEFAULT
    attributes: Attributes | None = None
    delay_s: float | None = None
    ttl_s: float | None = None


DEFAULT_MESSAGE_OPTIONS = MessageOptions()
_NAMES = PutOptions.__annotations__.keys()


def checked_options(options: PutOptions) -> MessageOptions:
    """Return the options in the form in which they are sent; raise `InvalidValue` for a bad value.

    An unknown option raises `TypeError`.
    """
    unknown = options.keys() - _NAMES
    if unknown:
        raise TypeError(
            f"a put has no option {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}"
        )
    receiver, context = options.get("receiver"), options.get("context")
    priority = options.get("priority", PRIORITY_DEFAULT)
    if type(priority) is not int or not PRIORITY_LOWEST <= priority <= PRIORITY_HIGHEST:
        raise InvalidValue(
            f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not {priority!r}"
        )
    if receiver is not None and (type(receiver) is not int or not 0 < receiver < 2**31):
        raise InvalidValue(
            f"a receiver is a client's id, not {receiver!r}: `await mq.client_id_of(name)` finds it"
        )
    if context is not None and (type(context) is not int or not -(2**63) <= context < 2**63):
        raise InvalidValue(f"a context is a whole number of 64 bits, not {context!r}")
    delay, ttl = options.get("delay"), options.get("ttl")
    if delay is not None:
        check_seconds("delay", delay, at_least=0.0)
    if ttl is not None:
        check_seconds("ttl", ttl, at_least=0.001)
    attributes = _checked_attributes(options)
    if delay is not None and attributes.deliver_at is not None:
        raise InvalidValue("give delay or deliver_at, not both")
    if ttl is not None and attributes.expires_at is not None:
        raise InvalidValue("give ttl or expires_at, not both")
    return MessageOptions(
        receiver,
        context,
        priority,
        None if attributes == _NO_ATTRIBUTES else attributes,
        delay,
        ttl,
    )


def _checked_attributes(options: PutOptions) -> Attributes:
    content_type, headers = options.get("content_type"), options.get("headers")
    if content_type is not None:
        check_text(content_type)
    if headers is not None:
        if not isinstance(headers, dict):
            raise InvalidValue(f"headers are a dict of strings, not {type(headers).__name__}")
        for text in (*headers, *headers.values()):
            check_text(text)
    for name in ("deliver_at", "expires_at"):
        at: Any = options.get(name)
        if at is not None and (
            not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at <= WALL_S_MAX
        ):
            raise InvalidValue(
                f"{name} is a time in seconds since 1970, as of time.time(), not {at!r}"
            )
    for name in ("dedup_id", "group", "tenant"):
        key: Any = options.get(name)
        if key is None:
            continue
        check_text(key)
        if not 0 < len(key) <= KEY_LENGTH_MAX or "\x00" in key:
            raise InvalidValue(f"{name} has from 1 to {KEY_LENGTH_MAX} characters, not {key!r}")
    return Attributes(
        content_type=content_type,
        headers=headers or None,
        group=options.get("group"),
        tenant=options.get("tenant"),
        dedup_id=options.get("dedup_id"),
        deliver_at=options.get("deliver_at"),
        expires_at=options.get("expires_at"),
    )


def check_text(text: object) -> None:
    """Raise `InvalidValue` unless `text` is a string that UTF-8 can encode.

    A string with lone surrogates cannot be sent.
    """
    if not isinstance(text, str):
        raise InvalidValue(f"{text!r} is no string")
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise InvalidValue(f"{text!r} cannot be written as UTF-8: {failure.reason}") from None


def check_seconds(name: str, seconds: object, *, at_least: float) -> None:
    if (
        not isinstance(seconds, int | float)
        or isinstance(seconds, bool)
        or not at_least <= seconds <= SECONDS_MAX
    ):
        raise InvalidValue(
            f"{name} is in seconds, from {at_least:g} to {SECONDS_MAX}, not {seconds!r}"
        )


# Checks of arguments at the call, so that a bad call fails there with a clear error.


def checked_payload(payload: object) -> bytes:
    if isinstance(payload, str):
        raise TypeError("a payload is bytes: encode the text, as in text.encode()")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
    data = bytes(payload)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES_MAX}")
    return data


def check_count(name: str, count: object) -> None:
    if type(count) is not int or not 1 <= count < 2**31:
        raise InvalidValue(f"{name} is a whole number from 1, not {count!r}")


# What is delivered.


class ReturnOptions(NamedTuple):
    """How a message goes back to its queue: failed, rejected, or not begun."""

    delay_ms: int | None = None
    error: str | None = None
    reject: bool = False
    unstarted: bool = False


class MessageSettler(Protocol):
    """Settles delivered messages; tags number the deliveries of a consumer."""

    queue: str

    def lease_of(self, generation: int) -> tuple[Transport, int, int]: ...
    def ack_tag(self, tag: int, generation: int) -> None: ...
    async def ack_tags(self, first: int, last: int, generation: int) -> None: ...
    async def return_tags(
        self, first: int, last: int, generation: int, how: ReturnOptions
    ) -> None: ...
    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None: ...


class Message:
    """One delivered message.

    Settle it once: `ack`, `nack`, `reject` or `release`. A subscription renews the lease until
    then. If the process or the connection fails, or the lease of a `get` ends, the message comes
    again. Messages from `browse`, and from `get` without a lease, are not held; settling them
    raises `InvalidValue`.
    """

    __slots__ = ("_generation", "_holder", "_index", "_run", "payload")

    def __init__(
        self, run: Run, index: int, payload: bytes, holder: MessageSettler | None, generation: int
    ) -> None:
        self._run = run
        self._index = index
        self.payload = payload
        self._holder = holder
        self._generation = generation

    def __repr__(self) -> str:
        return f"<Message {self.message_id} of {len(self.payload)} bytes>"

    @property
    def message_id(self) -> int:
        return self._run.message_id + self._index

    @property
    def queue(self) -> str:
        return self._holder.queue if self._holder is not None else ""

    @property
    def sender(self) -> int:
        return _of(self._run.senders, self._index)

    @property
    def receiver(self) -> int | None:
        receivers = self._run.receivers
        return None if receivers is None else _of(receivers, self._index)

    @property
    def context(self) -> int | None:
        contexts = self._run.contexts
        return None if contexts is None else contexts[self._index]

    @property
    def priority(self) -> int:
        return self._run.priority

    @property
    def arrived_at(self) -> float:
        """When the node stored it, in seconds since 1970 by the node's clock."""
        return self._run.arrived_at

    @property
    def _attributes(self) -> Attributes:
        attributes = self._run.attributes
        mine = attributes[self._index] if attributes is not None else None
        return mine or _NO_ATTRIBUTES

    @property
    def content_type(self) -> str | None:
        return self._attributes.content_type

    @property
    def headers(self) -> dict[str, str]:
        return self._attributes.headers or {}

    @property
    def group(self) -> str | None:
        return self._attributes.group

    @property
    def tenant(self) -> str | None:
        return self._attributes.tenant

    @property
    def dedup_id(self) -> str | None:
        return self._attributes.dedup_id

    @property
    def expires_at(self) -> float | None:
        """When it expires, in seconds since 1970; `None` if the message itself sets no time."""
        return self._attributes.expires_at

    @property
    def deaths(self) -> list[Death]:
        """The history of a dead letter, the latest death last; empty for other messages."""
        return self._attributes.deaths or []

    @property
    def delivery_count(self) -> int:
        """How often it was delivered, this time included, as far as the node knows."""
        return _of(self._run.deliveries, self._index)

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before. `False` is certain."""
        return self._run.redelivered or self.delivery_count > 1

    def _held_by(self) -> MessageSettler:
        if self._holder is None or not self._run.tag:
            raise InvalidValue(
                "this message is not held: it was browsed, or read without a lease, which "
                "acknowledges it"
            )
        return self._holder

    def held_under(self) -> tuple[Transport, int, int, int]:
        """Return transport, queue id, consumer number and tag; `LeaseLost` if it is not held."""
        holder = self._held_by()
        return (*holder.lease_of(self._generation), self._run.tag + self._index)

    def ack(self) -> None:
        """Acknowledge the message without waiting.

        Acknowledgements are sent in ranges after at most a few milliseconds. If the connection
        breaks before that, the message comes again. If it is no longer held, a message of a
        subscription ignores the call, and a message of `get` raises `LeaseLost`.
        """
        self._held_by().ack_tag(self._run.tag + self._index, self._generation)

    async def ack_confirmed(self) -> None:
        """Acknowledge the message, and return when this is on disk.

        Raise `LeaseLost` if the message was no longer held; it may then be delivered again.
        """
        tag = self._run.tag + self._index
        await self._held_by().ack_tags(tag, tag, self._generation)

    async def ack_through(self) -> None:
        """Acknowledge this message and all messages delivered to its consumer before it."""
        await self._held_by().ack_tags(1, self._run.tag + self._index, self._generation)

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """Return the message as failed, to be delivered again.

        Args:
            delay: seconds until the next delivery; `None` means the delay of the queue's policy.
            error: a text that is kept with the message.

        The delivery counts as failed. After `deliveries_max` failures the message goes to the dead
        letters. Raise `LeaseLost` if the connection was lost.
        """
        await self._return(_failed(delay, error))

    async def reject(self, *, error: str | None = None) -> None:
        """Move the message to the dead letters at once, with `error` as the reason.

        Raise `LeaseLost` if the connection was lost.
        """
        await self._return(ReturnOptions(error=_text_of(error), reject=True))

    async def release(self) -> None:
        """Return a message that was not begun; it is delivered again at once.

        The delivery does not count as failed. Raise `LeaseLost` if the connection was lost.
        """
        await self._return(ReturnOptions(unstarted=True))

    async def _return(self, how: ReturnOptions) -> None:
        tag = self._run.tag + self._index
        await self._held_by().return_tags(tag, tag, self._generation, how)

    async def extend(self, lease: float) -> None:
        """Extend the lease to `lease` seconds from now; `LeaseLost` if it was not held."""
        tag = self._run.tag + self._index
        await self._held_by().extend_tags(tag, tag, self._generation, lease)


class MessageBatch:
    """Messages that were sent together. It has a length and can be indexed and iterated."""

    __slots__ = ("_generation", "_holder", "_run", "payloads")

    def __init__(
        self, run: Run, payloads: list[bytes], holder: MessageSettler | None, generation: int
    ) -> None:
        self._run = run
        self.payloads = payloads
        self._holder = holder
        self._generation = generation

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Message]:
        run, holder, generation = self._run, self._holder, self._generation
        for index, payload in enumerate(self.payloads):
            yield Message(run, index, payload, holder, generation)

    def __getitem__(self, index: int) -> Message:
        payload = self.payloads[index]
        return Message(self._run, index % len(self), payload, self._holder, self._generation)

    def _tags(self) -> tuple[int, int]:
        return self._run.tag, self._run.tag + len(self.payloads) - 1

    def ack(self) -> None:
        """Acknowledge all messages of the batch without waiting."""
        if self._holder is not None:
            first, last = self._tags()
            self._holder.ack_range(first, last, self._generation)  # type: ignore[attr-defined]

    async def ack_confirmed(self) -> None:
        if self._holder is not None:
            await self._holder.ack_tags(*self._tags(), self._generation)

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """Return all messages of the batch as failed; see `Message.nack`."""
        if self._holder is not None:
            how = _failed(delay, error)
            await self._holder.return_tags(*self._tags(), self._generation, how)


def _failed(delay: float | None, error: str | None) -> ReturnOptions:
    if delay is not None:
        check_seconds("delay", delay, at_least=0.0)
    return ReturnOptions(None if delay is None else int(delay * 1e3), _text_of(error))


def _text_of(error: str | None) -> str | None:
    """Return an error text of bounded length without NUL; raise `InvalidValue` if it is no text."""
    if error is not None:
        check_text(error)
    return error[:ERROR_LENGTH_MAX].replace("\x00", "") if error else None


def _of(column: Sequence[int], index: int) -> int:
    return column[index] if len(column) > 1 else column[0]


def split_payloads(
    runs: list[Run], body: memoryview | bytes, holder: MessageSettler | None, generation: int
) -> list[MessageBatch]:
    """Split the body of a packet into the payloads of its runs."""
    # One copy releases the receive buffer. Slices of bytes are cheaper than slices of a view.
    data = bytes(body)
    batches = []
    at = 0
    for run in runs:
        ends = list(accumulate(run.lengths, initial=at))
        payloads = [data[low:high] for low, high in pairwise(ends)]
        at = ends[-1]
        batches.append(MessageBatch(run, payloads, holder, generation))
    return batches


# Conversion between payloads and values: bytes, text, or JSON of a type.
#
# Each type gets a decoder when its worker is declared, so a type that cannot be decoded fails
# there. msgspec handles JSON of dataclasses, Structs, TypedDicts, lists and so on. A type that
# contains a pydantic model is handled by pydantic. This module never imports pydantic, since an
# application with such a type has imported it.


JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

Decode = Callable[[bytes], Any]


class EncodedPayload(NamedTuple):
    """A payload with its content type."""

    payload: bytes
    content_type: str | None


class Undecodable(Exception):
    """The payload is not of the wanted type, so a retry would fail, too."""


def encode_payload(value: object) -> EncodedPayload:
    """Encode a value: bytes unchanged, text as UTF-8, anything else as JSON.

    A value that JSON cannot represent raises `InvalidValue`.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return EncodedPayload(bytes(value), None)
    if isinstance(value, str):
        return EncodedPayload(value.encode(), TEXT)
    kind: Any = type(value)
    if _is_pydantic(kind):
        return EncodedPayload(_pydantic_adapter(kind).dump_json(value), JSON)
    try:
        return EncodedPayload(msgspec.json.encode(value, enc_hook=_plain), JSON)
    except (TypeError, msgspec.MsgspecError) as failure:
        raise InvalidValue(
            f"a {type(value).__name__} cannot be written as JSON: {failure}. Give bytes, a string, "
            "or a value of dataclasses, msgspec or pydantic models, lists, dicts and the like"
        ) from None


def _plain(value: Any) -> Any:
    """Convert a pydantic model inside another value."""
    kind: Any = type(value)
    if _is_pydantic(kind):
        return _pydantic_adapter(kind).dump_python(value, mode="json")
    raise TypeError(f"nobody knows how {kind.__name__} is written")


def payload_decoder(wanted: Any) -> Decode:
    """Return a function that decodes payloads to a type.

    Raise `InvalidValue` if JSON has no form for this type.
    """
    if wanted is bytes:
        return bytes
    if wanted is str:
        return _text
    name = getattr(wanted, "__name__", str(wanted))
    if _mentions_pydantic(wanted):
        return _pydantic_decoder(wanted, name)
    try:
        decode = msgspec.json.Decoder(wanted).decode
        unknown = _unknown_in(msgspec.inspect.type_info(wanted), set())
    except (TypeError, ValueError) as failure:
        raise InvalidValue(f"JSON does not become a {name}: {failure}") from None
    if unknown:
        # msgspec itself would fail only when a message is decoded.
        raise InvalidValue(
            f"JSON does not become a {name}, for nobody knows how {unknown.pop()} is written: use "
            "dataclasses, TypedDicts, msgspec or pydantic models, lists, dicts and the like"
        )

    def from_json(payload: bytes) -> Any:
        try:
            return decode(payload)
        except Exception as failure:  # the checks of a model may raise any exception
            raise Undecodable(f"the payload is no {name}: {failure}") from failure

    return from_json


def _unknown_in(info: object, seen: set[int]) -> set[str]:
    """Return the names of types within a type that JSON cannot represent."""
    if id(info) in seen:
        return set()  # a recursive type
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return {getattr(info.cls, "__name__", str(info.cls))}
    parts: list[object] = []
    if isinstance(info, tuple | list):
        parts = list(info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = [getattr(info, name) for name in info.__struct_fields__]
    return {name for part in parts for name in _unknown_in(part, seen)}


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as failure:
        raise Undecodable(f"the payload is no text: {failure}") from None


def _is_pydantic(wanted: Any) -> bool:
    return hasattr(wanted, "__pydantic_validator__")


def _mentions_pydantic(wanted: Any) -> bool:
    """Return whether a type is or contains a pydantic model."""
    return _is_pydantic(wanted) or any(_mentions_pydantic(part) for part in get_args(wanted))


@cache
def _pydantic_adapter(wanted: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(wanted)


def _pydantic_decoder(wanted: Any, name: str) -> Decode:
    validate = _pydantic_adapter(wanted).validate_json
    invalid = sys.modules["pydantic"].ValidationError

    def from_json(payload: bytes) -> Any:
        try:
            return validate(payload)
        except invalid as failure:
            # pydantic's own text quotes the payload, which must not get into logs.
            found = failure.errors(include_url=False, include_input=False, include_context=False)
            faults = "; ".join(
                f"{one['msg']} at {'.'.join(map(str, one['loc'])) or 'the top'}" for one in found
            )
            raise Undecodable(f"the payload is no {name}: {faults}") from None

    return from_json
