"""Endpoints for messages: browse, put, and redrive dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import delete, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter

from tidegate.client.message import PutOptions
from tidegate.console.overview import no_service
from tidegate.console.schemas import (
    AuditEntry,
    Goal,
    HoldService,
    Kind,
    MessagePage,
    MessageView,
    Moved,
    NewMessage,
    NewQueue,
    Prefetch,
    Purged,
    Put,
    RedriveBody,
    Shares,
    Steer,
    prefetch_mark,
    scaling_mark,
)
from tidegate.console.security import RequestRefused, decoded_name, error_responses
from tidegate.console.sessions import AnyRequest, user_connection_of
from tidegate.console.views import fits, hosted_service, hosted_view, message_view
from tidegate.console.watch import UserConnection
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.model import QueueInfo, Right, policy_changed_meanwhile
from tidegate.core.prefetch import parse_goal, without_manual_prefetch
from tidegate.core.prefetch import with_manual_prefetch as prefetch_by_hand
from tidegate.core.services import ServiceOverride, describe_override_change, override_problems
from tidegate.core.topology import (
    ControlMode,
    Topology,
    scaling_changed_meanwhile,
    with_scaling_keys,
)

log = logging.getLogger(__name__)

MESSAGES_SHOWN = 50
MESSAGES_MAX = 500
# Maximum number of messages that one request searches for a text.
_SEARCHED_MAX = 5_000
# The same in bytes; a client continues the search with another request.
_SEARCHED_BYTES_MAX = 128 * 1024 * 1024
_LOT_BYTES = 8 * 1024 * 1024
# First batch, while the messages' size is unknown.
_LOT_FIRST = 8
_READ_S_MAX = 12.0
_ID_MAX = 2**53

AfterParameter = Annotated[int, QueryParameter(name="after", ge=0, le=_ID_MAX)]
CountParameter = Annotated[int, QueryParameter(name="count", ge=1, le=MESSAGES_MAX)]
FilterParameter = Annotated[str, QueryParameter(name="filter", max_length=200)]


@get(
    "/queues/{name:str}/messages",
    responses=error_responses(404),
    operation_id="browse",
    needs="read",
    summary="Look at messages that wait; nothing is taken",
)
async def browse(
    request: AnyRequest,
    name: FromPath[str],
    after: AfterParameter = 0,
    count: CountParameter = MESSAGES_SHOWN,
    wanted: FilterParameter = "",
) -> MessagePage:
    person = await user_connection_of(request)
    queue = queue_name_in(name)
    async with asyncio.timeout(_READ_S_MAX):
        is_elastic = (await person.client.queue(queue)).elastic
        if is_elastic:
            return await _only_page(person, queue, count, wanted)
        return await _page(person, queue, after, count, wanted)


async def _only_page(person: UserConnection, queue: str, count: int, wanted: str) -> MessagePage:
    """Return the only page of a logical queue: each replica has its own ids, so no page follows."""
    limit = MESSAGES_MAX if wanted else count
    # Count before browsing, because messages may leave meanwhile. A node silently omits messages
    # beyond half a frame, so fewer than counted means that some are missing.
    numbers = await person.client.stats(queue)
    parts = [part for node in numbers.nodes for part in node.queues]
    # Delayed messages are not browsed.
    waiting = sum(part.waiting - part.delayed for part in parts)
    # Ask for one more than needed, to detect whether there are more.
    lot = await person.client.browse(queue, limit=limit + 1)
    is_cut = len(lot) > limit or len(lot) < waiting
    looked_at = lot[:limit]
    found = [view for view in map(message_view, looked_at) if fits(view, wanted)]
    return MessagePage(
        messages=found[:count],
        is_cut=is_cut or len(found) > count,
        looked_at=len(looked_at),
    )


async def _page(
    person: UserConnection, queue: str, after: int, count: int, wanted: str
) -> MessagePage:
    """Return a page, read in batches of a few megabytes, however large the messages are."""
    found: list[MessageView] = []
    looked_at, looked_at_bytes, limit = 0, 0, _LOT_FIRST
    while looked_at < _SEARCHED_MAX and looked_at_bytes < _SEARCHED_BYTES_MAX:
        lot = await person.client.browse(queue, limit=limit, first_id=after + 1 if after else 0)
        for message in lot:
            if len(found) == count:
                return MessagePage(messages=found, next_after=after)
            after = message.message_id
            view = message_view(message)
            if fits(view, wanted):
                found.append(view)
        if len(lot) < limit:
            return MessagePage(messages=found)
        looked_at += len(lot)
        looked_at_bytes += sum(len(message.payload) for message in lot)
        mean_bytes = looked_at_bytes // looked_at + 1
        limit = min(max(_LOT_BYTES // mean_bytes, 1), MESSAGES_MAX)
    return MessagePage(messages=found, next_after=after)


@post(
    "/queues/{name:str}/messages",
    responses=error_responses(404),
    operation_id="put_message",
    needs="write",
    summary="Put a message",
)
async def put_message(request: AnyRequest, name: FromPath[str], data: JSONBody[NewMessage]) -> Put:
    person, queue = await user_connection_of(request), queue_name_in(name)
    options = PutOptions(priority=data.priority)
    if data.headers:
        options["headers"] = data.headers
    if data.delay_s is not None:
        options["delay"] = data.delay_s
    if data.group is not None:
        options["group"] = data.group
    async with audited(request, person, "put a message", queue) as doing:
        message_id = await person.client.put(queue, data.text.encode(), **options)
        doing.outcome = f"message {message_id}"
    return Put(message_id)


@post(
    "/queues/{name:str}/redrive",
    status_code=200,
    responses=error_responses(404, 409),
    operation_id="redrive",
    needs="read there, write where they go",
    summary="Send dead letters back; the queue is that of the dead letters",
)
async def redrive(request: AnyRequest, name: FromPath[str], data: JSONBody[RedriveBody]) -> Moved:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "redrive dead letters", queue, is_long=True) as doing:
        try:
            moved = await person.client.redrive(queue, to=data.to, limit=data.count)
        except InvalidValue as wrong:
            # For example, the target queue does not exist.
            raise not_now(str(wrong)) from None
        doing.outcome = f"{moved} went {'back' if data.to is None else f'to {data.to}'}"
    return Moved(moved)


# Endpoints for queues: create, pause, purge, delete; each change is audited.


@post(
    "/queues",
    status_code=204,
    responses=error_responses(409),
    operation_id="create_queue",
    needs="configure",
    summary="Make a queue",
)
async def create_queue(request: AnyRequest, data: JSONBody[NewQueue]) -> None:
    person = await user_connection_of(request)
    async with audited(request, person, "make a queue", data.name):
        await person.client.create_queue(data.name, durable=data.durable)


@delete(
    "/queues/{name:str}",
    responses=error_responses(404),
    operation_id="delete_queue",
    needs="configure",
    summary="Delete a queue and all that is in it",
)
async def delete_queue(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "delete the queue", queue, is_long=True):
        person.client.forget_queue_id(queue)
        await person.client.delete_queue(queue)


@post(
    "/queues/{name:str}/pause",
    status_code=204,
    responses=error_responses(404),
    operation_id="pause",
    needs="configure",
    summary="Deliver nothing until it is resumed",
)
async def pause(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "pause", queue):
        await person.client.pause(queue)


@post(
    "/queues/{name:str}/resume",
    status_code=204,
    responses=error_responses(404),
    operation_id="resume",
    needs="configure",
    summary="Deliver again",
)
async def resume(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "resume", queue):
        await person.client.resume(queue)


@post(
    "/queues/{name:str}/purge",
    status_code=200,
    responses=error_responses(404),
    operation_id="purge",
    needs="configure",
    summary="Drop every message that waits",
)
async def purge(request: AnyRequest, name: FromPath[str]) -> Purged:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "purge", queue, is_long=True) as doing:
        person.client.forget_queue_id(queue)
        count = await person.client.purge(queue)
        doing.outcome = f"{count} messages dropped"
    return Purged(count)


# Prefetch


@put(
    "/queues/{name:str}/prefetch",
    status_code=204,
    responses=error_responses(404, 409),
    operation_id="set_prefetch",
    needs="configure; of one consumer admin",
    summary="Set the prefetch by hand, of all consumers or of one",
)
async def set_prefetch(request: AnyRequest, name: FromPath[str], data: JSONBody[Prefetch]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    if data.consumer is not None:
        what = f"prefetch {data.messages} for consumer {data.consumer}"
        async with audited(request, person, what, queue):
            await _set_one_prefetch(person, queue, data)
        return
    async with audited(request, person, f"prefetch {data.messages} by hand", queue):
        info = await _if_unchanged(person, queue, data.seen)
        try:
            goal = prefetch_by_hand(info.policy.prefetch, data.messages)
        except InvalidValue as wrong:
            # The goal's bounds exclude this prefetch.
            raise not_now(str(wrong)) from None
        await person.client.set_policy(info.queue_id, before=info.policy, prefetch=goal)


async def _if_unchanged(person: UserConnection, queue: str, seen: str | None) -> QueueInfo:
    """Return the queue; raise if its prefetch settings have changed since the user looked."""
    info = await person.client.queue(queue)
    if seen is not None and seen != prefetch_mark(info.policy.prefetch):
        raise policy_changed_meanwhile(queue)
    return info


async def _set_one_prefetch(person: UserConnection, queue: str, data: JSONBody[Prefetch]) -> None:
    client = person.client
    client.forget_queue_id(queue)
    numbers = await client.stats(queue)
    found = [
        (part.queue_id, one)
        for node in numbers.nodes
        for part in node.queues
        for one in part.consumers
        if one.consumer == data.consumer and data.client_id in (None, one.client_id)
    ]
    if len(found) != 1:
        raise not_now(
            f"{len(found)} consumers of {queue!r} have the number {data.consumer}: say client_id "
            "and consumer of one that is there"
        )
    ((queue_id, one),) = found
    await client.set_consumer_prefetch(queue_id, one.client_id, one.consumer, data.messages)


@delete(
    "/queues/{name:str}/prefetch",
    responses=error_responses(404, 409),
    operation_id="give_back_prefetch",
    needs="configure",
    summary="Give the prefetch back: to its loop, or to consumers where nothing was steered",
)
async def give_back_prefetch(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "give the prefetch back", queue):
        info = await person.client.queue(queue)
        if info.policy.prefetch is None:
            raise not_now(f"nobody steers the prefetch of {queue!r}: set a goal, such as keep-up")
        goal = without_manual_prefetch(info.policy.prefetch)
        await person.client.set_policy(info.queue_id, before=info.policy, prefetch=goal)


@put(
    "/queues/{name:str}/prefetch-goal",
    status_code=204,
    responses=error_responses(404, 409),
    operation_id="set_prefetch_goal",
    needs="configure",
    summary="Say what the prefetch is steered to: 400/s, keep-up, off",
)
async def set_prefetch_goal(request: AnyRequest, name: FromPath[str], data: JSONBody[Goal]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, f"prefetch goal {data.goal}", queue):
        info = await _if_unchanged(person, queue, data.seen)
        try:
            # Start from the present goal, so that bounds, times and models stay.
            goal = parse_goal(data.goal, info.policy.prefetch)
        except InvalidValue as wrong:
            raise not_now(str(wrong)) from None
        await person.client.set_policy(info.queue_id, before=info.policy, prefetch=goal)


# Replicas


@put(
    "/queues/{name:str}/steering",
    status_code=204,
    responses=error_responses(404, 409),
    operation_id="steer",
    needs="configure",
    summary="Say who decides how many replicas there are",
)
async def steer(request: AnyRequest, name: FromPath[str], data: JSONBody[Steer]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    told = f"{data.mode.value}" + ("" if data.replicas is None else f", {data.replicas} replicas")
    async with audited(request, person, f"steering {told}", queue):
        changes: dict[str, Any] = {"steering": data.mode.value}
        if data.mode is ControlMode.MANUAL:
            # Without a number, keep the present number of replicas.
            changes["replicas_wanted"] = data.replicas
        await _rescale(request, person, queue, changes, data.seen)


@put(
    "/queues/{name:str}/shares",
    status_code=204,
    responses=error_responses(404, 409),
    operation_id="set_shares",
    needs="configure",
    summary="Set by hand which part of new messages each replica gets",
)
async def set_shares(request: AnyRequest, name: FromPath[str], data: JSONBody[Shares]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "shares by hand", queue) as doing:
        shares = {int(number): part for number, part in data.shares.items()}
        await _rescale(request, person, queue, {"shares": shares}, data.seen)
        total = sum(shares.values())
        doing.outcome = ", ".join(f"{one}: {part / total:.0%}" for one, part in shares.items())


@delete(
    "/queues/{name:str}/shares",
    responses=error_responses(404, 409),
    operation_id="give_back_shares",
    needs="configure",
    summary="Give the shares back to their loop",
)
async def give_back_shares(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await user_connection_of(request), queue_name_in(name)
    async with audited(request, person, "give the shares back to their loop", queue):
        await _rescale(request, person, queue, {"shares": None})


async def _rescale(
    request: AnyRequest,
    person: UserConnection,
    queue: str,
    changes: dict[str, Any],
    seen: str | None = None,
) -> None:
    client = person.client
    changing: asyncio.Lock = request.app.state.changing
    # Read, change and write under a lock: of two users at once, neither undoes the other's change.
    async with changing:
        info = await client.queue(queue)
        if not info.elastic:
            raise not_now(
                f"queue {queue!r} does not scale: `tidegate scale {queue} --min 1 --max 8` makes it"
            )
        topology = await client.topology(info.queue_id)
        if seen is not None and seen != scaling_mark(topology.scaling):
            raise scaling_changed_meanwhile(queue)
        _check_replicas(topology, changes)
        bounds = topology.scaling.replicas
        if "replicas_wanted" in changes and changes["replicas_wanted"] is None:
            changes["replicas_wanted"] = min(max(len(topology.replicas), bounds.min), bounds.max)
        try:
            wanted = with_scaling_keys(topology.scaling, changes)
        except InvalidValue as wrong:
            raise not_now(str(wrong)) from None
        # Another console or a command does not use this lock; `before` makes the second change
        # fail.
        await client.set_scaling(info.queue_id, wanted, before=topology.scaling)


def _check_replicas(topology: Topology, changes: dict[str, Any]) -> None:
    """Refuse shares that name no existing replica.

    The law would otherwise keep deciding the shares, although the override seems to be set.
    """
    there = {one.number for one in topology.replicas}
    shares = changes.get("shares")
    if shares and there and not any(shares.get(number, 0.0) > 0.0 for number in there):
        numbers = ", ".join(map(str, sorted(there)[:20]))
        raise not_now(f"none of these replicas is there: say shares of {numbers}")


@put(
    "/services/{kind:str}/{name:str}/by-hand",
    status_code=204,
    responses=error_responses(404, 409),
    operation_id="hold_service",
    needs="configure",
    summary="Set what an HTTP application has by hand: what is not said, the law decides",
)
async def hold_service(
    request: AnyRequest, kind: FromPath[str], name: FromPath[str], data: JSONBody[HoldService]
) -> None:
    """Set or remove the overrides.

    `seen` contains the overrides when the user looked; 409 if they have changed since.
    """
    person, service = await user_connection_of(request), queue_name_in(name)
    if kind != Kind.HTTP.value:
        raise no_service((Kind.HTTP, service))
    known = await hosted_service(person, service)
    if known is None:
        raise no_service((Kind.HTTP, service))
    wanted = ServiceOverride(
        instances=data.instances,
        least=data.least,
        most=data.most,
        concurrency=data.concurrency,
        in_flight_max=data.in_flight_max,
    )
    before = known.by_hand if data.seen is None else data.seen
    what = f"by hand: {describe_override_change(before, wanted).rstrip('.') or 'as it is'}"
    async with audited(request, person, what, service):
        view = hosted_view(known)
        if wrong := override_problems(wanted, view.agreed_min, view.agreed_max):
            raise not_now("; ".join(wrong))
        await person.client.steer_service(service, wanted, before=before)


# The audit log's endpoint.


@get(
    "/deeds",
    responses=error_responses(),
    operation_id="deeds",
    needs="logged in",
    summary="What people have done here",
)
async def deeds(
    request: AnyRequest, count: Annotated[int, QueryParameter(name="count", ge=1, le=1000)] = 200
) -> list[AuditEntry]:
    person = await user_connection_of(request)
    found: AuditLog = request.app.state.deeds
    # Users without full administration see their own entries, and those about queues they may see.
    return [
        one
        for one in found.newest_first(count if person.is_admin else 10 * count)
        if person.is_admin or one.user == person.user or person.may(Right.SEE, one.service)
    ][:count]


# The frame of every write endpoint: the queue's name, a timeout, and an audit entry.
#
# A node that hangs must not make the request hang. After the timeout the user gets an error, and
# the audit entry says that the result is unknown.


# Less than the page's own timeout (api.js).
DONE_S_MAX = 12.0
# For changes whose duration grows with the number of messages.
LONG_S_MAX = 115.0
_NAME_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class AuditedAction:
    """A change under way; the handler sets the outcome for the audit log."""

    outcome = "done"


@asynccontextmanager
async def audited(
    request: AnyRequest, person: UserConnection, what: str, service: str, *, is_long: bool = False
) -> AsyncIterator[AuditedAction]:
    """Execute a change with a timeout, and record it in the audit log, however it ends."""
    within_s = LONG_S_MAX if is_long else DONE_S_MAX
    deeds: AuditLog = request.app.state.deeds
    doing = AuditedAction()
    try:
        async with asyncio.timeout(within_s):
            yield doing
    except (TidegateError, RequestRefused) as failure:
        doing.outcome = f"refused: {failure}"
        raise
    except TimeoutError:
        doing.outcome = f"no answer within {within_s:g} s: nobody knows whether it was done"
        raise RequestRefused(
            503,
            "UNAVAILABLE",
            f"no node answered within {within_s:g} s, and it may still be done: look before you "
            "try again",
        ) from None
    except BaseException:
        doing.outcome = "broken off: nobody knows whether it was done"
        raise
    finally:
        person.watch.hurry()
        deeds.add(
            AuditEntry(
                at=time.time(),
                user=person.user,
                what=what,
                service=service,
                outcome=doing.outcome[:500],
            )
        )


def queue_name_in(name: str) -> str:
    """Return the queue's name from a path segment; raise Refused 404 if it is no valid name."""
    found = decoded_name(name)
    if len(found) > _NAME_MAX or not found.strip() or _CONTROL.search(found):
        raise RequestRefused(404, "QUEUE_NOT_EXISTING", "no queue can be called so")
    return found


