"""Authorization: what a session may do, and the queue names that this depends on.

Each packet states the queues that it names and the rights that it needs (`claims`). `Authorizer`
compares them with the user's grants before the packet is handled or routed.

A queue id that the user may not see is answered like an id that does not exist. A queue name is
answered in the same way whether or not the queue exists. The owner checks relayed packets again,
for the user that the relay speaks for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.broker.handlers import check_queue_count
from tidegate.core.errors import Forbidden, NotAuthenticated, QueueNotExisting, UnexpectedPacket
from tidegate.core.model import (
    ALL_PERMISSIONS,
    NO_PERMISSIONS,
    PasswordKeys,
    Permissions,
    Right,
    User,
)
from tidegate.core.store import Store
from tidegate.core.topology import logical_name
from tidegate.protocol.catalogue import (
    ActFor,
    Authenticate,
    AuthenticateResponse,
    Prove,
    ProveResponse,
)
from tidegate.protocol.connection import ProtocolState, ReceivedPacket
from tidegate.protocol.messages import PutToQueues
from tidegate.protocol.packet import Request, Success
from tidegate.protocol.scram import WRONG_CREDENTIALS, ServerLogin, decoy_keys, derive_keys

if TYPE_CHECKING:
    from tidegate.broker.context import NodeContext
    from tidegate.broker.session import Session


# A name stays valid once cached: queues are never renamed and ids never reused.
_NAMES_MAX = 100_000

Named = TypeVar("Named")


class Authorizer:
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
UNAUTHENTICATED = Authorizer(NO_PERMISSIONS)
# The rights of a local client while there are no users.
DEVELOPMENT = Authorizer(ALL_PERMISSIONS)
NODE = Authorizer(ALL_PERMISSIONS, is_node=True)


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

    async def admit(self, guard: Authorizer, packet: Request) -> None:
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

    async def _may_write(self, guard: Authorizer, queue_id: int) -> bool:
        """Return whether the queue exists and the user may write to it."""
        try:
            await self.learn(queue_id)
        except QueueNotExisting:
            return False
        return guard.permissions.allows(Right.WRITE, self.known[queue_id])


# The users and their rights, as cached by a node.
#
# The store counts all changes of users. A node reads that counter every second and before every
# login. If it has changed, the node reads all users and closes the sessions of users that were
# removed or changed. They may log in again.


# The name with which nodes log in. No user can have it: names begin with a letter or digit and
# contain no @.
NODE_USER = "@node"
_SECRET_BYTES = 32
# Fewer iterations than for passwords: the secret is random and cannot be guessed.
_NODE_ITERATIONS = 4096


def is_loopback(address: str) -> bool:
    """Return whether `address` is a loopback address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


