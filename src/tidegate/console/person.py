"""A user who is here: logged in at the broker under that name, with a connection of its own.

All pages and programs of one user share it. The broker hangs up on a user who was removed or has
other rights now, and does not let it in again: then it is over here, too.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.access.permissions import Permissions
from tidegate.client.client import Client
from tidegate.client.credentials import Credentials
from tidegate.console.sight import HostingView, in_time
from tidegate.console.watch import Watch
from tidegate.core.errors import NotAuthenticated
from tidegate.core.users import Grant, Right

# A client under that name, not open yet; without a name where nobody needs one.
Connect = Callable[[Credentials | None], Client]


class Person:
    """Who has logged in; user "": nobody needs to."""

    def __init__(
        self, client: Client, user: str, grants: list[Grant], store: HostingView | None
    ) -> None:
        self.client = client
        self.user = user
        self.store = store
        # How many streams of news go to this user.
        self.streams = 0
        self._take(grants)
        self.watch = Watch(client, lambda: self.permissions, store)

    def _take(self, grants: list[Grant]) -> None:
        self._generation = self.client.generation
        self.permissions = Permissions(grants)
        self.is_admin = self.permissions.is_everything
        self.read_only = all(one.role is Right.READ for one in grants)

    async def refresh(self) -> None:
        """Learn what may be done, if that may have changed: the broker hangs up when it does."""
        if self.client.generation != self._generation:
            _, grants = await in_time(self.client.rights())
            self._take(grants)

    @staticmethod
    async def logged_in(
        connect: Connect, credentials: Credentials | None, store: HostingView | None
    ) -> Person:
        """NotAuthenticated: a wrong password, or one is needed; Unavailable: no node answers."""
        client = await connect(credentials).open()
        try:
            user, grants = await in_time(client.rights())
        except BaseException:
            await client.close()
            raise
        return Person(client, user, grants, store)

    @property
    def is_gone(self) -> bool:
        """Whether the broker does not let this user in any more."""
        return isinstance(self.client.outage, NotAuthenticated)

    async def close(self) -> None:
        await self.watch.close()
        await self.client.close()

    def may(self, right: Right, queue: str) -> bool:
        return self.permissions.allows(right, queue)
