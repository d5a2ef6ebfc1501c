"""Users for tests: who they are, and how they come in."""

from __future__ import annotations

import functools

from tidegate.access.scram import keys_of
from tidegate.client.credentials import Credentials
from tidegate.core.users import ROLES, Grant, Keys, User
from tidegate.node.server import Node

PASSWORD = "correct horse battery"


@functools.cache
def _keys() -> Keys:
    """Made once: that they take long to make is their point."""
    return keys_of(PASSWORD, iterations=4096)


def user(name: str, **patterns: str) -> User:
    """A user with a role on each pattern: user("ann", read="orders.*")."""
    grants = [Grant(role, patterns[role.value]) for role in ROLES if role.value in patterns]
    return User(name, _keys(), grants)


async def add_user(node: Node, name: str, **patterns: str) -> None:
    assert await node.store.add_user(user(name, **patterns))
    await node.accounts.refresh()


def login(name: str) -> Credentials:
    return Credentials(name, PASSWORD)
