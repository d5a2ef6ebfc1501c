"""Users: who may log in, and what they may do with which queues."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec


class Right(enum.StrEnum):
    """What a request needs on each queue that it names; all but the first are granted as roles."""

    SEE = "see"  # any role on the queue gives it
    READ = "read"
    WRITE = "write"
    CONFIGURE = "configure"
    ADMIN = "admin"  # gives all the others


ROLES = (Right.READ, Right.WRITE, Right.CONFIGURE, Right.ADMIN)


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """A role on every queue whose name fits the pattern; `*` stands for any characters."""

    role: Right
    pattern: str


class Keys(msgspec.Struct, frozen=True):
    """What is kept of a password: enough to check who knows it, too little to be them."""

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
    """The part of a store that knows users; all nodes on a store share it."""

    async def add_user(self, user: User) -> bool: ...
    async def set_user_keys(self, name: str, keys: Keys) -> bool: ...
    async def set_user_grants(self, name: str, grants: list[Grant]) -> bool: ...
    # Its clients go with it.
    async def remove_user(self, name: str) -> bool: ...
    async def list_users(self) -> list[User]: ...
    # Another one after every change of any user.
    async def users_version(self) -> int: ...
    # What nodes know each other by: the first candidate ever handed in.
    async def cluster_secret(self, candidate: bytes) -> bytes: ...
