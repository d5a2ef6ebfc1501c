"""The API without async: a thread runs the event loop, and calls wait for their results.

A method has the same name as its asynchronous counterpart, and the same results and errors.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Literal, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from tidegate.client import tracing
from tidegate.client.catalogue import WaitingIds
from tidegate.client.client import Client, OrderName
from tidegate.client.handler import error_text
from tidegate.client.message import Message, MessageBatch, PutOptions
from tidegate.client.puts import ProducerHandle, Transaction
from tidegate.client.subscription import Subscription
from tidegate.core.decisions import Decision
from tidegate.core.errors import Unavailable
from tidegate.core.machines import FleetInfo
from tidegate.core.model import PRIORITY_DEFAULT, Filter, Grant, QueueInfo, QueuePolicy, TopicInfo
from tidegate.core.services import ServiceOverride
from tidegate.core.topology import MemberRole, Scaling, Topology
from tidegate.protocol.cluster import Member
from tidegate.telemetry.stats import ClusterStats

Result = TypeVar("Result")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if it is installed (extra `node`), else of asyncio."""
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return new_event_loop()


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            self.loop = runner.get_loop()
            self._ready.set()
            self.loop.run_forever()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            self._check_alive()
        except Unavailable:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def call(self, function: Callable[[], asyncio.Future[Result]]) -> Future[Result]:
        """Call a function that returns a future in the loop; return a future for this thread."""
        self._check_alive()

        async def run() -> Result:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def _check_alive(self) -> None:
        if not self._thread.is_alive() or self.loop.is_closed():
            raise Unavailable("the client is closed")

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5.0)


class BlockingMessage:
    """A message whose calls wait; its attributes are those of `Message`."""

    __slots__ = ("_message", "_thread")

    def __init__(self, message: Message, thread: LoopThread) -> None:
        self._message = message
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def __repr__(self) -> str:
        return repr(self._message)

    def ack(self) -> None:
        async def ack() -> None:
            self._message.ack()

        self._thread.wait(ack())

    def ack_confirmed(self) -> None:
        self._thread.wait(self._message.ack_confirmed())

    def ack_through(self) -> None:
        self._thread.wait(self._message.ack_through())

    def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        self._thread.wait(self._message.nack(delay=delay, error=error))

    def reject(self, *, error: str | None = None) -> None:
        self._thread.wait(self._message.reject(error=error))

    def release(self) -> None:
        self._thread.wait(self._message.release())

    def extend(self, lease: float) -> None:
        self._thread.wait(self._message.extend(lease))


class BlockingBatch:
    """A batch whose calls wait; see `MessageBatch`."""

    __slots__ = ("_batch", "_thread", "payloads")

    def __init__(self, batch: MessageBatch, thread: LoopThread) -> None:
        self._batch = batch
        self._thread = thread
        self.payloads = batch.payloads

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[BlockingMessage]:
        for message in self._batch:
            yield BlockingMessage(message, self._thread)

    def ack(self) -> None:
        async def ack() -> None:
            self._batch.ack()

        self._thread.wait(ack())

    def ack_confirmed(self) -> None:
        self._thread.wait(self._batch.ack_confirmed())

    def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        self._thread.wait(self._batch.nack(delay=delay, error=error))


class BlockingSubscription:
    """A subscription for `with`; iterate over it. See `Subscription`."""

    def __init__(self, thread: LoopThread, make: Callable[[], Subscription]) -> None:
        self._thread = thread
        self._make = make
        self._subscription: Subscription | None = None

    def __enter__(self) -> BlockingSubscription:
        async def enter() -> Subscription:
            return await self._make().__aenter__()

        self._subscription = self._thread.wait(enter())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._subscription is not None
        self._thread.wait(self._subscription.__aexit__())

    def batches(self) -> Iterator[BlockingBatch]:
        assert self._subscription is not None
        source = self._subscription.batches()

        async def following() -> MessageBatch:
            return await anext(source)

        while True:
            yield BlockingBatch(self._thread.wait(following()), self._thread)

    def __iter__(self) -> Iterator[BlockingMessage]:
        for batch in self.batches():
            yield from batch

    @property
    def replica(self) -> int | None:
        assert self._subscription is not None
        return self._subscription.replica

    @property
    def address(self) -> str | None:
        assert self._subscription is not None
        return self._subscription.address

    def set_prefetch(self, prefetch: int) -> None:
        assert self._subscription is not None
        self._thread.wait(self._subscription.set_prefetch(prefetch))


