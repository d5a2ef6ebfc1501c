"""Every packet: its number, its way there and back, and nonsense in its place."""

from __future__ import annotations

import enum
import importlib
import pkgutil
import types
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from tidegate import protocol
from tidegate.core.errors import (
    Malformed,
    NotAuthenticated,
    RequiredParameterMissing,
    TooLarge,
    UnexpectedPacket,
)
from tidegate.core.model import ClientInfo, ClientMode
from tidegate.protocol.catalogue import (
    Authenticate,
    AuthenticateResponse,
    CreateQueue,
    CreateQueueResponse,
    DeleteClient,
    DeleteQueue,
    GetActiveQueues,
    GetActiveQueuesResponse,
    GetQueueId,
    GetQueueIdResponse,
    GetQueueName,
    GetQueueNameResponse,
    GetQueues,
    GetQueuesResponse,
    IdentifyClient,
    IdentifyClientResponse,
    Prove,
    ProveResponse,
    RegisterClient,
    RegisterClientResponse,
)
from tidegate.protocol.connection import (
    ANSWERS,
    FRAME_BEFORE_LOGIN_BYTES,
    HEADER,
    HEADER_BYTES,
    PUSHES,
    REQUESTS,
    TRANSITIONS,
    ProtocolConnection,
    ProtocolEvent,
    ProtocolState,
    ReceivedPacket,
    RejectedPacket,
    frame_pieces,
)
from tidegate.protocol.messages import (
    GetMessages,
    GetMessagesResponse,
    PutMessages,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    SettleResponse,
)
from tidegate.protocol.packet import Error, Packet, Ping, Pong, Request, Success

EVERY = {**REQUESTS, **ANSWERS, **PUSHES}
# What the names in Telesto's table 3.6 are here; those that break its own rule moved by one.
TELESTO = {
    0x01: Ping,
    0x02: Pong,
    0x11: RegisterClient,
    0x12: RegisterClientResponse,
    0x13: IdentifyClient,
    0x14: IdentifyClientResponse,
    0x15: DeleteClient,
    0x21: CreateQueue,
    0x22: CreateQueueResponse,
    0x23: DeleteQueue,
    0x25: GetQueueId,
    0x26: GetQueueIdResponse,
    0x27: GetQueueName,
    0x28: GetQueueNameResponse,
    0x29: GetQueues,
    0x2A: GetQueuesResponse,
    0x2B: GetActiveQueues,
    0x2C: GetActiveQueuesResponse,
    0x2D: GetMessages,
    0x2E: GetMessagesResponse,
    0x31: PutMessages,
}


