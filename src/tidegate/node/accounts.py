"""The users and their rights, as cached by a node.

The store counts all changes of users. A node reads that counter every second and before every
login. If it has changed, the node reads all users and closes the sessions of users that were
removed or changed. They may log in again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Callable

from tidegate.access.permissions import Permissions
from tidegate.access.scram import decoy_keys, keys_of
from tidegate.core.errors import NotAuthenticated
from tidegate.core.ports import Store
from tidegate.core.users import Keys, User
from tidegate.node.guard import DEVELOPMENT, NODE, STRANGER, Guard

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

    def __init__(self, store: Store, *, login_always: bool, on_change: Callable[[], None]) -> None:
        self._store = store
        self._login_always = login_always
        self._on_change = on_change
        self._users: dict[str, User] = {}
        self._permissions: dict[str, Permissions] = {}
        self._version = -1
        self._looking = asyncio.Lock()
        self._next_look: asyncio.Task[None] | None = None
        self._secret = b""
        self._node_keys = Keys(b"", b"", b"", 0)

    async def open(self) -> None:
        self._secret = await self._store.cluster_secret(secrets.token_bytes(_SECRET_BYTES))
        self._node_keys = keys_of(self.node_password, iterations=_NODE_ITERATIONS)
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
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look())
        await asyncio.shield(self._next_look)

    async def _look(self) -> None:
        async with self._looking:
            self._next_look = None
            version = await self._store.users_version()
            if version == self._version:
                return
            users = {user.name: user for user in await self._store.list_users()}
            # Read after the counter: users that are newer than it are read once more, which is
            # harmless.
            self._version = version
            self._users = users
            self._permissions = {user.name: Permissions(user.grants) for user in users.values()}
        self._on_change()

    def trusts(self, address: str) -> bool:
        """Return whether a client at `address` needs no login.

        Only loopback addresses are trusted, only while there are no users, and only if the node
        does not listen on another address.
        """
        return not self._login_always and not self._users and is_loopback(address)

    def keys_for(self, name: str) -> Keys:
        if name == NODE_USER:
            return self._node_keys
        user = self._users.get(name)
        return decoy_keys(name, self._secret) if user is None else user.keys

    def account(self, name: str) -> User | None:
        return self._users.get(name)

    def guard_of(self, name: str) -> Guard:
        """Return the rights of a user that has just logged in.

        Raises `NotAuthenticated` if the user was removed meanwhile.
        """
        if name == NODE_USER:
            return NODE
        user = self._users.get(name)
        if user is None:
            raise NotAuthenticated("this user has just been removed")
        return Guard(self._permissions[name], user)

    def guard_acting_for(self, name: str | None) -> Guard:
        """Return the rights of the user for whom another node speaks.

        `name` is None for a client without a login. Raises `NotAuthenticated` if there are users by
        now.
        """
        if name is not None:
            return self.guard_of(name)
        if self._users:
            raise NotAuthenticated("there are users now: log in")
        return DEVELOPMENT

    def still_holds(self, guard: Guard) -> bool:
        """Return whether the rights of a session are still those of its user."""
        if guard.account is not None:
            return self._users.get(guard.account.name) == guard.account
        return guard is not DEVELOPMENT or not self._users

    def guard_at(self, address: str) -> Guard:
        return DEVELOPMENT if self.trusts(address) else STRANGER
