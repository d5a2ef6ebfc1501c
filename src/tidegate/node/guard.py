"""What a connection may do: its user's rights, asked before anything is done or routed.

Every packet says which queues it names and what that needs (`claims`); here it is compared with
what the user was granted. A queue that is named by id and that the user may not see is answered
like one that does not exist; by name, the answer is the same whether it exists or not. A node that
relays says for whom, and the owner of the queue asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tidegate.access.permissions import EVERYTHING, NOTHING, Permissions
from tidegate.core.errors import Forbidden, QueueNotExisting
from tidegate.core.ports import Store
from tidegate.core.replication import logical_name
from tidegate.core.users import Right, User
from tidegate.node.checks import check_queue_count
from tidegate.wire.packet import Request
from tidegate.wire.packets.puts import PutToQueues

# Queues are never renamed and ids never given out twice, so a name once learned holds.
_NAMES_MAX = 100_000

Named = TypeVar("Named")


class Guard:
    """The rights of one connection."""

    __slots__ = ("account", "is_everything", "is_node", "permissions")

    def __init__(
        self, permissions: Permissions, account: User | None = None, *, is_node: bool = False
    ) -> None:
        self.permissions = permissions
        # Who logged in; None: a client without login, or a node.
        self.account = account
        self.is_node = is_node
        self.is_everything = permissions.is_everything

    @property
    def user(self) -> str | None:
        return None if self.account is None else self.account.name

    def require(self, right: Right, queue: str) -> None:
        """Forbidden, unless the user may do that with the queue."""
        if not self.permissions.allows(right, queue):
            raise Forbidden(
                f"user {self.user!r} may not {right.value} queue {queue!r}: an admin grants it "
                f"with `tidegate user grant {self.user} {_OPTIONS[right]} PATTERN`"
            )

    def check(self, packet: Request, names: Mapping[int, str]) -> None:
        """Raise, unless the user may ask this."""
        for right, queue in packet.claims():
            if isinstance(queue, int):
                name = names[queue]
                if not self.permissions.allows(Right.SEE, name):
                    raise QueueNotExisting(f"no queue {queue}")
                queue = name
            self.require(right, queue)

    def visible(self, things: Iterable[Named], name_of: Callable[[Named], str]) -> list[Named]:
        """Of things that have a queue's name, those that the user may know of."""
        return [t for t in things if self.permissions.allows(Right.SEE, name_of(t))]


# Of `tidegate user grant`. Any role lets its user see the queue: it depends on what for.
_OPTIONS = {
    Right.SEE: "--read|--write|--configure",
    Right.READ: "--read",
    Right.WRITE: "--write",
    Right.CONFIGURE: "--configure",
    Right.ADMIN: "--admin-of",
}


# Whoever has not logged in yet.
STRANGER = Guard(NOTHING)
# Who needs no login: a client on a development machine.
DEVELOPMENT = Guard(EVERYTHING)
NODE = Guard(EVERYTHING, is_node=True)


class QueueNames:
    """The names of queues that packets name by id."""

    def __init__(self, store: Store, replicas: Mapping[int, Any]) -> None:
        self._store = store
        self._replicas = replicas
        self.known: dict[int, str] = {}

    def knows(self, packet: Request) -> bool:
        """Whether a packet can be checked at once."""
        if isinstance(packet, PutToQueues) and packet.partial:
            return False
        return all(isinstance(queue, str) or self._is_known(queue) for _, queue in packet.claims())

    def _is_known(self, queue_id: int) -> bool:
        if queue_id in self.known:
            return True
        replica = self._replicas.get(queue_id)
        if replica is None:
            return False
        self._learned(queue_id, replica.info.name)
        return True

    def _learned(self, queue_id: int, name: str) -> None:
        if len(self.known) >= _NAMES_MAX:
            self.known.pop(next(iter(self.known)))
        # Rights are those of the logical queue.
        self.known[queue_id] = logical_name(name)

    async def learn(self, queue_id: int) -> None:
        """QueueNotExisting when there is no such queue."""
        if self._is_known(queue_id):
            return
        queue = None
        if -(2**31) <= queue_id < 2**31:
            queue = await self._store.find_queue(queue_id, None)
        if queue is None:
            raise QueueNotExisting(f"no queue {queue_id}")
        self._learned(queue_id, queue.name)

    async def admit(self, guard: Guard, packet: Request) -> None:
        """The check, for packets that may wait for the store."""
        if isinstance(packet, PutToQueues) and packet.partial:
            # Before each of them is looked up.
            check_queue_count(packet.queue_ids)
            packet.queue_ids = [q for q in packet.queue_ids if await self._may_write(guard, q)]
        for _, queue in packet.claims():
            if isinstance(queue, int):
                await self.learn(queue)
        guard.check(packet, self.known)

    async def _may_write(self, guard: Guard, queue_id: int) -> bool:
        """Of a put to those queues that can, the others are as if they were not there."""
        try:
            await self.learn(queue_id)
        except QueueNotExisting:
            return False
        return guard.permissions.allows(Right.WRITE, self.known[queue_id])
