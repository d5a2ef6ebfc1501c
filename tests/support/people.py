"""Users for tests: who they are, and how they come in."""

from __future__ import annotations

import functools

from tidegate.broker.node import Node
from tidegate.client.address import Credentials
from tidegate.core.model import ROLES, Grant, PasswordKeys, User
from tidegate.protocol.scram import derive_keys

PASSWORD = "correct horse battery"


@functools.cache
def _keys() -> PasswordKeys:
    """Made once: that they take long to make is their point."""
    return derive_keys(PASSWORD, iterations=4096)


def user(name: str, **patterns: str) -> User:
    """A user with a role on each pattern: user("ann", read="orders.*")."""
    grants = [Grant(role, patterns[role.value]) for role in ROLES if role.value in patterns]
    return User(name, _keys(), grants)


async def add_user(node: Node, name: str, **patterns: str) -> None:
    assert await node.store.add_user(user(name, **patterns))
    await node.accounts.refresh()


def login(name: str) -> Credentials:
    return Credentials(name, PASSWORD)
