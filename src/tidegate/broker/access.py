"""Authorization: what a session may do, and the queue names that this depends on.

Each packet states the queues that it names and the rights that it needs (`claims`). `Authorizer`
compares them with the user's grants before the packet is handled or routed.

A queue id that the user may not see is answered like an id that does not exist. A queue name is
answered in the same way whether or not the queue exists. The owner checks relayed packets again,
for the user that the relay speaks for.
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

# A name stays valid once cached: queues are never renamed and ids never reused.
_NAMES_MAX = 100_000

Named = TypeVar("Named")


class Guard:
    """The rights of one session."""

    __slots__ = ("account", "is_everything", "is_node", "permissions")

    def __init__(
        self, permissions: Permissions, account: User | None = None, *, is_node: bool = False
    ) -> None:
        self.permissions = permissions
        # The user that has logged in; None: a client without a login, or a node.
        self.account = account
        self.is_node = is_node
        self.is_everything = permissions.is_everything

    @property
    def user(self) -> str | None:
        return None if self.account is None else self.account.name

    def require(self, right: Right, queue: str) -> None:
        """Raise `Forbidden` unless the user has `right` for `queue`."""
        if not self.permissions.allows(right, queue):
            raise Forbidden(
                f"user {self.user!r} may not {right.value} queue {queue!r}: an admin grants it "
                f"with `tidegate user grant {self.user} {_OPTIONS[right]} PATTERN`"
            )

    def check(self, packet: Request, names: Mapping[int, str]) -> None:
        """Raise unless the user has all rights that `packet` needs.

        `names` must hold the name of every queue that the packet names by id. Raises
        `QueueNotExisting` for a queue that the user may not see, otherwise `Forbidden`.
        """
        for right, queue in packet.claims():
            if isinstance(queue, int):
                name = names[queue]
                if not self.permissions.allows(Right.SEE, name):
                    raise QueueNotExisting(f"no queue {queue}")
                queue = name
            self.require(right, queue)

    def visible(self, things: Iterable[Named], name_of: Callable[[Named], str]) -> list[Named]:
        """Return those of `things` whose queue the user may see."""
        return [t for t in things if self.permissions.allows(Right.SEE, name_of(t))]


# Options of `tidegate user grant` for each right. Each role includes the right to see a queue;
# which one to grant depends on the purpose.
_OPTIONS = {
    Right.SEE: "--read|--write|--configure",
    Right.READ: "--read",
    Right.WRITE: "--write",
    Right.CONFIGURE: "--configure",
    Right.ADMIN: "--admin-of",
}


# The rights before a login.
STRANGER = Guard(NOTHING)
# The rights of a local client while there are no users.
DEVELOPMENT = Guard(EVERYTHING)
NODE = Guard(EVERYTHING, is_node=True)


class QueueNames:
    """Caches the names of queues that packets name by id."""

    def __init__(self, store: Store, replicas: Mapping[int, Any]) -> None:
        self._store = store
        self._replicas = replicas
        self.known: dict[int, str] = {}

    def knows(self, packet: Request) -> bool:
        """Return whether the rights for `packet` can be checked without the store."""
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
        # Users are granted rights for logical queues, so a replica has its logical queue's name.
        self.known[queue_id] = logical_name(name)

    async def learn(self, queue_id: int) -> None:
        """Read the name of a queue from the store.

        Raises `QueueNotExisting` if there is no such queue.
        """
        if self._is_known(queue_id):
            return
        queue = None
        if -(2**31) <= queue_id < 2**31:
            queue = await self._store.find_queue(queue_id, None)
        if queue is None:
            raise QueueNotExisting(f"no queue {queue_id}")
        self._learned(queue_id, queue.name)

    async def admit(self, guard: Guard, packet: Request) -> None:
        """Check the rights for `packet`, reading missing names from the store.

        Removes from a partial put all queues that do not exist or that the user may not write to.
        """
        if isinstance(packet, PutToQueues) and packet.partial:
            # Limit the number before each queue is looked up in the store.
            check_queue_count(packet.queue_ids)
            packet.queue_ids = [q for q in packet.queue_ids if await self._may_write(guard, q)]
        for _, queue in packet.claims():
            if isinstance(queue, int):
                await self.learn(queue)
        guard.check(packet, self.known)

    async def _may_write(self, guard: Guard, queue_id: int) -> bool:
        """Return whether the queue exists and the user may write to it."""
        try:
            await self.learn(queue_id)
        except QueueNotExisting:
            return False
        return guard.permissions.allows(Right.WRITE, self.known[queue_id])