class BlockingProducer:
    """A producer of one queue, for `with`. `put` returns the id once the message is on disk."""

    def __init__(self, thread: LoopThread, make: Callable[[], ProducerHandle]) -> None:
        self._thread = thread
        self._producer = make()

    def __enter__(self) -> BlockingProducer:
        self._thread.wait(self._producer.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.wait(self._producer.__aexit__())

    @property
    def replica(self) -> int | None:
        return self._producer.replica

    @property
    def address(self) -> str | None:
        return self._producer.address

    def put(self, payload: bytes, **options: Unpack[PutOptions]) -> int:
        return self._thread.call(lambda: self._producer.put(payload, **options)).result()

    def put_many(self, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT) -> list[int]:
        return self._thread.wait(self._producer.put_many(payloads, priority=priority))


class BlockingTransaction:
    """A transaction for `with`; it is committed at the end of the block. See `Transaction`."""

    def __init__(self, thread: LoopThread, make: Callable[[], Transaction]) -> None:
        self._thread = thread
        self._transaction = make()

    def __enter__(self) -> BlockingTransaction:
        self._thread.wait(self._transaction.__aenter__())
        return self

    def __exit__(self, *failure: Any) -> None:
        self._thread.wait(self._transaction.__aexit__(*failure))

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> None:
        self._transaction.put(queue, payload, **options)

    def ack(self, message: BlockingMessage) -> None:
        self._transaction.ack(message._message)

    @property
    def message_ids(self) -> list[int]:
        return self._transaction.message_ids


def _given(**options: tuple[Any, Any]) -> dict[str, Any]:
    """Return the options that differ from their default, given as (value, default).

    A client of another engine implements `EngineClient`, which has fewer options.
    """
    return {name: value for name, (value, default) in options.items() if value != default}


class BlockingClient:
    """The API of `Client` with calls that wait. Open one with `with tidegate.connect(url) as mq`.

    Arguments, results and errors are those of the method of the same name in `Client`. Only
    `put_soon` returns a future, a `concurrent.futures.Future`. Methods may be called from any
    thread.
    """

    def __init__(self, make: Callable[[], Client], thread: LoopThread | None = None) -> None:
        self._thread = thread or LoopThread()

        async def opened() -> Client:
            return await make().open()

        try:
            self._client = self._thread.wait(opened())
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        self._thread.wait(self._client.close())
        self._thread.stop()

    def _message(self, message: Message) -> BlockingMessage:
        return BlockingMessage(message, self._thread)

    @property
    def client_id(self) -> int:
        return self._client.client_id

    @property
    def client_name(self) -> str:
        return self._client.client_name

    @property
    def mode(self) -> str:
        return self._client.mode

    def ping(self) -> float:
        return self._thread.wait(self._client.ping())

    def delete_client(self, client: str | int | None = None) -> None:
        self._thread.wait(self._client.delete_client(client))

    def client_id_of(self, name: str) -> int:
        return self._thread.wait(self._client.client_id_of(name))

    def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
        ephemeral: bool = False,
    ) -> QueueInfo:
        more = _given(ephemeral=(ephemeral, False))
        return self._thread.wait(
            self._client.create_queue(
                name, durable=durable, exist_ok=exist_ok, policy=policy, **more
            )
        )

    def set_policy(
        self, queue: str | int, *, before: QueuePolicy | None = None, **changes: Any
    ) -> QueuePolicy:
        return self._thread.wait(self._client.set_policy(queue, before=before, **changes))

    def pause(self, queue: str | int) -> None:
        self._thread.wait(self._client.pause(queue))

    def resume(self, queue: str | int) -> None:
        self._thread.wait(self._client.resume(queue))

    def redrive(
        self,
        queue: str | int,
        *,
        to: str | None = None,
        message_ids: Iterable[int] | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> int:
        return self._thread.wait(
            self._client.redrive(queue, to=to, message_ids=message_ids, reason=reason, limit=limit)
        )

    def delete_queue(self, queue: str | int) -> None:
        self._thread.wait(self._client.delete_queue(queue))

    def queue(self, queue: str | int) -> QueueInfo:
        return self._thread.wait(self._client.queue(queue))

    def queues(self) -> list[QueueInfo]:
        return self._thread.wait(self._client.queues())

    def active_queues(self) -> list[QueueInfo]:
        return self._thread.wait(self._client.active_queues())

    def browse(
        self,
        queue: str | int,
        *,
        limit: int = 100,
        first_id: int = 0,
        last_id: int | None = None,
    ) -> list[BlockingMessage]:
        found = self._thread.wait(
            self._client.browse(queue, limit=limit, first_id=first_id, last_id=last_id)
        )
        return [self._message(message) for message in found]

    def waiting_ids(
        self, queue: str | int, *, limit: int, last_id: int | None = None
    ) -> WaitingIds:
        return self._thread.wait(self._client.waiting_ids(queue, limit=limit, last_id=last_id))

    def ack_ids(self, queue: str | int, ranges: Iterable[tuple[int, int]]) -> int:
        return self._thread.wait(self._client.ack_ids(queue, ranges))

    def purge(self, queue: str | int) -> int:
        return self._thread.wait(self._client.purge(queue))

    def put_soon(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> Future[int]:
        return self._thread.call(lambda: self._client.put_soon(queue, payload, **options))

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> int:
        return self._thread.call(lambda: self._client.put(queue, payload, **options)).result()

    def flush(self) -> None:
        self._thread.wait(self._client.flush())

    def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        return self._thread.wait(self._client.put_many(queue, payloads, priority=priority))

    def put_each(self, queue: str, messages: Iterable[tuple[bytes, PutOptions]]) -> list[int]:
        return self._thread.wait(self._client.put_each(queue, messages))

    def put_to(
        self,
        queues: Iterable[str | int],
        payload: bytes,
        *,
        partial: bool = False,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> list[str]:
        return self._thread.wait(
            self._client.put_to(
                queues,
                payload,
                partial=partial,
                receiver=receiver,
                context=context,
                priority=priority,
                content_type=content_type,
                headers=headers,
            )
        )

    def transaction(self) -> BlockingTransaction:
        """Return a transaction: `with mq.transaction() as tx:`; see `Client.transaction`."""
        return BlockingTransaction(self._thread, self._client.transaction)

    def create_topic(self, name: str, *, exist_ok: bool = False) -> TopicInfo:
        return self._thread.wait(self._client.create_topic(name, exist_ok=exist_ok))

    def delete_topic(self, name: str) -> None:
        self._thread.wait(self._client.delete_topic(name))

    def topics(self) -> list[TopicInfo]:
        return self._thread.wait(self._client.topics())

    def subscribe_to(
        self,
        topic: str,
        queue: str,
        *,
        filter: Filter | None = None,  # noqa: A002
        durable: bool = True,
    ) -> QueueInfo:
        return self._thread.wait(
            self._client.subscribe_to(topic, queue, filter=filter, durable=durable)
        )

    def unsubscribe_from(self, topic: str, queue: str) -> None:
        self._thread.wait(self._client.unsubscribe_from(topic, queue))

    def publish(self, topic: str, payload: bytes, **options: Unpack[PutOptions]) -> int:
        return self._thread.call(lambda: self._client.publish(topic, payload, **options)).result()

    def publish_many(
        self, topic: str, payloads: Iterable[bytes], **options: Unpack[PutOptions]
    ) -> list[int]:
        return self._thread.wait(self._client.publish_many(topic, payloads, **options))

    def get(
        self,
        queue: str | int,
        *,
        order: OrderName = "oldest",
        sender: int | str | None = None,
        context: int | None = None,
        wait: float = 0.0,
        lease: float | None = None,
    ) -> BlockingMessage:
        return self._message(
            self._thread.wait(
                self._client.get(
                    queue, order=order, sender=sender, context=context, wait=wait, lease=lease
                )
            )
        )

    def request(
        self,
        queue: str,
        payload: bytes,
        *,
        receiver: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        timeout: float = 30.0,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> BlockingMessage:
        more = _given(
            receiver=(receiver, None),
            priority=(priority, PRIORITY_DEFAULT),
            content_type=(content_type, None),
            headers=(headers, None),
        )
        return self._message(
            self._thread.wait(self._client.request(queue, payload, timeout=timeout, **more))
        )

    def reply(
        self,
        message: BlockingMessage,
        payload: bytes,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        more = _given(content_type=(content_type, None), headers=(headers, None))
        return self._thread.call(
            lambda: self._client.reply(message._message, payload, **more)
        ).result()

    def subscribe(
        self,
        queue: str | int,
        *,
        prefetch: int = 200,
        ack: Literal["explicit", "automatic"] = "explicit",
        order: OrderName = "priority",
        replica: int | None = None,
    ) -> BlockingSubscription:
        return BlockingSubscription(
            self._thread,
            lambda: self._client.subscribe(
                queue, prefetch=prefetch, ack=ack, order=order, replica=replica
            ),
        )

    def producer(self, queue: str, *, replica: int | None = None) -> BlockingProducer:
        """Return a producer: `with mq.producer("orders") as orders:`, with `orders.put(...)`."""
        return BlockingProducer(self._thread, lambda: self._client.producer(queue, replica=replica))

    def topology(self, queue: str | int) -> Topology:
        return self._thread.wait(self._client.topology(queue))

    def topologies(self, version: int = -1) -> tuple[int, list[Topology] | None]:
        return self._thread.wait(self._client.topologies(version))

    def set_scaling(
        self,
        queue: str | int,
        scaling: Scaling | None,
        *,
        before: Scaling | UnsetType | None = UNSET,
    ) -> None:
        self._thread.wait(self._client.set_scaling(queue, scaling, before=before))

    def steer_service(
        self, service: str, by_hand: ServiceOverride, *, before: ServiceOverride
    ) -> None:
        self._thread.wait(self._client.steer_service(service, by_hand, before=before))

    def migrate(
        self, queue: str | int, role: MemberRole, source_id: int, target_id: int, count: int = 1
    ) -> None:
        self._thread.wait(self._client.migrate(queue, role, source_id, target_id, count))

    def explain(self, queue: str | int | None = None, *, count: int = 20) -> list[Decision]:
        return self._thread.wait(self._client.explain(queue, count=count))

    def explain_service(self, service: str, *, count: int = 20) -> list[Decision]:
        return self._thread.wait(self._client.explain_service(service, count=count))

    def consume(
        self, queue: str, handler: Callable[[BlockingMessage], Any], *, prefetch: int = 200
    ) -> None:
        """Call `handler` for each message, without end.

        A message is acknowledged when the handler returns, and returned as failed when it raises.
        """
        with self.subscribe(queue, prefetch=prefetch) as subscription:
            for message in subscription:
                try:
                    with tracing.process_span(message):
                        handler(message)
                except Exception as error:
                    message.nack(error=error_text(error))
                else:
                    message.ack()

    def stats(
        self, queue: str | int | None = None, *, steps: int = 1, brief: bool = False
    ) -> ClusterStats:
        return self._thread.wait(self._client.stats(queue, steps=steps, brief=brief))

    def node_stats(self, *, steps: int | None = 1, durations: bool = True) -> ClusterStats:
        return self._thread.wait(self._client.node_stats(steps=steps, durations=durations))

    def fleet(self) -> FleetInfo:
        return self._thread.wait(self._client.fleet())

    def rights(self) -> tuple[str, list[Grant]]:
        return self._thread.wait(self._client.rights())

    def members(self) -> list[Member]:
        return self._thread.wait(self._client.members())

    def set_consumer_prefetch(
        self,
        queue: str | int,
        client_id: int,
        consumer: int,
        prefetch: int,
        *,
        trial: bool = False,
    ) -> None:
        self._thread.wait(
            self._client.set_consumer_prefetch(queue, client_id, consumer, prefetch, trial=trial)
        )

    def set_owner(self, queue: str | int, member_id: int) -> None:
        self._thread.wait(self._client.set_owner(queue, member_id))