def values_of(kind: object) -> st.SearchStrategy[object]:
    """Anything that a field of that type may hold."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=4)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-(2**63), 2**64 - 1)
    if kind is float:
        return st.floats(allow_nan=False)
    if kind is str:
        return st.text(max_size=20)
    assert isinstance(kind, type)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    return packets_of(kind)


def packets_of(kind: type) -> st.SearchStrategy[object]:
    hints = typing.get_type_hints(kind)
    names: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    return st.builds(kind, **{name: values_of(hints[name]) for name in names})


@pytest.mark.parametrize("kind", EVERY.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=examples(15))
@given(data=st.data())
def test_every_packet_comes_out_as_it_went_in(kind: type[Packet], data: st.DataObject) -> None:
    packet = data.draw(packets_of(kind))
    assert isinstance(packet, Packet)
    packet_id = data.draw(st.integers(0, 2**32 - 1))
    body = data.draw(st.binary(max_size=50))
    from_client = isinstance(packet, Request)
    sender, receiver = (
        ProtocolConnection(server=not from_client),
        ProtocolConnection(server=from_client),
    )
    sender.state = receiver.state = ProtocolState.IDENTIFIED

    stream = b"".join(map(bytes, sender.send(packet, packet_id, [body])))
    if len(stream) > FRAME_BEFORE_LOGIN_BYTES:
        return
    (event,) = receiver.receive(stream)

    assert isinstance(event, ReceivedPacket)
    assert event.packet == packet
    assert type(event.packet) is kind
    assert (event.packet_id, bytes(event.body)) == (packet_id, body)


def test_odd_is_from_client_to_node_and_the_answer_is_one_more() -> None:
    for method, request in REQUESTS.items():
        assert method % 2 == 1
        if request.answer not in (Success, SettleResponse):
            assert request.answer.method == method + 1
    for method in (*ANSWERS, *PUSHES):
        assert method % 2 == 0
    assert len(EVERY) == len(REQUESTS) + len(ANSWERS) + len(PUSHES)


def test_every_packet_that_is_written_down_is_known_by_its_own_number() -> None:
    for file in pkgutil.iter_modules(protocol.__path__):
        importlib.import_module(f"{protocol.__name__}.{file.name}")

    assert {kind for kind in kinds_below(Packet) if kind.method} == set(EVERY.values())


def kinds_below(kind: type[Packet]) -> set[type[Packet]]:
    found = set(kind.__subclasses__())
    return found.union(*map(kinds_below, found))


def test_telestos_numbers_are_kept() -> None:
    for method, packet in TELESTO.items():
        assert packet.method == method
    moved = (Success, Error, ReadMessage, ReadMessageResponse, ReadResponse)
    assert [p.method for p in moved] == [0x04, 0x06, 0x33, 0x34, 0x35]


@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans())
def test_a_connection_survives_or_closes_but_never_crashes(
    chunks: list[bytes], server: bool
) -> None:
    connection = ProtocolConnection(server=server, frame_bytes_max=5000)
    for chunk in chunks:
        try:
            for event in connection.receive(chunk):
                assert isinstance(event, ReceivedPacket | RejectedPacket)
        except (Malformed, TooLarge):
            assert connection.state is ProtocolState.CLOSED
        assert connection.held_bytes <= FRAME_BEFORE_LOGIN_BYTES + len(chunk)


@given(
    method=st.sampled_from(sorted(EVERY)) | st.integers(0, 2**16 - 1),
    meta=st.binary(max_size=200),
    server=st.booleans(),
    identified=st.booleans(),
)
def test_any_metadata_is_understood_refused_or_malformed(
    method: int, meta: bytes, server: bool, identified: bool
) -> None:
    connection = ProtocolConnection(server=server)
    if identified:
        connection.state = ProtocolState.IDENTIFIED
    stream = b"".join(map(bytes, frame_pieces(method, 5, meta)))
    try:
        (event,) = connection.receive(stream)
    except Malformed:
        assert connection.state is ProtocolState.CLOSED
        assert list(connection.receive(stream)) == []
        return
    assert event.packet_id == 5
    assert connection.state is not ProtocolState.CLOSED


def test_text_that_is_no_utf8_closes_the_connection_with_a_reason() -> None:
    connection = ProtocolConnection(server=True)
    stream = b"".join(map(bytes, frame_pieces(RegisterClient.method, 1, b"\x91\xa1\xaf")))
    with pytest.raises(Malformed, match="RegisterClient"):
        list(connection.receive(stream))
    assert connection.state is ProtocolState.CLOSED


@given(st.integers(1, 2000), st.sampled_from([b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff"]))
def test_deep_nesting_and_endless_arrays_close_the_connection_only(
    depth: int, opening: bytes
) -> None:
    connection = ProtocolConnection(server=True)
    connection.state = ProtocolState.IDENTIFIED
    stream = b"".join(map(bytes, frame_pieces(PutMessages.method, 1, opening * depth)))
    try:
        assert all(isinstance(event, RejectedPacket) for event in connection.receive(stream))
    except (Malformed, TooLarge):
        assert connection.state is ProtocolState.CLOSED


@given(st.data())
def test_a_missing_parameter_is_named_as_such(data: st.DataObject) -> None:
    needy = [p for p in REQUESTS.values() if _required(p)]
    kind = data.draw(st.sampled_from(needy))
    packet = data.draw(packets_of(kind))
    fields = msgspec.to_builtins(packet, enc_hook=int)
    cut = fields[: data.draw(st.integers(0, _required(kind) - 1))]
    connection = ProtocolConnection(server=True)
    connection.state = ProtocolState.IDENTIFIED

    meta = msgspec.msgpack.encode(cut)
    (event,) = connection.receive(b"".join(map(bytes, frame_pieces(kind.method, 9, meta))))

    assert isinstance(event, RejectedPacket)
    assert isinstance(event.error, RequiredParameterMissing)
    assert kind.__name__ in str(event.error)


def _required(kind: type[Packet]) -> int:
    return len(kind.__struct_fields__) - len(kind.__struct_defaults__)


# The connection's state


def test_identification_raises_the_limit_on_frames() -> None:
    node = ProtocolConnection(server=True, frame_bytes_max=100_000, frame_before_login_bytes=1000)
    large = HEADER.pack(2000, Ping.method, 1, 1) + b"\x90" + bytes(2000 - HEADER_BYTES - 1)
    with pytest.raises(TooLarge):
        list(node.receive(large))

    node = ProtocolConnection(server=True, frame_bytes_max=100_000, frame_before_login_bytes=1000)
    node.send(RegisterClientResponse(ClientInfo(1, "a", ClientMode.ADMIN)), 1)
    assert node.state is ProtocolState.IDENTIFIED
    (event,) = node.receive(large)
    assert isinstance(event, ReceivedPacket)


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=lambda kind: kind.__name__)
def test_before_identification_only_what_leads_there_is_taken(
    kind: type[Request],
) -> None:
    node = ProtocolConnection(server=True)
    stream = b"".join(map(bytes, frame_pieces(kind.method, 3, b"\x90")))

    (event,) = node.receive(stream)

    if kind.before_identification:
        assert not (isinstance(event, RejectedPacket) and isinstance(event.error, UnexpectedPacket))
    else:
        assert isinstance(event, RejectedPacket)
        assert isinstance(event.error, UnexpectedPacket)
    trusted = isinstance(event, ReceivedPacket) and not kind.before_login
    assert node.state is (ProtocolState.AUTHENTICATED if trusted else ProtocolState.OPENED)


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=lambda kind: kind.__name__)
def test_where_a_login_is_needed_nothing_comes_before_it(kind: type[Request]) -> None:
    node = ProtocolConnection(server=True)
    node.login_required = True
    stream = b"".join(map(bytes, frame_pieces(kind.method, 3, b"\x90")))

    (event,) = node.receive(stream)

    if kind in (Ping, Authenticate, Prove):
        assert not (isinstance(event, RejectedPacket) and isinstance(event.error, NotAuthenticated))
    else:
        assert isinstance(event, RejectedPacket)
        assert isinstance(event.error, NotAuthenticated | UnexpectedPacket)
    assert node.state is ProtocolState.OPENED
    with pytest.raises(UnexpectedPacket):
        node.send(RegisterClientResponse(ClientInfo(1, "a", ClientMode.ADMIN)), 1)


def test_a_login_leads_through_every_state_and_only_then_to_large_frames() -> None:
    node = ProtocolConnection(server=True, frame_bytes_max=100_000, frame_before_login_bytes=1000)
    client = ProtocolConnection(server=False)
    node.login_required = True
    large = HEADER.pack(2000, Ping.method, 1, 1) + b"\x90" + bytes(2000 - HEADER_BYTES - 1)
    states = [node.state]
    info = ClientInfo(1, "a", ClientMode.ADMIN)
    for question, answer in (
        (Authenticate("first"), AuthenticateResponse("challenge")),
        (Prove("proof"), ProveResponse("signature")),
        (RegisterClient("a"), RegisterClientResponse(info)),
    ):
        (asked,) = node.receive(b"".join(map(bytes, client.send(question, 1))))
        assert isinstance(asked, ReceivedPacket)
        (answered,) = client.receive(b"".join(map(bytes, node.send(answer, 1))))
        assert isinstance(answered, ReceivedPacket)
        assert client.state is node.state
        states.append(node.state)
    assert states == [
        ProtocolState.OPENED,
        ProtocolState.CHALLENGED,
        ProtocolState.AUTHENTICATED,
        ProtocolState.IDENTIFIED,
    ]
    (event,) = node.receive(large)
    assert isinstance(event, ReceivedPacket)


def test_a_client_hangs_up_on_an_answer_out_of_turn() -> None:
    client, node = ProtocolConnection(server=False), ProtocolConnection(server=True)
    node.state = ProtocolState.CHALLENGED
    with pytest.raises(Malformed):
        list(client.receive(b"".join(map(bytes, node.send(ProveResponse("v="), 1)))))
    assert client.state is ProtocolState.CLOSED


def test_a_node_is_not_sent_answers_and_a_client_no_requests() -> None:
    for server, stranger in ((True, Pong.method), (False, Ping.method)):
        connection = ProtocolConnection(server=server)
        connection.state = ProtocolState.IDENTIFIED
        (event,) = connection.receive(b"".join(map(bytes, frame_pieces(stranger, 1, b"\x90"))))
        assert isinstance(event, RejectedPacket)
        assert isinstance(event.error, UnexpectedPacket)


def test_a_closed_connection_says_nothing_more() -> None:
    connection = ProtocolConnection(server=True)
    connection.close()
    connection.close()
    ping = b"".join(map(bytes, frame_pieces(Ping.method, 1, b"\x90")))
    assert list(connection.receive(ping)) == []
    with pytest.raises(UnexpectedPacket):
        connection.send(RegisterClientResponse(ClientInfo(1, "a", ClientMode.ADMIN)), 1)


def test_every_state_knows_its_end() -> None:
    for state in ProtocolState:
        assert TRANSITIONS[state][ProtocolEvent.END] is ProtocolState.CLOSED
        assert TRANSITIONS[state][ProtocolEvent.MALFORMED_BYTES] is ProtocolState.CLOSED
