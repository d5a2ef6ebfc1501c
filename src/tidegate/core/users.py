"""Users, their roles, and the store of users."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec


class Right(enum.StrEnum):
    """What a request needs on each queue it names; all but `SEE` are granted as roles."""

    SEE = "see"  # included in every role on the queue
    READ = "read"
    WRITE = "write"
    CONFIGURE = "configure"
    ADMIN = "admin"  # includes all the others


ROLES = (Right.READ, Right.WRITE, Right.CONFIGURE, Right.ADMIN)


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """A role on all queues whose name matches the pattern; `*` matches any characters."""

    role: Right
    pattern: str


class Keys(msgspec.Struct, frozen=True):
    """What the store keeps of a password: it can verify a login, and cannot be used to log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "Keys(***)"


class User(msgspec.Struct, frozen=True):
    """A user as the store keeps it."""

    name: str
    keys: Keys
    grants: list[Grant] = []


class UserStore(Protocol):
    """The part of a store that keeps users; all nodes of the cluster share it."""

    async def add_user(self, user: User) -> bool: ...
    async def set_user_keys(self, name: str, keys: Keys) -> bool: ...
    async def set_user_grants(self, name: str, grants: list[Grant]) -> bool: ...
    # Also deletes the clients of the user.
    async def remove_user(self, name: str) -> bool: ...
    async def list_users(self) -> list[User]: ...
    # Changes after every change of any user.
    async def users_version(self) -> int: ...
    # The secret by which nodes of a cluster recognise each other. The first candidate is stored.
    async def cluster_secret(self, candidate: bytes) -> bytes: ...
