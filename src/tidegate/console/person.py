"""A user's connection to the broker.

All pages and programs of one user share it. If a user is removed or gets other rights, the broker
closes the connection. If it then rejects the user, the console ends the user's sessions too.
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

# Makes a client for a user's credentials, not opened yet; None means without a login.
Connect = Callable[[Credentials | None], Client]


class Person:
    """A user with a broker connection; `user` is "" if no login is needed."""

    def __init__(
        self, client: Client, user: str, grants: list[Grant], store: HostingView | None
    ) -> None:
        self.client = client
        self.user = user
        self.store = store
        # Number of open event streams of this user.
        self.streams = 0
        self._take(grants)
        self.watch = Watch(client, lambda: self.permissions, store)

    def _take(self, grants: list[Grant]) -> None:
        self._generation = self.client.generation
        self.permissions = Permissions(grants)
        self.is_admin = self.permissions.is_everything
        self.read_only = all(one.role is Right.READ for one in grants)

    async def refresh(self) -> None:
        """Read the user's rights again if the connection was replaced.

        The broker closes the connection when the rights change.
        """
        if self.client.generation != self._generation:
            _, grants = await in_time(self.client.rights())
            self._take(grants)

    @staticmethod
    async def logged_in(
        connect: Connect, credentials: Credentials | None, store: HostingView | None
    ) -> Person:
        """Log in at the broker.

        Raises NotAuthenticated if the password is wrong or missing, Unavailable if no node answers.
        """
        client = await connect(credentials).open()
        try:
            user, grants = await in_time(client.rights())
        except BaseException:
            await client.close()
            raise
        return Person(client, user, grants, store)

    @property
    def is_gone(self) -> bool:
        """Whether the broker rejects this user now."""
        return isinstance(self.client.outage, NotAuthenticated)

    async def close(self) -> None:
        await self.watch.close()
        await self.client.close()

    def may(self, right: Right, queue: str) -> bool:
        return self.permissions.allows(right, queue)
