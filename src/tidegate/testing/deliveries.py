"""Recording of deliveries from the bytes on the connection, so it shows what consumers received."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from tidegate.wire.connection import FRAME_BYTES_MAX
from tidegate.wire.frames import FrameReader
from tidegate.wire.packets.reads import (
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ReadResponseResponse,
)
from tidegate.wire.packets.run import Run
from tidegate.wire.packets.subscriptions import Deliver, Subscribe


class Delivery(NamedTuple):
    """One message on its way to one consumer."""

    queue: str
    message_id: int
    payload: bytes
    # How often it was delivered, this time included.
    delivery_count: int
    redelivered: bool
    # Seconds since 1970, by the broker's clock.
    at: float


_decode_subscribe = msgspec.msgpack.Decoder(Subscribe).decode
_decode_read = msgspec.msgpack.Decoder(ReadMessage).decode
_decode_read_response = msgspec.msgpack.Decoder(ReadResponse).decode
_decode_deliver = msgspec.msgpack.Decoder(Deliver).decode
_decode_message = msgspec.msgpack.Decoder(ReadMessageResponse).decode
_decode_response = msgspec.msgpack.Decoder(ReadResponseResponse).decode


class Observer:
    """Records the deliveries of one connection from the bytes in both directions."""

    def __init__(
        self,
        deliveries: list[Delivery],
        queue_name: Callable[[int], str],
        wall: Callable[[], float],
    ) -> None:
        self._deliveries = deliveries
        self._queue_name = queue_name
        self._wall = wall
        self._requests = FrameReader(FRAME_BYTES_MAX)
        self._answers = FrameReader(FRAME_BYTES_MAX)
        # By consumer number, and by packet id of a read: the queue id.
        self._consumers: dict[int, int] = {}
        self._reads: dict[int, int] = {}

    def asked(self, data: bytes) -> None:
        """Process bytes that the client wrote."""
        for frame in self._requests.receive(data):
            if frame.method == Subscribe.method:
                subscribe = _decode_subscribe(frame.meta)
                self._consumers[subscribe.consumer] = subscribe.queue_id
            elif frame.method == ReadMessage.method:
                self._reads[frame.packet_id] = _decode_read(frame.meta).queue_id
            elif frame.method == ReadResponse.method:
                self._reads[frame.packet_id] = _decode_read_response(frame.meta).queue_id

    def answered(self, data: bytes) -> None:
        """Process bytes that the node wrote."""
        for frame in self._answers.receive(data):
            queue_id = self._reads.pop(frame.packet_id, None)
            if frame.method == Deliver.method:
                deliver = _decode_deliver(frame.meta)
                self._note(self._consumers[deliver.consumer], deliver.runs, bytes(frame.body))
            elif queue_id is None:
                continue
            elif frame.method == ReadMessageResponse.method:
                self._note(queue_id, [_decode_message(frame.meta).run], bytes(frame.body))
            elif frame.method == ReadResponseResponse.method:
                self._note(queue_id, [_decode_response(frame.meta).run], bytes(frame.body))

    def _note(self, queue_id: int, runs: list[Run], body: bytes) -> None:
        queue = self._queue_name(queue_id)
        at = 0
        for run in runs:
            ends = list(accumulate(run.lengths, initial=at))
            at = ends[-1]
            for index, (low, high) in enumerate(pairwise(ends)):
                count = run.deliveries[index if len(run.deliveries) > 1 else 0]
                self._deliveries.append(
                    Delivery(
                        queue,
                        run.message_id + index,
                        body[low:high],
                        count,
                        run.redelivered or count > 1,
                        self._wall(),
                    )
                )
