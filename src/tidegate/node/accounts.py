"""The users as a node knows them: all of them, in memory, never older than a second.

The store counts every change of a user. A node looks at that number each second, and before every
login; when it has changed, it reads the users anew and hangs up on whoever is no longer who they
were: removed, with another password, or with other rights. They may log in again.
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

# No user can have this name: names begin with a letter or digit and have no @.
NODE_USER = "@node"
_SECRET_BYTES = 32
# The secret is random: stretching it, as one does with passwords, would gain nothing.
_NODE_ITERATIONS = 4096


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine only."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


class Accounts:
    """Who may log in here."""

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
        """What nodes prove to each other to know."""
        return self._secret.hex()

    @property
    def exist(self) -> bool:
        return bool(self._users)

    def require_login(self) -> None:
        """This node can be reached from outside: nobody is trusted for where they are."""
        self._login_always = True

    async def refresh(self) -> None:
        """Look whether users have changed.

        Whoever asks meanwhile shares the next look: the one under way may have begun before the
        change, and a thousand logins at once are still two looks.
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
            # Read after the version: at worst they are newer, and are read once more.
            self._version = version
            self._users = users
            self._permissions = {user.name: Permissions(user.grants) for user in users.values()}
        self._on_change()

    def trusts(self, address: str) -> bool:
        """Whether a peer needs no login: on this machine, as long as no user was ever made."""
        return not self._login_always and not self._users and is_loopback(address)

    def keys_for(self, name: str) -> Keys:
        if name == NODE_USER:
            return self._node_keys
        user = self._users.get(name)
        return decoy_keys(name, self._secret) if user is None else user.keys

    def account(self, name: str) -> User | None:
        return self._users.get(name)

    def guard_of(self, name: str) -> Guard:
        """The rights of who has just proved to be that user."""
        if name == NODE_USER:
            return NODE
        user = self._users.get(name)
        if user is None:
            raise NotAuthenticated("this user has just been removed")
        return Guard(self._permissions[name], user)

    def guard_acting_for(self, name: str | None) -> Guard:
        """The rights of whom another node speaks for."""
        if name is not None:
            return self.guard_of(name)
        if self._users:
            raise NotAuthenticated("there are users now: log in")
        return DEVELOPMENT

    def still_holds(self, guard: Guard) -> bool:
        """Whether the user of a connection is who it was at login."""
        if guard.account is not None:
            return self._users.get(guard.account.name) == guard.account
        return guard is not DEVELOPMENT or not self._users

    def guard_at(self, address: str) -> Guard:
        return DEVELOPMENT if self.trusts(address) else STRANGER