def not_now(detail: str) -> RequestRefused:
    """Return a 409: the request is valid, but the present state does not allow it."""
    return RequestRefused(409, "NOT_AS_IT_IS", detail)


# The audit log: changes made through the console, with user and time.
#
# The log is a file with one JSON line per entry, which survives restarts. It also has entries that
# the nodes' decisions lack: messages put, redriven or purged, queues deleted, and refused requests.
#
# A full file is cut to its newer half. Consoles with the same folder share the file: a lock
# serializes writes, and each console reads the entries of the others. Without a folder, or if the
# file is unreadable, entries are kept in memory only.


AUDIT_ENTRIES_MAX = 10_000
_FILE = "deeds.jsonl"


class AuditLog:
    """The audit log; the newest entry is last."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE
        self._deeds: deque[AuditEntry] = deque(maxlen=AUDIT_ENTRIES_MAX)
        # The file at the last read: its inode, the offset read up to, and the number of lines.
        self._inode = -1
        self._read_bytes = 0
        self._lines = 0
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._catch_up(self._file)
            except OSError as failure:
                log.warning("deeds are not kept: %s cannot be read: %s", self._file, failure)
                self._file = None

    def newest_first(self, count: int) -> list[AuditEntry]:
        if self._file is not None:
            # Another console may have written to the same file.
            with contextlib.suppress(OSError):
                self._catch_up(self._file)
        return list(islice(reversed(self._deeds), count))

    def add(self, deed: AuditEntry) -> None:
        """Write an entry to disk before returning; log it, also if it cannot be written."""
        log.info(
            "%s", deed.what, extra={"user": deed.user, "about": deed.service, "out": deed.outcome}
        )
        if self._file is None:
            self._deeds.append(deed)
            return
        try:
            with _alone(self._file):
                self._catch_up(self._file)
                if self._lines >= 2 * AUDIT_ENTRIES_MAX:
                    self._cut(self._file)
                _append(self._file, [deed])
                self._catch_up(self._file)
        except OSError as failure:
            self._deeds.append(deed)
            log.error("a deed could not be written down: %s", failure)

    def _catch_up(self, file: Path) -> None:
        """Read the lines that were written since the last read."""
        try:
            about = file.stat()
        except FileNotFoundError:
            return
        if about.st_ino != self._inode or about.st_size < self._read_bytes:
            # The file was replaced when it was cut; it has all entries that are kept.
            self._inode, self._read_bytes, self._lines = about.st_ino, 0, 0
            self._deeds.clear()
        if about.st_size == self._read_bytes:
            return
        with file.open("rb") as lines:
            lines.seek(self._read_bytes)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # an unfinished line: its writer is still at it, or was killed
                self._read_bytes += len(line)
                self._lines += 1
                try:
                    self._deeds.append(msgspec.json.decode(line, type=AuditEntry))
                except msgspec.DecodeError:
                    # The writer of this line was killed.
                    continue

    def _cut(self, file: Path) -> None:
        """Replace the file by its newer half, atomically."""
        beside = file.with_suffix(".new")
        beside.unlink(missing_ok=True)
        _append(beside, self._deeds)
        beside.replace(file)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Lock the audit log; the lock file is separate because the log is replaced when it is cut."""
    with file.with_suffix(".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _append(file: Path, deeds: Iterable[AuditEntry]) -> None:
    with file.open("ab") as sink:
        # Start a new line if the last one is unfinished.
        if sink.tell() and not _ends_well(file):
            sink.write(b"\n")
        for deed in deeds:
            sink.write(msgspec.json.encode(deed) + b"\n")
        sink.flush()
        os.fsync(sink.fileno())


def _ends_well(file: Path) -> bool:
    with file.open("rb") as source:
        source.seek(-1, os.SEEK_END)
        return source.read(1) == b"\n"