class Accounts:
    """The users who may log in, and the secret with which nodes log in to each other."""

    def __init__(self, context: NodeContext, *, login_always: bool) -> None:
        self._store = context.store
        self._events = context.events
        self._login_always = login_always
        self._users: dict[str, User] = {}
        self._permissions: dict[str, Permissions] = {}
        self._version = -1
        self._polling = asyncio.Lock()
        self._next_poll: asyncio.Task[None] | None = None
        self._secret = b""
        self._node_keys = PasswordKeys(b"", b"", b"", 0)

    async def open(self) -> None:
        self._secret = await self._store.cluster_secret(secrets.token_bytes(_SECRET_BYTES))
        self._node_keys = derive_keys(self.node_password, iterations=_NODE_ITERATIONS)
        await self.refresh()

    @property
    def node_password(self) -> str:
        """The password of `NODE_USER`, derived from the cluster's secret."""
        return self._secret.hex()

    @property
    def exist(self) -> bool:
        return bool(self._users)

    def require_login(self) -> None:
        """Require a login of local clients too, since the node is reachable from other machines."""
        self._login_always = True

    async def refresh(self) -> None:
        """Read the users if they have changed.

        Callers that arrive during a refresh share the next one: the current one may have read the
        counter before the change. A thousand concurrent logins therefore cause two refreshes at
        most.
        """
        if self._next_poll is None:
            self._next_poll = asyncio.create_task(self._poll())
        await asyncio.shield(self._next_poll)

    async def _poll(self) -> None:
        async with self._polling:
            self._next_poll = None
            version = await self._store.users_version()
            if version == self._version:
                return
            users = {user.name: user for user in await self._store.list_users()}
            # Read after the counter: users that are newer than it are read once more, which is
            # harmless.
            self._version = version
            self._users = users
            self._permissions = {user.name: Permissions(user.grants) for user in users.values()}
        for listener in self._events.users_changed:
            listener()

    def trusts(self, address: str) -> bool:
        """Return whether a client at `address` needs no login.

        Only loopback addresses are trusted, only while there are no users, and only if the node
        does not listen on another address.
        """
        return not self._login_always and not self._users and is_loopback(address)

    def keys_for(self, name: str) -> PasswordKeys:
        if name == NODE_USER:
            return self._node_keys
        user = self._users.get(name)
        return decoy_keys(name, self._secret) if user is None else user.keys

    def account(self, name: str) -> User | None:
        return self._users.get(name)

    def guard_of(self, name: str) -> Authorizer:
        """Return the rights of a user that has just logged in.

        Raises `NotAuthenticated` if the user was removed meanwhile.
        """
        if name == NODE_USER:
            return NODE
        user = self._users.get(name)
        if user is None:
            raise NotAuthenticated("this user has just been removed")
        return Authorizer(self._permissions[name], user)

    def guard_acting_for(self, name: str | None) -> Authorizer:
        """Return the rights of the user for whom another node speaks.

        `name` is None for a client without a login. Raises `NotAuthenticated` if there are users by
        now.
        """
        if name is not None:
            return self.guard_of(name)
        if self._users:
            raise NotAuthenticated("there are users now: log in")
        return DEVELOPMENT

    def still_holds(self, guard: Authorizer) -> bool:
        """Return whether the rights of a session are still those of its user."""
        if guard.account is not None:
            return self._users.get(guard.account.name) == guard.account
        return guard is not DEVELOPMENT or not self._users

    def guard_at(self, address: str) -> Authorizer:
        return DEVELOPMENT if self.trusts(address) else UNAUTHENTICATED


# The login: two round trips before a client may identify itself.


log = logging.getLogger(__name__)

# Delays the answer after a wrong password, to slow down guessing.
_AFTER_FAILURE_S = 0.5


async def authenticate(session: Session, packet: Authenticate, event: ReceivedPacket) -> None:
    if session.state is not ProtocolState.OPENED or session.login is not None:
        raise UnexpectedPacket("a login comes first, and once")
    accounts = session.parts.accounts
    login = session.login = ServerLogin(accounts.keys_for)
    session.forgo_trust()
    await accounts.refresh()
    challenge = login.challenge(packet.message)
    session.login_account = accounts.account(login.user)
    session.answer(AuthenticateResponse(challenge), event.packet_id)


async def prove(session: Session, packet: Prove, event: ReceivedPacket) -> None:
    login = session.login
    if session.state is not ProtocolState.CHALLENGED or login is None:
        raise UnexpectedPacket("a proof follows a challenge, once")
    session.login = None
    accounts = session.parts.accounts
    try:
        signature = login.verify(packet.message)
        if accounts.account(login.user) != session.login_account:
            raise NotAuthenticated(WRONG_CREDENTIALS)
    except NotAuthenticated:
        log.warning("login refused", extra={"user": login.user, "address": session.address})
        await asyncio.sleep(_AFTER_FAILURE_S)
        session.close_with_error(NotAuthenticated(WRONG_CREDENTIALS), event.packet_id)
        return
    session.logged_in(accounts.guard_of(login.user))
    session.answer(ProveResponse(signature), event.packet_id)


async def act_for(session: Session, packet: ActFor, event: ReceivedPacket) -> None:
    """Set the user for whom another node relays packets."""
    if not session.is_node or session.state is not ProtocolState.AUTHENTICATED:
        raise UnexpectedPacket("only nodes act for others, once, after their login")
    accounts = session.parts.accounts
    # The other node may have read a new user before this one.
    await accounts.refresh()
    session.authorizer = accounts.guard_acting_for(packet.user)
    session.answer(Success(), event.packet_id)
